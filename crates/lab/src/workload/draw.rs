//! Draws from a few distributions.

use std::time::Duration;

use maitred_core::rng::{Rng, mix};
use maitred_core::time::Nanos;

/// A stream of draws of its own for each purpose and each number, so that one more draw here changes nothing there.
pub(super) fn stream(seed: u64, purpose: u64, number: u64) -> Rng {
    Rng::new(mix(seed ^ mix(purpose << 48 ^ mix(number))))
}

/// Exponential, with that mean, in seconds.
pub(super) fn pause(rng: &mut Rng, mean_seconds: f64) -> Duration {
    // 1 - unit is never 0, so the logarithm is finite.
    Duration::from_secs_f64((-(1.0 - rng.unit()).ln() * mean_seconds).min(1e9))
}

/// Log-normal around `median`, with `spread` as the standard deviation of its logarithm, from 1 to `most`.
pub(super) fn lengths(rng: &mut Rng, median: f64, spread: f64, most: f64) -> u32 {
    // Box and Muller's transform; 1 - unit is never 0.
    let radius = (-2.0 * (1.0 - rng.unit()).ln()).sqrt();
    let normal = radius * (std::f64::consts::TAU * rng.unit()).cos();
    (median * (spread * normal).exp()).clamp(1.0, most.max(1.0)) as u32
}

/// Geometric from 1, with that mean.
pub(super) fn turns(rng: &mut Rng, mean: f64) -> u32 {
    if mean <= 1.0 {
        return 1;
    }
    let more = 1.0 - 1.0 / mean;
    let drawn = (1.0 - rng.unit()).ln() / more.ln();
    (drawn.min(10_000.0) as u32).saturating_add(1)
}

/// The times of a Poisson process with that rate a second.
pub(super) struct Arrivals {
    rng: Rng,
    rate: f64,
    at: Nanos,
}

impl Arrivals {
    pub(super) fn new(rng: Rng, rate: f64) -> Self {
        Self {
            rng,
            rate: rate.max(1e-9),
            at: Nanos::default(),
        }
    }

    pub(super) fn next(&mut self) -> Nanos {
        self.at = self.at + pause(&mut self.rng, 1.0 / self.rate);
        self.at
    }
}

/// Draws ranks from 0 with weights `1 / (rank + 1)^skew`.
pub(super) struct Zipf {
    sums: Vec<f64>,
}

impl Zipf {
    pub(super) fn new(count: usize, skew: f64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=count.max(1))
            .map(|rank| {
                sum += (rank as f64).powf(-skew);
                sum
            })
            .collect();
        Self { sums }
    }

    pub(super) fn draw(&self, rng: &mut Rng) -> usize {
        let at = rng.unit() * self.sums.last().copied().unwrap_or(0.0);
        self.sums
            .partition_point(|sum| *sum <= at)
            .min(self.sums.len() - 1)
    }
}
