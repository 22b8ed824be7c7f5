//! The records of a request's attempts.

use super::Guest;
use maitred_core::Decision;
use maitred_core::decision::Scored;
use maitred_core::miss::Misses;
use maitred_core::request::Usage;
use maitred_records::{
    AttemptRecord, BeliefRecord, CandidateRecord, MissRecord, Outcome, StayRecord,
};
use std::borrow::Cow;
use std::time::Duration;

impl Guest {
    pub(super) fn record(
        &self,
        outcome: Outcome,
        failure: Option<&'static str>,
        status: Option<u16>,
        usage: Usage,
    ) -> AttemptRecord {
        let facts = &self.facts;
        let ttft = self.first_token.map(|at| at.since(facts.arrived));
        let mut record = AttemptRecord {
            pool: self.pool.shared_name.clone(),
            tenant: facts.tenant,
            turn: facts.turn,
            session: facts.session,
            session_source: Cow::Borrowed(facts.session_source),
            identity: Cow::Borrowed(facts.identity),
            prompt_bytes: facts.prompt_bytes,
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            output_tokens: usage.output_tokens,
            ttft_ms: ttft.map(ms),
            e2e_ms: ms(self.since_arrival()),
            outcome,
            failure: failure.map(Cow::Borrowed),
            pull: self.api().map(Cow::Borrowed),
            lost: self.lost.map(|why| Cow::Borrowed(why.as_str())),
            status,
            ..self.story.record()
        };
        if let Some(decision) = &self.decision {
            self.describe(decision, &mut record);
        }
        record
    }

    pub(super) fn miss_record(&self, misses: &Misses) -> MissRecord {
        MissRecord {
            new: misses.new,
            diverged: misses.diverged,
            scope: misses.scope,
            moved: misses.moved,
            moved_why: misses.moved_why.map(|why| Cow::Borrowed(why.as_str())),
            evicted: misses.evicted,
            restarted: misses.restarted,
            unknown: misses.unknown,
            common_tokens: misses.ancestor.map(|ancestor| ancestor.common),
            ancestor_worker: misses
                .ancestor
                .and_then(|ancestor| self.pool.names(|name| name(ancestor.worker))),
        }
    }

    fn describe(&self, decision: &Decision, record: &mut AttemptRecord) {
        record.attempt = decision.attempt.number;
        record.policy = Some(Cow::Borrowed(decision.policy));
        record.reason = Some(Cow::Borrowed(decision.reason.as_str()));
        record.worker = match &self.upstream {
            Some(upstream) => Some(upstream.shared_name.clone()),
            None => self.pool.names(|name| name(decision.worker)),
        };
        record.candidates = self.pool.names(|name| {
            let of = |c: &Scored| CandidateRecord {
                worker: name(c.worker).unwrap_or_default(),
                score: c.score.is_finite().then_some(c.score),
                running: c.running,
                prefill_tokens: c.prefill_tokens,
                matched_tokens: c.matched_tokens,
                seat: c.seat,
            };
            decision.candidates.iter().map(of).collect()
        });
        record.candidates_count = decision.candidates_count;
        let queueing = &decision.queueing;
        record.fairness = Some(Cow::Borrowed(queueing.fairness));
        record.line = Some(Cow::Borrowed(queueing.line.as_str()));
        record.band = Some(queueing.band);
        record.charge = Some(queueing.charge);
        record.predicted_start_ms = queueing.predicted_start.map(ms);
        record.ttft_expected_ms = decision
            .first_token_expected
            .map(|after| ms(decision.dispatched.since(decision.arrived) + after));
        record.stay = decision.stay.map(|stay| StayRecord {
            worker: self
                .pool
                .names(|name| name(stay.worker))
                .unwrap_or_default(),
            matched_tokens: stay.matched_tokens,
            ttft_expected_ms: stay
                .first_token_expected
                .map(|after| ms(decision.dispatched.since(decision.arrived) + after)),
        });
        record.passed_by = decision.passed_by;
        record.prompt_tokens_estimated = Some(decision.prompt_tokens);
        record.predicted_cached_tokens = Some(decision.predicted_cached_tokens);
        let belief = decision.belief;
        record.belief = Some(BeliefRecord {
            source: Cow::Borrowed(belief.source.as_str()),
            blocks: belief.blocks,
            observed: belief.observed,
            device: (belief.observed > 0).then_some(belief.device),
            host: (belief.observed > 0).then_some(belief.host),
            rank: belief.rank,
            leaving: belief.leaving,
            predicted: belief.predicted,
            uncertain: belief.uncertain,
            age_ms: belief.age.map(whole_ms),
        });
        record.queue_ms = ms(decision.dispatched.since(decision.arrived));
        record.report_age_ms = decision.report_age.map(whole_ms);
        record.stale = decision.stale;
        record.seed = decision.seed;
    }
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
