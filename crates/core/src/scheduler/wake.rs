//! What happens because time passed, and the pass over the line when a seat may be free.

use super::candidates::Pin;
use super::request::{Hold, Request};
use super::{LostResponse, Scheduler};
use crate::ids::{RequestId, WorkerId};
use crate::input::Effect;
use crate::line::ticket::Standing;
use crate::request::Refusal;
use crate::time::Nanos;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// The request at this place in the line: its hold or its wait ends.
    Line(u64),
    /// A worker may be tried again, or its drain deadline is reached.
    Worker(WorkerId),
}

impl Scheduler {
    pub(super) fn run_due(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        while let Some((at, due)) = self.timers.first().copied() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            match due {
                Due::Line(place) => self.line_due(place, now, effects),
                Due::Worker(id) => {
                    if let Some(worker) = self.fleet.get_mut(id) {
                        worker.timer = None;
                        self.room = true;
                        self.fleet_changed = true;
                        self.end_drain(id, now, effects);
                        self.arm_worker(id, now);
                    }
                }
            }
        }
    }

    fn line_due(&mut self, place: u64, now: Nanos, effects: &mut Vec<Effect>) {
        let Some(mut request) = self.line.get(place).and_then(|id| self.take(id)) else {
            debug_assert!(false, "timers of the line are those of waiting requests");
            return;
        };
        request.timer = None;
        if request.give_up <= now || request.no_worker_until.is_some_and(|until| until <= now) {
            let refusal = if request.no_worker_until.is_some() {
                Refusal::NoWorkers
            } else {
                Refusal::WaitExpired
            };
            self.refuse(request, refusal, effects);
            return;
        }
        if matches!(request.hold, Hold::Holding { until, .. } if until <= now) {
            request.hold = Hold::Spent;
            self.ask_again(&mut request, now);
        }
        self.keep_waiting(request);
    }

    /// Reviews the line where workers changed, and serves it where a seat may be free.
    pub(super) fn serve(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        if core::mem::take(&mut self.members_changed) {
            self.regroup(now);
        }
        if core::mem::take(&mut self.fleet_changed) && self.line.len() > 0 {
            self.review_line(now, effects);
        }
        while core::mem::take(&mut self.room) && self.line.len() > 0 {
            self.serve_line(now, effects);
        }
    }

    /// Those who hold do so by another policy's word: they will be asked for again.
    pub(super) fn end_holds(&mut self, now: Nanos) {
        let holders: Vec<RequestId> = self.line.iter().map(|(_, id)| id).collect();
        for id in holders {
            if let Some(mut request) = self.take(id) {
                if matches!(request.hold, Hold::Holding { .. }) {
                    request.hold = Hold::Fresh;
                    self.ask_again(&mut request, now);
                    self.arm_request(&mut request);
                }
                self.keep(request);
            }
        }
    }

    /// After a change of who could take what: ends holds for workers that take no work, settles
    /// those whose response is lost, starts and stops the clock of those whom nobody could take.
    fn review_line(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        self.room = true;
        let ids: Vec<RequestId> = self.line.iter().map(|(_, id)| id).collect();
        for id in ids {
            if let Some(request) = self.take(id) {
                self.review(request, now, effects);
            }
        }
    }

    fn review(&mut self, mut request: Box<Request>, now: Nanos, effects: &mut Vec<Effect>) {
        if request.guest.previous_response.is_some() {
            if matches!(self.pin(&request, now), Pin::Lost)
                && self.config.lost_response == LostResponse::Refuse
            {
                self.lost(request, effects);
                return;
            }
            let standing = request.ticket.standing;
            self.line.stand(&mut request.ticket, Standing::Out, now);
            self.classify(&mut request, now);
            let standing = match standing {
                Standing::Holding => request.asking(),
                other => other,
            };
            self.line.stand(&mut request.ticket, standing, now);
        }
        if let Hold::Holding { worker, .. } = request.hold
            && !self
                .fleet
                .get(worker)
                .is_some_and(|worker| worker.health.takes_work(now))
        {
            self.ask_again(&mut request, now);
        }
        let pinned = matches!(self.pin(&request, now), Pin::On(_) | Pin::Away(_));
        if !pinned && !self.has_candidate(&request, now) {
            if request.no_worker_until.is_none() {
                self.no_worker(request, now, effects);
                return;
            }
        } else {
            request.no_worker_until = None;
        }
        self.keep_waiting(request);
    }

    pub(super) fn tell_wake(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        let pending = self.told.filter(|at| *at > now);
        let next = self.next_wake();
        self.told = pending;
        if let Some(next) = next
            && pending.is_none_or(|at| next < at)
        {
            self.told = Some(next);
            effects.push(Effect::Wake(next));
        }
    }

    pub(super) fn arm_request(&mut self, request: &mut Request) {
        let due = request.next_due();
        if request.timer != Some(due) {
            self.disarm_request(request);
            request.timer = Some(due);
            self.timers.insert((due, Due::Line(request.ticket.place)));
        }
    }

    pub(super) fn disarm_request(&mut self, request: &mut Request) {
        if let Some(at) = request.timer.take() {
            self.timers.remove(&(at, Due::Line(request.ticket.place)));
        }
    }

    pub(super) fn arm_worker(&mut self, id: WorkerId, now: Nanos) {
        let Some(worker) = self.fleet.get_mut(id) else {
            return;
        };
        let change = worker.health.next_change(now);
        let drain = worker.drain_deadline;
        let due = match (change, drain) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if worker.timer == due {
            return;
        }
        let old = core::mem::replace(&mut worker.timer, due);
        if let Some(at) = old {
            self.timers.remove(&(at, Due::Worker(id)));
        }
        if let Some(at) = due {
            self.timers.insert((at, Due::Worker(id)));
        }
    }

    pub(super) fn disarm_worker(&mut self, id: WorkerId) {
        if let Some(worker) = self.fleet.get_mut(id)
            && let Some(at) = worker.timer.take()
        {
            self.timers.remove(&(at, Due::Worker(id)));
        }
    }
}
