//! How fast seats become free for those who wait: what predictions of waits go by.
//!
//! Between two dispatches while somebody waits lies a gap; the last `GAPS` of them, with the charge
//! that went, are kept. The time until `before` charge and then one request more have gone is read
//! off them: for each gap that is not shorter than the present one already is, what was left of it
//! then, and what followed; of these times the wanted quantile. Where what was kept does not reach,
//! its mean rate goes on. Where all services last equally long, the seats' own pattern says it
//! better (`steady.rs`).

use super::order::Ahead;
use super::steady::Steady;
use crate::time::Nanos;
use alloc::collections::VecDeque;
use core::time::Duration;
use smallvec::SmallVec;

/// Gaps that are remembered.
const GAPS: usize = 64;
/// Fewer say nothing.
const GAPS_LEAST: usize = 4;

/// The gaps between dispatches of those who waited.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    /// Seconds since the dispatch before, and the charge that went.
    gaps: VecDeque<(f64, f64)>,
    seconds: f64,
    charge: f64,
    /// The last dispatch since somebody waits.
    last: Option<Nanos>,
    /// Since when somebody waits.
    since: Option<Nanos>,
    pub(crate) steady: Steady,
}

impl Drain {
    /// Somebody waits from now on, who found nobody waiting.
    pub(crate) fn begins(&mut self, now: Nanos) {
        (self.last, self.since) = (None, Some(now));
    }

    /// Nobody waits any more: what comes until somebody does says nothing of the drain.
    pub(crate) fn ends(&mut self) {
        (self.last, self.since) = (None, None);
    }

    /// One that waited was dispatched.
    pub(crate) fn dispatched(&mut self, charge: f64, now: Nanos) {
        let Some(last) = self.last.replace(now) else {
            return;
        };
        let gap = now.since(last).as_secs_f64();
        self.gaps.push_back((gap, charge));
        self.seconds += gap;
        self.charge += charge;
        if self.gaps.len() > GAPS
            && let Some((gap, charge)) = self.gaps.pop_front()
        {
            self.seconds -= gap;
            self.charge -= charge;
        }
    }

    /// Charge per second, on average over what is remembered; None: too little is, or no time
    /// passed.
    pub(crate) fn rate(&self) -> Option<f64> {
        let enough = self.gaps.len() >= GAPS_LEAST && self.seconds > 1e-9;
        enough.then(|| self.charge.max(0.0) / self.seconds)
    }

    /// Seconds between two dispatches, on average.
    pub(crate) fn interval(&self) -> Option<f64> {
        (!self.gaps.is_empty()).then(|| self.seconds.max(0.0) / self.gaps.len() as f64)
    }

    /// How long that takes, on average.
    pub(crate) fn time_of(&self, ahead: Ahead) -> Option<Duration> {
        let by_charge = ahead.charge / self.rate()?;
        let by_requests = ahead.requests * self.interval()?;
        Duration::try_from_secs_f64(by_charge.max(by_requests)).ok()
    }

