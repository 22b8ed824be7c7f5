//! The bound of bounded-load hashing, shared by the policies that hash.
//!
//! Formula: a worker may take one more request while `running + 1 <= cap`, with
//! `cap = max(ceil(factor x (total + 1) / n), floor)`; `total` is what runs on all `n` candidates.
//! Source: Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads" (SODA 2018,
//! arXiv 1608.01350); the floor is ours: while a pool fills, `ceil(factor x mean)` is 1 or 2, and
//! nearly everything would leave its hash although an engine serves a few requests in one step as
//! fast as one. With `factor >= 1` at least one candidate is always within the bound.

use super::{Candidate, REQUEST_TOKENS};

/// The default factor: the paper's and `KubeAI`'s example.
pub(super) const FACTOR: f64 = 1.25;

/// The default floor. A decode step reads all weights whoever shares it, so four requests on one
/// engine cost hardly more than one each on four, and one copy of a prefix is kept instead of four.
pub(super) const FLOOR: u32 = 4;

/// How much above the mean a worker may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bound {
    /// Times the mean; 1 or more.
    pub(super) factor: f64,
    /// Requests that are never too many; 1 or more.
    pub(super) floor: u32,
}

impl Default for Bound {
    fn default() -> Self {
        Self {
            factor: FACTOR,
            floor: FLOOR,
        }
    }
}

impl Bound {
    /// The most requests that a worker may have after taking one, where `total` run on `n` now.
    #[must_use]
    pub(super) fn cap(&self, total: u64, n: usize) -> u64 {
        let mean = (total + 1) as f64 / n.max(1) as f64;
        (libm::ceil(self.factor * mean) as u64).max(u64::from(self.floor))
    }

    /// Like [`Bound::cap`] for things that do not end by themselves within seconds (sessions), so
    /// rounded down: the most that stays within `factor` of the mean, though never below what an
    /// even split needs.
    #[must_use]
    pub(super) fn even_cap(&self, total: u64, n: usize, floor: u32) -> u64 {
        let mean = (total + 1) as f64 / n.max(1) as f64;
        let within = libm::floor(self.factor * mean) as u64;
        within.max(libm::ceil(mean) as u64).max(u64::from(floor))
    }

    /// The most load (in tokens, see [`Candidate::load`]) that may stand before a request of
    /// `prompt_tokens`: `factor` times the mean load, and `floor` requests of its own size.
    #[must_use]
    pub(super) fn load_cap(&self, total: u64, n: usize, prompt_tokens: u32) -> u64 {
        let own = REQUEST_TOKENS + u64::from(prompt_tokens);
        let mean = total as f64 / n.max(1) as f64;
        ((self.factor * mean) as u64).saturating_add(u64::from(self.floor) * own)
    }
}

/// Requests on all candidates.
pub(super) fn total_running(candidates: &[Candidate]) -> u64 {
    candidates.iter().map(|c| u64::from(c.running)).sum()
}

/// Load of all candidates.
pub(super) fn total_load(candidates: &[Candidate]) -> u64 {
    candidates
        .iter()
        .fold(0, |sum, c| sum.saturating_add(c.load()))
}

#[cfg(test)]
mod tests {
    use super::Bound;

    #[test]
    fn caps_are_the_hand_computed_ones() {
        let bound = Bound::default();
        assert_eq!(bound.cap(0, 8), 4, "the floor");
        assert_eq!(bound.cap(31, 4), 10, "1.25 x 8");
        assert_eq!(bound.cap(32, 4), 11, "1.25 x 8.25 = 10.3");
        assert_eq!(bound.even_cap(23, 4, 2), 7, "1.25 x 6 = 7.5");
        assert_eq!(bound.even_cap(23, 8, 2), 3, "1.25 x 3 = 3.75");
        assert_eq!(bound.even_cap(4, 4, 1), 2, "an even split of 5 needs 2");
        assert_eq!(bound.even_cap(0, 4, 2), 2, "the floor");
        // 1.25 x 4,000 + 4 x (128 + 872).
        assert_eq!(bound.load_cap(16_000, 4, 872), 9_000);
    }

    #[test]
    fn somebody_is_always_within_the_bound() {
        let bound = Bound {
            factor: 1.0,
            floor: 1,
        };
        for n in 1..20_usize {
            for total in 0..100_u64 {
                assert!(bound.cap(total, n) * n as u64 > total);
            }
        }
    }
}
