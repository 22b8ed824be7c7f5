//! `dualmap`: two workers per beginning, and the better of the two.
//!
//! Formula: the key of the prompt's beginning names two workers, the first in each of two independent
//! hash orders (the second among the others). Of the two, the one with the longer match while its
//! predicted time to the first token is within `slo_seconds`; else, or where they match alike, the
//! one with the less predicted time. The prediction is `(open prefill + own uncached tokens) /
//! prefill_tokens_per_second`.
//! The key is the leading text; where that is hot (more than a worker's share of the recent
//! requests), it is the opening, which is longer: so few beginnings fill no pair of workers.
//! Source: "`DualMap`: Enabling Both Cache Affinity and Load Balancing for Distributed LLM Serving"
//! (arXiv 2602.06502, ICLR 2026). Differences: rendezvous orders stand for its two hash rings (a
//! change of members moves as little); two lengths of the key for its adaptive one; its moving
//! of queued requests is not needed where a worker is chosen at dispatch.
//! Defaults, ours, as published values were not at hand: `slo_seconds` 5,
//! `prefill_tokens_per_second` 15,928.
//! Score: the predicted seconds of the two, NaN for all others; less is better.

use super::config::number;
use super::ttft::{PREFILL_RATE, RATE_ALLOWED, estimate};
use super::{
    Answer, Candidate, OptionError, OptionValue, Policy, Question, any_seat, by_load, rendezvous,
    warmth,
};
use crate::decision::Reason;
use crate::ids::{SessionKey, WorkerId};
use crate::request::Arrival;
use crate::rng::{Rng, mix};
use crate::time::Nanos;
use alloc::collections::BTreeMap;
use core::time::Duration;

/// The seed of the second hash order: any constant that is not 0.
const SECOND: u64 = 0x6475_616c_6d61_7032;

/// Requests after which all counts of beginnings are halved, and so the most beginnings counted.
const WINDOW: u32 = 1_024;

/// Requests of one beginning below which it is never hot.
const HOT_MIN: u32 = 16;

/// The settings of `dualmap`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The target for the time to the first token, seconds; 0.001 to 86,400.
    pub slo: f64,
    /// How fast a worker prefills, tokens a second.
    pub prefill_tokens_per_second: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            slo: 5.0,
            prefill_tokens_per_second: PREFILL_RATE,
        }
    }
}

impl Options {
    const NAMES: &'static [&'static str] = &["slo_seconds", "prefill_tokens_per_second"];

    /// Sets one option.
    ///
    /// # Errors
    /// [`OptionError::UnknownOption`] or [`OptionError::BadValue`].
    pub fn set(&mut self, option: &str, value: OptionValue<'_>) -> Result<(), OptionError> {
        match option {
            "slo_seconds" => {
                self.slo = number(value, 0.001, 86_400.0, "seconds from 0.001 to 86400")?;
            }
            "prefill_tokens_per_second" => {
                self.prefill_tokens_per_second = number(value, 1.0, 1e9, RATE_ALLOWED)?;
            }
            _ => return Err(OptionError::UnknownOption(Self::NAMES)),
        }
        Ok(())
    }
}

/// The policy; its state is how often each beginning came lately.
pub struct DualMap {
    options: Options,
    counts: BTreeMap<SessionKey, u32>,
    all: u32,
}

impl DualMap {
    /// With these settings, and no counts.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            counts: BTreeMap::new(),
            all: 0,
        }
    }

    /// The key of a request among `n` workers.
    fn key(&self, guest: &Arrival, n: usize) -> Option<SessionKey> {
        let leading = guest.leading.or(guest.opening)?;
        let count = self.counts.get(&leading).copied().unwrap_or(0);
        let hot = count >= HOT_MIN && u64::from(count) * n as u64 > u64::from(self.all);
        Some(if hot {
            guest.opening.unwrap_or(leading)
        } else {
            leading
        })
    }
}

/// The first by `weight` among those that pass.
fn first(
    candidates: &[Candidate],
    pass: impl Fn(usize, &Candidate) -> bool,
    weight: impl Fn(&Candidate) -> u64,
) -> Option<usize> {
    let passing = candidates.iter().enumerate().filter(|(i, c)| pass(*i, c));
    passing
        .max_by_key(|(_, c)| weight(c))
        .map(|(index, _)| index)
}

/// The two workers of a key, among those that could be chosen at all.
fn pair(candidates: &[Candidate], key: SessionKey) -> Option<(usize, usize)> {
    let seated = any_seat(candidates);
    let takes = |c: &Candidate| c.seat || !seated;
    let other = SessionKey(mix(key.0 ^ SECOND));
    let one = first(candidates, |_, c| takes(c), |c| rendezvous(key, c.identity))?;
    let two = first(
        candidates,
        |index, c| index != one && takes(c),
        |c| rendezvous(other, c.identity),
    );
    Some((one, two.unwrap_or(one)))
}

