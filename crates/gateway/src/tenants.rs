//! The tenants at run time: who a key belongs to, and the salts that keep their caches apart.

use crate::config::{Anonymous, Config, KeyDigest, Secret, digest_of};
use hmac::{Hmac, KeyInit, Mac};
use maitred_core::ids::TenantId;
use maitred_core::line::{Band, TenantTerms, Tenants};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Bytes of a salt: nobody finds another tenant's by trying.
const SALT_BYTES: usize = 16;

/// Who is isolated from others: a digest of the tenant's name or of an anonymous caller's
/// credential; all zeros for who sends none. It stays within the process.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Identity([u8; 32]);

impl Identity {
    pub(crate) fn of_tenant(name: &str) -> Self {
        Self::of(b"tenant\0", name.as_bytes())
    }

    pub(crate) fn of_credential(credential: &[u8]) -> Self {
        Self::of(b"credential\0", credential)
    }

    fn of(kind: &[u8], text: &[u8]) -> Self {
        let digest = Sha256::new().chain_update(kind).chain_update(text);
        Self(digest.finalize().into())
    }

    /// Its first 64 bits: equal in every process for an equal name.
    pub(crate) fn number(self) -> u64 {
        self.0.iter().take(8).fold(0, |n, b| n << 8 | u64::from(*b))
    }
}

/// The id of the tenant of that name, in every process.
#[must_use]
pub fn tenant_id(name: &str) -> TenantId {
    TenantId(Identity::of_tenant(name).number())
}

/// A tenant of the configuration.
#[derive(Debug)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: TenantId,
    band: Option<String>,
    terms: TenantTerms,
}

/// All tenants of the configuration and their keys.
pub struct Registry {
    tenants: Vec<Tenant>,
    /// Each with the tenant's place.
    keys: Vec<(KeyDigest, usize)>,
    salts: Option<Hmac<Sha256>>,
    anonymous: Anonymous,
    shown: Value,
}

impl Registry {
    /// Reads keys from where the configuration says they are.
    ///
    /// # Errors
    /// The tenant and the key that cannot be used.
    pub fn load(config: &Config) -> Result<Self, String> {
        let mut keys: Vec<(KeyDigest, usize)> = Vec::new();
        for (place, tenant) in config.tenants.iter().enumerate() {
            for source in &tenant.keys {
                let found = source.load();
                let found = found.map_err(|e| format!("tenant {}: {e}", tenant.name))?;
                for digest in found {
                    match keys.iter().find(|(known, _)| *known == digest) {
                        Some((_, other)) if *other != place => {
                            let other = &config.tenants[*other].name;
                            let name = &tenant.name;
                            return Err(format!("tenants {other} and {name} have one key"));
                        }
                        _ => keys.push((digest, place)),
                    }
                }
            }
        }
        let tenants = config.tenants.iter().map(|tenant| Tenant {
            name: tenant.name.clone(),
            id: tenant_id(&tenant.name),
            band: tenant.band.clone(),
            terms: tenant.terms,
        });
        Ok(Self {
            tenants: tenants.collect(),
            keys,
            salts: config.salt_secret.as_ref().and_then(salts),
            anonymous: config.anonymous(),
            shown: config.show_tenants(),
        })
    }

    /// Whether nobody needs a key.
    pub(crate) fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    /// What becomes of callers without a key.
    pub(crate) fn anonymous(&self) -> Anonymous {
        self.anonymous
    }

    /// The tenants as the effective configuration shows them.
    pub(crate) fn show(&self) -> &Value {
        &self.shown
    }

    /// Whose key it is. Every key is compared to its end, so that the time taken tells nothing.
    pub(crate) fn by_key(&self, key: &[u8]) -> Option<&Tenant> {
        let digest = digest_of(key);
        let mut found = None;
        for (known, place) in &self.keys {
            let differs = known.iter().zip(&digest).fold(0, |d, (a, b)| d | (a ^ b));
            if std::hint::black_box(differs) == 0 {
                found = Some(*place);
            }
        }
        self.tenants.get(found?)
    }

    /// The name of a tenant of the configuration.
    #[must_use]
    pub fn name_of(&self, id: TenantId) -> Option<&str> {
        let tenant = self.tenants.iter().find(|tenant| tenant.id == id)?;
        Some(&tenant.name)
    }

    /// Everybody's terms in a pool with these bands. A band that the pool does not have is its
    /// first.
    pub(crate) fn terms(&self, bands: &[Band]) -> Tenants {
        let terms = self.tenants.iter().map(|tenant| {
            let named = |band: &Band| Some(&band.name) == tenant.band.as_ref();
            let band = bands.iter().position(named).unwrap_or(0);
            let terms = TenantTerms {
                band: u16::try_from(band).unwrap_or(u16::MAX),
                ..tenant.terms
            };
            (tenant.id, terms)
        });
        Tenants {
            terms: terms.collect(),
            default: TenantTerms::default(),
        }
    }

