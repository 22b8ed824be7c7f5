//! The simple case: one pool, from flags.

use super::options::{Choice, unknown};
use super::problem::Problem;
use super::settings::{Config, PoolSettings};
use maitred_core::line::FairnessConfig;
use maitred_core::place::PolicyConfig;
use std::net::SocketAddr;
use std::path::PathBuf;

/// What `maitred serve` takes on its command line. Each flag that is set overrides the file.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--listen`.
    pub listen: Option<SocketAddr>,
    /// `--admin`.
    pub admin: Option<SocketAddr>,
    /// `--worker`, any number of times: URLs of the one pool.
    pub workers: Vec<String>,
    /// `--policy`.
    pub policy: Option<String>,
    /// `--fairness`.
    pub fairness: Option<String>,
    /// `--model`.
    pub model: Option<String>,
    /// `--records`.
    pub records: Option<PathBuf>,
    /// `--threads`.
    pub threads: Option<usize>,
}

impl Flags {
    /// The configuration that the file (if there is one) and the flags give together.
    ///
    /// # Errors
    /// Every flag that is wrong or contradicts the file.
    pub fn apply(&self, file: Option<Config>) -> Result<Config, Vec<Problem>> {
        let mut problems = Vec::new();
        let from_file = file.is_some();
        let mut config = file.unwrap_or_default();
        if let Some(listen) = self.listen {
            config.listen = listen;
        }
        if let Some(admin) = self.admin {
            config.admin = admin;
        }
        if !config.admin.ip().is_loopback() && config.admin_token.is_none() {
            problems.push(problem(
                "--admin",
                "must be a loopback address unless `admin_token` is set in the file",
            ));
        }
        if config.listen == config.admin && config.listen.port() != 0 {
            problems.push(problem("--admin", "must be another address than --listen"));
        }
        if let Some(threads) = self.threads {
            config.threads = threads;
        }
        if let Some(dir) = &self.records {
            config.records.dir = Some(dir.clone());
        }
        if from_file {
            for (flag, given) in [
                ("--worker", !self.workers.is_empty()),
                ("--model", self.model.is_some()),
            ] {
                if given {
                    problems.push(problem(
                        flag,
                        "cannot be combined with --config: write it into the file",
                    ));
                }
            }
        } else {
            config.pools = vec![self.pool(&mut problems)];
        }
        let policy = chosen::<PolicyConfig>("--policy", &self.policy, &mut problems);
        let fairness = chosen::<FairnessConfig>("--fairness", &self.fairness, &mut problems);
        for pool in &mut config.pools {
            if let Some(policy) = &policy {
                pool.core.policy = policy.clone();
            }
            if let Some(fairness) = &fairness {
                pool.core.fairness = fairness.clone();
            }
        }
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(problems)
        }
    }

    fn pool(&self, problems: &mut Vec<Problem>) -> PoolSettings {
        let mut pool = PoolSettings::named("default");
        pool.model.clone_from(&self.model);
        for url in &self.workers {
            match pool.worker(url) {
                Ok(worker) => {
                    let name = &worker.name;
                    if pool.workers.iter().any(|w| w.name == *name) {
                        problems.push(problem("--worker", format!("`{url}` is there already")));
                    } else {
                        pool.workers.push(worker);
                    }
                }
                Err(error) => problems.push(problem("--worker", format!("`{url}`: {error}"))),
            }
        }
        pool
    }
}

/// What the flag names.
fn chosen<C: Choice>(flag: &str, name: &Option<String>, problems: &mut Vec<Problem>) -> Option<C> {
    let name = name.as_ref()?;
    let choice = C::choose(name);
    if choice.is_none() {
        problems.push(problem(flag, unknown::<C>(name)));
    }
    choice
}

fn problem(flag: &str, message: impl Into<String>) -> Problem {
    Problem {
        line: 0,
        column: 0,
        field: flag.to_owned(),
        message: message.into(),
    }
}
