//! `chwbl`: consistent hashing with bounded loads on the leading text.
//!
//! Formula: each worker has `replication` points on a ring of 64-bit hashes; from the hash of the
//! leading text the ring is walked to the first worker with `running + 1 <= max(ceil(load_factor x
//! (total + 1) / n), floor)` and a free seat (see `bound.rs`). Where nobody is within the bound, or
//! there is no leading text: the least loaded, never a fixed default.
//! Source: Mirrokni, Thorup, Zadimoghaddam (SODA 2018); its use for prompts, 256 points and the
//! factor 1.25: `KubeAI`'s `PrefixHash` strategy. Load is the number of requests, as there.
//! Defaults: `load_factor` 1.25, `floor` 4, `replication` 256 (fewer for each in pools so large
//! that the ring would pass `RING_POINTS_MAX`).
//! Score: 1 for the worker that the hash names, 2 for the next on the ring and so on up to the
//! choice (less is better); NaN for those that the walk did not reach.

use super::bound::{Bound, FACTOR, FLOOR, total_running};
use super::config::{number, whole};
use super::{Answer, OptionError, OptionValue, Policy, Question, any_seat, by_load};
use crate::decision::Reason;
use crate::ids::WorkerId;
use crate::rng::{Rng, mix};
use alloc::vec::Vec;
use core::time::Duration;

/// Points on the ring, all workers together (4 MiB).
pub const RING_POINTS_MAX: usize = 1 << 17;

/// The settings of `chwbl`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How far above the mean a worker may be (times); 1 to 100.
    pub load_factor: f64,
    /// Requests on one worker that are never too many; 1 to 1,000,000.
    pub floor: u32,
    /// Points of one worker on the ring; 1 to 4,096.
    pub replication: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            load_factor: FACTOR,
            floor: FLOOR,
            replication: 256,
        }
    }
}

impl Options {
    const NAMES: &'static [&'static str] = &["load_factor", "floor", "replication"];

    /// Sets one option.
    ///
    /// # Errors
    /// [`OptionError::UnknownOption`] or [`OptionError::BadValue`].
    pub fn set(&mut self, option: &str, value: OptionValue<'_>) -> Result<(), OptionError> {
        match option {
            "load_factor" => {
                self.load_factor = number(value, 1.0, 100.0, "a number from 1 to 100")?;
            }
            "floor" => self.floor = whole(value)?,
            "replication" => {
                let points = whole(value)?;
                if points > 4_096 {
                    return Err(OptionError::BadValue("a whole number from 1 to 4096"));
                }
                self.replication = points;
            }
            _ => return Err(OptionError::UnknownOption(Self::NAMES)),
        }
        Ok(())
    }
}

/// The policy; its state is the ring of the present members.
pub struct Chwbl {
    options: Options,
    members: Vec<(WorkerId, u64)>,
    ring: Vec<(u64, WorkerId)>,
    built: bool,
}

impl Chwbl {
    /// With these settings, and without members.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            members: Vec::new(),
            ring: Vec::new(),
            built: true,
        }
    }

    /// Builds the ring if the members have changed.
    fn build(&mut self) {
        if self.built {
            return;
        }
        let share = RING_POINTS_MAX / self.members.len().max(1);
        let points = (self.options.replication as usize).min(share.max(1)) as u64;
        self.ring.clear();
        self.ring.reserve(self.members.len() * points as usize);
        for (worker, identity) in &self.members {
            for point in 0..points {
                self.ring.push((mix(identity ^ mix(point)), *worker));
            }
        }
        self.ring.sort_unstable();
        self.built = true;
    }

    /// Walks the ring from `key` to the first candidate that is `within`, and says whether it was
    /// the very first.
    fn walk(
        &self,
        key: u64,
        question: &Question<'_>,
        scores: &mut [f64],
        within: impl Fn(usize) -> bool,
    ) -> Option<(usize, bool)> {
        let start = self.ring.partition_point(|(hash, _)| *hash < key);
        let mut met = 0_u32;
        for (_, worker) in self.ring[start..].iter().chain(&self.ring[..start]) {
            let Some(index) = candidate_of(question, *worker) else {
                continue;
            };
            if !scores[index].is_nan() {
                continue;
            }
            met += 1;
            scores[index] = f64::from(met);
            if within(index) {
                return Some((index, met == 1));
            }
        }
        None
    }
}

/// Candidates stand in slot order.
fn candidate_of(question: &Question<'_>, worker: WorkerId) -> Option<usize> {
    question
        .candidates
        .binary_search_by_key(&worker, |c| c.worker)
        .ok()
}

