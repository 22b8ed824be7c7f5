//! Quantiles of any number of values in bounded memory.
//!
//! Values are counted in bins whose bounds grow by a fiftieth, on both sides of zero, so that a quantile is right to
//! 1 % (DDSketch, Masson, Rim and Lee 2019). Below a thousandth is zero.

use std::collections::BTreeMap;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

const LEAST: f64 = 1e-3;
const GROWTH: f64 = 1.02;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sketch {
    bins: BTreeMap<i32, u64>,
    count: u64,
    sum: f64,
    min: f64,
    max: f64,
}

impl Sketch {
    /// Counts a value; what is no number is not one.
    pub fn add(&mut self, value: f64) {
        if !value.is_finite() {
            return;
        }
        if self.count == 0 {
            (self.min, self.max) = (value, value);
        }
        (self.min, self.max) = (self.min.min(value), self.max.max(value));
        self.count += 1;
        self.sum += value;
        *self.bins.entry(bin(value)).or_default() += 1;
    }

    /// Values so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// All of them together.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// None of nothing.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    /// The largest.
    #[must_use]
    pub fn max(&self) -> Option<f64> {
        (self.count > 0).then_some(self.max)
    }

    /// The smallest value that is not below a share `q` (0 to 1) of all, to 1 %.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let rank = (q.clamp(0.0, 1.0) * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bin, count) in &self.bins {
            seen += count;
            if seen >= rank {
                return Some(middle(*bin).clamp(self.min, self.max));
            }
        }
        None
    }

    /// Bins that are taken: the shape of the distribution, as (lower bound, values).
    pub fn bins(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        self.bins.iter().map(|(bin, count)| (middle(*bin), *count))
    }
}

fn bin(value: f64) -> i32 {
    let size = value.abs();
    if size < LEAST {
        return 0;
    }
    let place = 1 + ((size / LEAST).ln() / GROWTH.ln()).floor() as i32;
    if value < 0.0 { -place } else { place }
}

fn middle(bin: i32) -> f64 {
    if bin == 0 {
        return 0.0;
    }
    let size = LEAST * GROWTH.powf(f64::from(bin.abs()) - 0.5);
    if bin < 0 { -size } else { size }
}

impl Serialize for Sketch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("count", &self.count)?;
        map.serialize_entry("mean", &self.mean())?;
        for (name, q) in [
            ("p1", 0.01),
            ("p10", 0.1),
            ("p50", 0.5),
            ("p90", 0.9),
            ("p99", 0.99),
        ] {
            map.serialize_entry(name, &self.quantile(q))?;
        }
        map.serialize_entry("max", &self.max())?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::Sketch;

    #[test]
    fn quantiles_are_right_to_a_hundredth_on_both_sides_of_zero() {
        let mut sketch = Sketch::default();
        assert_eq!(
            (sketch.quantile(0.5), sketch.mean(), sketch.max()),
            (None, None, None)
        );
        for n in -500..=500 {
            sketch.add(f64::from(n));
        }
        sketch.add(f64::NAN);
        assert_eq!(sketch.count(), 1_001);
        for (q, exact) in [(0.1, -400.0), (0.5, 0.0), (0.9, 400.0), (1.0, 500.0)] {
            let found = sketch.quantile(q).unwrap_or(f64::NAN);
            assert!(
                (found - exact).abs() <= exact.abs() * 0.0101,
                "{q}: {found}"
            );
        }
        assert_eq!(sketch.mean(), Some(0.0));
        let mut one = Sketch::default();
        one.add(123.4);
        assert_eq!(one.quantile(0.0), Some(123.4), "never beyond what was seen");
    }
}
