//! Workers come, go, drain and report.

use super::Scheduler;
use crate::ids::{AttemptId, WorkerId};
use crate::input::Effect;
use crate::pool::learnt::Learnt;
use crate::pool::{FleetChange, Gauges, Report, WorkerSpec};
use crate::request::Identity;
use crate::time::Nanos;
use alloc::vec::Vec;

/// Capacities in blocks are refitted once the learnt ratio moved by more than this share.
const RATIO_MOVED: f64 = 0.1;

impl Scheduler {
    pub(super) fn fleet_change(
        &mut self,
        change: FleetChange,
        now: Nanos,
        effects: &mut Vec<Effect>,
    ) {
        match change {
            FleetChange::Add(id, spec) => self.add(id, spec),
            FleetChange::Drain(id, deadline) => {
                if let Some(worker) = self.fleet.get_mut(id) {
                    worker.health.set_draining(true);
                    worker.drain_deadline = deadline;
                    self.end_drain(id, now, effects);
                    self.health_changed(id, now, effects);
                }
            }
            FleetChange::Resume(id) => {
                if let Some(worker) = self.fleet.get_mut(id) {
                    worker.health.set_draining(false);
                    worker.drain_deadline = None;
                    self.health_changed(id, now, effects);
                }
            }
            FleetChange::Remove(id) => self.remove(id, effects),
            FleetChange::Seats(id, seats) => {
                if let Some(worker) = self.fleet.get_mut(id) {
                    worker.seats = seats;
                    self.homes.set_cache_slots(id.slot, seats.cache_slots);
                    self.room = true;
                    self.fit_capacity(id);
                }
            }
            FleetChange::Limits(id, limits) => {
                if let Some(worker) = self.fleet.get_mut(id) {
                    worker.limits = limits;
                    self.members_changed = true;
                    self.room = true;
                    self.fleet_changed = true;
                }
            }
            FleetChange::Models(id, models) => {
                if let Some(worker) = self.fleet.get_mut(id) {
                    worker.set_models(models);
                    self.members_changed = true;
                    self.room = true;
                    self.fleet_changed = true;
                }
            }
        }
    }

    /// A worker waits for that many requests; says nothing of one that does not pull.
    pub(super) fn pop(&mut self, id: WorkerId, seats: u32) {
        if let Some(worker) = self.fleet.get_mut(id)
            && let Some(polls) = &mut worker.polls
        {
            self.room |= seats > *polls;
            *polls = seats;
        }
    }

    pub(super) fn report(
        &mut self,
        id: WorkerId,
        report: Report,
        now: Nanos,
        effects: &mut Vec<Effect>,
    ) {
        let Some(worker) = self.fleet.get_mut(id) else {
            return;
        };
        match report {
            Report::Alive => {
                if worker.health.alive() {
                    worker.forget_started();
                    self.restart(id, false, effects);
                }
            }
            Report::Loading => worker.health.loading(now),
            Report::Dead { refused } => worker.health.dead(refused, now, &self.config.probes),
            Report::Bytes => worker.health.bytes(now),
            Report::Gauges(gauges) => self.heard(id, gauges, now, effects),
        }
        self.health_changed(id, now, effects);
    }

    fn heard(&mut self, id: WorkerId, gauges: Gauges, now: Nanos, effects: &mut Vec<Effect>) {
        let Some(worker) = self.fleet.get_mut(id) else {
            return;
        };
        let before = worker.kv_tokens;
        let restarted = worker.heard(gauges, now);
        let own = worker.ledger.running;
        if let Some(learnt) = &mut worker.learnt {
            self.room |= learnt.heard(gauges.running, gauges.waiting, own, now);
        }
        if worker.kv_tokens != before {
            self.fit_capacity(id);
        }
        if restarted {
            self.restart(id, false, effects);
        }
    }

    /// A new life of the worker's cache: what it held is gone, and so is every reason to go back.
    /// `told`: its KV events said so.
    pub(super) fn restart(&mut self, id: WorkerId, told: bool, effects: &mut Vec<Effect>) {
        let Some(worker) = self.fleet.get_mut(id) else {
            return;
        };
        worker.reborn();
        let epoch = worker.epoch;
        self.forget(id);
        // Those who wait for a response of its old life wait in vain; and it is not full any more.
        self.fleet_changed = true;
        self.room = true;
        effects.push(Effect::Epoch {
            worker: id,
            epoch,
            read_again: !told,
        });
    }

