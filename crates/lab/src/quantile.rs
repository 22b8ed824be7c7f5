//! Quantiles of a list of values, by the nearest rank: the smallest value that is not below a share `q` of all.

/// Sorts `values` and returns the quantile `q` (0 to 1); None of nothing. A NaN sorts as the largest value.
///
/// ```
/// use maitred_lab::quantile::quantile;
/// let mut waits = [4.0, 1.0, 3.0, 2.0];
/// assert_eq!(quantile(&mut waits, 0.5), Some(2.0));
/// assert_eq!(quantile(&mut waits, 0.99), Some(4.0));
/// assert_eq!(quantile(&mut [], 0.5), None);
/// ```
#[must_use]
pub fn quantile(values: &mut [f64], q: f64) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    of_sorted(values, q)
}

/// The same of values that are in order already.
#[must_use]
pub fn of_sorted(values: &[f64], q: f64) -> Option<f64> {
    let rank = (q.clamp(0.0, 1.0) * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied()
}