impl Policy for Chwbl {
    fn name(&self) -> &'static str {
        "chwbl"
    }

    fn place(&mut self, question: &Question<'_>, scores: &mut [f64], rng: &mut Rng) -> Answer {
        let candidates = question.candidates;
        let Some(key) = question.guest.leading else {
            return by_load(candidates, scores, rng, Reason::LeastLoad);
        };
        self.build();
        let bound = Bound {
            factor: self.options.load_factor,
            floor: self.options.floor,
        };
        let cap = bound.cap(total_running(candidates), candidates.len());
        let seated = any_seat(candidates);
        let within = |index: usize| {
            let c = &candidates[index];
            (c.seat || !seated) && u64::from(c.running) < cap
        };
        // Without this look ahead a walk in vain would go round the whole ring.
        let found = (0..candidates.len())
            .any(within)
            .then(|| self.walk(mix(key.0), question, scores, within))
            .flatten();
        match found {
            Some((choice, first)) => Answer {
                choice,
                reason: if first { Reason::Hash } else { Reason::Bounded },
                hold: Duration::ZERO,
            },
            None => by_load(candidates, scores, rng, Reason::LeastLoad),
        }
    }

    fn members(&mut self, members: &[(WorkerId, u64)]) {
        if self.members == members {
            return;
        }
        self.members.clear();
        self.members.extend_from_slice(members);
        // Built when it is needed: a large pool that starts adds its workers one by one.
        self.built = false;
    }
}

#[cfg(test)]
mod tests {
    use super::{Chwbl, Options, RING_POINTS_MAX};
    use crate::decision::Reason;
    use crate::ids::{SessionKey, WorkerId};
    use crate::place::Policy;
    use crate::place::testing::{Table, candidate};
    use alloc::vec::Vec;

    fn policy(table: &Table) -> Chwbl {
        let mut policy = Chwbl::new(Options::default());
        policy.members(&table.members());
        policy
    }

    #[test]
    fn keys_spread_evenly_over_the_ring_and_stay_put() {
        let mut table = Table::new((0..8).map(candidate).collect());
        let mut policy = policy(&table);
        let mut counts = [0_u32; 8];
        for key in 0..8_000 {
            table.guest.leading = Some(SessionKey(key));
            let answer = table.ask(&mut policy);
            assert_eq!(answer.reason, Reason::Hash);
            assert_eq!(table.ask(&mut policy).choice, answer.choice);
            counts[answer.choice] += 1;
        }
        // 256 points: arcs differ by 1/16 of the mean, one standard deviation.
        assert!(
            counts.iter().all(|n| (750..1_250).contains(n)),
            "{counts:?}"
        );
    }

    #[test]
    fn goes_on_round_the_ring_over_the_bound() {
        let mut table = Table::new((0..4).map(candidate).collect());
        table.guest.leading = Some(SessionKey(1));
        let mut policy = policy(&table);
        let first = table.ask(&mut policy).choice;
        table.candidates[first].running = 4;
        let answer = table.ask(&mut policy);
        assert_ne!(answer.choice, first);
        assert_eq!(answer.reason, Reason::Bounded);
        assert!((table.scores[first] - 1.0).abs() < f64::EPSILON);
        assert!((table.scores[answer.choice] - 2.0).abs() < f64::EPSILON);
    }

    #[test]
    fn removing_a_worker_moves_only_its_own_keys() {
        let mut table = Table::new((0..6).map(candidate).collect());
        let mut policy = policy(&table);
        let mut before = Vec::new();
        for key in 0..1_000 {
            table.guest.leading = Some(SessionKey(key));
            let choice = table.ask(&mut policy).choice;
            before.push(table.candidates[choice].worker);
        }
        let gone = table.candidates.remove(2).worker;
        policy.members(&table.members());
        for (key, old) in before.into_iter().enumerate() {
            table.guest.leading = Some(SessionKey(key as u64));
            let choice = table.ask(&mut policy).choice;
            let new = table.candidates[choice].worker;
            assert!(new == old || old == gone);
        }
    }

    #[test]
    fn load_decides_without_text_and_without_anybody_on_the_ring() {
        let mut table = Table::new((0..3).map(candidate).collect());
        table.candidates[0].running = 1;
        table.candidates[1].running = 2;
        let mut policy = policy(&table);
        assert_eq!(table.ask(&mut policy).choice, 2);
        table.guest.leading = Some(SessionKey(5));
        policy.members(&[]);
        let answer = table.ask(&mut policy);
        assert_eq!((answer.choice, answer.reason), (2, Reason::LeastLoad));
    }

    #[test]
    fn the_ring_is_bounded() {
        let mut policy = Chwbl::new(Options::default());
        let members: Vec<(WorkerId, u64)> = (0..4_096)
            .map(|slot| (candidate(slot).worker, candidate(slot).identity))
            .collect();
        policy.members(&members);
        policy.build();
        assert!(policy.ring.len() <= RING_POINTS_MAX);
        assert_eq!(policy.ring.len(), 4_096 * 32);
        policy.members(&members[..1]);
        policy.build();
        assert_eq!(policy.ring.len(), 256);
    }
}