    /// Until that and one request more have gone, at that quantile. Its requests may be known to be
    /// larger or smaller than those that went: both they and their charge must have gone.
    pub(crate) fn time_for(&self, ahead: Ahead, quantile: f64, now: Nanos) -> Option<Duration> {
        if !self.gaps.is_empty() && self.charge > 0.0 {
            let by_charge = ahead.charge * self.gaps.len() as f64 / self.charge;
            let requests = if ahead.requests > 0.0 {
                ahead.requests
            } else {
                by_charge
            };
            if let Some(time) = self.steady.time_for(requests, now) {
                return Some(time);
            }
        }
        let (before, requests) = (ahead.charge, ahead.requests);
        let last = self.last.or(self.since);
        let elapsed = last.map_or(0.0, |at| now.since(at).as_secs_f64());
        let Some(rate) = self.rate().filter(|rate| *rate > 0.0) else {
            // All that is known is how long nobody has gone: it may last as long again.
            return Duration::try_from_secs_f64(elapsed)
                .ok()
                .filter(|t| !t.is_zero());
        };
        let each = self.seconds.max(0.0) / self.gaps.len() as f64;
        let mut times: SmallVec<[f64; GAPS]> = SmallVec::new();
        let (mut end, mut gone, mut seconds) = (0, 0.0, 0.0);
        for (start, (gap, charge)) in self.gaps.iter().enumerate() {
            // The window [start, end) dispatches what is ahead.
            if end < start {
                (end, gone, seconds) = (start, 0.0, 0.0);
            }
            while end < self.gaps.len() && (gone < before || ((end - start) as f64) < requests) {
                let (gap, charge) = self.gaps[end];
                gone += charge;
                seconds += gap;
                end += 1;
            }
            if *gap >= elapsed {
                let next = self.gaps.get(end).map_or(0.0, |(gap, _)| *gap);
                let more = (requests - (end - start) as f64).max(0.0);
                let rest = ((before - gone).max(0.0) / rate).max(more * each);
                times.push(seconds + next + rest - elapsed);
            }
            if end > start {
                gone -= charge;
                seconds -= gap;
            }
        }
        if times.is_empty() {
            // Never before was a gap as long: it may last as long again.
            let rest = (before / rate).max(requests * each);
            return Duration::try_from_secs_f64(elapsed + rest).ok();
        }
        let last = times.len() - 1;
        let at = (libm::ceil(quantile * times.len() as f64) as usize).clamp(1, last + 1) - 1;
        let (_, time, _) = times.select_nth_unstable_by(at, f64::total_cmp);
        Duration::try_from_secs_f64(time.max(0.0)).ok()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{Ahead, Drain, Nanos};

    fn at(seconds: f64) -> Nanos {
        Nanos((seconds * 1e9) as u64)
    }

    /// 16 seats that become free together every 20 s.
    fn bursts() -> Drain {
        let mut drain = Drain::default();
        drain.begins(at(0.0));
        for burst in 0..8 {
            for _ in 0..16 {
                drain.dispatched(100.0, at(f64::from(burst) * 20.0));
            }
        }
        drain
    }

    #[test]
    fn nothing_is_known_before_something_was_measured() {
        let mut drain = Drain::default();
        drain.begins(at(0.0));
        assert_eq!(drain.time_for(Ahead::of_charge(0.0), 0.9, at(0.0)), None);
        // But that nobody went for 12 s.
        let waited = drain
            .time_for(Ahead::of_charge(0.0), 0.9, at(12.0))
            .unwrap();
        assert_eq!(waited.as_secs(), 12);
        assert_eq!((drain.rate(), drain.interval()), (None, None));
    }

    #[test]
    fn a_gap_that_began_is_taken_as_one_that_lasts() {
        let drain = bursts();
        // The last burst was at 140 s: the next comes at 160 s.
        let left = |now: f64| {
            drain
                .time_for(Ahead::of_charge(0.0), 0.9, at(now))
                .unwrap()
                .as_secs_f64()
        };
        assert!((left(145.0) - 15.0).abs() < 1e-6, "{}", left(145.0));
        assert!((left(159.0) - 1.0).abs() < 1e-6);
        // Longer than ever: as long again.
        assert!((left(170.0) - 30.0).abs() < 1e-6);
    }

    #[test]
    fn what_stands_before_goes_first() {
        let mut drain = Drain::default();
        drain.begins(at(0.0));
        for n in 1..=40 {
            drain.dispatched(100.0, at(f64::from(n)));
        }
        // One a second: five before it, and its own.
        let time = drain
            .time_for(Ahead::of_charge(500.0), 0.9, at(40.0))
            .unwrap()
            .as_secs_f64();
        assert!((time - 6.0).abs() < 1e-6, "{time}");
        assert!((drain.rate().unwrap() - 100.0).abs() < 1e-9);
        // Beyond what is remembered, by the mean rate.
        let time = drain
            .time_for(Ahead::of_charge(9_000.0), 0.9, at(40.0))
            .unwrap()
            .as_secs_f64();
        assert!((time - 90.0).abs() < 2.0, "{time}");
        // Ten that are smaller than those that went.
        let small = Ahead {
            charge: 10.0,
            requests: 10.0,
        };
        let time = drain.time_for(small, 0.9, at(40.0)).unwrap().as_secs_f64();
        assert!((time - 11.0).abs() < 1e-6, "{time}");
    }
}
