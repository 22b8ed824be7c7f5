//! `preble`: exploits a cached prefix where most of the prompt is cached, else explores by cost.
//!
//! Formula (E2): if more than half of the prompt is cached somewhere, the worker with the longest
//! match, among equals the one with the least `L`; unless its `L` is the largest and more than
//! `balance_threshold` times the least: then, and where less is cached, argmin of `L + M + P`.
//! - `L`: load of the last `window_seconds`: uncached tokens of what was placed there, and
//!   [`REQUEST_TOKENS`] for the answer of each.
//! - `P`: own uncached tokens.
//! - `M`: cost of what must be evicted for it: `P` times the share of the last window's prompt tokens
//!   that were found in that worker's cache.
//!
//! Source: Srivatsa et al., "Preble: Efficient Distributed Prompt Scheduling for LLM Serving" (arXiv
//! 2407.00023, ICLR 2025) and its published scheduler. It counts seconds of a fitted linear model;
//! tokens order the same. It knows which nodes an eviction would hit and how often those were used;
//! the share reused stands for that here. Its splitting of hot prefixes over workers is what the
//! shift does. Where nothing matches anywhere, load alone decides, as in every policy here. As there, nothing is shifted before 50 requests in the window.
//! Defaults, the published ones: `window_seconds` 180, `balance_threshold` 1.5.
//! Score: `L + M + P` in tokens, or the load where load decided; less is better.
//!
//! [`REQUEST_TOKENS`]: super::REQUEST_TOKENS

use super::config::number;
use super::{
    Answer, Candidate, OptionError, OptionValue, Policy, Question, REQUEST_TOKENS, by_load,
    cheapest, cold, warmth,
};
use crate::decision::Reason;
use crate::ids::WorkerId;
use crate::rng::Rng;
use crate::time::Nanos;
use alloc::collections::BTreeMap;
use core::time::Duration;

/// Parts of the window; the oldest part leaves as a whole.
const PARTS: usize = 18;

/// Requests in the window before which nothing is shifted.
const SHIFT_MIN: u64 = 50;

/// The settings of `preble`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How long what was placed counts as load; 1 to 86,400 seconds.
    pub window: Duration,
    /// Times the least load beyond which the most loaded worker is left; 1 to 1,000.
    pub balance_threshold: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(180),
            balance_threshold: 1.5,
        }
    }
}

impl Options {
    const NAMES: &'static [&'static str] = &["window_seconds", "balance_threshold"];

    /// Sets one option.
    ///
    /// # Errors
    /// [`OptionError::UnknownOption`] or [`OptionError::BadValue`].
    pub fn set(&mut self, option: &str, value: OptionValue<'_>) -> Result<(), OptionError> {
        match option {
            "window_seconds" => {
                let window = number(value, 1.0, 86_400.0, "seconds from 1 to 86400")?;
                self.window = Duration::from_secs_f64(window);
            }
            "balance_threshold" => {
                self.balance_threshold = number(value, 1.0, 1e3, "a number from 1 to 1000")?;
            }
            _ => return Err(OptionError::UnknownOption(Self::NAMES)),
        }
        Ok(())
    }
}

/// What was placed on a worker, or in one part of the window.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    requests: u64,
    load: u64,
    prompt: u64,
    cached: u64,
}

impl Sum {
    fn add(&mut self, other: &Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.load = self.load.saturating_add(other.load);
        self.prompt = self.prompt.saturating_add(other.prompt);
        self.cached = self.cached.saturating_add(other.cached);
    }
}

/// The window of one worker.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    parts: [Sum; PARTS],
    /// The number, from the start of time, of the newest part.
    newest: u64,
}

impl Window {
    fn pass(&mut self, now: u64) {
        if now > self.newest {
            for passed in (self.newest + 1..=now).rev().take(PARTS) {
                self.parts[(passed % PARTS as u64) as usize] = Sum::default();
            }
            self.newest = now;
        }
    }

