//! From the door to the seat: place, hold, wait, dispatch.

use super::Scheduler;
use super::candidates::{Pick, Verdict};
use super::request::{Attempt, Hold, Request};
use crate::ids::{AttemptId, RequestId, WorkerId};
use crate::input::Effect;
use crate::line::ticket::Standing;
use crate::request::{Arrival, Refusal};
use crate::time::Nanos;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;
use smallvec::SmallVec;

impl Scheduler {
    pub(super) fn arrive(&mut self, guest: Box<Arrival>, now: Nanos, effects: &mut Vec<Effect>) {
        if self.requests.contains_key(&guest.request) {
            return;
        }
        self.costs.arrived(guest.turn);
        let place = self.next_place;
        self.next_place += 1;
        let prompt_tokens = guest
            .prompt_tokens
            .unwrap_or_else(|| self.ratio.tokens(guest.prompt_bytes));
        let mut request = Box::new(Request {
            ticket: self.ticket(&guest, place, now),
            arrived: now,
            prompt_tokens,
            attempts: 0,
            failed: SmallVec::new(),
            last_failure: None,
            retry_after: None,
            attempt: None,
            hold: Hold::Fresh,
            held_since: None,
            follows: self.gate.follows(&mut self.rng),
            give_up: self.give_up(guest.deadline, now),
            no_worker_until: None,
            timer: None,
            guest,
        });
        self.classify(&mut request, now);
        let class = self.line.class(request.ticket.class);
        if class.is_some_and(|class| class.asks() && !self.class_room(class, now))
            && self.has_candidate(&request, now)
        {
            // Others ask for the same seats, and none of them is free.
            let matched = self.matched_most(&request, now);
            self.estimate(&mut request, matched);
            self.wait(request, None, now, effects);
            return;
        }
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
        let candidates = &self.scratch.candidates;
        let matched = candidates.iter().map(|c| c.matched_tokens).max();
        self.estimate(&mut request, matched.unwrap_or(0));
        if matches!(verdict, Verdict::Hold { .. })
            && (self.door(&mut request, now).is_some() || !self.line.may_hold(&request.ticket))
        {
            // No place to hold in, or it was passed enough: it sits wherever a seat is.
            request.hold = Hold::Spent;
            verdict = self.choose(&request, now);
        }
        match verdict {
            Verdict::Sit(pick) => {
                if request.attempts == 0
                    && let Some(place) = self.line.before(&request.ticket)
                {
                    self.goes_first(place, now);
                    // Who stands in the line stays where he stands.
                    match request.ticket.standing {
                        Standing::Ready => self.keep_waiting(request),
                        _ => self.wait(request, None, now, effects),
                    }
                    return;
                }
                self.dispatch(request, pick, now, effects);
            }
            Verdict::Hold { worker, until } => {
                request.hold = Hold::Holding { worker, until };
                request.held_since.get_or_insert(now);
                request.no_worker_until = None;
                self.line.turn_came(&mut request.ticket);
                self.wait(request, Some(worker), now, effects);
            }
            Verdict::NoSeat => {
                if matches!(request.hold, Hold::Holding { .. }) {
                    request.hold = Hold::Spent;
                }
                request.no_worker_until = None;
                let class = self.line.class(request.ticket.class);
                if class.is_some_and(|class| self.class_room(class, now)) {
                    self.line.turn_came(&mut request.ticket);
                    self.line.unfit.insert(request.ticket.place);
                    if self.passing && request.waits() {
                        self.misfits.push(request.ticket.place);
                        self.line.stand(&mut request.ticket, Standing::Misfit, now);
                        self.keep_waiting(request);
                        return;
                    }
                }
                self.wait(request, None, now, effects);
            }
            Verdict::NoWorker => self.no_worker(request, now, effects),
            Verdict::Lost => self.lost(request, effects),
        }
    }

    pub(super) fn lost(&mut self, request: Box<Request>, effects: &mut Vec<Effect>) {
        let refusal = match request.last_failure {
            Some(failure) => Refusal::AttemptsExhausted(failure),
            None => Refusal::ResponseLost,
        };
        self.refuse(request, refusal, effects);
    }

    pub(super) fn no_worker(
        &mut self,
        mut request: Box<Request>,
        now: Nanos,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(failure) = request.last_failure {
            self.refuse(request, Refusal::AttemptsExhausted(failure), effects);
            return;
        }
        let wait = self.config.no_worker_wait;
        let until = *request.no_worker_until.get_or_insert(now + wait);
        if until.min(request.give_up) <= now {
            self.refuse(request, Refusal::NoWorkers, effects);
        } else {
            self.wait(request, None, now, effects);
        }
    }

