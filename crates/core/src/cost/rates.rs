//! The costs as policies get them.
//!
//! Formulas, in seconds, for a worker of pace 1:
//! - a prefill of `n` new tokens at the end of a context of `L` tokens, beside `R` requests that
//!   decode: `a + b n + c n (L - n / 2) + d R`. `a` is the step that is under way when it comes and
//!   the fixed part of its own, `b` the layers, `c` attention over all that is before each token
//!   (the sum of `L - n + i` over the `n` tokens), `d` what each decoder adds to the steps.
//! - one step of decoding for a batch of `R` requests with `C` tokens of context between them:
//!   `alpha + beta R + gamma C`; each token of prefill that is computed beside it adds `delta`.
//!
//! Defaults, the prior: an 8B model on one accelerator: 62.5 us for a token of prefill (16,000 a
//! second), attention that doubles it at 60,000 tokens of context, steps of 10 ms and 0.3 ms for
//! each request, 40 ns to read the cache of one token (128 KiB at 3.3 TB/s).

/// Seconds to bring the cache of one token back from host memory: 128 KiB at 20 GB/s.
const HOST_SECONDS: f64 = 6.5e-6;

/// The same from a disk or over a network: at 3 GB/s.
const FAR_SECONDS: f64 = 44e-6;

/// A pool's costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// `a`, `b`, `c`, `d`: seconds; per token; per squared token; per decoding request.
    pub prefill: [f64; 4],
    /// `alpha`, `beta`, `gamma`, `delta`: seconds per step; per request; per token of context; per
    /// token of prefill beside it.
    pub decode: [f64; 4],
    /// Seconds of prefill that are dispatched in a second to a worker, on average: from 0 (idle)
    /// over 1 (as much as it can do) upwards.
    pub busy: f64,
    /// Seconds of prefill in one request, on average.
    pub work_seconds: f64,
    /// Seconds that a prefill still takes when somebody comes to wait for it, on average: half the
    /// mean square over the mean. Few long prefills among many short ones make it large.
    pub residual_seconds: f64,
    /// Further turns that follow a request, on average.
    pub turns_left: f64,
    /// Tokens of an answer, on average.
    pub output_tokens: f64,
    /// Seconds from dispatch to the end, on average.
    pub service_seconds: f64,
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            prefill: [0.015, 62.5e-6, 1e-9, 0.3e-3],
            decode: [0.010, 0.3e-3, 40e-9, 62.5e-6],
            busy: 0.0,
            work_seconds: 0.1,
            residual_seconds: 0.1,
            turns_left: 4.0,
            output_tokens: 256.0,
            service_seconds: 4.0,
        }
    }
}

impl Rates {
    /// Seconds to compute `new` tokens that end a context of `context`, alone.
    #[must_use]
    pub fn prefill_seconds(&self, new: u64, context: u64) -> f64 {
        let [a, b, c, _] = self.prefill;
        a + b * new as f64 + c * squares(new, context)
    }

    /// What one decoding request adds to the time of a first token beside it.
    #[must_use]
    pub fn per_decoding(&self) -> f64 {
        self.prefill[3]
    }

    /// Seconds that computing `tokens` at the end of `context` would take without the fixed part:
    /// what finding them in a cache saves.
    #[must_use]
    pub fn saved_seconds(&self, tokens: u64, context: u64) -> f64 {
        let [_, b, c, _] = self.prefill;
        b * tokens as f64 + c * squares(tokens, context)
    }

    /// Seconds of one step of a batch of `requests` with `context` tokens between them.
    #[must_use]
    pub fn step_seconds(&self, requests: u32, context: u64) -> f64 {
        let [alpha, beta, gamma, _] = self.decode;
        alpha + beta * f64::from(requests) + gamma * context as f64
    }

    /// Seconds until tokens that lie in host memory, and farther away, can be used: never more than
    /// computing them.
    #[must_use]
    pub fn reload_seconds(&self, host: u64, far: u64) -> f64 {
        let most = self.prefill[1];
        host as f64 * HOST_SECONDS.min(most) + far as f64 * FAR_SECONDS.min(most)
    }
}

/// `n (L - n / 2)`: what attention of the last `n` of `L` tokens looks at.
#[must_use]
pub(super) fn squares(new: u64, context: u64) -> f64 {
    let (new, context) = (new as f64, context.max(new) as f64);
    new * (context - new / 2.0)
}

#[cfg(test)]
mod tests {
    use super::Rates;

    #[test]
    fn costs_are_the_hand_computed_ones() {
        let rates = Rates {
            prefill: [0.01, 1e-4, 1e-8, 2e-3],
            decode: [0.01, 1e-3, 1e-7, 0.0],
            ..Rates::default()
        };
        // 0.01 + 0.1 + 1e-8 x 1,000 x (5,000 - 500) = 0.155.
        assert!((rates.prefill_seconds(1_000, 5_000) - 0.155).abs() < 1e-12);
        // The first 4,000 of 4,000: 0.4 + 1e-8 x 4,000 x 2,000 = 0.48.
        assert!((rates.saved_seconds(4_000, 4_000) - 0.48).abs() < 1e-12);
        // Both together are the whole prompt, but for the fixed part.
        let whole = rates.prefill_seconds(5_000, 5_000);
        assert!((whole - (0.155 + 0.48)).abs() < 1e-12);
        // 0.01 + 4 x 0.001 + 1e-7 x 20,000.
        assert!((rates.step_seconds(4, 20_000) - 0.016).abs() < 1e-12);
        // 1,000 x 6.5 us and 100 x 44 us.
        assert!((rates.reload_seconds(1_000, 100) - 10.9e-3).abs() < 1e-12);
    }
}
