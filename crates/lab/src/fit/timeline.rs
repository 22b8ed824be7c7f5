//! What ran beside what, from the records of each worker.

use std::collections::BTreeMap;

use maitred_records::{AttemptRecord, Outcome};

use super::solve::Row;

/// One served attempt. Seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Its worker.
    pub worker: String,
    /// When it was sent to the worker.
    pub dispatched: f64,
    /// When its first token came.
    pub first_token: f64,
    /// When it ended.
    pub ended: f64,
    /// Prompt tokens that were computed.
    pub computed: u32,
    /// Tokens of the answer.
    pub output: u32,
}

impl Sample {
    /// None where the record lacks what is needed, or was not served.
    #[must_use]
    pub fn of(record: &AttemptRecord) -> Option<Self> {
        let begun = record.time_ms as f64 / 1e3;
        let sample = Self {
            worker: record.worker.as_ref()?.to_string(),
            dispatched: begun + record.queue_ms / 1e3,
            first_token: begun + record.ttft_ms? / 1e3,
            ended: begun + record.e2e_ms / 1e3,
            computed: record.prompt_tokens?.checked_sub(record.cached_tokens?)?,
            output: record.output_tokens?,
        };
        // Answers that are not streamed have their first token at their end: it tells nothing of prefill.
        let sound = record.outcome == Outcome::Served
            && record.stream
            && sample.dispatched < sample.first_token
            && sample.first_token <= sample.ended
            && sample.output > 0;
        sound.then_some(sample)
    }
}

/// The two equations of one request.
pub(super) struct Equations {
    pub(super) first: Row,
    /// None of one token.
    pub(super) rest: Option<Row>,
}

impl Equations {
    pub(super) fn rows(&self) -> impl Iterator<Item = Row> + use<> {
        [Some(self.first), self.rest].into_iter().flatten()
    }
}

/// What happened on a worker while somebody was there.
struct Beside {
    /// Requests that ran, on average.
    running: f64,
    /// Prompt tokens that others computed.
    computed: f64,
}

/// In the order of `samples`.
pub(super) fn equations(samples: &[Sample], batch: f64) -> Vec<Equations> {
    let mut workers: BTreeMap<&str, Vec<&Sample>> = BTreeMap::new();
    for sample in samples {
        workers.entry(&sample.worker).or_default().push(sample);
    }
    for list in workers.values_mut() {
        list.sort_by(|a, b| a.dispatched.total_cmp(&b.dispatched));
    }
    (samples.iter())
        .map(|sample| {
            let others = workers
                .get(sample.worker.as_str())
                .map_or(&[][..], Vec::as_slice);
            let computed = f64::from(sample.computed.max(1));
            let before = beside(sample, others, sample.dispatched, sample.first_token);
            let steps = (computed / batch).ceil();
            let more = f64::from(sample.output - 1);
            let rest = (sample.output > 1).then(|| {
                let during = beside(sample, others, sample.first_token, sample.ended);
                Row {
                    parts: [more, more * during.running, during.computed],
                    took: sample.ended - sample.first_token,
                }
            });
            // The steps in which others' prompts are computed are waited for as well.
            let waited = (before.computed / batch).ceil().max(0.0);
            let steps = steps + waited;
            Equations {
                first: Row {
                    parts: [steps, steps * before.running, computed + before.computed],
                    took: sample.first_token - sample.dispatched,
                },
                rest,
            }
        })
        .collect()
}

fn beside(own: &Sample, others: &[&Sample], from: f64, to: f64) -> Beside {
    let length = (to - from).max(1e-9);
    let overlap = |begin: f64, end: f64| (end.min(to) - begin.max(from)).max(0.0);
    let (mut time, mut computed) = (length, 0.0);
    // All that came before the end may still be there: no bound on how long one runs.
    for other in others.iter().take_while(|other| other.dispatched < to) {
        if std::ptr::eq(*other, own) || other.ended <= from {
            continue;
        }
        time += overlap(other.dispatched, other.ended);
        let prefill = (other.first_token - other.dispatched).max(1e-9);
        let share = overlap(other.dispatched, other.first_token) / prefill;
        computed += share * f64::from(other.computed);
    }
    Beside {
        running: time / length,
        computed,
    }
}

/// Most requests at once on one worker.
pub(super) fn concurrency(samples: &[Sample]) -> u32 {
    let mut edges: BTreeMap<&str, Vec<(f64, i32)>> = BTreeMap::new();
    for sample in samples {
        let list = edges.entry(&sample.worker).or_default();
        list.extend([(sample.dispatched, 1), (sample.ended, -1)]);
    }
    let most = |list: &mut Vec<(f64, i32)>| {
        list.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut now = 0;
        list.iter()
            .map(|(_, step)| {
                now += step;
                now
            })
            .max()
            .unwrap_or(0)
    };
    edges.values_mut().map(most).max().unwrap_or(0).max(0) as u32
}
