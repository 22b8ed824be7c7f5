//! The invariants, for tests and the simulator.

use super::Scheduler;
use super::wake::Due;
use crate::pool::ledger::Ledger;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;

impl Scheduler {
    pub(super) fn check_invariants(&self) -> Result<(), String> {
        self.check_leases()?;
        self.check_line()?;
        self.check_timers()?;
        self.index.check()?;
        self.observed.check()?;
        self.check_flows()?;
        if !self.homes.consistent() || !self.openings.consistent() {
            return Err("homes: counts, list and map disagree".into());
        }
        if !self.responses.consistent() {
            return Err("responses: order and map disagree".into());
        }
        if self.next_wake().is_some_and(|at| at <= self.now) {
            return Err("a timer that is due was not run".into());
        }
        match (self.next_wake(), self.told) {
            (Some(next), told) if told.is_none_or(|told| told > next) => {
                Err("the caller was not told of the next wake-up".into())
            }
            _ => Ok(()),
        }
    }

    /// Each worker's ledger is the sum of the open attempts on it.
    fn check_leases(&self) -> Result<(), String> {
        let mut sums: BTreeMap<_, Ledger> = BTreeMap::new();
        for request in self.requests.values() {
            if let Some(attempt) = &request.attempt {
                let sum = sums.entry(attempt.lease.worker).or_default();
                sum.running += 1;
                sum.prefills += u32::from(attempt.lease.prefill_open());
                sum.prefill_tokens += attempt.lease.prefill_tokens();
                sum.resident_tokens += attempt.lease.resident_tokens();
                sum.computed_tokens += attempt.lease.computed_tokens();
            }
        }
        for worker in self.fleet.iter() {
            let sum = sums.remove(&worker.id).unwrap_or_default();
            if sum != worker.ledger {
                return Err(format!(
                    "{:?}: the ledger says {:?}, its leases sum to {sum:?}",
                    worker.id, worker.ledger
                ));
            }
            if worker.availability != worker.health.availability() {
                return Err(format!("{:?}: availability was not told", worker.id));
            }
            if let Some(trial) = worker.health.trial() {
                let request = self.requests.get(&trial.request);
                let open = request.and_then(|r| r.attempt.as_ref());
                if open.is_none_or(|a| a.id != trial || a.lease.worker != worker.id) {
                    return Err(format!("{:?}: its trial {trial:?} is over", worker.id));
                }
            }
        }
        Ok(())
    }

    /// Every request is either in the line or on a worker, and the line holds no others.
    fn check_line(&self) -> Result<(), String> {
        let mut waiting = 0;
        let mut returned = 0;
        for (id, request) in &self.requests {
            if request.waits() == request.attempt.is_some() {
                return Err(format!("{id:?} is both or neither in the line and seated"));
            }
            if request.waits() {
                waiting += 1;
                returned += usize::from(request.attempts > 0);
                if self.line.get(request.ticket.place) != Some(*id) {
                    return Err(format!("{id:?} waits, but is not in the line"));
                }
                if request.timer != Some(request.next_due()) {
                    return Err(format!("{id:?} waits without its timer"));
                }
            } else if request.timer.is_some() {
                return Err(format!("{id:?} is seated and has a timer"));
            }
        }
        self.line.check()?;
        if waiting != self.line.len() {
            return Err(format!("{waiting} wait, {} in line", self.line.len()));
        }
        if waiting - returned > self.config.line_max {
            return Err(format!("{waiting} in line, over the bound"));
        }
        Ok(())
    }

    fn check_timers(&self) -> Result<(), String> {
        let of_workers = self.fleet.iter().filter(|w| w.timer.is_some()).count();
        if self.timers.len() != of_workers + self.line.len() {
            return Err("timers that belong to nobody".into());
        }
        for (at, due) in &self.timers {
            let owned = match due {
                Due::Line(place) => self
                    .line
                    .get(*place)
                    .and_then(|id| self.requests.get(&id))
                    .is_some_and(|request| request.timer == Some(*at)),
                Due::Worker(id) => self.fleet.get(*id).is_some_and(|w| w.timer == Some(*at)),
            };
            if !owned {
                return Err(format!("{due:?} at {at:?} belongs to nobody"));
            }
        }
        Ok(())
    }
}