    fn sum(&mut self, now: u64) -> Sum {
        self.pass(now);
        let mut all = Sum::default();
        for part in &self.parts {
            all.add(part);
        }
        all
    }

    fn add(&mut self, now: u64, placed: &Sum) {
        self.pass(now);
        self.parts[(self.newest % PARTS as u64) as usize].add(placed);
    }
}

/// The policy; its state is what was placed on each worker within the window.
pub struct Preble {
    options: Options,
    windows: BTreeMap<WorkerId, Window>,
}

impl Preble {
    /// With these settings, and nothing placed.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            windows: BTreeMap::new(),
        }
    }

    fn part(&self, now: Nanos) -> u64 {
        let nanos = (self.options.window.as_nanos() / PARTS as u128).max(1);
        (u128::from(now.0) / nanos) as u64
    }

    fn sum(&mut self, worker: WorkerId, part: u64) -> Sum {
        self.windows
            .get_mut(&worker)
            .map_or_else(Sum::default, |window| window.sum(part))
    }

    fn count(&mut self, question: &Question<'_>, candidate: &Candidate, part: u64) {
        let uncached = question.uncached(candidate);
        let prompt = u64::from(question.prompt_tokens)
            .saturating_mul(u64::from(question.guest.extra_prompts) + 1);
        let placed = Sum {
            requests: 1,
            load: uncached.saturating_add(REQUEST_TOKENS),
            prompt,
            cached: prompt.saturating_sub(uncached),
        };
        let window = self.windows.entry(candidate.worker).or_default();
        window.add(part, &placed);
    }
}

impl Policy for Preble {
    fn name(&self) -> &'static str {
        "preble"
    }

    fn place(&mut self, question: &Question<'_>, scores: &mut [f64], rng: &mut Rng) -> Answer {
        let candidates = question.candidates;
        let part = self.part(question.now);
        let (mut low, mut high, mut requests) = (u64::MAX, 0, 0);
        for (score, c) in scores.iter_mut().zip(candidates) {
            let sum = self.sum(c.worker, part);
            (low, high) = (low.min(sum.load), high.max(sum.load));
            requests += sum.requests;
            let own = question.uncached(c) as f64;
            let reused = if sum.prompt == 0 {
                0.0
            } else {
                sum.cached as f64 / sum.prompt as f64
            };
            *score = sum.load as f64 + own * (1.0 + reused);
        }
        let warmest = cheapest(candidates, rng, |index, c| {
            (core::cmp::Reverse(c.matched_blocks), scores[index])
        });
        let best = candidates[warmest];
        let mostly = u64::from(best.matched_tokens) > question.uncached(&best);
        let load = self.sum(best.worker, part).load;
        let shifts = requests >= SHIFT_MIN
            && load == high
            && load as f64 > self.options.balance_threshold * low as f64;
        let (choice, reason) = if cold(candidates) {
            let answer = by_load(candidates, scores, rng, Reason::LeastLoad);
            (answer.choice, answer.reason)
        } else if mostly && !shifts {
            (warmest, Reason::Warmest)
        } else {
            let choice = cheapest(candidates, rng, |index, _| scores[index]);
            (choice, warmth(candidates, choice))
        };
        // A request that has to stay in the line is counted when it leaves it.
        if candidates[choice].seat {
            self.count(question, &candidates[choice], part);
        }
        Answer {
            choice,
            reason,
            hold: Duration::ZERO,
        }
    }

    fn members(&mut self, members: &[(WorkerId, u64)]) {
        self.windows
            .retain(|worker, _| members.iter().any(|(id, _)| id == worker));
    }
}

#[cfg(test)]
mod tests {
    use super::{Options, Preble, Sum};
    use crate::decision::Reason;
    use crate::place::Policy;
    use crate::place::testing::{Table, candidate};
    use crate::time::Nanos;

