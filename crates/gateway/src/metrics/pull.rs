//! Workers that pull: what they asked for and sent, and what was lost with them.

use super::{Labels, PoolRow, family};
use crate::pull::{Loss, PullView, Speaks};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// How a poll ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Popped {
    Job,
    Empty,
    Refused,
}

/// What came of a worker's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Submitted {
    /// A client has it.
    Taken,
    /// The worker gave the job back.
    Faulted,
    /// The job had been taken from the worker, or its client had left.
    Late,
    /// The job was, or is being, answered already.
    Duplicate,
    /// There never was such a job, or it is long ago.
    Unknown,
    /// It can not be read.
    Invalid,
}

/// Counters over all workers that pull.
pub(crate) struct PullCounts {
    pops: Family<Labels<2>, Counter>,
    submits: Family<Labels<2>, Counter>,
    requeues: Family<Labels<2>, Counter>,
    abandoned: Family<Labels<2>, Counter>,
}

impl PullCounts {
    fn register(r: &mut Registry) -> Self {
        Self {
            pops: family(
                r,
                "pull_pops",
                "Polls of workers that pull, by how they ended: job, empty, refused",
            ),
            submits: family(
                r,
                "pull_answers",
                "Answers of workers that pull: taken, faulted, late, duplicate, unknown, invalid",
            ),
            requeues: family(
                r,
                "pull_requeues",
                "Jobs that were given to another worker, by how they were lost",
            ),
            abandoned: family(
                r,
                "pull_abandoned",
                "Jobs that were lost and given to nobody: within a stream, or in silence again",
            ),
        }
    }

    pub(crate) fn popped(&self, speaks: Speaks, how: Popped) {
        let how = match how {
            Popped::Job => "job",
            Popped::Empty => "empty",
            Popped::Refused => "refused",
        };
        self.pops.get_or_create(&labels(speaks, how)).inc();
    }

    pub(crate) fn submitted(&self, speaks: Speaks, what: Submitted) {
        let what = match what {
            Submitted::Taken => "taken",
            Submitted::Faulted => "faulted",
            Submitted::Late => "late",
            Submitted::Duplicate => "duplicate",
            Submitted::Unknown => "unknown",
            Submitted::Invalid => "invalid",
        };
        self.submits.get_or_create(&labels(speaks, what)).inc();
    }

    /// A job was lost; `again`: another worker gets it.
    pub(crate) fn lost(&self, pool: &str, why: Loss, again: bool) {
        let family = if again {
            &self.requeues
        } else {
            &self.abandoned
        };
        let labels = [
            ("pool", Arc::from(pool)),
            ("cause", Arc::from(why.as_str())),
        ];
        family.get_or_create(&labels).inc();
    }
}

fn labels(speaks: Speaks, result: &str) -> Labels<2> {
    [
        ("api", Arc::from(speaks.as_str())),
        ("result", Arc::from(result)),
    ]
}

/// What each of them has now.
pub(super) struct PullGauges {
    polls: Family<Labels<2>, Gauge>,
    jobs: Family<Labels<2>, Gauge>,
    heard: Family<Labels<2>, Gauge<f64, AtomicU64>>,
    oldest: Family<Labels<2>, Gauge<f64, AtomicU64>>,
}

impl PullGauges {
    pub(super) fn register(r: &mut Registry) -> (PullCounts, Self) {
        let all = Self {
            polls: Family::default(),
            jobs: Family::default(),
            heard: Family::default(),
            oldest: Family::default(),
        };
        r.register(
            "pull_polls",
            "Polls that wait for a request",
            all.polls.clone(),
        );
        r.register("pull_jobs", "Jobs that a worker has", all.jobs.clone());
        r.register_with_unit(
            "pull_heard",
            "Since a worker that pulls last gave a sign of life",
            Unit::Seconds,
            all.heard.clone(),
        );
        r.register_with_unit(
            "pull_oldest_job",
            "For how long a worker has had the oldest of its jobs",
            Unit::Seconds,
            all.oldest.clone(),
        );
        (PullCounts::register(r), all)
    }

    pub(super) fn fill(&self, pools: &[PoolRow]) {
        self.polls.clear();
        self.jobs.clear();
        self.heard.clear();
        self.oldest.clear();
        for pool in pools {
            let name: Arc<str> = Arc::from(pool.pool.as_str());
            for worker in &pool.workers {
                let Some(pull) = &worker.pull else {
                    continue;
                };
                let labels = [
                    ("pool", Arc::clone(&name)),
                    ("worker", Arc::from(worker.name.as_str())),
                ];
                self.set(&labels, pull);
            }
        }
    }

    fn set(&self, labels: &Labels<2>, pull: &PullView) {
        self.polls.get_or_create(labels).set(i64::from(pull.polls));
        self.jobs.get_or_create(labels).set(i64::from(pull.jobs));
        let heard = self.heard.get_or_create(labels);
        heard.set(pull.heard.as_secs_f64());
        if let Some(age) = pull.oldest_job {
            self.oldest.get_or_create(labels).set(age.as_secs_f64());
        }
    }
}
