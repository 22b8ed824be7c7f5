//! From the door to the seat: place, hold, wait, refuse, dispatch.

use super::Scheduler;
use super::candidates::{Pick, Verdict};
use super::request::{Attempt, Hold, Request};
use crate::ids::{AttemptId, RequestId};
use crate::input::Effect;
use crate::request::{Arrival, Failure, Refusal};
use crate::time::Nanos;
use alloc::boxed::Box;
use alloc::vec::Vec;
use smallvec::SmallVec;

impl Scheduler {
    pub(super) fn arrive(&mut self, guest: Box<Arrival>, now: Nanos, effects: &mut Vec<Effect>) {
        if self.requests.contains_key(&guest.request) {
            return;
        }
        let place = self.next_place;
        self.next_place += 1;
        let prompt_tokens = guest
            .prompt_tokens
            .unwrap_or_else(|| self.ratio.tokens(guest.prompt_bytes));
        let request = Box::new(Request {
            place,
            arrived: now,
            prompt_tokens,
            attempts: 0,
            failed: SmallVec::new(),
            last_failure: None,
            retry_after: None,
            attempt: None,
            waiting: false,
            hold: Hold::Fresh,
            give_up: self.give_up(guest.deadline, now),
            no_worker_until: None,
            timer: None,
            passed_by: 0,
            guest,
        });
        self.place(request, now, effects);
    }

    /// When a request that waits from now on has waited enough: its own deadline may end the wait
    /// earlier than the pool does, not later.
    pub(super) fn give_up(&self, deadline: Option<Nanos>, now: Nanos) -> Nanos {
        let most = now + self.config.max_wait;
        deadline.map_or(most, |deadline| deadline.min(most))
    }

    /// Places a request that is in no table: it ends up seated, in the line, or refused.
    pub(super) fn place(
        &mut self,
        mut request: Box<Request>,
        now: Nanos,
        effects: &mut Vec<Effect>,
    ) {
        let mut verdict = self.choose(&request, now);
        if matches!(verdict, Verdict::Hold { .. }) && !self.may_wait(&request) {
            // No place to hold in: it sits wherever a seat is.
            request.hold = Hold::Spent;
            verdict = self.choose(&request, now);
        }
        match verdict {
            Verdict::Sit(pick) => self.dispatch(request, pick, now, effects),
            Verdict::Hold { worker, until } => {
                request.hold = Hold::Holding { worker, until };
                request.no_worker_until = None;
                self.wait(request, now, effects);
            }
            Verdict::NoSeat => {
                if matches!(request.hold, Hold::Holding { .. }) {
                    request.hold = Hold::Spent;
                }
                request.no_worker_until = None;
                self.wait(request, now, effects);
            }
            Verdict::NoWorker => self.no_worker(request, now, effects),
            Verdict::Lost => {
                let refusal = match request.last_failure {
                    Some(failure) => Refusal::AttemptsExhausted(failure),
                    None => Refusal::ResponseLost,
                };
                self.refuse(request, refusal, effects);
            }
        }
    }

    fn no_worker(&mut self, mut request: Box<Request>, now: Nanos, effects: &mut Vec<Effect>) {
        if let Some(failure) = request.last_failure {
            self.refuse(request, Refusal::AttemptsExhausted(failure), effects);
            return;
        }
        let wait = self.config.no_worker_wait;
        let until = *request.no_worker_until.get_or_insert(now + wait);
        if until.min(request.give_up) <= now {
            self.refuse(request, Refusal::NoWorkers, effects);
        } else {
            self.wait(request, now, effects);
        }
    }

    /// Whether the line has a place for it. Those who have one keep it, and those who come back
    /// for another attempt were admitted already: their number is bounded by the seats.
    fn may_wait(&self, request: &Request) -> bool {
        request.waiting || request.attempts > 0 || self.line.len() < self.config.line_max
    }

    fn wait(&mut self, mut request: Box<Request>, now: Nanos, effects: &mut Vec<Effect>) {
        if request.give_up <= now {
            self.refuse(request, Refusal::WaitExpired, effects);
            return;
        }
        if !self.may_wait(&request) {
            self.refuse(request, Refusal::LineFull, effects);
            return;
        }
        let id = request.guest.request;
        if !request.waiting {
            request.waiting = true;
            self.line.join(request.place, id, request.passed_by);
        }
        self.arm_request(&mut request);
        self.requests.insert(id, request);
    }

    /// The request ends here, unserved.
    pub(super) fn refuse(
        &mut self,
        mut request: Box<Request>,
        refusal: Refusal,
        effects: &mut Vec<Effect>,
    ) {
        self.leave_line(&mut request);
        let retry_after = match refusal {
            Refusal::LineFull => self.line.retry_after(),
            Refusal::AttemptsExhausted(Failure::Saturated) => request.retry_after,
            _ => None,
        };
        effects.push(Effect::Refuse {
            request: request.guest.request,
            refusal,
            retry_after,
        });
    }

    pub(super) fn leave_line(&mut self, request: &mut Request) {
        self.disarm_request(request);
        if request.waiting {
            request.waiting = false;
            request.passed_by = self.line.leave(request.place).unwrap_or_default();
        }
    }

    fn dispatch(
        &mut self,
        mut request: Box<Request>,
        pick: Pick,
        now: Nanos,
        effects: &mut Vec<Effect>,
    ) {
        let candidates = &self.scratch.candidates;
        let nobody_warm = candidates.iter().all(|c| c.matched_blocks == 0);
        let Some(chosen) = candidates.get(pick.index).copied() else {
            debug_assert!(false, "the pick is a candidate");
            return;
        };
        if request.waiting {
            self.line.seated(now);
        }
        self.line.pass(request.place);
        self.leave_line(&mut request);
        request.hold = Hold::Spent;
        request.no_worker_until = None;
        request.attempts += 1;
        let id = AttemptId {
            request: request.guest.request,
            number: request.attempts,
        };
        let belief = self.belief_of(chosen.worker, &request, now);
        let decision = self.explain(&request, id, pick, &chosen, belief, now);
        let (prefill, resident) = self.lease_tokens(&request, chosen.matched_tokens);
        let Some(worker) = self.fleet.get_mut(chosen.worker) else {
            debug_assert!(false, "candidates are workers");
            return;
        };
        // Counted before it is sent, so that the next decision sees it.
        let lease = worker.ledger.open(worker.id, prefill, resident);
        worker.polls = worker.polls.map(|polls| polls.saturating_sub(1));
        worker.health.opened(id);
        if nobody_warm {
            worker.last_cold = now;
        }
        request.attempt = Some(Attempt {
            id,
            lease,
            dispatched: now,
            belief,
            accepted: false,
            first_token: false,
            aborted: false,
            taken_back: worker.taken_back,
        });
        self.predict(chosen.worker, &request.guest.chain, belief, now);
        self.requests.insert(id.request, request);
        effects.push(Effect::Dispatch(decision));
    }

    /// Takes a request out of its table; [`Self::place`] or [`Self::keep`] puts it back.
    pub(super) fn take(&mut self, id: RequestId) -> Option<Box<Request>> {
        self.requests.remove(&id)
    }

    pub(super) fn keep(&mut self, request: Box<Request>) {
        self.requests.insert(request.guest.request, request);
    }
}
