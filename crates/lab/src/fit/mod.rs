//! The engine model's constants from records of a real engine, with the error on records that were held out.
//!
//! The model's step takes `base + per sequence x running + prefill tokens / rate`. A request that computes `n` prompt tokens
//! in `s = ceil(n / batch)` steps and answers with `m` tokens is, on a worker where `r` requests run meanwhile on average,
//! and others compute `f` prompt tokens beside it,
//!
//! ```text
//! from dispatch to first token   s x base + s x r x per sequence + (n + f) / rate
//! from first to last token       (m - 1) x base + (m - 1) x r x per sequence + f / rate
//! ```
//!
//! `r` and `f` are taken from the records of the same worker that overlap in time. Two equations a request, three
//! unknowns: least absolute deviations, by iteratively reweighted least squares (so that a few odd records weigh little),
//! none of them below 0. Every fourth request is held out; the errors are theirs.
//!
//! What the records do not hold is not fitted: the engine's own queue counts as prefill of others, and what happened on a
//! worker outside these records is not known. The better the records cover a worker, the better the constants.

mod solve;
#[cfg(test)]
mod tests;
mod timeline;

use maitred_enginesim::model;
use serde::Serialize;

pub use timeline::Sample;

/// Every so many requests, one is held out.
const HELD_OUT: usize = 4;
/// Fewer requests say too little.
pub const SAMPLES_MIN: usize = 20;

/// Why there is no fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    /// Too few records have what is needed.
    #[error(
        "only {0} served records have a worker, a first token, prompt, cached and output tokens; 20 are needed"
    )]
    TooFew(usize),
    /// The records do not tell the constants apart.
    #[error(
        "the records are too much alike to tell the constants apart: vary lengths and concurrency"
    )]
    Alike,
}

/// Relative errors of what is predicted for held-out records.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Errors {
    /// Records.
    pub count: usize,
    /// The median of |predicted / actual - 1|.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The median of predicted / actual - 1: above 0, predictions are too long.
    pub bias: f64,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Fixed time of a step, ns.
    pub base_step_ns: u64,
    /// Time that each running request adds, ns.
    pub per_sequence_ns: u64,
    /// Prompt tokens in a second; None: prefill cost nothing that could be seen.
    pub prefill_tokens_per_second: Option<u64>,
    /// Most requests seen at once on one worker.
    pub concurrency: u32,
    /// Requests that it was fitted to.
    pub fitted: usize,
    /// Time from dispatch to the first token, held out.
    pub ttft: Option<Errors>,
    /// Time per token after the first, held out.
    pub tpot: Option<Errors>,
}

impl Fit {
    /// The model with these constants; what was not fitted is as in `base`.
    #[must_use]
    pub fn engine(&self, base: &model::Config) -> model::Config {
        model::Config {
            base_step_ns: self.base_step_ns,
            per_sequence_ns: self.per_sequence_ns,
            prefill_tokens_per_second: self.prefill_tokens_per_second.unwrap_or(u64::MAX),
            ..base.clone()
        }
    }
}

/// Fits. `batch_tokens` is what a step of the engine computes at most.
///
/// # Errors
/// [`FitError`].
pub fn fit(samples: &[Sample], batch_tokens: usize) -> Result<Fit, FitError> {
    if samples.len() < SAMPLES_MIN {
        return Err(FitError::TooFew(samples.len()));
    }
    let equations = timeline::equations(samples, batch_tokens.max(1) as f64);
    let kept = equations
        .iter()
        .enumerate()
        .filter(|(at, _)| at % HELD_OUT != HELD_OUT - 1);
    let rows: Vec<solve::Row> = kept.flat_map(|(_, both)| both.rows()).collect();
    let found = solve::least_absolute(&rows).ok_or(FitError::Alike)?;
    let held_out: Vec<&timeline::Equations> = equations
        .iter()
        .skip(HELD_OUT - 1)
        .step_by(HELD_OUT)
        .collect();
    let [base, sequence, token] = found;
    let errors = |which: fn(&timeline::Equations) -> Option<solve::Row>| {
        let rows = held_out.iter().filter_map(|both| which(both));
        let relative = rows
            .filter(|row| row.took > 0.0)
            .map(|row| row.predicted(&found) / row.took - 1.0);
        errors(relative.collect())
    };
    Ok(Fit {
        base_step_ns: (base * 1e9).round() as u64,
        per_sequence_ns: (sequence * 1e9).round() as u64,
        prefill_tokens_per_second: (token > 0.0).then(|| (1.0 / token).round() as u64),
        concurrency: timeline::concurrency(samples),
        fitted: equations.len() - held_out.len(),
        ttft: errors(|both| Some(both.first)),
        tpot: errors(|both| both.rest),
    })
}

fn errors(mut relative: Vec<f64>) -> Option<Errors> {
    let bias = crate::quantile::quantile(&mut relative, 0.5)?;
    let mut sizes: Vec<f64> = relative.iter().map(|error| error.abs()).collect();
    Some(Errors {
        count: sizes.len(),
        p50: crate::quantile::quantile(&mut sizes, 0.5)?,
        p90: crate::quantile::quantile(&mut sizes, 0.9)?,
        bias,
    })
}
