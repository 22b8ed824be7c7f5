//! Three unknowns, none below 0, by least absolute deviations.

/// `took = parts[0] x base + parts[1] x per sequence + parts[2] x per token`, seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) parts: [f64; 3],
    pub(super) took: f64,
}

impl Row {
    pub(super) fn predicted(&self, found: &[f64; 3]) -> f64 {
        self.parts
            .iter()
            .zip(found)
            .map(|(part, value)| part * value)
            .sum()
    }
}

/// Rounds of reweighting; it changes little after a few.
const ROUNDS: usize = 40;
/// Deviations below this share of a time weigh alike: a clock's noise.
const FLAT: f64 = 0.005;

/// None where the rows do not tell the unknowns apart.
pub(super) fn least_absolute(rows: &[Row]) -> Option<[f64; 3]> {
    let mut weights = vec![1.0; rows.len()];
    let mut found = None;
    for _ in 0..ROUNDS {
        let solved = not_below_zero(rows, &weights)?;
        for (weight, row) in weights.iter_mut().zip(rows) {
            // Relative: a short time counts as much as a long one.
            let scale = row.took.max(1e-6);
            let off = (row.predicted(&solved) - row.took).abs() / scale;
            *weight = 1.0 / (off.max(FLAT) * scale * scale);
        }
        found = Some(solved);
    }
    found
}

/// Weighted least squares over every subset of the unknowns; the best without a negative one.
fn not_below_zero(rows: &[Row], weights: &[f64]) -> Option<[f64; 3]> {
    let mut best: Option<(f64, [f64; 3])> = None;
    for mask in 1_u8..8 {
        let Some(found) = least_squares(rows, weights, mask) else {
            continue;
        };
        if found.iter().any(|value| *value < 0.0) {
            continue;
        }
        let squares = rows
            .iter()
            .zip(weights)
            .map(|(row, weight)| weight * (row.predicted(&found) - row.took).powi(2));
        let sum: f64 = squares.sum();
        if best.is_none_or(|(least, _)| sum < least) {
            best = Some((sum, found));
        }
    }
    best.map(|(_, found)| found)
}

/// The unknowns of `mask`, the others being 0: normal equations, by elimination.
#[allow(clippy::needless_range_loop)] // Rows and columns of a matrix: the indices are what is meant.
fn least_squares(rows: &[Row], weights: &[f64], mask: u8) -> Option<[f64; 3]> {
    let mut a = [[0.0; 4]; 3];
    for (row, weight) in rows.iter().zip(weights) {
        for i in 0..3 {
            for j in 0..3 {
                a[i][j] += weight * row.parts[i] * row.parts[j];
            }
            a[i][3] += weight * row.parts[i] * row.took;
        }
    }
    for i in 0..3 {
        if mask & 1 << i == 0 {
            for other in &mut a {
                other[i] = 0.0;
            }
            a[i] = [0.0; 4];
            a[i][i] = 1.0;
        }
    }
    // Scaled, so that what is small of itself is told from what is nothing.
    let scales: [f64; 3] = std::array::from_fn(|i| a[i][i].sqrt());
    if scales.contains(&0.0) {
        return None;
    }
    for i in 0..3 {
        for j in 0..3 {
            a[i][j] /= scales[i] * scales[j];
        }
        a[i][3] /= scales[i];
    }
    for i in 0..3 {
        let pivot = (i..3).max_by(|p, q| a[*p][i].abs().total_cmp(&a[*q][i].abs()))?;
        a.swap(i, pivot);
        if a[i][i].abs() < 1e-9 {
            return None;
        }
        for below in i + 1..3 {
            let factor = a[below][i] / a[i][i];
            for column in i..4 {
                a[below][column] -= factor * a[i][column];
            }
        }
    }
    let mut found = [0.0; 3];
    for i in (0..3).rev() {
        let rest: f64 = (i + 1..3).map(|j| a[i][j] * found[j]).sum();
        found[i] = (a[i][3] - rest) / a[i][i];
    }
    for i in 0..3 {
        found[i] /= scales[i];
        if mask & 1 << i == 0 {
            found[i] = 0.0;
        }
    }
    found.iter().all(|value| value.is_finite()).then_some(found)
}
