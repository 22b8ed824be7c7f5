//! The `tenants` of a configuration file: who may call, with which keys and on which terms.

use super::problem::Problem;
use super::settings::{Config, Secret};
use super::tree::{Field, Section};
use maitred_core::line::{LineLimits, TenantTerms};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Keys of all tenants together: every one is compared with each request's.
pub(crate) const KEYS_MAX: usize = 10_000;
/// Bytes that a `salt_secret` must have, so that nobody guesses it.
const SECRET_MIN: usize = 16;

/// How a key is hashed, for those who wrote the key itself.
const HOW_TO_HASH: &str = "keys are not written here, only their hashes: `key_sha256: HEX` with what `maitred hash-key` prints for the key (or `printf %s KEY | sha256sum`)";

/// SHA-256 of a key.
pub type KeyDigest = [u8; 32];

/// The digest of a key: of its bytes, without white space around.
#[must_use]
pub fn digest_of(key: &[u8]) -> KeyDigest {
    Sha256::digest(key.trim_ascii()).into()
}

/// Where a key is found.
#[derive(Clone, PartialEq, Eq)]
pub enum KeySource {
    /// Its digest is in the file.
    Digest(KeyDigest),
    /// In a file, one key a line; read at start.
    File(PathBuf),
    /// In a variable of the environment; read at start.
    Environment(String),
}

impl std::fmt::Debug for KeySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Digest(_) => f.write_str("Digest([redacted])"),
            Self::File(path) => write!(f, "File({})", path.display()),
            Self::Environment(name) => write!(f, "Environment({name})"),
        }
    }
}

impl KeySource {
    /// The digests of the keys that are there.
    ///
    /// # Errors
    /// What is missing.
    pub fn load(&self) -> Result<Vec<KeyDigest>, String> {
        let keys = match self {
            Self::Digest(digest) => return Ok(vec![*digest]),
            Self::File(path) => {
                std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?
            }
            Self::Environment(name) => std::env::var(name)
                .map_err(|_| format!("the environment variable {name} is not set"))?,
        };
        let keys = keys.lines().map(str::trim).filter(|key| !key.is_empty());
        let digests: Vec<KeyDigest> = keys.map(|key| digest_of(key.as_bytes())).collect();
        if digests.is_empty() {
            return Err("holds no key".to_owned());
        }
        Ok(digests)
    }
}

/// One tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantSettings {
    /// Its name: in metrics and the admin API.
    pub name: String,
    /// Its keys; none: only `tenant_header` names it.
    pub keys: Vec<KeySource>,
    /// The name of the band that its requests wait in; None: the pool's first.
    pub band: Option<String>,
    /// Its weight and limits; the band is by `band`.
    pub terms: TenantTerms,
}

impl TenantSettings {
    pub(super) fn show(&self) -> Value {
        json!({
            "name": self.name,
            "keys": self.keys.len(),
            "weight": self.terms.weight,
            "band": self.band,
            "requests_max": self.terms.limits.requests_max,
            "bytes_max": self.terms.limits.bytes_max,
        })
    }
}

/// What becomes of callers without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anonymous {
    /// They are served, as one tenant.
    Allow,
    /// They get 401.
    Refuse,
}

impl Anonymous {
    /// The name in the configuration file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Refuse => "refuse",
        }
    }
}

impl Config {
    /// What becomes of callers without a key.
    #[must_use]
    pub fn anonymous(&self) -> Anonymous {
        let open = self.tenants.is_empty() && self.tenant_header.is_none();
        self.anonymous.unwrap_or(if open {
            Anonymous::Allow
        } else {
            Anonymous::Refuse
        })
    }
}

/// Takes `tenants` and what goes with them.
/// The bands that tenants name come back, each with the problem that it is where no pool has it.
pub(super) fn read(
    top: &mut Section<'_>,
    config: &mut Config,
    problems: &mut Vec<Problem>,
) -> Vec<(String, Problem)> {
    top.set(
        problems,
        "anonymous",
        &mut config.anonymous,
        |field| match field.text()? {
            "allow" => Ok(Some(Anonymous::Allow)),
            "refuse" => Ok(Some(Anonymous::Refuse)),
            _ => Err(field.problem("must be allow or refuse")),
        },
    );
    if let Some(field) = top.take("tenant_header") {
        match field.header_name() {
            Ok(name) => config.tenant_header = Some(name),
            Err(problem) => problems.push(problem),
        }
        if config.trusted_proxies.is_empty() {
            problems.push(
                field.problem(
                    "needs `trusted_proxies`: from anybody else the header is not believed",
                ),
            );
        }
    }
    top.set(problems, "salt_secret", &mut config.salt_secret, |field| {
        let secret = field.text()?;
        if secret.len() < SECRET_MIN {
            return Err(field.problem(format!("must have at least {SECRET_MIN} bytes")));
        }
        Ok(Some(Secret::new(secret)))
    });
    let Some(field) = top.take("tenants") else {
        return Vec::new();
    };
    let mut seen = Seen::default();
    for item in field.items() {
        match Section::open(&item) {
            Ok(section) => {
                let tenant = read_tenant(section, &mut seen, problems);
                config.tenants.extend(tenant);
            }
            Err(_) => problems.push(item.wrong_kind("a mapping with `name`")),
        }
    }
    if seen.keys.len() > KEYS_MAX {
        problems.push(field.problem(format!("there are at most {KEYS_MAX} keys")));
    }
    seen.bands
}

