//! `scenario`: a named prompt version has its own few workers.
//!
//! Formula: the `k` first workers in the rendezvous order of the scenario's key are its subset;
//! in it the least load, equal loads by the longest match, then by the generator. With `share` the
//! scenario's part of all placements, both counted with exponential decay (half-life
//! `half_life_seconds`): `k = max(size, ceil(growth x share x n))`, at most `n`; fewer placements
//! than workers count as one a worker, so that the first scenario of an idle pool does not get all
//! of it. A growing `k` adds workers and moves none.
//! Where the subset has no seat and others have: the least loaded of those. Without a scenario: the
//! least loaded.
//! Source: ours, after DESIGN section 5; subsets by hash as in shuffle sharding.
//! Defaults: `size` 1, `growth` 1.5 (subsets overlap by chance, so each gets half as much again as
//! its share), `half_life_seconds` 60.
//! Score: the load in the subset (less is better), NaN outside it.

use super::config::{number, seconds, whole};
use super::{
    Answer, Candidate, OptionError, OptionValue, Policy, Question, any_seat, by_load, least,
    rendezvous,
};
use crate::decision::Reason;
use crate::ids::SessionKey;
use crate::rng::Rng;
use crate::time::Nanos;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

/// Scenarios that are counted at a time; the least counted makes room for a new one.
pub const SCENARIOS_MAX: usize = 1_024;

/// The settings of `scenario`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Workers of a scenario at the least; 1 to 1,000,000.
    pub size: u32,
    /// How much of the pool a scenario gets, as a multiple of its share; 1 to 100.
    pub growth: f64,
    /// The time in which a placement's weight in the count halves; more than 0.
    pub half_life: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            size: 1,
            growth: 1.5,
            half_life: Duration::from_secs(60),
        }
    }
}

impl Options {
    const NAMES: &'static [&'static str] = &["size", "growth", "half_life_seconds"];

    /// Sets one option.
    ///
    /// # Errors
    /// [`OptionError::UnknownOption`] or [`OptionError::BadValue`].
    pub fn set(&mut self, option: &str, value: OptionValue<'_>) -> Result<(), OptionError> {
        match option {
            "size" => self.size = whole(value)?,
            "growth" => self.growth = number(value, 1.0, 100.0, "a number from 1 to 100")?,
            "half_life_seconds" => {
                let time = seconds(value)?;
                if time < Duration::from_millis(1) {
                    return Err(OptionError::BadValue("at least 0.001 seconds"));
                }
                self.half_life = time;
            }
            _ => return Err(OptionError::UnknownOption(Self::NAMES)),
        }
        Ok(())
    }
}

/// A count that halves with time.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    value: f64,
    at: Nanos,
}

impl Count {
    fn now(self, now: Nanos, half_life: Duration) -> f64 {
        let halvings = now.since(self.at).as_secs_f64() / half_life.as_secs_f64();
        self.value * libm::exp2(-halvings)
    }

    fn add(&mut self, now: Nanos, half_life: Duration) {
        self.value = self.now(now, half_life) + 1.0;
        self.at = now;
    }
}

/// The policy; its state is how often each scenario was placed.
pub struct Scenario {
    options: Options,
    counts: BTreeMap<SessionKey, Count>,
    all: Count,
    order: Vec<(Reverse<u64>, usize)>,
}

impl Scenario {
    /// With these settings, and no counts.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            counts: BTreeMap::new(),
            all: Count::default(),
            order: Vec::new(),
        }
    }

    /// The size of the scenario's subset among `n` workers, this request counted.
    fn subset_size(&self, key: SessionKey, now: Nanos, n: usize) -> usize {
        let half_life = self.options.half_life;
        let own = self.counts.get(&key).map_or(0.0, |c| c.now(now, half_life)) + 1.0;
        let all = (self.all.now(now, half_life) + 1.0).max(n as f64);
        let grown = libm::ceil(self.options.growth * (own / all).min(1.0) * n as f64) as usize;
        grown.max(self.options.size as usize).min(n)
    }

    fn count(&mut self, key: SessionKey, now: Nanos) {
        let half_life = self.options.half_life;
        if self.counts.len() >= SCENARIOS_MAX && !self.counts.contains_key(&key) {
            let least = self
                .counts
                .iter()
                .map(|(key, count)| (count.now(now, half_life), *key))
                .min_by(|a, b| a.0.total_cmp(&b.0));
            if let Some((_, key)) = least {
                self.counts.remove(&key);
            }
        }
        self.counts.entry(key).or_default().add(now, half_life);
        self.all.add(now, half_life);
    }

    /// Puts the first `k` of the key's order in front of `self.order`.
    fn rank(&mut self, key: SessionKey, candidates: &[Candidate], k: usize) {
        self.order.clear();
        self.order.extend(
            candidates
                .iter()
                .enumerate()
                .map(|(index, c)| (Reverse(rendezvous(key, c.identity)), index)),
        );
        if k < self.order.len() {
            self.order.select_nth_unstable(k);
            self.order.truncate(k);
        }
    }
}

