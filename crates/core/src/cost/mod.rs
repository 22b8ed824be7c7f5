//! What work costs in seconds, learnt from our own attempts; and whether affinity pays.
//!
//! - `fit`: the robust regression behind both costs.
//! - `meter`: per worker, what it was seen to do: how long prefills took, who decoded beside whom.
//! - `rates`: the costs as policies get them.
//! - `gate`: seconds that affinity saved against seconds that it cost.
//!
//! Costs are a pool's, since its workers serve one model; what one worker is slower or faster than
//! the others is its pace, so that unequal machines need no configuration. A worker that joins
//! begins with the pool's costs. Before anything was learnt the prior stands: a model of the 8B
//! class on one accelerator.
//!
//! Not learnt from: prefills whose attempt failed, was retried or cancelled before its first token,
//! with all that the engine computed beside them (the time is not theirs alone); answers in one
//! piece, whose first token nobody saw; work beside that of other routers. All are counted.

mod fit;
mod gate;
mod meter;
mod rates;

pub(crate) use gate::Gate;
pub use gate::{Evidence, GateState};
pub(crate) use meter::{Mark, Meter};
pub use rates::Rates;

use crate::time::Nanos;
use fit::Fit;
use meter::{Answered, Period};

/// How long what was dispatched counts in [`Rates::busy`] before it counts `1/e`, seconds.
const BUSY_SECONDS: f64 = 20.0;

/// What one answer weighs in the means.
const MEAN_WEIGHT: f64 = 1.0 / 128.0;

/// What one arrival weighs in the share of first turns, and the least that this is taken to be.
const ARRIVAL_WEIGHT: f64 = 1.0 / 256.0;
const FIRST_MIN: f64 = 0.02;

/// What one period weighs in a worker's pace, and how far one can move it (in the logarithm).
const PACE_WEIGHT: f64 = 0.125;
const PACE_STEP: f64 = 0.7;

/// What one period weighs in what all workers have in common: that belongs to the costs, and is in
/// nobody's pace. And how much of a pace is forgotten with each period.
const COMMON_WEIGHT: f64 = 1.0 / 32.0;
const PACE_LEAK: f64 = 0.01;

/// Periods before which nobody has a pace.
const PACE_AFTER: u64 = 32;

/// The fastest and the slowest pace, in the logarithm: eight times.
const PACE_MOST: f64 = 2.08;

/// What is known of the costs, and how well.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostView {
    /// The costs.
    pub rates: Rates,
    /// Periods of prefill that were learnt from, ever.
    pub prefills_learnt: u64,
    /// The median relative error of what was expected of them, 0 to 1; 1: nothing was learnt.
    pub prefill_error: f64,
    /// Answers that the decode cost was learnt from, ever.
    pub decodes_learnt: u64,
    /// The median relative error of what was expected of them.
    pub decode_error: f64,
    /// Prefills that were not learnt from because an attempt ended before its first token.
    pub censored: u64,
    /// Prefills that were not learnt from because nobody saw their first token.
    pub unseen: u64,
}

/// A pool's learnt costs.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    prefill: Fit,
    decode: Fit,
    rates: Rates,
    /// Share of requests that are first turns.
    first: f64,
    /// How far off the costs are for all workers lately (the logarithm).
    common: f64,
    /// The mean square of the seconds of a prefill.
    squared: f64,
    /// Seconds of prefill dispatched lately.
    dispatched: f64,
    dispatched_at: Nanos,
    censored: u64,
    unseen: u64,
}

impl Costs {
    pub(crate) fn new() -> Self {
        let rates = Rates::default();
        Self {
            prefill: Fit::new(rates.prefill),
            decode: Fit::new(rates.decode),
            first: 1.0 / (1.0 + rates.turns_left),
            rates,
            common: 0.0,
            squared: 2.0 * rates.work_seconds * rates.residual_seconds,
            dispatched: 0.0,
            dispatched_at: Nanos::default(),
            censored: 0,
            unseen: 0,
        }
    }