#[derive(Default)]
struct Seen {
    names: BTreeSet<String>,
    keys: BTreeSet<KeyDigest>,
    bands: Vec<(String, Problem)>,
}

fn read_tenant(
    mut section: Section<'_>,
    seen: &mut Seen,
    problems: &mut Vec<Problem>,
) -> Option<TenantSettings> {
    let mut tenant = TenantSettings {
        name: String::new(),
        keys: Vec::new(),
        band: None,
        terms: TenantTerms::default(),
    };
    match section.take("name") {
        Some(field) => match field.name() {
            Ok(name) if seen.names.insert(name.clone()) => tenant.name = name,
            Ok(name) => problems.push(field.problem(format!("`{name}` is there already"))),
            Err(problem) => problems.push(problem),
        },
        None => problems.push(section.problem("name", "is missing")),
    }
    read_keys(&mut section, &mut tenant, seen, problems);
    let terms = &mut tenant.terms;
    section.set(problems, "weight", &mut terms.weight, |field| {
        let weight = field.number()?;
        if weight > 0.0 && weight <= 1e6 {
            Ok(weight)
        } else {
            Err(field.problem("must be more than 0, at most 1000000"))
        }
    });
    section.set(problems, "band", &mut tenant.band, |field| {
        let band = field.name()?;
        let problem = field.problem(format!("no pool has a band `{band}`"));
        seen.bands.push((band.clone(), problem));
        Ok(Some(band))
    });
    read_limits(&mut section, &mut terms.limits, problems);
    section.finish(problems);
    (!tenant.name.is_empty()).then_some(tenant)
}

fn read_keys(
    section: &mut Section<'_>,
    tenant: &mut TenantSettings,
    seen: &mut Seen,
    problems: &mut Vec<Problem>,
) {
    for plain in ["key", "keys", "api_key", "api_keys"] {
        if let Some(field) = section.take(plain) {
            problems.push(field.problem(HOW_TO_HASH));
        }
    }
    if let Some(field) = section.take("key_sha256") {
        for item in field.items() {
            match read_digest(&item) {
                Ok(digest) if seen.keys.insert(digest) => {
                    tenant.keys.push(KeySource::Digest(digest));
                }
                Ok(_) => {
                    problems.push(item.problem("is there already: a key is one tenant's"));
                }
                Err(problem) => problems.push(problem),
            }
        }
    }
    if let Some(field) = section.take("key_file") {
        let files = field.texts(problems).into_iter();
        tenant.keys.extend(files.map(|f| KeySource::File(f.into())));
    }
    if let Some(field) = section.take("key_env") {
        let names = field.texts(problems).into_iter();
        tenant.keys.extend(names.map(KeySource::Environment));
    }
}

/// 64 hexadecimal digits. What is none may be the key itself: it is not repeated.
fn read_digest(field: &Field<'_>) -> Result<KeyDigest, Problem> {
    let text = field.text().map_err(|_| field.problem(HOW_TO_HASH))?;
    let wrong = || field.problem(format!("must be 64 hexadecimal digits: {HOW_TO_HASH}"));
    let mut digest = [0; 32];
    if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    for (place, byte) in digest.iter_mut().enumerate() {
        let digits = &text[2 * place..2 * place + 2];
        *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
    }
    Ok(digest)
}

