//! `pull`: workers that connect to us and ask for their requests.

use super::Config;
use super::problem::Problem;
use super::tree::{Field, Section};
use crate::tenants::tenant_id;
use maitred_core::ids::TenantId;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::net::SocketAddr;
use std::time::Duration;

/// What a worker shows to be let in; only the token's hash is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullToken {
    /// Whose workers they are. A worker's name belongs to the owner that used it first.
    pub owner: String,
    /// SHA-256 of the token.
    pub hash: [u8; 32],
    /// Pools that its workers may serve; empty: any.
    pub pools: Vec<String>,
    /// Names that its workers may have; `*` at the end stands for any rest. Empty: any.
    pub workers: Vec<String>,
    /// Tenants that its workers serve; empty: everybody.
    pub tenants: Vec<String>,
}

impl PullToken {
    /// Whether a worker of that name may show it.
    pub(crate) fn allows_name(&self, name: &str) -> bool {
        let fits = |allowed: &String| match allowed.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == allowed,
        };
        self.workers.is_empty() || self.workers.iter().any(fits)
    }

    /// Whom its workers serve; empty: everybody.
    pub(crate) fn tenant_ids(&self) -> Vec<TenantId> {
        self.tenants.iter().map(|name| tenant_id(name)).collect()
    }
}

/// Workers that speak the AI Horde's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HordeSettings {
    /// How long a pop is held; the shortest patience of known workers is 40 s.
    pub wait: Duration,
    /// A job that is not answered for longer is lost: such workers say nothing while they work.
    pub ttl: Duration,
}

impl Default for HordeSettings {
    fn default() -> Self {
        Self {
            wait: Duration::from_secs(20),
            ttl: Duration::from_secs(150),
        }
    }
}

/// Workers that pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullSettings {
    /// Where they connect.
    pub listen: SocketAddr,
    /// Who may.
    pub tokens: Vec<PullToken>,
    /// Workers at once.
    pub workers_max: usize,
    /// A worker that says nothing for longer has lost its jobs.
    pub silence: Duration,
    /// The longest that a poll is held.
    pub wait_max: Duration,
    /// A worker that says nothing for longer is removed.
    pub idle: Duration,
    /// Workers that speak the AI Horde's API.
    pub horde: HordeSettings,
}

impl PullSettings {
    /// Every default, with nobody let in.
    #[must_use]
    pub fn at(listen: SocketAddr) -> Self {
        Self {
            listen,
            tokens: Vec::new(),
            workers_max: 256,
            silence: Duration::from_secs(10),
            wait_max: Duration::from_secs(30),
            idle: Duration::from_secs(300),
            horde: HordeSettings::default(),
        }
    }

    pub(super) fn show(&self) -> serde_json::Value {
        let owner = |t: &PullToken| {
            json!({
                "owner": t.owner,
                "token": "[redacted]",
                "pools": t.pools,
                "workers": t.workers,
                "tenants": t.tenants,
            })
        };
        json!({
            "listen": self.listen.to_string(),
            "tokens": self.tokens.iter().map(owner).collect::<Vec<_>>(),
            "workers_max": self.workers_max,
            "silence": self.silence.as_secs_f64(),
            "wait_max": self.wait_max.as_secs_f64(),
            "idle": self.idle.as_secs_f64(),
            "horde": {
                "wait": self.horde.wait.as_secs_f64(),
                "ttl": self.horde.ttl.as_secs_f64(),
            },
        })
    }
}