    /// The salt that an engine gets for requests of this caller: HMAC-SHA256 with `salt_secret` over
    /// who it is and the salt that it sent itself (empty without), in hexadecimal digits. Equal
    /// after restarts and in every gateway with the secret; without the secret it tells nothing,
    /// and no salt that a client sends makes it another tenant's.
    pub(crate) fn salt(&self, identity: Identity, sent: &str) -> Option<String> {
        let mut mac = self.salts.clone()?;
        mac.update(&identity.0);
        mac.update(sent.as_bytes());
        let whole = mac.finalize().into_bytes();
        let digits = whole.iter().take(SALT_BYTES).map(|b| format!("{b:02x}"));
        Some(digits.collect())
    }
}

fn salts(secret: &Secret) -> Option<Hmac<Sha256>> {
    // Keys of any length are taken.
    Hmac::new_from_slice(secret.reveal().as_bytes()).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{Identity, Registry, tenant_id};
    use crate::config::{Secret, check, digest_of};

    fn registry(text: &str) -> Registry {
        Registry::load(&check(text).unwrap()).unwrap()
    }

    fn hex(digest: &[u8]) -> String {
        digest.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn a_key_names_its_tenant() {
        let [a, b] = ["key-a", "key-b"].map(|key| hex(&digest_of(key.as_bytes())));
        let text = format!(
            "tenants:\n  - {{ name: a, key_sha256: '{a}' }}\n  - {{ name: b, key_sha256: ['{b}'] }}\npools: [{{}}]"
        );
        let registry = registry(&text);
        let name = |key: &str| registry.by_key(key.as_bytes()).map(|t| t.name.as_str());
        assert_eq!(name("key-a"), Some("a"));
        assert_eq!(name(" key-b"), Some("b"));
        for wrong in ["", "key-", "key-aa", a.as_str()] {
            assert_eq!(name(wrong), None);
        }
        assert_eq!(registry.name_of(tenant_id("b")), Some("b"));
        assert_eq!(registry.name_of(tenant_id("c")), None);
    }

    /// FIPS 180-4's example, and SHA-256 of "tenant\0a" by another program.
    #[test]
    fn digests_and_ids_are_the_same_everywhere() {
        assert_eq!(
            hex(&digest_of(b"abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(tenant_id("a").0, ID_OF_A);
    }

    const ID_OF_A: u64 = 0x9b92_19fd_b36c_db97;

    #[test]
    fn keys_come_from_files_and_belong_to_one_tenant() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "first\n\n  second \n").unwrap();
        let path = file.path().display();
        let one = format!("tenants: [{{ name: a, key_file: '{path}' }}]\npools: [{{}}]");
        let registry = registry(&one);
        assert!(registry.by_key(b"first").is_some() && registry.by_key(b"second").is_some());
        let digest = hex(&digest_of(b"first"));
        let two = one.replace(
            "}]\n",
            &format!("}}, {{ name: b, key_sha256: '{digest}' }}]\n"),
        );
        let error = Registry::load(&check(&two).unwrap()).err().unwrap();
        assert_eq!(error, "tenants a and b have one key");
        let none = one.replace("key_file", "key_env");
        let error = Registry::load(&check(&none).unwrap()).err().unwrap();
        assert!(error.contains("is not set"), "{error}");
    }

    #[test]
    fn salts_are_stable_secret_and_never_anothers() {
        let text = |secret: &str| format!("salt_secret: {secret}\npools: [{{}}]");
        let one = registry(&text("0123456789abcdef"));
        let again = registry(&text("0123456789abcdef"));
        let other = registry(&text("0123456789abcdeg"));
        let (a, b) = (Identity::of_tenant("a"), Identity::of_tenant("b"));
        let salt = one.salt(a, "").unwrap();
        assert_eq!(salt.len(), 32);
        assert_eq!(again.salt(a, "").unwrap(), salt);
        assert_ne!(other.salt(a, "").unwrap(), salt);
        assert_ne!(one.salt(b, "").unwrap(), salt);
        // Sending what another is given gives what is one's own.
        assert_ne!(one.salt(b, &salt).unwrap(), salt);
        assert_ne!(one.salt(a, "x").unwrap(), one.salt(b, "x").unwrap());
        assert_ne!(one.salt(a, "x").unwrap(), salt);
        // A credential that is spelt like a name is not the name.
        assert!(Identity::of_credential(b"a") != a);
        assert!(format!("{:?}", Secret::new("x")).contains("redacted"));
        assert_eq!(registry("pools: [{}]").salt(a, ""), None);
    }
}
