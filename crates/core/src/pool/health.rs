//! Whether a worker gets new work: probes, breaker, load, drain. Pure: time is an argument.
//!
//! - Probes: `failures` failed ones in a row make it unhealthy, unless bytes came from it lately.
//!   A worker that says that it is loading is neither healthy nor failed.
//! - Breaker: faults of attempts in a row open it; afterwards one attempt at a time may try, and
//!   its success closes it. Client errors (4xx) and saturation neither open nor close it.
//! - Saturation: at most one second without a seat.
//! - Restart: not there (refused, loading again), then there: its cache is a new one.

use super::Availability;
use crate::ids::AttemptId;
use crate::scheduler::{Breaker, Probes};
use crate::time::Nanos;
use core::time::Duration;

/// The longest time for which one "I am full" keeps new work away.
pub(crate) const SATURATION_MAX: Duration = Duration::from_secs(1);

/// The state of one worker.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    ready: bool,
    /// It was alive or took an attempt at least once: there is something to lose in a restart.
    seen: bool,
    probes_failed: u32,
    unhealthy: bool,
    refused: bool,
    bytes: Option<Nanos>,
    /// Since when it looks as if its process were gone.
    gone: Option<Nanos>,
    /// Its new life was told of in another way; being there again tells nothing more.
    renewed: bool,
    faults: u32,
    open_until: Option<Nanos>,
    trial: Option<AttemptId>,
    saturated_until: Option<Nanos>,
    draining: bool,
}

impl Health {
    pub(crate) fn new(assume_ready: bool) -> Self {
        Self {
            ready: assume_ready,
            seen: false,
            probes_failed: 0,
            unhealthy: false,
            refused: false,
            bytes: None,
            gone: None,
            renewed: false,
            faults: 0,
            open_until: None,
            trial: None,
            saturated_until: None,
            draining: false,
        }
    }

    /// The state to show. A breaker that may be tried again is shown as open until a success.
    pub(crate) fn availability(&self) -> Availability {
        if self.draining {
            Availability::Draining
        } else if !self.ready {
            Availability::Starting
        } else if self.open_until.is_some() {
            Availability::Broken
        } else if self.unhealthy {
            Availability::Unhealthy
        } else {
            Availability::Ready
        }
    }

    /// Whether it may get new work now (a breaker's trial included).
    pub(crate) fn takes_work(&self, now: Nanos) -> bool {
        let breaker = self
            .open_until
            .is_none_or(|until| until <= now && self.trial.is_none());
        self.ready && !self.draining && !self.unhealthy && breaker
    }

    /// Whether it may get new work where no other worker can: probes fail, but nobody refused.
    pub(crate) fn last_resort(&self, now: Nanos) -> bool {
        let breaker = self
            .open_until
            .is_none_or(|until| until <= now && self.trial.is_none());
        self.ready && !self.draining && self.unhealthy && !self.refused && breaker
    }

    /// It said a moment ago that it is full.
    pub(crate) fn saturated(&self, now: Nanos) -> bool {
        self.saturated_until.is_some_and(|until| now < until)
    }

    pub(crate) fn draining(&self) -> bool {
        self.draining
    }

    pub(crate) fn set_draining(&mut self, draining: bool) {
        self.draining = draining;
    }

