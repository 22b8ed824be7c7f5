//! The pure engine model: batching in steps, a block cache, a waiting queue, preemption.
//!
//! What it refuses to do: read a clock, draw a random number, open a socket. Equal calls give equal events.
//!
//! Time of one step: `base_step + per_sequence x running + prefill_tokens / prefill_rate`
//! (see [`Config::step_ns`]). The defaults are a round middle of what 8B-class models do on one accelerator.

mod engine;
mod job;
mod kv;
mod kv_log;
#[cfg(test)]
mod tests;

pub use engine::Engine;
pub use job::{Event, Job, Metrics, SubmitError, Usage};
pub use kv::KvCache;
pub use kv_log::KvEvent;

/// Constants of the modelled engine. All times are nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Tokens in one KV block; only whole blocks are shared. At least 1.
    pub block_tokens: usize,
    /// KV memory, in tokens; rounded down to whole blocks.
    pub kv_tokens: usize,
    /// Sequences that may run at once.
    pub slots: usize,
    /// Tokens one step may compute: decodes count one each, the rest goes to prefill chunks.
    pub max_batch_tokens: usize,
    /// Prefill speed, tokens per second.
    pub prefill_tokens_per_second: u64,
    /// Fixed time of a step, ns.
    pub base_step_ns: u64,
    /// Time each running sequence adds to a step, ns.
    pub per_sequence_ns: u64,
    /// Jobs the waiting queue holds; one more is refused.
    pub waiting_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            block_tokens: 16,
            kv_tokens: 262_144,
            slots: 32,
            max_batch_tokens: 2_048,
            prefill_tokens_per_second: 16_000,
            base_step_ns: 10_000_000,
            per_sequence_ns: 300_000,
            waiting_max: 4_096,
        }
    }
}

impl Config {
    /// How long a step with `running` sequences and `prefill_tokens` new prompt tokens takes, ns.
    ///
    /// ```
    /// let config = maitred_enginesim::model::Config::default();
    /// // 10 ms + 2 x 0.3 ms + 1,600 / 16,000 s = 110.6 ms
    /// assert_eq!(config.step_ns(2, 1_600), 110_600_000);
    /// ```
    #[must_use]
    pub fn step_ns(&self, running: usize, prefill_tokens: usize) -> u64 {
        let rate = u128::from(self.prefill_tokens_per_second.max(1));
        let prefill_ns = (prefill_tokens as u128) * 1_000_000_000 / rate;
        let prefill_ns = u64::try_from(prefill_ns).unwrap_or(u64::MAX);
        // A step of no length would let a driver spin for ever.
        self.base_step_ns
            .saturating_add(self.per_sequence_ns.saturating_mul(running as u64))
            .saturating_add(prefill_ns)
            .max(1)
    }

    /// Whole blocks in the KV memory.
    #[must_use]
    pub fn blocks(&self) -> usize {
        (self.kv_tokens / self.block_tokens.max(1)).min(u32::MAX as usize - 1)
    }
}