impl Policy for Scenario {
    fn name(&self) -> &'static str {
        "scenario"
    }

    fn place(&mut self, question: &Question<'_>, scores: &mut [f64], rng: &mut Rng) -> Answer {
        let candidates = question.candidates;
        let Some(key) = question.guest.scenario else {
            return by_load(candidates, scores, rng, Reason::LeastLoad);
        };
        let k = self.subset_size(key, question.now, candidates.len());
        self.rank(key, candidates, k);
        for (_, index) in &self.order {
            scores[*index] = candidates[*index].load() as f64;
        }
        let seated = any_seat(candidates);
        let choice = least(candidates, rng, |index, c| {
            let outside = scores[index].is_nan();
            (outside, !c.seat, c.load(), Reverse(c.matched_blocks))
        });
        // A request that has to stay in the line is counted when it leaves it.
        if seated {
            self.count(key, question.now);
        }
        if seated && !candidates[choice].seat {
            return by_load(candidates, scores, rng, Reason::Escape);
        }
        Answer {
            choice,
            reason: Reason::Scenario,
            hold: Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Options, SCENARIOS_MAX, Scenario};
    use crate::decision::Reason;
    use crate::ids::SessionKey;
    use crate::place::testing::{Table, candidate};
    use alloc::collections::BTreeSet;

    fn table(n: u32) -> Table {
        let mut table = Table::new((0..n).map(candidate).collect());
        table.guest.scenario = Some(SessionKey(42));
        table
    }

    fn subset(table: &Table) -> BTreeSet<usize> {
        let inside = |i: &usize| !table.scores[*i].is_nan();
        (0..table.candidates.len()).filter(inside).collect()
    }

    #[test]
    fn the_subset_grows_with_the_share_and_keeps_its_members() {
        let mut table = table(8);
        let mut policy = Scenario::new(Options::default());
        let mut last = BTreeSet::new();
        // Alone in an idle pool of 8: request i counts i of max(i, 8), so k = ceil(1.5 x i).
        for k in [2, 3, 5, 6, 8, 8] {
            assert_eq!(table.ask(&mut policy).reason, Reason::Scenario);
            let now = subset(&table);
            assert_eq!(now.len(), k);
            assert!(last.is_subset(&now));
            last = now;
        }
        // An hour later only the least remains: 1.5 x 1/8 x 8.
        table.now.0 += 3_600_000_000_000;
        table.ask(&mut policy);
        assert_eq!(subset(&table).len(), 2);
    }

    #[test]
    fn a_quarter_of_the_load_gets_half_as_much_again() {
        let mut table = table(8);
        let mut policy = Scenario::new(Options::default());
        for round in 0..400_u64 {
            table.guest.scenario = Some(SessionKey(round % 4));
            table.ask(&mut policy);
        }
        // 1.5 x (101 / 401) x 8 = 3.02, this request counted.
        table.guest.scenario = Some(SessionKey(0));
        table.ask(&mut policy);
        assert_eq!(subset(&table).len(), 4);
    }

    #[test]
    fn the_least_loaded_of_the_subset_then_the_warmest() {
        let mut table = table(8);
        let options = Options {
            size: 3,
            ..Options::default()
        };
        table.ask(&mut Scenario::new(options.clone()));
        let inside: Vec<usize> = subset(&table).into_iter().collect();
        for i in &inside {
            table.candidates[*i].running = 5;
        }
        table.candidates[inside[1]].running = 4;
        assert_eq!(
            table.ask(&mut Scenario::new(options.clone())).choice,
            inside[1]
        );
        table.candidates[inside[1]].running = 5;
        table.candidates[inside[2]].matched_blocks = 3;
        assert_eq!(
            table.ask(&mut Scenario::new(options.clone())).choice,
            inside[2]
        );
        for i in &inside {
            table.candidates[*i].seat = false;
        }
        let answer = table.ask(&mut Scenario::new(options));
        assert!(!inside.contains(&answer.choice));
        assert_eq!(answer.reason, Reason::Escape);
    }

    #[test]
    fn counts_are_bounded() {
        let mut table = table(2);
        let mut policy = Scenario::new(Options::default());
        for key in 0..(SCENARIOS_MAX as u64 + 100) {
            table.guest.scenario = Some(SessionKey(key));
            table.ask(&mut policy);
        }
        assert_eq!(policy.counts.len(), SCENARIOS_MAX);
    }

    #[test]
    fn without_a_scenario_load_decides() {
        let mut table = table(2);
        table.guest.scenario = None;
        table.candidates[0].running = 1;
        let answer = table.ask(&mut Scenario::new(Options::default()));
        assert_eq!((answer.choice, answer.reason), (1, Reason::LeastLoad));
    }

    use alloc::vec::Vec;
}