    /// The next time at which it may take work that it does not take now.
    pub(crate) fn next_change(&self, now: Nanos) -> Option<Nanos> {
        let breaker = self.open_until.filter(|until| now < *until);
        let load = self.saturated_until.filter(|until| now < *until);
        match (breaker, load) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The health probe succeeded. True: it was gone before, so this is a new life.
    pub(crate) fn alive(&mut self) -> bool {
        let restarted = self.seen && self.gone.is_some() && !self.renewed;
        self.renewed = false;
        self.gone = None;
        self.ready = true;
        self.seen = true;
        self.refused = false;
        self.unhealthy = false;
        self.probes_failed = 0;
        restarted
    }

    /// It answers, but its model is not loaded.
    pub(crate) fn loading(&mut self, now: Nanos) {
        self.ready = false;
        self.refused = false;
        self.unhealthy = false;
        self.probes_failed = 0;
        self.gone.get_or_insert(now);
    }

    /// A probe failed. Bytes within the configured time outweigh it, except those from before the
    /// connection was refused.
    pub(crate) fn dead(&mut self, refused: bool, now: Nanos, probes: &Probes) {
        self.probes_failed = self.probes_failed.saturating_add(1);
        self.refused = refused;
        if refused {
            self.gone.get_or_insert(now);
            self.bytes = None;
        }
        let bytes = self
            .bytes
            .is_some_and(|at| now.since(at) <= probes.bytes_count_for);
        if self.probes_failed >= probes.failures && !bytes {
            self.unhealthy = true;
        }
    }

    /// Bytes came from it.
    pub(crate) fn bytes(&mut self, now: Nanos) {
        self.bytes = Some(now);
        self.unhealthy = false;
        self.refused = false;
    }

    /// It took an attempt that was opened at `dispatched`. True: it was gone before that, so this
    /// is a new life.
    pub(crate) fn accepted(&mut self, dispatched: Nanos, now: Nanos) -> bool {
        self.bytes(now);
        let back = self.gone.is_some_and(|since| since <= dispatched);
        if back {
            self.gone = None;
        }
        let restarted = back && self.seen && !self.renewed;
        self.renewed = false;
        self.seen = true;
        restarted
    }

    /// An attempt opened at `dispatched` went on: whatever looked gone since then was not.
    pub(crate) fn went_on(&mut self, dispatched: Nanos, now: Nanos) {
        self.bytes(now);
        if self.gone.is_some_and(|since| dispatched < since) {
            self.gone = None;
        }
    }

    /// No connection could be made.
    pub(crate) fn not_reached(&mut self, now: Nanos) {
        self.gone.get_or_insert(now);
    }

    /// An attempt was opened on it.
    pub(crate) fn opened(&mut self, attempt: AttemptId) {
        if self.open_until.is_some() && self.trial.is_none() {
            self.trial = Some(attempt);
        }
    }

    /// The trial's first token closes the breaker; one more fault before a complete answer opens
    /// it again.
    pub(crate) fn first_token(&mut self, attempt: AttemptId) {
        if self.trial == Some(attempt) {
            self.trial = None;
            self.open_until = None;
            self.faults = self.faults.saturating_sub(1);
        }
    }

    /// A complete answer. One that was under way when the breaker opened does not close it.
    pub(crate) fn served(&mut self, attempt: AttemptId) {
        self.first_token(attempt);
        if self.open_until.is_none() {
            self.faults = 0;
        }
    }

    /// The attempt ended in a way that says nothing of the worker.
    pub(crate) fn neutral(&mut self, attempt: AttemptId) {
        if self.trial == Some(attempt) {
            self.trial = None;
        }
    }

    /// A fault. Never shortens an open breaker.
    pub(crate) fn fault(
        &mut self,
        attempt: AttemptId,
        retry_after: Option<Duration>,
        now: Nanos,
        breaker: &Breaker,
    ) {
        self.neutral(attempt);
        self.faults = self.faults.saturating_add(1).min(breaker.faults);
        if self.faults >= breaker.faults || self.open_until.is_some() {
            let open = breaker.open.max(retry_after.unwrap_or_default());
            let until = now + open;
            self.open_until = Some(self.open_until.map_or(until, |old| old.max(until)));
        }
    }

    /// It said that it is full.
    pub(crate) fn full(&mut self, attempt: AttemptId, retry_after: Option<Duration>, now: Nanos) {
        self.neutral(attempt);
        let wait = retry_after.map_or(SATURATION_MAX, |wait| wait.min(SATURATION_MAX));
        self.saturated_until = Some(now + wait);
    }

    /// A new life: nothing of the old one counts against it, and no attempt is on it yet.
    pub(crate) fn reborn(&mut self) {
        self.gone = None;
        self.saturated_until = None;
    }

    /// Its events told of a new life: that it is away until it has loaded is known.
    pub(crate) fn renewed(&mut self) {
        self.renewed = true;
    }

    /// The attempt that tries a broken worker.
    pub(crate) fn trial(&self) -> Option<AttemptId> {
        self.trial
    }
}

#[cfg(test)]
mod tests {
    use super::{Availability, Breaker, Duration, Health, Nanos, Probes};
    use crate::ids::{AttemptId, RequestId};

    const BREAKER: Breaker = Breaker {
        faults: 2,
        open: Duration::from_secs(10),
    };
    const PROBES: Probes = Probes {
        failures: 3,
        bytes_count_for: Duration::from_secs(30),
    };

    fn at(seconds: f64) -> Nanos {
        Nanos((seconds * 1e9) as u64)
    }

