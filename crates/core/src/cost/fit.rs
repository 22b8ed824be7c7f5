//! A linear fit that is learnt while it is used: robust, forgetting, of fixed size.
//!
//! Formula: `y = sum of theta_j x_j`, all `theta_j >= 0`. The least weighted squares of the relative
//! residuals `r = (y - y') / max(y, y')`, which lie between -1 and 1, plus [`PRIOR_WEIGHT`] times the
//! squares of `(theta_j - prior_j) / prior_j`. The weight of a sample is `0.5^(age / HALF_LIFE)` (its
//! age counted in samples that came since) times Cauchy's `1 / (1 + (r / (CUT x scale))^2)`, with the
//! weighted median of `|r|` among those of its size for the scale; solved anew after each few samples by reweighting.
//!
//! Samples are kept by size, so many of each: a large prompt that came once in an hour is still
//! there to tell the slope when thousands of small ones came after it. And what all of one size have
//! in common is no outlier, however well the other sizes are known.
//! Source: iteratively reweighted least squares (Holland and Welsch 1977); the keeping is ours.
//! Difference from recursive least squares: a sample that is far off is not in the sums for ever.

/// Terms of a fit.
pub(super) const TERMS: usize = 4;

/// Kinds of size, each kept apart.
pub(super) const STRATA: usize = 8;

/// Samples kept of each.
const KEPT: usize = 24;

/// Samples after which an older one counts half.
const HALF_LIFE: f64 = 96.0;

/// What the prior weighs, in samples.
const PRIOR_WEIGHT: f64 = 0.001;

/// Residuals of so many scales count half.
const CUT: f64 = 2.0;

/// The least scale: nothing is known better than to 1 %.
const SCALE_MIN: f64 = 0.01;

/// Rounds of reweighting in one solution.
const ROUNDS: usize = 6;

/// Solved anew after so many samples; after each while there are few.
const SOLVE_EVERY: u32 = 8;

/// One observation.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    x: [f64; TERMS],
    y: f64,
    /// The number of samples before it.
    number: u64,
}

/// The samples of one size.
#[derive(Clone, Debug)]
struct Stratum {
    samples: [Sample; KEPT],
    len: usize,
    next: usize,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Fit {
    prior: [f64; TERMS],
    theta: [f64; TERMS],
    strata: [Stratum; STRATA],
    count: u64,
    since_solved: u32,
    error: f64,
}

impl Fit {
    /// Nothing learnt yet. A prior of 0 says that the term is not there: it stays 0.
    pub(super) fn new(prior: [f64; TERMS]) -> Self {
        let empty = Stratum {
            samples: [Sample::default(); KEPT],
            len: 0,
            next: 0,
        };
        Self {
            prior,
            theta: prior,
            strata: core::array::from_fn(|_| empty.clone()),
            count: 0,
            since_solved: 0,
            error: 1.0,
        }
    }

    /// The coefficients.
    pub(super) fn theta(&self) -> &[f64; TERMS] {
        &self.theta
    }

    /// What is expected.
    pub(super) fn predict(&self, x: &[f64; TERMS]) -> f64 {
        dot(&self.theta, x)
    }

    /// Samples learnt from, ever.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The weighted median of the relative residuals; 1 before anything was learnt.
    pub(super) fn error(&self) -> f64 {
        self.error
    }

    /// Learns one observation. `stratum` says how large it is. Nothing is learnt from numbers that are
    /// not finite, or from a `y` that is not positive.
    pub(super) fn learn(&mut self, x: [f64; TERMS], y: f64, stratum: usize) {
        let fine = x.iter().all(|x| x.is_finite() && *x >= 0.0) && y.is_finite() && y > 0.0;
        if !fine {
            return;
        }
        let stratum = &mut self.strata[stratum.min(STRATA - 1)];
        stratum.samples[stratum.next] = Sample {
            x,
            y,
            number: self.count,
        };
        stratum.next = (stratum.next + 1) % KEPT;
        stratum.len = (stratum.len + 1).min(KEPT);
        self.count += 1;
        self.since_solved += 1;
        if self.since_solved >= SOLVE_EVERY || self.count <= u64::from(SOLVE_EVERY) {
            self.since_solved = 0;
            self.solve();
        }
    }

    fn solve(&mut self) {
        let mut theta = self.theta;
        for _ in 0..ROUNDS {
            let mut sums = Sums::new(&self.prior);
            for stratum in &self.strata {
                let samples = &stratum.samples[..stratum.len];
                let mut residuals = [(0.0, 0.0); KEPT];
                self.residuals(samples, &theta, &mut residuals);
                let scale = median(&mut residuals[..stratum.len]).max(SCALE_MIN);
                for sample in samples {
                    let (size, residual) = relative(sample, &theta);
                    let off = residual / (CUT * scale);
                    let weight = self.age_weight(sample) / (1.0 + off * off);
                    sums.add(&sample.x, sample.y, weight / (size * size));
                }
            }
            theta = sums.solve();
        }
        self.theta = theta;
        let mut all = [(0.0, 0.0); STRATA * KEPT];
        let mut len = 0;
        for stratum in &self.strata {
            let samples = &stratum.samples[..stratum.len];
            self.residuals(samples, &theta, &mut all[len..]);
            len += stratum.len;
        }
        self.error = median(&mut all[..len]);
    }

