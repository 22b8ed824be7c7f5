//! The configuration: one YAML file, or flags for the simple case.
//!
//! [`check`] turns text into a [`Config`] or into [`Problem`]s that point at line and field.

mod settings;

pub use settings::{
    AllowRule, Config, EngineChoice, Limits, PoolSettings, ProbeSettings, ScrapeSettings, Secret,
    Timeouts, WorkerSettings, WorkerUrl,
};