/// The hash by which a token is known.
#[must_use]
pub fn hash_token(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// Pools and tenants that tokens name, each with the problem that it is where there is none.
#[derive(Default)]
pub(super) struct Named {
    pools: Vec<(String, Problem)>,
    tenants: Vec<(String, Problem)>,
}

impl Named {
    pub(super) fn check(self, config: &Config, problems: &mut Vec<Problem>) {
        let pool = |name: &String| config.pools.iter().any(|pool| pool.name == *name);
        let tenant = |name: &String| config.tenants.iter().any(|tenant| tenant.name == *name);
        let pools = self.pools.into_iter().filter(|(name, _)| !pool(name));
        let tenants = self.tenants.into_iter().filter(|(name, _)| !tenant(name));
        problems.extend(pools.chain(tenants).map(|(_, problem)| problem));
    }
}

/// Reads the section, where there is one.
pub(super) fn read(
    top: &mut Section<'_>,
    named: &mut Named,
    problems: &mut Vec<Problem>,
) -> Option<PullSettings> {
    let mut section = top.section(problems, "pull")?;
    let Some(listen) = section.take("listen") else {
        problems.push(section.problem("listen", "is missing"));
        return None;
    };
    let listen = match listen.address() {
        Ok(listen) => listen,
        Err(problem) => {
            problems.push(problem);
            return None;
        }
    };
    let mut pull = PullSettings::at(listen);
    match section.take("tokens") {
        Some(tokens) => {
            for item in tokens.items() {
                pull.tokens.extend(read_token(&item, named, problems));
            }
        }
        None => problems.push(section.problem("tokens", "is missing; no worker could be let in")),
    }
    section.set_count(problems, "workers_max", &mut pull.workers_max, 1..=4_096);
    section.set_period(problems, "silence", &mut pull.silence);
    section.set_period(problems, "wait_max", &mut pull.wait_max);
    section.set_period(problems, "idle", &mut pull.idle);
    if let Some(mut horde) = section.section(problems, "horde") {
        horde.set_period(problems, "wait", &mut pull.horde.wait);
        horde.set_period(problems, "ttl", &mut pull.horde.ttl);
        horde.finish(problems);
    }
    section.finish(problems);
    Some(pull)
}

fn read_token(
    field: &Field<'_>,
    named: &mut Named,
    problems: &mut Vec<Problem>,
) -> Option<PullToken> {
    let mut section = match Section::open(field) {
        Ok(section) => section,
        Err(problem) => {
            problems.push(problem);
            return None;
        }
    };
    let mut owner = String::new();
    section.set(problems, "owner", &mut owner, |field| field.name());
    if owner.is_empty() {
        problems.push(section.problem("owner", "is missing"));
    }
    let mut hash = None;
    section.set(problems, "token", &mut hash, |field| {
        Ok(Some(hash_token(field.text()?)))
    });
    section.set(problems, "token_sha256", &mut hash, |field| {
        let parsed = from_hex(field.text()?);
        parsed
            .map(Some)
            .ok_or_else(|| field.problem("must be 64 hexadecimal digits"))
    });
    let Some(hash) = hash else {
        problems.push(section.problem("token", "is missing (or `token_sha256`)"));
        return None;
    };
    let pools = names(
        section.take("pools"),
        "is no pool",
        &mut named.pools,
        problems,
    );
    let tenants = section.take("tenants");
    let tenants = names(tenants, "is no tenant", &mut named.tenants, problems);
    let workers = match section.take("workers") {
        Some(field) => field.texts(problems),
        None => Vec::new(),
    };
    section.finish(problems);
    Some(PullToken {
        owner,
        hash,
        pools,
        workers,
        tenants,
    })
}

fn names(
    field: Option<Field<'_>>,
    unknown: &str,
    named: &mut Vec<(String, Problem)>,
    problems: &mut Vec<Problem>,
) -> Vec<String> {
    let items = field.iter().flat_map(Field::items);
    for item in items {
        if let Ok(name) = item.text() {
            let problem = item.problem(format!("`{name}` {unknown}"));
            named.push((name.to_owned(), problem));
        }
    }
    field.map_or_else(Vec::new, |field| field.texts(problems))
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut hash = [0_u8; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{PullSettings, PullToken, hash_token};
    use crate::config::check;

    /// The commented section, without its comment signs, is the section with its defaults.
    #[test]
    fn the_documented_section_is_the_default_one() {
        let text = include_str!("../../../../docs/maitred.yaml");
        let (_, section) = text.split_once("\n# pull:").unwrap();
        let lines = section.lines().skip(1);
        let lines: Vec<&str> = lines.map_while(|line| line.strip_prefix("# ")).collect();
        let file = format!("pull:\n{}\npools: [{{ name: p }}]\n", lines.join("\n"));
        let read = check(&file).unwrap().pull.unwrap();
        let mut plain = PullSettings::at("127.0.0.1:8082".parse().unwrap());
        plain.tokens.push(PullToken {
            owner: "lab".to_owned(),
            hash: hash_token("secret"),
            pools: Vec::new(),
            workers: Vec::new(),
            tenants: Vec::new(),
        });
        assert_eq!(read, plain);
        // SHA-256 of "secret", by another program.
        let hash = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
        let hashed = file.replace("token: secret ", &format!("token_sha256: {hash} "));
        assert_ne!(hashed, file);
        assert_eq!(check(&hashed).unwrap().pull.unwrap(), plain);
    }

    #[test]
    fn names_are_allowed_whole_or_by_their_beginning() {
        let token = |workers: &[&str]| PullToken {
            owner: "lab".to_owned(),
            hash: [0; 32],
            pools: Vec::new(),
            workers: workers.iter().map(|w| (*w).to_owned()).collect(),
            tenants: Vec::new(),
        };
        assert!(token(&[]).allows_name("any"));
        let some = token(&["gpu-1", "lab-*"]);
        for (name, allowed) in [
            ("gpu-1", true),
            ("gpu-10", false),
            ("lab-", true),
            ("lab-x", true),
            ("lab", false),
        ] {
            assert_eq!(some.allows_name(name), allowed, "{name}");
        }
        assert!(token(&["*"]).allows_name("any"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |pull: &str| {
            let problems = check(&format!("pull: {pull}\npools: [{{ name: p }}]\n")).unwrap_err();
            let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
            said.join("; ")
        };
        assert!(wrong("{ tokens: [] }").contains("listen"));
        assert!(wrong("{ listen: '127.0.0.1:1' }").contains("tokens"));
        let short = "{ listen: '127.0.0.1:1', tokens: [{ owner: a, token_sha256: abc }] }";
        assert!(wrong(short).contains("64 hexadecimal digits"));
        let nameless = "{ listen: '127.0.0.1:1', tokens: [{ token: abc }] }";
        assert!(wrong(nameless).contains("owner"));
        let unknown = "{ listen: '127.0.0.1:1', tokens: [{ owner: a, token: b, pools: [p, q], tenants: [t] }] }";
        let said = wrong(unknown);
        assert!(
            said.contains("`q` is no pool") && said.contains("`t` is no tenant"),
            "{said}"
        );
        assert!(!said.contains("`p`"), "{said}");
    }
}