    fn age_weight(&self, sample: &Sample) -> f64 {
        let since = self.count.saturating_sub(sample.number + 1);
        libm::exp2(-(since as f64) / HALF_LIFE)
    }

    /// The sizes of the residuals with the weights of their samples' ages.
    fn residuals(&self, samples: &[Sample], theta: &[f64; TERMS], into: &mut [(f64, f64)]) {
        for (place, sample) in into.iter_mut().zip(samples) {
            *place = (relative(sample, theta).1.abs(), self.age_weight(sample));
        }
    }
}

/// What the residual of a sample is relative to, and the relative residual.
fn relative(sample: &Sample, theta: &[f64; TERMS]) -> (f64, f64) {
    let expected = dot(theta, &sample.x);
    let size = sample.y.max(expected);
    (size, (sample.y - expected) / size)
}

fn dot(theta: &[f64; TERMS], x: &[f64; TERMS]) -> f64 {
    theta.iter().zip(x).map(|(t, x)| t * x).sum()
}

/// The weighted median of `(value, weight)`; sorts them. 1 where there is none.
fn median(values: &mut [(f64, f64)]) -> f64 {
    values.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let half: f64 = values.iter().map(|(_, weight)| weight).sum::<f64>() / 2.0;
    let mut sum = 0.0;
    for (value, weight) in values.iter() {
        sum += weight;
        if sum >= half {
            return *value;
        }
    }
    1.0
}

/// The normal equations in units of the prior, in which all coefficients are about 1.
struct Sums {
    prior: [f64; TERMS],
    matrix: [[f64; TERMS]; TERMS],
    right: [f64; TERMS],
}

impl Sums {
    fn new(prior: &[f64; TERMS]) -> Self {
        let mut sums = Self {
            prior: *prior,
            matrix: [[0.0; TERMS]; TERMS],
            right: [PRIOR_WEIGHT; TERMS],
        };
        for (j, row) in sums.matrix.iter_mut().enumerate() {
            row[j] = PRIOR_WEIGHT;
        }
        sums
    }

    fn add(&mut self, x: &[f64; TERMS], y: f64, weight: f64) {
        let z: [f64; TERMS] = core::array::from_fn(|j| x[j] * self.prior[j]);
        for (j, row) in self.matrix.iter_mut().enumerate() {
            for (k, sum) in row.iter_mut().enumerate() {
                *sum += weight * z[j] * z[k];
            }
            self.right[j] += weight * z[j] * y;
        }
    }

    /// The coefficients, none below 0: the most negative one is left out until none is.
    fn solve(&self) -> [f64; TERMS] {
        let mut active: [bool; TERMS] = core::array::from_fn(|j| self.prior[j] > 0.0);
        for _ in 0..TERMS {
            let units = self.eliminate(&active);
            let worst = (0..TERMS)
                .filter(|j| active[*j] && units[*j] < 0.0)
                .min_by(|j, k| units[*j].total_cmp(&units[*k]));
            match worst {
                Some(j) => active[j] = false,
                None => return core::array::from_fn(|j| units[j] * self.prior[j]),
            }
        }
        [0.0; TERMS]
    }

    /// Gauss's elimination over the active terms. The matrix is positive definite by the prior's
    /// part, so no pivot is 0.
    fn eliminate(&self, active: &[bool; TERMS]) -> [f64; TERMS] {
        let mut m = self.matrix;
        let mut r = self.right;
        for j in (0..TERMS).filter(|j| active[*j]) {
            for k in (j + 1..TERMS).filter(|k| active[*k]) {
                let factor = m[k][j] / m[j][j];
                let pivot = m[j];
                for (entry, pivot) in m[k].iter_mut().zip(pivot).skip(j) {
                    *entry -= factor * pivot;
                }
                r[k] -= factor * r[j];
            }
        }
        let mut units = [0.0; TERMS];
        for j in (0..TERMS).rev().filter(|j| active[*j]) {
            let later: f64 = (j + 1..TERMS).map(|k| m[j][k] * units[k]).sum();
            units[j] = (r[j] - later) / m[j][j];
        }
        units
    }
}

#[cfg(test)]
mod tests {
    use super::{Fit, HALF_LIFE, Sums, TERMS};
    use crate::rng::Rng;

    /// 10 ms, 60 us for a token, nothing for its square, 0.4 ms for a decoder.
    const TRUTH: [f64; TERMS] = [0.010, 60e-6, 0.0, 0.4e-3];
    const PRIOR: [f64; TERMS] = [0.015, 1.0 / 16_000.0, 1e-9, 0.3e-3];

