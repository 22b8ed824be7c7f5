//! What an attempt's progress and end do to its lease, to belief, home and health.

use super::Scheduler;
use super::request::{Attempt, Request};
use crate::ids::{AttemptId, RequestId, ResponseKey};
use crate::input::Effect;
use crate::limits::ATTEMPTS_MAX;
use crate::pool::ratio::leading_blocks;
use crate::request::{Failure, Identity, Refusal, RetryAfter, Usage};
use crate::session::responses::Binding;
use crate::time::Nanos;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Fewer blocks than this off is no evidence: the last blocks of a prompt often are not cached.
const BLOCKS_OFF: u32 = 2;

/// How an attempt failed.
pub(super) struct Failed {
    pub(super) failure: Failure,
    pub(super) retry: bool,
    pub(super) retry_after: Option<RetryAfter>,
}

impl Scheduler {
    pub(super) fn accepted(&mut self, id: AttemptId, now: Nanos, effects: &mut Vec<Effect>) {
        let Some((mut request, mut attempt)) = self.take_attempt(id) else {
            return;
        };
        self.accept(&request, &mut attempt, now, effects);
        request.attempt = Some(attempt);
        self.keep(request);
    }

    pub(super) fn first_token(&mut self, id: AttemptId, now: Nanos, effects: &mut Vec<Effect>) {
        let Some((mut request, mut attempt)) = self.take_attempt(id) else {
            return;
        };
        self.accept(&request, &mut attempt, now, effects);
        if !attempt.first_token {
            self.meter_first_token(&mut attempt, now);
        }
        attempt.first_token = true;
        let worker = attempt.lease.worker;
        self.prediction_begins(worker, &request.guest.chain, attempt.taken_back, now);
        if let Some(worker) = self.fleet.get_mut(worker) {
            worker.ledger.first_token(&mut attempt.lease);
            worker.health.first_token(id);
            worker.health.went_on(attempt.dispatched, now);
            self.room |= worker.seats.prefill_tokens.is_some();
        }
        request.attempt = Some(attempt);
        self.keep(request);
        self.health_changed(worker, now, effects);
    }

    pub(super) fn finished(
        &mut self,
        id: AttemptId,
        usage: Usage,
        served: bool,
        now: Nanos,
        effects: &mut Vec<Effect>,
    ) {
        let Some((request, mut attempt)) = self.take_attempt(id) else {
            return;
        };
        if served {
            self.accept(&request, &mut attempt, now, effects);
            if !attempt.first_token {
                let chain = &request.guest.chain;
                self.prediction_begins(attempt.lease.worker, chain, attempt.taken_back, now);
                self.meter_first_token(&mut attempt, now);
            }
            self.account(&request, &attempt, usage, now, effects);
            self.learn(&request, &attempt, usage, now);
            if let Some(key) = request.guest.session {
                self.homes.touch(key, attempt.lease.worker, now);
            }
            if let Some(key) = request.guest.opening {
                self.openings.touch(key, attempt.lease.worker, now);
            }
        } else if !attempt.accepted {
            self.take_back(&request, &attempt);
        }
        let moved = (attempt.matched) < request.ticket.matched;
        self.meter_end(&request, &attempt, served.then_some(usage), now);
        let usage = if served { usage } else { Usage::default() };
        if served {
            let took = now.since(attempt.dispatched);
            self.line.took(request.ticket.charged, took);
        }
        self.settle(&request, moved, usage, now);
        let worker = attempt.lease.worker;
        let dispatched = attempt.dispatched;
        if served {
            let (wait, service) = (dispatched.since(request.arrived), now.since(dispatched));
            self.line.counts.ended(request.guest.tenant, wait, service);
        }
        self.release(attempt, now);
        if let Some(worker) = self.fleet.get_mut(worker) {
            worker.health.went_on(dispatched, now);
            if served {
                worker.health.served(id);
            } else {
                worker.health.neutral(id);
            }
        }
        self.health_changed(worker, now, effects);
    }

    pub(super) fn failed(
        &mut self,
        id: AttemptId,
        end: Failed,
        now: Nanos,
        effects: &mut Vec<Effect>,
    ) {
        let Some((mut request, attempt)) = self.take_attempt(id) else {
            return;
        };
        if !attempt.accepted {
            self.take_back(&request, &attempt);
        }
        let worker = attempt.lease.worker;
        self.blame(&attempt, &end, now);
        self.meter_end(&request, &attempt, None, now);
        self.release(attempt, now);
        self.health_changed(worker, now, effects);
        if !end.retry {
            return;
        }
        request.failed.push(worker);
        request.last_failure = Some(end.failure);
        request.retry_after = end.retry_after;
        let most = self.config.attempts.min(ATTEMPTS_MAX);
        if !request.guest.retryable || request.attempts >= most {
            let refusal = Refusal::AttemptsExhausted(end.failure);
            self.refuse(request, refusal, effects);
            return;
        }
        request.give_up = self.give_up(request.guest.deadline, now);
        // It keeps its place in the line, before all who came later, and is not charged again.
        self.classify(&mut request, now);
        self.place(request, now, effects);
    }

    pub(super) fn cancel(&mut self, id: RequestId, now: Nanos, effects: &mut Vec<Effect>) {
        let Some(mut request) = self.take(id) else {
            return;
        };
        self.leave_line(&mut request, now);
        let Some(attempt) = request.attempt.take() else {
            return;
        };
        if !attempt.accepted {
            self.take_back(&request, &attempt);
        }
        self.meter_end(&request, &attempt, None, now);
        let (id, worker) = (attempt.id, attempt.lease.worker);
        self.release(attempt, now);
        if let Some(worker) = self.fleet.get_mut(worker) {
            worker.health.neutral(id);
        }
        self.health_changed(worker, now, effects);
    }