/// `requests_max` and `bytes_max`: what may wait.
pub(super) fn read_limits(
    section: &mut Section<'_>,
    limits: &mut LineLimits,
    problems: &mut Vec<Problem>,
) {
    section.set(
        problems,
        "requests_max",
        &mut limits.requests_max,
        |field| {
            let most = field.count(&(1..=u64::from(u32::MAX)))?;
            Ok(u32::try_from(most).ok())
        },
    );
    section.set(problems, "bytes_max", &mut limits.bytes_max, |field| {
        field.bytes(&(1..=u64::MAX)).map(Some)
    });
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::super::check;
    use super::Anonymous;

    const HEX: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn tenants_have_keys_terms_and_bands() {
        let text = format!(
            "salt_secret: 0123456789abcdef
tenants:
  - {{ name: acme, key_sha256: ['{HEX}'], weight: 2.5, band: fast, requests_max: 9, bytes_max: 1MiB }}
  - {{ name: other, key_env: OTHER_KEY }}
pools:
  - isolation: tenant
    inject_cache_salt: true
    revision: r2
    fairness: {{ name: promise, new_share: 0.3 }}
    flow_limits: {{ requests_max: 4 }}
    bands: [{{ name: fast, floor: 0.5 }}, {{ name: slow, requests_max: 100 }}]
"
        );
        let config = check(&text).unwrap();
        let acme = &config.tenants[0];
        assert_eq!(
            (acme.terms.weight, acme.band.as_deref()),
            (2.5, Some("fast"))
        );
        assert_eq!(acme.terms.limits.bytes_max, Some(1 << 20));
        assert_eq!(config.anonymous(), Anonymous::Refuse);
        let core = &config.pools[0].core;
        assert_eq!(core.fairness.name(), "promise");
        assert_ne!(core.fairness, maitred_core::line::FairnessConfig::default());
        assert_eq!(core.flow_limits.requests_max, Some(4));
        assert_eq!(core.bands[1].limits.requests_max, Some(100));
        let shown = config.show().to_string();
        assert!(!shown.contains(HEX) && !shown.contains("0123456789abcdef"));
        assert_eq!(config.show()["pools"][0]["bands"][0]["floor"], 0.5);
        assert_eq!(config.show()["pools"][0]["isolation"], "tenant");
        assert!(!format!("{config:?}").contains("0123456789abcdef"));
        let open = check("pools: [{}]").unwrap();
        assert_eq!(open.anonymous(), Anonymous::Allow);
    }

    #[test]
    fn what_is_wrong_is_said_where_it_stands() {
        let tenants = |tenant: &str| format!("pools: [{{}}]\ntenants:\n  - {tenant}");
        let pool = |lines: &str| format!("tenants: []\npools:\n  - {lines}");
        let plain = "0123456789abcdef is no hash but the key";
        for (text, line, field, part) in [
            (
                tenants("{ name: a, keys: [k] }"),
                3,
                "tenants[0].keys",
                "maitred hash-key",
            ),
            (
                tenants(&format!("{{ name: a, key_sha256: '{plain}' }}")),
                3,
                "tenants[0].key_sha256",
                "maitred hash-key",
            ),
            (tenants("{ weight: 1 }"), 3, "tenants[0].name", "is missing"),
            (
                tenants("{ name: a, weight: 0 }"),
                3,
                "tenants[0].weight",
                "more than 0",
            ),
            (
                tenants("{ name: a, band: x }"),
                3,
                "tenants[0].band",
                "no pool has a band `x`",
            ),
            (
                tenants(&format!("{{ name: a, key_sha256: ['{HEX}', '{HEX}'] }}")),
                3,
                "tenants[0].key_sha256[1]",
                "one tenant's",
            ),
            (
                "tenant_header: x-tenant\npools: [{}]".to_owned(),
                1,
                "tenant_header",
                "needs `trusted_proxies`",
            ),
            (
                "salt_secret: short\npools: [{}]".to_owned(),
                1,
                "salt_secret",
                "16 bytes",
            ),
            (
                pool("isolation: yes please"),
                3,
                "pools[0].isolation",
                "pool, tenant or salt",
            ),
            (
                pool("inject_cache_salt: true"),
                3,
                "pools[0].inject_cache_salt",
                "needs `isolation: tenant`",
            ),
            (
                pool("{ isolation: tenant, inject_cache_salt: true }"),
                3,
                "pools[0].inject_cache_salt",
                "needs `salt_secret`",
            ),
            (
                pool(
                    "{ isolation: tenant, workers: [{ url: 'http://h:1', kv_events: 'tcp://h:2' }] }",
                ),
                3,
                "pools[0].isolation",
                "inject_cache_salt: true",
            ),
            (
                pool("fairness: promis"),
                3,
                "pools[0].fairness",
                "did you mean `promise`?",
            ),
            (
                pool("fairness: { name: fcfs, x: 1 }"),
                3,
                "pools[0].fairness.x",
                "has no options",
            ),
            (
                pool("bands: [{ floor: 1 }]"),
                3,
                "pools[0].bands[0].name",
                "is missing",
            ),
            (
                pool("bands: [{ name: a, floor: 0.6 }, { name: b, floor: 0.6 }]"),
                3,
                "pools[0].bands.floor",
                "together at most 1",
            ),
        ] {
            let problems = check(&text).unwrap_err();
            let found = problems
                .iter()
                .find(|p| p.field == field && p.message.contains(part));
            let found = found.unwrap_or_else(|| panic!("{text}: {problems:?}"));
            assert_eq!(found.line, line, "{found}");
            assert!(problems.iter().all(|p| !p.message.contains(plain)));
        }
    }
}
