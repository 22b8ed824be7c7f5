//! Services that last equally long: their seats become free as they were taken.
//!
//! Where what a request takes hardly varies (every answer is cut at the same length), seats that
//! were taken in a burst become free in a burst, and the gaps between dispatches say little: it
//! matters where in the pattern one stands. But then a seat taken at `t` is free at `t + D`, and the
//! `n`th to become free is the `n`th that was taken within the last `D`.
//! `D` is the faded mean of the services; they are steady while the faded mean of what they are off
//! is below `SPREAD x D`.

use crate::time::Nanos;
use alloc::collections::VecDeque;
use core::time::Duration;

/// Dispatches that are remembered; where more run at once, no pattern is looked for.
const REMEMBERED: usize = 1_024;
/// Fewer services say nothing.
const SERVICES_LEAST: u32 = 4;
/// What becomes of the weight of a service with each further one.
const FADING: f64 = 0.9;
/// Up to here services are steady.
const SPREAD: f64 = 0.05;

#[derive(Debug, Default)]
pub(crate) struct Steady {
    /// When seats were taken, the oldest first.
    taken: VecDeque<Nanos>,
    services: u32,
    /// Seconds of a service, and by how much one is off.
    mean: f64,
    off: f64,
}

impl Steady {
    /// A seat was taken.
    pub(crate) fn taken(&mut self, now: Nanos) {
        if self.taken.len() >= REMEMBERED {
            self.taken.pop_front();
        }
        self.taken.push_back(now);
    }

    /// One was served in that time.
    pub(crate) fn served(&mut self, took: Duration) {
        let took = took.as_secs_f64();
        self.services = self.services.saturating_add(1);
        if self.services == 1 {
            self.mean = took;
            return;
        }
        self.off = self.off * FADING + libm::fabs(took - self.mean) * (1.0 - FADING);
        self.mean = self.mean * FADING + took * (1.0 - FADING);
    }

    /// The length of a service, if they last equally long.
    fn length(&self) -> Option<Duration> {
        let steady = self.services >= SERVICES_LEAST && self.off <= SPREAD * self.mean;
        let length = Duration::try_from_secs_f64(self.mean).ok()?;
        (steady && !length.is_zero()).then_some(length)
    }

    /// The seats taken within a length before that time, as indices.
    fn within(&self, length: Duration, now: Nanos) -> Option<(usize, usize)> {
        let past = |at: &Nanos| *at + length <= now;
        let first = self.taken.partition_point(past);
        let count = self.taken.len() - first;
        (count > 0 && count < REMEMBERED).then_some((first, count))
    }

    /// Until `before` more have gone and the next seat is free. None: no pattern is known.
    pub(crate) fn time_for(&self, before: f64, now: Nanos) -> Option<Duration> {
        let length = self.length()?;
        let (first, count) = self.within(length, now)?;
        let before = libm::ceil(before.max(0.0)) as usize;
        let rounds = u32::try_from(before / count).ok()?;
        let taken = *self.taken.get(first + before % count)?;
        let free = taken + length.checked_mul(rounds.checked_add(1)?)?;
        Some(free.since(now))
    }

    /// Whether a seat becomes free within `limit` of that time to come. Yes where no pattern is
    /// known.
    pub(crate) fn free_within(&self, at: Nanos, limit: Duration, now: Nanos) -> bool {
        let Some(length) = self.length() else {
            return true;
        };
        let Some((first, count)) = self.within(length, now) else {
            return true;
        };
        // As long before `now` as `at` lies in its own round.
        let ahead = at.since(now).as_nanos() % length.as_nanos();
        let since = |index: usize| now.since(self.taken[index]).as_nanos();
        let back = length.as_nanos() - ahead;
        // The first that was taken at or after `now - back`; else the first of the next round.
        let next = (first..first + count).find(|index| since(*index) <= back);
        let wait = match next {
            Some(index) => back - since(index),
            None => back + (length.as_nanos() - since(first)),
        };
        wait <= limit.as_nanos()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{Nanos, Steady};
    use core::time::Duration;

    fn at(seconds: f64) -> Nanos {
        Nanos((seconds * 1e9) as u64)
    }

    /// Four seats taken at 0, 1, 2 and 3 s, and again every 20 s.
    fn bursts() -> Steady {
        let mut steady = Steady::default();
        for second in [0.0, 1.0, 2.0, 3.0, 20.0, 21.0, 22.0, 23.0] {
            steady.taken(at(second));
        }
        for _ in 0..4 {
            steady.served(Duration::from_secs(20));
        }
        steady
    }

    #[test]
    fn seats_become_free_as_they_were_taken() {
        let steady = bursts();
        let wait = |before, now| steady.time_for(before, at(now)).unwrap().as_secs_f64();
        // At 30 s the next is free at 40 s, the third at 42 s, the fifth at 60 s.
        assert_eq!((wait(0.0, 30.0), wait(2.0, 30.0)), (10.0, 12.0));
        assert_eq!(wait(4.0, 30.0), 30.0);
        // What is late is free any moment.
        assert_eq!(wait(0.0, 40.0), 1.0);
    }

    #[test]
    fn a_time_is_good_if_a_burst_is_near() {
        let steady = bursts();
        let ten = Duration::from_secs(10);
        let good = |time| steady.free_within(at(time), ten, at(30.0));
        // Bursts are at 40 to 43 s, 60 to 63 s, ...
        assert!(good(31.0) && good(43.0) && good(50.0) && good(50.0 + 200.0));
        assert!(!good(43.5) && !good(49.5) && !good(49.5 + 200.0));
    }

    #[test]
    fn services_of_all_lengths_have_no_pattern() {
        let mut steady = bursts();
        assert!(steady.time_for(0.0, at(30.0)).is_some());
        for second in [5, 40, 5, 40] {
            steady.served(Duration::from_secs(second));
        }
        assert_eq!(steady.time_for(0.0, at(30.0)), None);
        assert!(steady.free_within(at(45.0), Duration::from_secs(1), at(30.0)));
        assert_eq!(Steady::default().time_for(0.0, at(1.0)), None);
    }
}
