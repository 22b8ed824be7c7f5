//! What one run of the demo measured.

use std::collections::BTreeMap;
use std::time::Duration;

/// Which request: client, conversation of that client, turn of that conversation. The same in both runs.
pub(crate) type Key = (usize, usize, usize);

/// One answered request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sample {
    /// Time to first token.
    pub(crate) ttft: Duration,
    /// Prompt tokens.
    pub(crate) prompt_tokens: u64,
    /// Of those cached.
    pub(crate) cached_tokens: u64,
    /// Tokens of the conversation so far, which an engine has seen; 0 at its first turn.
    pub(crate) earlier_tokens: u64,
}

/// What the clients write down as they go.
#[derive(Debug, Default, Clone)]
pub(crate) struct Score {
    /// Answered requests.
    pub(crate) samples: BTreeMap<Key, Sample>,
    /// Requests under way.
    pub(crate) open: usize,
    /// Requests that failed.
    pub(crate) errors: usize,
    /// What the first failure was.
    pub(crate) first_error: Option<String>,
}

impl Score {
    /// Time to first token, p50 and p99, and the cached share, over all answered so far.
    pub(crate) fn summary(&self) -> Summary {
        Summary::of(self.samples.values().copied())
    }
}

/// Numbers over a set of samples.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Summary {
    /// Samples.
    pub(crate) requests: usize,
    /// Median time to first token.
    pub(crate) ttft_p50: Duration,
    /// 99th percentile of it (nearest rank).
    pub(crate) ttft_p99: Duration,
    /// Prompt tokens.
    pub(crate) prompt_tokens: u64,
    /// Of those cached.
    pub(crate) cached_tokens: u64,
    /// Tokens of earlier turns that follow-ups came with.
    pub(crate) earlier_tokens: u64,
    /// Of those cached.
    pub(crate) earlier_cached: u64,
}

impl Summary {
    /// Sums `samples` up.
    pub(crate) fn of(samples: impl Iterator<Item = Sample>) -> Self {
        let mut summary = Self::default();
        let mut times = Vec::new();
        for sample in samples {
            summary.requests += 1;
            summary.prompt_tokens += sample.prompt_tokens;
            summary.cached_tokens += sample.cached_tokens;
            summary.earlier_tokens += sample.earlier_tokens;
            summary.earlier_cached += sample.cached_tokens.min(sample.earlier_tokens);
            times.push(sample.ttft);
        }
        times.sort_unstable();
        summary.ttft_p50 = rank(&times, 0.50);
        summary.ttft_p99 = rank(&times, 0.99);
        summary
    }

    /// Cached share of the prompt tokens; nothing asked is no share.
    pub(crate) fn cached_share(&self) -> Option<f64> {
        (self.prompt_tokens > 0).then(|| self.cached_tokens as f64 / self.prompt_tokens as f64)
    }

    /// Cached share of what follow-ups had said or heard before.
    pub(crate) fn earlier_share(&self) -> Option<f64> {
        (self.earlier_tokens > 0).then(|| self.earlier_cached as f64 / self.earlier_tokens as f64)
    }

    /// Prompt tokens that engines had to compute.
    pub(crate) fn computed_tokens(&self) -> u64 {
        self.prompt_tokens.saturating_sub(self.cached_tokens)
    }
}

/// Nearest rank: the smallest value that at least `share` of all values do not exceed.
fn rank(sorted: &[Duration], share: f64) -> Duration {
    let at = (sorted.len() as f64 * share).ceil() as usize;
    sorted
        .get(at.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}

/// Load of the engines over a run: the mean number of requests each had, running and waiting.
#[derive(Debug, Clone, Default)]
pub(crate) struct Loads {
    sums: Vec<f64>,
    ticks: usize,
}

impl Loads {
    /// Notes the requests each engine has now.
    pub(crate) fn note(&mut self, now: impl Iterator<Item = usize>) {
        self.ticks += 1;
        for (at, load) in now.enumerate() {
            if self.sums.len() <= at {
                self.sums.push(0.0);
            }
            self.sums[at] += load as f64;
        }
    }

    /// Mean load of each engine.
    pub(crate) fn means(&self) -> Vec<f64> {
        self.sums
            .iter()
            .map(|sum| sum / self.ticks.max(1) as f64)
            .collect()
    }

    /// Mean load of the busiest engine over the mean of all.
    pub(crate) fn busiest_over_mean(&self) -> Option<f64> {
        let means = self.means();
        let mean = means.iter().sum::<f64>() / means.len().max(1) as f64;
        let busiest = means.iter().copied().fold(0.0, f64::max);
        (mean > 0.0).then(|| busiest / mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_by_nearest_rank() {
        let sample = |ms| Sample {
            ttft: Duration::from_millis(ms),
            prompt_tokens: 10,
            cached_tokens: 4,
            earlier_tokens: 5,
        };
        let summary = Summary::of((1..=100).rev().map(sample));
        assert_eq!(summary.ttft_p50, Duration::from_millis(50));
        assert_eq!(summary.ttft_p99, Duration::from_millis(99));
        assert_eq!(summary.cached_share(), Some(0.4));
        assert_eq!(summary.computed_tokens(), 600);
        assert_eq!(summary.earlier_share(), Some(0.8));
        assert_eq!(Summary::of(std::iter::empty()).cached_share(), None);
        assert_eq!(
            Summary::of([sample(7)].into_iter()).ttft_p99,
            Duration::from_millis(7)
        );
    }

    #[test]
    fn load_is_a_mean_over_time() {
        let mut loads = Loads::default();
        loads.note([1, 3].into_iter());
        loads.note([3, 5].into_iter());
        assert_eq!(loads.means(), [2.0, 4.0]);
        assert_eq!(loads.busiest_over_mean(), Some(4.0 / 3.0));
    }
}