    /// Blocks of 100 tokens that match, of 10.
    fn table(matched: &[u32]) -> Table {
        let mut table = Table::new((0..matched.len() as u32).map(candidate).collect());
        table.prompt_tokens = 1_000;
        for (c, matched) in table.candidates.iter_mut().zip(matched) {
            c.matched_blocks = *matched;
            c.matched_tokens = matched * 100;
        }
        table
    }

    /// A policy that has placed this: (requests, load, prompt, cached) on each.
    fn placed(t: &Table, sums: &[(u64, u64, u64, u64)]) -> Preble {
        let mut policy = Preble::new(Options::default());
        let part = policy.part(t.now);
        for (c, (requests, load, prompt, cached)) in t.candidates.iter().zip(sums) {
            let sum = Sum {
                requests: *requests,
                load: *load,
                prompt: *prompt,
                cached: *cached,
            };
            policy.windows.entry(c.worker).or_default().add(part, &sum);
        }
        policy
    }

    #[test]
    fn more_than_half_cached_is_exploited() {
        let mut t = table(&[6, 0]);
        let mut policy = placed(&t, &[(9, 9_000, 9_000, 0), (0, 0, 0, 0)]);
        let answer = t.ask(&mut policy);
        assert_eq!(t.scores, [9_400.0, 1_000.0]);
        assert_eq!((answer.choice, answer.reason), (0, Reason::Warmest));
        // Half is not more than half: it explores.
        let mut t = table(&[5, 0]);
        let answer = t.ask(&mut policy);
        assert_eq!((answer.choice, answer.reason), (1, Reason::Escape));
    }

    #[test]
    fn exploring_adds_load_eviction_and_own_prefill() {
        // 400 + 1,000 x 1.5 = 1,900 against 700 + 1,000 x 1.0; 0 x ... + 400 matched: 600 + 1,300.
        let mut t = table(&[0, 0, 4]);
        let sums = [(1, 400, 1_000, 500), (1, 700, 1_000, 0), (1, 1_300, 0, 0)];
        let answer = t.ask(&mut placed(&t, &sums));
        assert_eq!(t.scores, [1_900.0, 1_700.0, 1_900.0]);
        assert_eq!((answer.choice, answer.reason), (1, Reason::Escape));
    }

    #[test]
    fn the_most_loaded_is_left_beyond_the_threshold() {
        let mut t = table(&[9, 0]);
        let answer = t.ask(&mut placed(&t, &[(40, 15_000, 0, 0), (10, 10_000, 0, 0)]));
        assert_eq!((answer.choice, answer.reason), (0, Reason::Warmest));
        let answer = t.ask(&mut placed(&t, &[(40, 15_001, 0, 0), (10, 10_000, 0, 0)]));
        assert_eq!((answer.choice, answer.reason), (1, Reason::Escape));
        let answer = t.ask(&mut placed(&t, &[(39, 15_001, 0, 0), (10, 10_000, 0, 0)]));
        assert_eq!(answer.choice, 0, "49 requests say too little");
    }

    #[test]
    fn what_is_placed_counts_for_the_window_and_then_not() {
        let mut t = table(&[1, 1]);
        let mut policy = Preble::new(Options::default());
        let first = t.ask(&mut policy).choice;
        assert_eq!(t.ask(&mut policy).choice, 1 - first);
        // 900 + 128 were placed on each, a tenth of it cached: 1,028 + 900 x 1.1.
        t.ask(&mut policy);
        assert!(t.scores.iter().all(|s| (s - 2_018.0).abs() < 1e-6));
        t.now = Nanos(t.now.0 + 181_000_000_000);
        t.ask(&mut policy);
        assert_eq!(t.scores, [900.0, 900.0]);
        policy.members(&t.members()[..1]);
        assert!(policy.windows.len() <= 1);
    }

    #[test]
    fn one_that_waits_is_not_counted() {
        let mut t = table(&[0]);
        t.candidates[0].seat = false;
        let mut policy = Preble::new(Options::default());
        t.ask(&mut policy);
        assert!(policy.windows.is_empty());
    }
}
