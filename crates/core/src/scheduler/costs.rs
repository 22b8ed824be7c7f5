//! What attempts teach of costs, and what affinity was worth.

use super::Scheduler;
use super::request::{Attempt, Request};
use crate::cost::{CostView, Evidence, Mark, Rates};
use crate::place::Candidate;
use crate::request::Usage;
use crate::time::Nanos;
use smallvec::SmallVec;

impl Scheduler {
    /// What work costs, as learnt so far.
    #[must_use]
    pub fn costs(&self, now: Nanos) -> CostView {
        self.costs.view(self.fleet.iter().count(), now)
    }

    /// What affinity saved and cost lately, and whether it is followed.
    #[must_use]
    pub fn evidence(&self, now: Nanos) -> Evidence {
        self.gate.evidence(now)
    }

    pub(super) fn rates(&self, now: Nanos) -> Rates {
        self.costs.rates(self.fleet.iter().count(), now)
    }

    /// What an attempt on `chosen` carries of costs; the first token is expected so many seconds
    /// after its dispatch.
    pub(super) fn expect(
        &self,
        request: &Request,
        chosen: &Candidate,
        prefill: u64,
        now: Nanos,
    ) -> (Mark, f64) {
        let rates = self.rates(now);
        let worker = self.fleet.get(chosen.worker);
        let word = worker.and_then(|w| w.fresh(now, self.config.stale_after));
        let alone = word.is_none_or(|word| word.others == 0);
        let context = u64::from(request.prompt_tokens);
        let mark = Mark::new(prefill.max(1), context, request.guest.streams && alone);
        (
            mark,
            chosen.first_token_seconds(&rates, prefill, mark.context),
        )
    }

    /// By how many seconds the chosen worker was busier than the least busy with a seat.
    pub(super) fn affinity_cost(&self, chosen: &Candidate, now: Nanos) -> f64 {
        let rates = self.rates(now);
        let seated = self.scratch.candidates.iter().filter(|c| c.seat);
        let least = seated
            .map(|c| c.busy_seconds(&rates))
            .fold(f64::INFINITY, f64::min);
        (chosen.busy_seconds(&rates) - least).max(0.0)
    }

    /// It is on its way to the worker.
    pub(super) fn meter_dispatch(&mut self, request: &Request, attempt: &Attempt, now: Nanos) {
        let rates = self.rates(now);
        let mark = &attempt.mark;
        let Some(worker) = self.fleet.get_mut(attempt.lease.worker) else {
            return;
        };
        let seconds = rates.saved_seconds(mark.new, mark.context) * worker.meter.pace();
        let output = request
            .guest
            .max_tokens
            .map_or(rates.output_tokens, |most| {
                rates.output_tokens.min(f64::from(most))
            });
        worker.meter.worked(seconds + output * rates.decode[1], now);
        let id = request.guest.request;
        worker.meter.dispatched(id, mark, seconds, now);
        self.costs.dispatched(seconds, now);
    }

    pub(super) fn meter_first_token(&mut self, attempt: &mut Attempt, now: Nanos) {
        let Some(worker) = self.fleet.get_mut(attempt.lease.worker) else {
            return;
        };
        let mut done = SmallVec::new();
        let resident = attempt.lease.resident_tokens();
        let id = attempt.id.request;
        let meter = &mut worker.meter;
        meter.first_token(id, &mut attempt.mark, resident, now, &mut done);
        for period in &done {
            self.costs.learn_prefill(period, meter);
        }
    }

    /// It ended; `usage` where it was served.
    pub(super) fn meter_end(
        &mut self,
        request: &Request,
        attempt: &Attempt,
        usage: Option<Usage>,
        now: Nanos,
    ) {
        let usage = usage.unwrap_or_default();
        let prompt = usage.prompt_tokens.unwrap_or(request.prompt_tokens);
        let new = usage
            .cached_tokens
            .map(|cached| u64::from(prompt.saturating_sub(cached).max(1)));
        if let Some(worker) = self.fleet.get_mut(attempt.lease.worker) {
            let meter = &mut worker.meter;
            if let Some(tokens) = usage.output_tokens {
                let answered = meter.answered(&attempt.mark, tokens, attempt.dispatched, now);
                self.costs.learn_decode(&answered, meter.pace());
            }
            let mut done = SmallVec::new();
            let resident = attempt.lease.resident_tokens();
            let id = attempt.id.request;
            meter.ended(id, &attempt.mark, resident, new, now, &mut done);
            for period in &done {
                self.costs.learn_prefill(period, meter);
            }
        }
        if let Some(cached) = usage.cached_tokens.filter(|_| request.guest.reads_cache) {
            let cached = u64::from(cached);
            let saved = self.rates(now).saved_seconds(cached, cached) * attempt.delays;
            let cost = attempt.affinity_cost;
            self.gate.answered(request.follows, saved, cost, now);
        }
    }
}
