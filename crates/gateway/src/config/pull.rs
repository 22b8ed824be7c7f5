//! `pull`: workers that connect to us and ask for their requests.

use super::problem::Problem;
use super::tree::{Field, Section};
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
        }
    }

    pub(super) fn show(&self) -> serde_json::Value {
        let owner =
            |t: &PullToken| json!({"owner": t.owner, "token": "[redacted]", "pools": t.pools});
        json!({
            "listen": self.listen.to_string(),
            "tokens": self.tokens.iter().map(owner).collect::<Vec<_>>(),
            "workers_max": self.workers_max,
            "silence": self.silence.as_secs_f64(),
            "wait_max": self.wait_max.as_secs_f64(),
            "idle": self.idle.as_secs_f64(),
        })
    }
}

/// The hash by which a token is known.
#[must_use]
pub fn hash_token(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// Reads the section, where there is one.
pub(super) fn read(top: &mut Section<'_>, problems: &mut Vec<Problem>) -> Option<PullSettings> {
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
                pull.tokens.extend(read_token(&item, problems));
            }
        }
        None => problems.push(section.problem("tokens", "is missing; no worker could be let in")),
    }
    section.set_count(problems, "workers_max", &mut pull.workers_max, 1..=4_096);
    section.set_period(problems, "silence", &mut pull.silence);
    section.set_period(problems, "wait_max", &mut pull.wait_max);
    section.set_period(problems, "idle", &mut pull.idle);
    section.finish(problems);
    Some(pull)
}

fn read_token(field: &Field<'_>, problems: &mut Vec<Problem>) -> Option<PullToken> {
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
    let pools = match section.take("pools") {
        Some(field) => field.texts(problems),
        None => Vec::new(),
    };
    section.finish(problems);
    Some(PullToken { owner, hash, pools })
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
        });
        assert_eq!(read, plain);
        // SHA-256 of "secret", by another program.
        let hash = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
        let hashed = file.replace("token: secret ", &format!("token_sha256: {hash} "));
        assert_ne!(hashed, file);
        assert_eq!(check(&hashed).unwrap().pull.unwrap(), plain);
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
    }
}
