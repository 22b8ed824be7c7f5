//! The decision record.

use super::Scheduler;
use super::candidates::Pick;
use super::request::Request;
use crate::decision::{Belief, Decision, Queueing, Reason, Scored};
use crate::ids::AttemptId;
use crate::limits::DECISION_CANDIDATES_MAX;
use crate::place::Candidate;
use crate::time::Nanos;
use alloc::boxed::Box;
use core::cmp::Ordering;
use smallvec::SmallVec;

impl Scheduler {
    pub(super) fn explain(
        &self,
        request: &Request,
        (attempt, passed_by): (AttemptId, u32),
        pick: Pick,
        chosen: &Candidate,
        belief: Belief,
        now: Nanos,
    ) -> Box<Decision> {
        let candidates = &self.scratch.candidates;
        let word = self.fleet.get(chosen.worker).and_then(|w| w.word);
        let report_age = word.map(|word| now.since(word.at));
        Box::new(Decision {
            attempt,
            worker: chosen.worker,
            policy: self.policy.name(),
            reason: reason(pick.reason, attempt.number, candidates.len()),
            candidates_count: candidates.len() as u32,
            candidates: select(candidates, &self.scratch.scores, pick.index),
            seed: pick.seed,
            arrived: request.arrived,
            dispatched: now,
            passed_by,
            queueing: Queueing {
                fairness: self.config.fairness.name(),
                line: request.ticket.line,
                band: request.ticket.band,
                charge: request.ticket.charge() as u64,
                predicted_start: request.ticket.predicted.filter(|_| request.ticket.measured),
                waiting: self.line.waiting(request.ticket.band),
            },
            identity: request.guest.identity,
            session_source: request.guest.session_source,
            turn: request.guest.turn,
            prompt_tokens: request.prompt_tokens,
            predicted_cached_tokens: chosen.matched_tokens,
            belief,
            first_token_expected: None,
            stay: None,
            report_age,
            stale: report_age.is_none_or(|age| age > self.config.stale_after),
        })
    }
}

/// A retry is one whatever the policy went by; and where load alone decided among one, nothing did.
fn reason(policys: Reason, number: u8, candidates: usize) -> Reason {
    match policys {
        _ if number > 1 => Reason::Retry,
        Reason::LeastLoad | Reason::Random | Reason::Rotation | Reason::PowerOfTwo
            if candidates == 1 =>
        {
            Reason::OnlyOne
        }
        other => other,
    }
}

/// The chosen one, then the best of the rest. Which way a policy's scores run is read off the
/// chosen one, which stands nearer to their better end; equal scores by load, then by slot.
fn select(
    candidates: &[Candidate],
    scores: &[f64],
    chosen: usize,
) -> SmallVec<[Scored; DECISION_CANDIDATES_MAX]> {
    let score = |index: usize| scores.get(index).copied().unwrap_or(f64::NAN);
    let own = score(chosen);
    let (mut below, mut above) = (0_usize, 0_usize);
    for s in scores {
        below += usize::from(*s < own);
        above += usize::from(*s > own);
    }
    let more_is_better = below > above;
    let better = |a: usize, b: usize| -> Ordering {
        let (x, y) = (score(a), score(b));
        let by_score = match (x.is_nan(), y.is_nan()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) if more_is_better => y.total_cmp(&x),
            (false, false) => x.total_cmp(&y),
        };
        let load = |index: usize| candidates.get(index).map(Candidate::load);
        by_score.then_with(|| load(a).cmp(&load(b))).then(a.cmp(&b))
    };
    let mut best: SmallVec<[usize; DECISION_CANDIDATES_MAX]> = SmallVec::new();
    for index in (0..candidates.len()).filter(|index| *index != chosen) {
        let full = best.len() + 1 >= DECISION_CANDIDATES_MAX;
        if full && best.last().is_some_and(|last| better(index, *last).is_ge()) {
            continue;
        }
        if full {
            best.pop();
        }
        let at = best.partition_point(|other| better(*other, index).is_lt());
        best.insert(at, index);
    }
    core::iter::once(chosen)
        .chain(best)
        .filter_map(|index| {
            let candidate = candidates.get(index)?;
            Some(Scored {
                worker: candidate.worker,
                score: score(index),
                running: candidate.running,
                prefill_tokens: candidate.prefill_tokens,
                matched_tokens: candidate.matched_tokens,
                seat: candidate.seat,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Candidate, Nanos, Reason, reason, select};
    use crate::ids::WorkerId;
    use alloc::vec::Vec;

    fn candidate(slot: u32) -> Candidate {
        Candidate {
            worker: WorkerId {
                slot,
                generation: 0,
            },
            identity: 0,
            running: 0,
            prefill_tokens: 0,
            resident_tokens: 0,
            kv_usage: 0.0,
            slots: None,
            busy: 0.0,
            ahead_seconds: 0.0,
            decoding: 0,
            pace: 1.0,
            reload_seconds: 0.0,
            seat: true,
            matched_blocks: 0,
            matched_tokens: 0,
            sessions: 0,
            cache_slots: None,
            last_cold: Nanos(0),
        }
    }

    fn slots(scores: &[f64], chosen: usize) -> Vec<u32> {
        let candidates: Vec<Candidate> = (0..scores.len() as u32).map(candidate).collect();
        let list = select(&candidates, scores, chosen);
        list.iter().map(|scored| scored.worker.slot).collect()
    }

    #[test]
    fn reasons_of_retries_and_of_lone_workers() {
        assert_eq!(reason(Reason::Home, 1, 1), Reason::Home);
        assert_eq!(reason(Reason::LeastLoad, 1, 2), Reason::LeastLoad);
        assert_eq!(reason(Reason::LeastLoad, 1, 1), Reason::OnlyOne);
        assert_eq!(reason(Reason::Home, 2, 3), Reason::Retry);
    }

    #[test]
    fn the_chosen_first_then_the_best_whichever_way_scores_run() {
        assert_eq!(slots(&[3.0, 1.0, 2.0, f64::NAN], 1), [1, 2, 0, 3]);
        assert_eq!(slots(&[3.0, 1.0, 2.0, f64::NAN], 0), [0, 2, 1, 3]);
        assert_eq!(slots(&[f64::NAN; 3], 2), [2, 0, 1]);
        let many: Vec<f64> = (0..100).map(|n| f64::from(100 - n)).collect();
        assert_eq!(slots(&many, 99), [99, 98, 97, 96, 95, 94, 93, 92]);
    }
}