    /// After anything that may have changed a worker's health: tells the caller, and looks at the
    /// line again.
    pub(super) fn health_changed(&mut self, id: WorkerId, now: Nanos, effects: &mut Vec<Effect>) {
        let Some(worker) = self.fleet.get_mut(id) else {
            return;
        };
        let state = worker.health.availability();
        if state != worker.availability {
            worker.availability = state;
            self.room = true;
            self.fleet_changed = true;
            effects.push(Effect::Availability { worker: id, state });
        }
        self.arm_worker(id, now);
    }

    /// Aborts what still runs once the drain deadline is reached.
    pub(super) fn end_drain(&mut self, id: WorkerId, now: Nanos, effects: &mut Vec<Effect>) {
        let over = self
            .fleet
            .get_mut(id)
            .and_then(|worker| worker.drain_deadline.take_if(|deadline| *deadline <= now));
        if over.is_some() {
            self.abort_all(id, effects);
        }
    }

    fn add(&mut self, id: WorkerId, spec: WorkerSpec) {
        let cache_slots = spec.seats.cache_slots;
        if !self.fleet.add(id, spec) {
            return;
        }
        if self.config.learn_slots
            && let Some(worker) = self.fleet.get_mut(id)
        {
            worker.learnt = Some(Learnt::new(self.config.stale_after));
        }
        self.homes.set_cache_slots(id.slot, cache_slots);
        self.index.forget(id.slot);
        self.fit_capacity(id);
        self.tell_members();
        self.room = true;
        self.members_changed = true;
        self.fleet_changed = true;
    }

    fn remove(&mut self, id: WorkerId, effects: &mut Vec<Effect>) {
        self.disarm_worker(id);
        if self.fleet.remove(id).is_none() {
            return;
        }
        self.observed.forget(id.slot);
        self.forget(id);
        self.tell_members();
        self.members_changed = true;
        self.fleet_changed = true;
        self.abort_all(id, effects);
    }

    /// Forgets what the worker held and who was at home on it. Response bindings stay, so that a
    /// lost one is known as lost.
    fn forget(&mut self, id: WorkerId) {
        if let Some(worker) = self.fleet.get_mut(id) {
            worker.taken_back = worker.taken_back.wrapping_add(1);
        }
        self.index.forget(id.slot);
        self.observed.restart(id.slot);
        self.homes.forget(id);
        self.openings.forget(id);
    }

    fn abort_all(&mut self, id: WorkerId, effects: &mut Vec<Effect>) {
        let mut aborts: Vec<(u64, AttemptId)> = Vec::new();
        for request in self.requests.values_mut() {
            if let Some(attempt) = &mut request.attempt
                && attempt.lease.worker == id
                && !attempt.aborted
            {
                attempt.aborted = true;
                aborts.push((request.ticket.place, attempt.id));
            }
        }
        // The map's order means nothing; the order of arrival does.
        aborts.sort_unstable();
        effects.extend(aborts.into_iter().map(|(_, id)| Effect::Abort(id)));
    }

    fn fit_capacity(&mut self, id: WorkerId) {
        if let Some(worker) = self.fleet.get(id) {
            let told = worker.seats.kv_tokens.or(worker.kv_tokens);
            let tokens = told.unwrap_or(self.config.kv_tokens);
            let blocks = match self.config.identity {
                Identity::Tokens => (tokens / u64::from(self.config.token_block.max(1))).max(1),
                Identity::Bytes => self.ratio.blocks(tokens, self.config.block_bytes),
            };
            self.index.set_capacity(id.slot, Some(blocks));
        }
    }

    /// Capacities are told in tokens and kept in blocks: those of bytes follow the ratio.
    pub(super) fn refit_capacities(&mut self) {
        if self.config.identity == Identity::Tokens {
            return;
        }
        let ratio = self.ratio.get();
        if libm::fabs(ratio - self.capacity_ratio) > self.capacity_ratio * RATIO_MOVED {
            self.capacity_ratio = ratio;
            let ids: Vec<WorkerId> = self.fleet.iter().map(|worker| worker.id).collect();
            for id in ids {
                self.fit_capacity(id);
            }
        }
    }
}