    fn observe(fit: &mut Fit, truth: &[f64; TERMS], rng: &mut Rng, noise: f64, outliers: f64) {
        let stratum = rng.below(8);
        let tokens = libm::exp2(5.0 + stratum as f64 + rng.unit());
        let x = [1.0, tokens, tokens * tokens / 2.0, rng.below(32) as f64];
        let mut y = super::dot(truth, &x) * (1.0 + noise * (2.0 * rng.unit() - 1.0));
        if rng.unit() < outliers {
            y *= 3.0 + 20.0 * rng.unit();
        }
        fit.learn(x, y, stratum);
    }

    fn off(fit: &Fit, truth: &[f64; TERMS], tokens: f64) -> f64 {
        let x = [1.0, tokens, tokens * tokens / 2.0, 8.0];
        (fit.predict(&x) / super::dot(truth, &x) - 1.0).abs()
    }

    #[test]
    fn the_equations_give_the_hand_computed_line() {
        // Two points of y = 2 + 3 x, each of weight 1,000; the prior (1, 1) weighs a thousandth.
        let mut sums = Sums::new(&[1.0, 1.0, 0.0, 0.0]);
        sums.add(&[1.0, 0.0, 0.0, 0.0], 2.0, 1_000.0);
        sums.add(&[1.0, 1.0, 0.0, 0.0], 5.0, 1_000.0);
        let theta = sums.solve();
        // (2000.001 1000; 1000 1000.001) theta = (7000.001, 5000.001)
        let determinant = 2_000.001 * 1_000.001 - 1_000.0 * 1_000.0;
        let a = (7_000.001 * 1_000.001 - 1_000.0 * 5_000.001) / determinant;
        let b = (2_000.001 * 5_000.001 - 1_000.0 * 7_000.001) / determinant;
        assert!((theta[0] - a).abs() < 1e-9 && (theta[1] - b).abs() < 1e-9);
        assert!((theta[2], theta[3]) == (0.0, 0.0), "terms without a prior");
        assert!((theta[0] - 2.0).abs() < 1e-3 && (theta[1] - 3.0).abs() < 1e-3);
    }

    #[test]
    fn what_would_be_negative_is_zero() {
        // y falls with x: the slope is left out, and the mean remains.
        let mut sums = Sums::new(&[1.0, 1.0, 0.0, 0.0]);
        sums.add(&[1.0, 0.0, 0.0, 0.0], 3.0, 1_000.0);
        sums.add(&[1.0, 1.0, 0.0, 0.0], 1.0, 1_000.0);
        let theta = sums.solve();
        assert!(theta[1] == 0.0);
        assert!((theta[0] - 4_000.001 / 2_000.001).abs() < 1e-9);
    }

    #[test]
    fn constants_come_out_of_noise_and_outliers() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let mut fit = Fit::new(PRIOR);
            for _ in 0..400 {
                observe(&mut fit, &TRUTH, &mut rng, 0.15, 0.15);
            }
            for tokens in [100.0, 1_000.0, 6_000.0] {
                let off = off(&fit, &TRUTH, tokens);
                assert!(off < 0.08, "seed {seed}, {tokens} tokens: {off}");
            }
            assert!((0.02..0.2).contains(&fit.error()), "{}", fit.error());
        }
    }

    #[test]
    fn a_step_is_followed_within_two_half_lives() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let mut fit = Fit::new(PRIOR);
            for _ in 0..400 {
                observe(&mut fit, &TRUTH, &mut rng, 0.1, 0.1);
            }
            let slower = TRUTH.map(|t| 3.0 * t);
            let mut steps = 0;
            while off(&fit, &slower, 2_000.0) > 0.1 {
                observe(&mut fit, &slower, &mut rng, 0.1, 0.1);
                steps += 1;
                assert!(f64::from(steps) <= 2.0 * HALF_LIFE, "seed {seed}");
            }
        }
    }

    #[test]
    fn a_large_prompt_is_remembered_among_small_ones() {
        let mut fit = Fit::new(PRIOR);
        let slow = [0.010, 200e-6, 0.0, 0.0];
        let mut learn = |tokens: f64, stratum| {
            let x = [1.0, tokens, 0.0, 0.0];
            fit.learn(x, super::dot(&slow, &x), stratum);
        };
        learn(8_000.0, 7);
        for _ in 0..200 {
            learn(40.0, 0);
        }
        // By its age it weighs 0.5^(200 / 96) = 0.24 samples, more than the prior.
        let x = [1.0, 8_000.0, 0.0, 0.0];
        assert!((fit.predict(&x) / 1.61 - 1.0).abs() < 0.1);
    }

    #[test]
    fn what_is_no_number_is_not_learnt() {
        let mut fit = Fit::new(PRIOR);
        fit.learn([1.0, f64::NAN, 0.0, 0.0], 1.0, 0);
        fit.learn([1.0, 1.0, 0.0, 0.0], f64::INFINITY, 0);
        fit.learn([1.0, 1.0, 0.0, 0.0], 0.0, 0);
        fit.learn([1.0, -1.0, 0.0, 0.0], 1.0, 0);
        assert_eq!((fit.count(), fit.theta()), (0, &PRIOR));
    }
}