    fn attempt(request: u64) -> AttemptId {
        AttemptId {
            request: RequestId(request),
            number: 1,
        }
    }

    #[test]
    fn loading_is_neither_healthy_nor_failed() {
        let mut health = Health::new(false);
        assert_eq!(health.availability(), Availability::Starting);
        health.loading(at(0.0));
        assert!(!health.takes_work(at(1.0)));
        assert!(!health.alive(), "its first life");
        assert_eq!(health.availability(), Availability::Ready);
        health.loading(at(2.0));
        assert_eq!(health.availability(), Availability::Starting);
        assert!(health.alive(), "it loaded its model again");
    }

    #[test]
    fn breaker_opens_tries_once_and_closes() {
        let mut health = Health::new(true);
        health.fault(attempt(1), None, at(0.0), &BREAKER);
        assert!(health.takes_work(at(0.0)));
        health.fault(attempt(2), None, at(1.0), &BREAKER);
        assert_eq!(health.availability(), Availability::Broken);
        assert!(!health.takes_work(at(10.9)));
        assert!(health.takes_work(at(11.0)));
        health.opened(attempt(3));
        assert!(!health.takes_work(at(11.0)), "one trial at a time");
        health.neutral(attempt(3));
        assert!(health.takes_work(at(11.0)), "a 4xx said nothing");
        health.opened(attempt(4));
        health.fault(attempt(4), None, at(12.0), &BREAKER);
        assert!(!health.takes_work(at(21.9)));
        health.opened(attempt(5));
        health.first_token(attempt(5));
        assert_eq!(health.availability(), Availability::Ready);
        health.fault(attempt(5), None, at(30.0), &BREAKER);
        assert_eq!(
            health.availability(),
            Availability::Broken,
            "never a whole answer"
        );
    }

    #[test]
    fn a_later_fault_never_shortens_and_a_longer_one_extends() {
        let breaker = Breaker {
            faults: 1,
            open: Duration::from_secs(60),
        };
        let mut health = Health::new(true);
        health.fault(attempt(1), Some(Duration::from_secs(1)), at(0.0), &breaker);
        health.fault(attempt(2), None, at(0.5), &breaker);
        assert!(!health.takes_work(at(60.4)));
        assert!(health.takes_work(at(60.5)));
        health.fault(attempt(3), Some(Duration::from_secs(90)), at(1.0), &breaker);
        health.fault(attempt(4), None, at(2.0), &breaker);
        assert_eq!(health.next_change(at(3.0)), Some(at(91.0)));
    }

    #[test]
    fn saturation_is_load_for_at_most_a_second() {
        let mut health = Health::new(true);
        for n in 0..10 {
            health.full(attempt(n), Some(Duration::from_secs(30)), at(0.0));
        }
        assert!(health.takes_work(at(0.0)), "no fault");
        assert!(health.saturated(at(0.9)) && !health.saturated(at(1.0)));
        assert_eq!(health.availability(), Availability::Ready);
        health.full(attempt(11), Some(Duration::from_millis(200)), at(2.0));
        assert!(!health.saturated(at(2.2)));
    }

    #[test]
    fn bytes_outweigh_failed_probes() {
        let mut health = Health::new(true);
        health.bytes(at(0.0));
        for second in 1..=30 {
            health.dead(false, at(f64::from(second)), &PROBES);
        }
        assert_eq!(health.availability(), Availability::Ready);
        health.dead(false, at(31.0), &PROBES);
        assert_eq!(health.availability(), Availability::Unhealthy);
        assert!(health.last_resort(at(31.0)), "connecting may still work");
        health.dead(true, at(32.0), &PROBES);
        assert!(!health.last_resort(at(32.0)), "nobody is there");
        health.bytes(at(33.0));
        assert_eq!(health.availability(), Availability::Ready);
    }

    #[test]
    fn refused_then_alive_is_a_new_life_but_a_stream_that_goes_on_is_not() {
        let mut health = Health::new(true);
        assert!(!health.alive());
        health.dead(true, at(1.0), &PROBES);
        assert!(health.alive());
        assert!(!health.alive());
        health.not_reached(at(2.0));
        health.went_on(at(0.5), at(2.5));
        assert!(!health.alive(), "an older attempt went on");
        health.not_reached(at(3.0));
        assert!(health.accepted(at(3.5), at(4.0)), "a later one was taken");
    }
}
