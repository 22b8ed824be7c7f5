//! How many requests each worker ran, over time.

use crate::sim::Run;

/// Columns.
const BINS: usize = 72;
/// Workers beyond are left out.
const WORKERS_MAX: usize = 64;

/// Mean requests on each worker in equal parts of the time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Seconds of one part.
    pub bin_seconds: f64,
    /// By worker, then by part.
    pub running: Vec<Vec<f32>>,
}

impl Timeline {
    /// From dispatch to end of every request that was dispatched.
    #[must_use]
    pub fn of(run: &Run) -> Self {
        let whole = run.ended.since(Default::default()).as_secs_f64();
        let bin = whole / BINS as f64;
        let workers = run
            .outcomes
            .iter()
            .filter_map(|outcome| outcome.worker)
            .max();
        let workers = workers.map_or(0, |most| most as usize + 1).min(WORKERS_MAX);
        let mut running = vec![vec![0.0_f32; BINS]; workers];
        if bin <= 0.0 {
            return Self::default();
        }
        for outcome in &run.outcomes {
            let (Some(worker), Some(dispatched)) = (outcome.worker, outcome.dispatched) else {
                continue;
            };
            let Some(row) = running.get_mut(worker as usize) else {
                continue;
            };
            let seconds = |at: maitred_core::time::Nanos| at.0 as f64 / 1e9;
            let (from, to) = (seconds(dispatched), seconds(outcome.ended));
            let last = ((to / bin) as usize).min(BINS - 1);
            for (place, cell) in row
                .iter_mut()
                .enumerate()
                .take(last + 1)
                .skip((from / bin) as usize)
            {
                let begin = place as f64 * bin;
                let part = (to.min(begin + bin) - from.max(begin)).max(0.0) / bin;
                *cell += part as f32;
            }
        }
        Self {
            bin_seconds: bin,
            running,
        }
    }
}