impl Policy for DualMap {
    fn name(&self) -> &'static str {
        "dualmap"
    }

    fn place(&mut self, question: &Question<'_>, scores: &mut [f64], rng: &mut Rng) -> Answer {
        let candidates = question.candidates;
        let key = self.key(question.guest, candidates.len());
        let Some((one, two)) = key.and_then(|key| pair(candidates, key)) else {
            return by_load(candidates, scores, rng, Reason::LeastLoad);
        };
        let rate = self.options.prefill_tokens_per_second;
        for index in [one, two] {
            scores[index] = estimate(question, &candidates[index], rate);
        }
        let matched = |index: usize| candidates[index].matched_blocks;
        let (warm, cold) = if matched(one) >= matched(two) {
            (one, two)
        } else {
            (two, one)
        };
        let sticks = matched(warm) > matched(cold) && scores[warm] <= self.options.slo;
        let cost = |index: usize| (scores[index], candidates[index].load());
        let choice = if sticks || cost(warm) < cost(cold) {
            warm
        } else if cost(cold) < cost(warm) || rng.below(2) == 0 {
            cold
        } else {
            warm
        };
        let reason = match warmth(
            &[candidates[one], candidates[two]],
            usize::from(choice == two),
        ) {
            Reason::LeastLoad => Reason::Hash,
            reason => reason,
        };
        Answer {
            choice,
            reason,
            hold: Duration::ZERO,
        }
    }

    fn settled(&mut self, guest: &Arrival, _worker: WorkerId, _now: Nanos) {
        let Some(leading) = guest.leading.or(guest.opening) else {
            return;
        };
        *self.counts.entry(leading).or_insert(0) += 1;
        self.all += 1;
        if self.all >= WINDOW {
            self.counts.retain(|_, count| {
                *count /= 2;
                *count > 0
            });
            self.all /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DualMap, HOT_MIN, Options, WINDOW, pair};
    use crate::decision::Reason;
    use crate::ids::SessionKey;
    use crate::place::Policy;
    use crate::place::testing::{Table, candidate};

    /// Eight workers, a prompt of 10 blocks of 1,000 tokens, and its pair.
    fn table() -> (Table, usize, usize) {
        let mut table = Table::new((0..8).map(candidate).collect());
        table.prompt_tokens = 10_000;
        table.guest.leading = Some(SessionKey(77));
        table.guest.opening = Some(SessionKey(78));
        let (one, two) = pair(&table.candidates, SessionKey(77)).unwrap_or((0, 0));
        assert_ne!(one, two);
        (table, one, two)
    }

    fn policy() -> DualMap {
        DualMap::new(Options {
            prefill_tokens_per_second: 10_000.0,
            ..Options::default()
        })
    }

    #[test]
    fn the_cache_side_is_kept_within_the_slo_and_left_beyond_it() {
        let (mut t, one, two) = table();
        t.candidates[two].matched_blocks = 9;
        t.candidates[two].matched_tokens = 9_000;
        // (49,000 + 1,000) / 10,000 = 5 s, and (0 + 10,000) / 10,000 = 1 s.
        t.candidates[two].prefill_tokens = 49_000;
        let answer = t.ask(&mut policy());
        assert_eq!((answer.choice, answer.reason), (two, Reason::Warmest));
        assert_eq!((t.scores[one], t.scores[two]), (1.0, 5.0));
        assert_eq!(t.scores.iter().filter(|s| s.is_nan()).count(), 6);
        t.candidates[two].prefill_tokens = 49_001;
        let answer = t.ask(&mut policy());
        assert_eq!((answer.choice, answer.reason), (one, Reason::Escape));
        // Both beyond it: the sooner one, which is the warm one here.
        t.candidates[one].prefill_tokens = 60_000;
        assert_eq!(t.ask(&mut policy()).choice, two);
    }

    #[test]
    fn cold_beginnings_take_the_less_loaded_of_their_two() {
        let (mut t, one, two) = table();
        t.candidates[one].prefill_tokens = 1;
        let answer = t.ask(&mut policy());
        assert_eq!((answer.choice, answer.reason), (two, Reason::Hash));
        t.candidates[one].prefill_tokens = 0;
        t.candidates[two].running = 1;
        assert_eq!(t.ask(&mut policy()).choice, one, "load breaks the tie");
        t.candidates[two].running = 0;
        let mut seen = [0; 8];
        for _ in 0..100 {
            seen[t.ask(&mut policy()).choice] += 1;
        }
        assert!(seen[one] > 25 && seen[two] > 25 && seen[one] + seen[two] == 100);
    }

    #[test]
    fn a_full_worker_is_no_choice() {
        let (mut t, one, two) = table();
        t.candidates[one].seat = false;
        t.candidates[two].seat = false;
        let choice = t.ask(&mut policy()).choice;
        assert!(choice != one && choice != two);
        t.candidates.truncate(1);
        assert_eq!(t.ask(&mut policy()).choice, 0);
    }

    #[test]
    fn a_hot_beginning_is_told_apart_by_its_opening() {
        let (t, ..) = table();
        let mut policy = policy();
        let worker = t.candidates[0].worker;
        for request in 0..u64::from(HOT_MIN) {
            assert_eq!(policy.key(&t.guest, 8), Some(SessionKey(77)), "{request}");
            policy.settled(&t.guest, worker, t.now);
        }
        assert_eq!(policy.key(&t.guest, 8), Some(SessionKey(78)));
        // It cools when others come: 16 of 128 is no more than an eighth.
        let mut other = t.guest.clone();
        for request in 0..112 {
            other.leading = Some(SessionKey(1_000 + request));
            policy.settled(&other, worker, t.now);
        }
        assert_eq!(policy.key(&t.guest, 8), Some(SessionKey(77)));
        for request in 0..10_000 {
            other.leading = Some(SessionKey(1_000 + request));
            policy.settled(&other, worker, t.now);
            assert!(policy.counts.len() <= WINDOW as usize);
        }
    }

    #[test]
    fn without_a_beginning_load_decides() {
        let (mut t, ..) = table();
        t.guest.leading = None;
        t.guest.opening = None;
        for c in t.candidates.iter_mut().skip(1) {
            c.running = 1;
        }
        let answer = t.ask(&mut policy());
        assert_eq!((answer.choice, answer.reason), (0, Reason::LeastLoad));
    }
}