    pub(super) fn responded(&mut self, id: AttemptId, response: ResponseKey) {
        let attempt = self
            .requests
            .get(&id.request)
            .and_then(|request| request.attempt.as_ref())
            .filter(|attempt| attempt.id == id);
        if let Some(worker) = attempt.and_then(|attempt| self.fleet.get(attempt.lease.worker)) {
            let binding = Binding {
                worker: worker.id,
                epoch: worker.epoch,
            };
            self.responses.bind(response, binding);
        }
    }

    /// The worker took it: only now does the session settle there.
    fn accept(
        &mut self,
        request: &Request,
        attempt: &mut Attempt,
        now: Nanos,
        effects: &mut Vec<Effect>,
    ) {
        if attempt.accepted {
            return;
        }
        attempt.accepted = true;
        let id = attempt.lease.worker;
        let Some(worker) = self.fleet.get_mut(id) else {
            return;
        };
        let new_life = worker.health.accepted(attempt.dispatched, now);
        if new_life {
            worker.forget_started();
            self.restart(id, false, effects);
        }
        let guest = &request.guest;
        let believed = self.fleet.get(id).map(|worker| worker.taken_back);
        if believed != Some(attempt.taken_back) {
            // Belief in this worker was cut back since: what it took, it holds all the same.
            self.index.insert(id.slot, &guest.chain, now);
        }
        let blocks = guest.chain.len() as u32;
        if let Some(key) = guest.session {
            self.homes.settle(key, id, blocks, now);
        }
        if let Some(key) = guest.opening {
            self.openings.settle(key, id, blocks, now);
        }
        self.policy.settled(guest, id, now);
        self.health_changed(id, now, effects);
    }

    /// Gives the lease back. On a removed worker there is nothing to give it to.
    fn release(&mut self, attempt: Attempt, now: Nanos) {
        let Attempt {
            id,
            lease,
            accepted,
            ..
        } = attempt;
        // What the worker took may be computed although nobody waits for it any more.
        let until = accepted.then(|| now + self.config.predicted_life);
        self.observed.ended(lease.worker.slot, id, until);
        if let Some(worker) = self.fleet.get_mut(lease.worker) {
            worker.ledger.close(lease);
            self.room = true;
        }
    }

    /// The worker did not take it after all: it holds what it held before.
    fn take_back(&mut self, request: &Request, attempt: &Attempt) {
        let chain = &request.guest.chain;
        let keep = attempt.belief.predicted as usize;
        if keep >= chain.len() {
            return;
        }
        if let Some(worker) = self.fleet.get_mut(attempt.lease.worker) {
            worker.taken_back = worker.taken_back.wrapping_add(1);
            self.index.truncate(worker.id.slot, chain, keep);
        }
    }

    fn blame(&mut self, attempt: &Attempt, end: &Failed, now: Nanos) {
        let Some(worker) = self.fleet.get_mut(attempt.lease.worker) else {
            return;
        };
        if attempt.aborted {
            worker.health.neutral(attempt.id);
        } else if end.failure == Failure::Saturated {
            worker.health.full(attempt.id, end.retry_after, now);
        } else if end.failure.is_fault() {
            let breaker = &self.config.breaker;
            worker
                .health
                .fault(attempt.id, end.retry_after, now, breaker);
            if end.failure == Failure::Connect {
                worker.health.not_reached(now);
            }
        } else {
            worker.health.neutral(attempt.id);
        }
    }

    /// Learns from what the engine said of a served attempt.
    fn learn(&mut self, request: &Request, attempt: &Attempt, usage: Usage, now: Nanos) {
        let guest = &request.guest;
        if let Some(tokens) = usage.prompt_tokens
            && guest.extra_prompts == 0
            && guest.identity == Identity::Bytes
        {
            self.ratio.learn(guest.prompt_bytes, tokens);
            self.refit_capacities();
        }
        let Some(cached) = usage.cached_tokens.filter(|_| guest.reads_cache) else {
            return;
        };
        let prompt = usage.prompt_tokens.unwrap_or(request.prompt_tokens);
        let known = leading_blocks(guest, prompt, cached, &self.config);
        let predicted = attempt.belief.blocks;
        self.count_cold(attempt, cached);
        if known < predicted.div_ceil(2)
            && predicted - known > BLOCKS_OFF
            && let Some(worker) = self.fleet.get_mut(attempt.lease.worker)
        {
            // It had lost what followed, and with it whatever else continued there; the chain of
            // this request it has computed again since.
            let slot = worker.id.slot;
            worker.taken_back = worker.taken_back.wrapping_add(1);
            self.index.truncate(slot, &guest.chain, known as usize);
            self.index.insert(slot, &guest.chain, now);
        }
    }

    /// Takes out the request whose open attempt is `id`, and the attempt out of it.
    fn take_attempt(&mut self, id: AttemptId) -> Option<(Box<Request>, Attempt)> {
        let mut request = self.take(id.request)?;
        match request.attempt.take() {
            Some(attempt) if attempt.id == id => Some((request, attempt)),
            other => {
                request.attempt = other;
                self.keep(request);
                None
            }
        }
    }
}