    /// The costs now, where `workers` share the work.
    pub(crate) fn rates(&self, workers: usize, now: Nanos) -> Rates {
        let left = self.dispatched * decayed(self.dispatched_at, now);
        let busy = left / (BUSY_SECONDS * workers.max(1) as f64);
        Rates { busy, ..self.rates }
    }

    /// A request came, of that turn.
    pub(crate) fn arrived(&mut self, turn: u32) {
        let first = f64::from(u8::from(turn <= 1));
        self.first += (first - self.first) * ARRIVAL_WEIGHT;
        self.rates.turns_left = 1.0 / self.first.max(FIRST_MIN) - 1.0;
    }

    /// So many seconds of prefill were dispatched.
    pub(crate) fn dispatched(&mut self, seconds: f64, now: Nanos) {
        self.dispatched = self.dispatched * decayed(self.dispatched_at, now) + seconds;
        self.dispatched_at = now;
        let mean = &mut self.rates.work_seconds;
        *mean += (seconds - *mean) * MEAN_WEIGHT;
        self.squared += (seconds * seconds - self.squared) * MEAN_WEIGHT;
        self.rates.residual_seconds = self.squared / (2.0 * self.rates.work_seconds.max(1e-9));
    }

    /// A worker's period of prefill is complete.
    pub(crate) fn learn_prefill(&mut self, period: &Period, meter: &mut Meter) {
        if period.censored {
            self.censored += u64::from(period.members.max(1));
            return;
        }
        if period.unseen {
            self.unseen += u64::from(period.members.max(1));
            return;
        }
        let x = period.terms();
        let expected = self.prefill.predict(&x);
        if period.seconds <= 0.0 || expected <= 0.0 {
            return;
        }
        let each = period.tokens / f64::from(period.members.max(1));
        self.prefill
            .learn(x, period.seconds / meter.pace(), stratum(each));
        self.rates.prefill = *self.prefill.theta();
        if self.prefill.count() < PACE_AFTER {
            return;
        }
        let log = libm::log(period.seconds / expected);
        let off = (log - self.common).clamp(-PACE_STEP, PACE_STEP);
        self.common += COMMON_WEIGHT * off;
        let step = (log - self.common - meter.pace_log).clamp(-PACE_STEP, PACE_STEP);
        let pace = (meter.pace_log + PACE_WEIGHT * step) * (1.0 - PACE_LEAK);
        meter.set_pace_log(pace.clamp(-PACE_MOST, PACE_MOST));
    }

    /// An answer is complete.
    pub(crate) fn learn_decode(&mut self, answered: &Answered, pace: f64) {
        let rates = &mut self.rates;
        rates.output_tokens += (answered.tokens - rates.output_tokens) * MEAN_WEIGHT;
        rates.service_seconds += (answered.service - rates.service_seconds) * MEAN_WEIGHT;
        if let Some(x) = answered.terms() {
            let seconds = answered.seconds / pace;
            self.decode.learn(x, seconds, stratum(answered.context));
            self.rates.decode = *self.decode.theta();
        }
    }

    pub(crate) fn view(&self, workers: usize, now: Nanos) -> CostView {
        CostView {
            rates: self.rates(workers, now),
            prefills_learnt: self.prefill.count(),
            prefill_error: self.prefill.error(),
            decodes_learnt: self.decode.count(),
            decode_error: self.decode.error(),
            censored: self.censored,
            unseen: self.unseen,
        }
    }
}

/// What remains at `now` of 1 at `at`.
fn decayed(at: Nanos, now: Nanos) -> f64 {
    libm::exp(-now.since(at).as_secs_f64() / BUSY_SECONDS)
}

/// The kind of size of that many tokens: below 64, and so on by factors of 4.
fn stratum(tokens: f64) -> usize {
    let mut stratum = 0;
    let mut most = 64.0;
    while tokens >= most && stratum + 1 < fit::STRATA {
        stratum += 1;
        most *= 4.0;
    }
    stratum
}

#[cfg(test)]
mod tests;