    /// It waits: for one worker, or for any seat.
    fn wait(
        &mut self,
        mut request: Box<Request>,
        holds: Option<WorkerId>,
        now: Nanos,
        effects: &mut Vec<Effect>,
    ) {
        if request.give_up <= now {
            self.refuse(request, Refusal::WaitExpired, effects);
            return;
        }
        if let Some(refusal) = self.door(&mut request, now) {
            self.refuse(request, refusal, effects);
            return;
        }
        self.admitted(&request, now);
        let standing = match holds {
            Some(_) => Standing::Holding,
            None if self.passing && request.waits() => Standing::Misfit,
            None => request.asking(),
        };
        if standing == Standing::Misfit {
            self.misfits.push(request.ticket.place);
        }
        let ticket = &mut request.ticket;
        if ticket.standing != standing {
            if ticket.standing == Standing::Holding {
                self.line.stand(ticket, standing, now);
            }
            ticket.held_for = holds;
            self.line.stand(ticket, standing, now);
        }
        self.keep_waiting(request);
    }

    pub(super) fn keep_waiting(&mut self, mut request: Box<Request>) {
        self.arm_request(&mut request);
        self.keep(request);
    }

    pub(super) fn leave_line(&mut self, request: &mut Request, now: Nanos) {
        self.disarm_request(request);
        if request.waits() {
            self.kept_or_broken(request, now, false);
            self.line.stand(&mut request.ticket, Standing::Out, now);
        }
    }

    /// Counts what became of the promise to one that leaves the line.
    fn kept_or_broken(&mut self, request: &Request, now: Nanos, seated: bool) {
        let ticket = &request.ticket;
        let class = self.line.class(ticket.class);
        let limit = class.and_then(|c| c.order(ticket.band).start_within(ticket.line));
        let Some(limit) = limit.filter(|_| request.attempts == 0) else {
            return;
        };
        let line = self.line.counts.line(ticket.band, ticket.line);
        if now.since(request.arrived) > limit {
            line.promises_broken += 1;
        } else if seated {
            line.promises_kept += 1;
        }
    }

    /// It leaves the line for a seat; the first time, its charge counts.
    fn leave_for_seat(&mut self, request: &mut Request, now: Nanos) {
        let waited = request.waits();
        if waited {
            self.disarm_request(request);
            self.kept_or_broken(request, now, true);
            self.line.stand(&mut request.ticket, Standing::Misfit, now);
        }
        if request.attempts == 0 {
            request.ticket.charged = Some(request.ticket.class);
            self.line.served(&request.ticket, &self.config.bands, now);
        }
        if waited {
            self.line.stand(&mut request.ticket, Standing::Out, now);
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
        let passed_by = self.line.passes(&request.ticket);
        self.admitted(&request, now);
        self.leave_for_seat(&mut request, now);
        request.hold = Hold::Spent;
        request.no_worker_until = None;
        request.attempts += 1;
        let id = AttemptId {
            request: request.guest.request,
            number: request.attempts,
        };
        let belief = self.belief_of(chosen.worker, &request, now);
        let (prefill, resident) = self.lease_tokens(&request, chosen.matched_tokens);
        let (mark, seconds) = self.expect(&request, &chosen, prefill, now);
        let waiting = self.line.len() as f64 / self.scratch.candidates.len().max(1) as f64;
        let held = request
            .held_since
            .take()
            .map_or(0.0, |since| now.since(since).as_secs_f64());
        let affinity_cost = self.affinity_cost(&chosen, now) + held;
        let mut decision = self.explain(&request, (id, passed_by), pick, &chosen, belief, now);
        decision.first_token_expected = Duration::try_from_secs_f64(seconds).ok();
        decision.stay = self.stay(&request, &chosen, now);
        let why = self.why_moved(&request, decision.reason, held > 0.0, now);
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
        let attempt = Attempt {
            id,
            lease,
            dispatched: now,
            belief,
            matched: chosen.matched_tokens,
            accepted: false,
            first_token: false,
            aborted: false,
            mark,
            why,
            affinity_cost,
            delays: 1.0 + waiting,
            taken_back: worker.taken_back,
        };
        self.meter_dispatch(&request, &attempt, now);
        request.attempt = Some(attempt);
        self.predict(chosen.worker, &request.guest.chain, belief, now);
        self.claim(&request);
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
