//! A pool's settings: each default stands here and nowhere else.

use crate::limits::{ATTEMPTS_MAX, BANDS_MAX, INDEX_BYTES_MAX, OBSERVED_BYTES_MAX, SESSIONS_MAX};
use crate::line::{Band, FairnessConfig, LineLimits, Tenants};
use crate::place::PolicyConfig;
use crate::request::Identity;
use alloc::vec::Vec;
use core::time::Duration;

/// When a worker stops getting work because its attempts fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// Faults in a row that open it; at least 1.
    pub faults: u32,
    /// How long it stays open; then one attempt may try. A later failure never shortens it.
    pub open: Duration,
}

/// When probes count a worker out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probes {
    /// Failed probes in a row that make it unhealthy; at least 1.
    pub failures: u32,
    /// Bytes from the worker within this time count as life, whatever the probes say.
    pub bytes_count_for: Duration,
}

/// What becomes of a request that continues a response whose worker is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostResponse {
    /// It is placed like any other; the worker will say that it does not know the id.
    Place,
    /// It is refused with `response-lost`.
    Refuse,
}

/// Settings of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolConfig {
    /// Placement; `session` by default.
    pub policy: PolicyConfig,
    /// Who goes next; `promise` by default.
    pub fairness: FairnessConfig,
    /// Whose requests wait in which band, with which weight and limits.
    pub tenants: Tenants,
    /// Earlier bands go before later ones; empty: there is one.
    pub bands: Vec<Band>,
    /// What may wait of one flow.
    pub flow_limits: LineLimits,
    /// Attempts of one request, the first included; 1 to `ATTEMPTS_MAX`.
    pub attempts: u8,
    /// The longest that a request may hold for its best worker while another has a seat.
    pub hold_max: Duration,
    /// Requests in the line; beyond it newcomers are refused.
    pub line_max: usize,
    /// The longest wait in the line.
    pub max_wait: Duration,
    /// How long a request that no worker could take (none is there, none takes work, none lists its
    /// model) waits in the line before it is refused; zero: it is refused at once.
    pub no_worker_wait: Duration,
    /// A session idle for longer has no home.
    pub session_idle: Duration,
    /// Sessions remembered.
    pub sessions_max: usize,
    /// Bytes of predicted residency.
    pub index_bytes_max: usize,
    /// How the chains of most requests are made; capacities told in tokens become blocks by it.
    pub identity: Identity,
    /// Bytes of rendering in one block of the chain (byte identity).
    pub block_bytes: u32,
    /// Tokens in one block of the chain (token identity), whatever the engines' blocks have.
    pub token_block: u32,
    /// Bytes of observed residency (KV events).
    pub observed_bytes_max: usize,
    /// How long a dispatch predicts residency on a worker whose events flow: until they say so
    /// themselves.
    pub predicted_life: Duration,
    /// Answers in a row that found nothing of what was predicted, after which the worker's cache
    /// is taken to be off until an answer finds something; at least 1.
    pub not_caching_after: u32,
    /// Whether a worker without set slots gets only as many requests as its engine was seen to run,
    /// so that the others wait in our line and not in the engine's.
    pub learn_slots: bool,
    /// The worker's own word is stale when older.
    pub stale_after: Duration,
    /// KV tokens assumed where neither configuration nor the engine tells.
    pub kv_tokens: u64,
    /// Output tokens assumed where the request does not say.
    pub output_tokens: u32,
    /// Breaker.
    pub breaker: Breaker,
    /// Probes.
    pub probes: Probes,
    /// What becomes of requests whose worker-side state is lost.
    pub lost_response: LostResponse,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            policy: PolicyConfig::Session(Default::default()),
            fairness: FairnessConfig::default(),
            tenants: Tenants::default(),
            bands: Vec::new(),
            flow_limits: LineLimits::default(),
            attempts: 3,
            hold_max: Duration::from_secs(2),
            line_max: 4_096,
            max_wait: Duration::from_secs(300),
            no_worker_wait: Duration::from_secs(30),
            session_idle: Duration::from_secs(3_600),
            sessions_max: SESSIONS_MAX,
            index_bytes_max: INDEX_BYTES_MAX,
            identity: Identity::Bytes,
            block_bytes: 64,
            token_block: 16,
            observed_bytes_max: OBSERVED_BYTES_MAX,
            predicted_life: Duration::from_secs(3),
            not_caching_after: 8,
            learn_slots: true,
            stale_after: Duration::from_secs(5),
            kv_tokens: 262_144,
            output_tokens: 256,
            breaker: Breaker {
                faults: 3,
                open: Duration::from_secs(10),
            },
            probes: Probes {
                failures: 3,
                bytes_count_for: Duration::from_secs(30),
            },
            lost_response: LostResponse::Place,
        }
    }
}

/// A setting out of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Its name, as in the configuration file.
    pub setting: &'static str,
    /// What it may be.
    pub allowed: &'static str,
}

impl core::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} must be {}", self.setting, self.allowed)
    }
}

impl core::error::Error for ConfigError {}

impl PoolConfig {
    /// Checks every range.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let rule = |good: bool, setting, allowed| {
            if good {
                Ok(())
            } else {
                Err(ConfigError { setting, allowed })
            }
        };
        rule(
            (1..=ATTEMPTS_MAX).contains(&self.attempts),
            "attempts",
            "1 to 8",
        )?;
        let weights = self.tenants.terms.values().chain([&self.tenants.default]);
        rule(
            weights
                .into_iter()
                .all(|t| t.weight > 0.0 && t.weight <= 1e6),
            "tenants.weight",
            "more than 0, at most 1000000",
        )?;
        let floors = self.bands.iter().map(|band| band.floor);
        rule(
            floors.clone().all(|floor| (0.0..=1.0).contains(&floor)) && floors.sum::<f64>() <= 1.0,
            "bands.floor",
            "0 to 1, and together at most 1",
        )?;
        rule(self.bands.len() <= BANDS_MAX, "bands", "at most 16")?;
        rule(self.breaker.faults >= 1, "breaker.faults", "at least 1")?;
        rule(self.probes.failures >= 1, "probes.failures", "at least 1")?;
        rule(
            (16..=4_096).contains(&self.block_bytes),
            "block_bytes",
            "16 to 4096",
        )?;
        rule(
            (1..=4_096).contains(&self.token_block),
            "token_block",
            "1 to 4096",
        )?;
        rule(
            self.not_caching_after >= 1,
            "not_caching_after",
            "at least 1",
        )?;
        rule(self.sessions_max >= 1, "sessions_max", "at least 1")?;
        rule(
            self.index_bytes_max >= 1 << 16,
            "index_bytes_max",
            "at least 65536",
        )
    }
}
