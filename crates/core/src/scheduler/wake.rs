//! What happens because time passed, and the pass over the line when a seat may be free.

use super::Scheduler;
use super::candidates::has_room;
use super::request::{Hold, Request};
use crate::ids::{RequestId, WorkerId};
use crate::input::Effect;
use crate::limits::LINE_SCAN_MAX;
use crate::request::Refusal;
use crate::time::Nanos;
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
        if request.give_up <= now {
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
        }
        self.place(request, now, effects);
    }

    /// Reviews the line where workers changed, and serves it where a seat may be free.
    pub(super) fn serve(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        if core::mem::take(&mut self.fleet_changed) && self.line.len() > 0 {
            self.review_line(now, effects);
        }
        if core::mem::take(&mut self.room) && self.line.len() > 0 {
            self.serve_line(now, effects);
        }
    }

    /// First come, first served, as far as seats go; those who still hold for a worker that has
    /// no room let others pass.
    fn serve_line(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        let mut last = None;
        let mut room = self.any_room(now);
        for _ in 0..LINE_SCAN_MAX {
            let Some((place, id)) = self.line.after(last).filter(|_| room) else {
                break;
            };
            last = Some(place);
            if self.requests.get(&id).is_some_and(|r| self.holds(r, now)) {
                continue;
            }
            if let Some(request) = self.take(id) {
                let before = self.line.len();
                self.place(request, now, effects);
                if self.line.len() < before {
                    room = self.any_room(now);
                }
            }
        }
    }

    /// Those who hold do so by another policy's word: they will be asked for again.
    pub(super) fn end_holds(&mut self) {
        let holders: Vec<RequestId> = self.line.iter().map(|(_, id)| id).collect();
        for id in holders {
            if let Some(mut request) = self.take(id) {
                if matches!(request.hold, Hold::Holding { .. }) {
                    request.hold = Hold::Fresh;
                    self.arm_request(&mut request);
                }
                self.keep(request);
            }
        }
    }

    /// Whether it holds for a worker that takes work but has no room yet.
    fn holds(&self, request: &Request, now: Nanos) -> bool {
        let Hold::Holding { worker, until } = request.hold else {
            return false;
        };
        until > now
            && self
                .fleet
                .get(worker)
                .is_some_and(|worker| worker.health.takes_work(now) && !has_room(worker, now))
    }

    /// After a change of who could take what: ends holds for workers that take no work, settles
    /// those whose response is lost, starts and stops the clock of those whom nobody could take.
    fn review_line(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        let due: Vec<RequestId> = self
            .line
            .iter()
            .filter(|(_, id)| {
                self.requests
                    .get(id)
                    .is_some_and(|request| self.must_be_placed_again(request, now))
            })
            .map(|(_, id)| id)
            .collect();
        for id in due {
            if let Some(request) = self.take(id) {
                self.place(request, now, effects);
            }
        }
    }

    fn must_be_placed_again(&self, request: &Request, now: Nanos) -> bool {
        if request.guest.previous_response.is_some() {
            return true;
        }
        if let Hold::Holding { worker, .. } = request.hold
            && !self
                .fleet
                .get(worker)
                .is_some_and(|worker| worker.health.takes_work(now))
        {
            return true;
        }
        self.has_candidate(request, now) == request.no_worker_until.is_some()
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
            self.timers.insert((due, Due::Line(request.place)));
        }
    }

    pub(super) fn disarm_request(&mut self, request: &mut Request) {
        if let Some(at) = request.timer.take() {
            self.timers.remove(&(at, Due::Line(request.place)));
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
