//! A mean over seeds and how sure it is.

use serde::Serialize;

/// Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom; beyond, the normal one.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];
const T_MANY: f64 = 1.960;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Values.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Half the width of its 95 % confidence interval (Student's t); None of one value.
    pub half_width: Option<f64>,
}

impl Spread {
    /// None of no values.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len();
        if count == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count as f64;
        let half_width = (count > 1).then(|| {
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            let deviation = (squares / (count - 1) as f64).sqrt();
            let t = T.get(count - 2).copied().unwrap_or(T_MANY);
            t * deviation / (count as f64).sqrt()
        });
        Some(Self {
            count,
            mean,
            half_width,
        })
    }
}
