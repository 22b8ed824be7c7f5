//! The configuration: one YAML file, or flags for the simple case.
//!
//! [`check`] turns text into a [`Config`] or into [`Problem`]s that point at line and field.
//! Nothing is read, resolved or connected to; only whether the files that it names are there is looked at.

mod flags;
mod identity;
mod isolation;
mod kv_events;
mod line;
mod options;
mod pools;
mod problem;
mod pull;
mod read;
mod settings;
mod show;
mod tenants;
mod tree;
mod values;

pub use flags::Flags;
pub use identity::IdentitySettings;
pub use isolation::{Isolation, IsolationSettings};
pub use kv_events::{KvEventsMode, KvEventsPlace, KvEventsSettings};
pub(crate) use options::{Choice, from_json};
pub(crate) use pools::parse_engine;
pub use problem::Problem;
pub use pull::{HordeSettings, PullSettings, PullToken, hash_token};
pub use read::check;
pub use settings::{
    AllowRule, Config, DEFAULT_POLICY, EngineChoice, Limits, PoolSettings, ProbeSettings,
    ScrapeSettings, Secret, Timeouts, WorkerSettings, WorkerUrl,
};
pub use tenants::{Anonymous, KeyDigest, KeySource, TenantSettings, digest_of};
pub(crate) use values::{parse_duration, valid_name};

#[cfg(test)]
mod tests;
