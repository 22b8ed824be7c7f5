//! What workers' KV events came to, and what is observed by them.

use super::{Labels, PoolRow};
use crate::kv::KvCounts;
use maitred_core::scheduler::WorkerView;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::Arc;

type Count<const N: usize> = Family<Labels<N>, Gauge>;

/// Read off the followers and schedulers when somebody scrapes; a worker that publishes no events has
/// no series.
pub(super) struct KvGauges {
    events: Count<3>,
    blocks: Count<2>,
    observed: Count<2>,
    leaving: Count<2>,
    ranks: Count<3>,
    bytes: Count<1>,
}

impl KvGauges {
    pub(super) fn register(r: &mut Registry) -> Self {
        Self {
            events: count(
                r,
                "kv_events",
                "A worker's KV events since it is followed: batches, events, unknown, duplicates, malformed, \
                 gaps, lost, replays, replays_failed, restarts, uncertain, connections",
            ),
            blocks: count(
                r,
                "kv_event_blocks",
                "Blocks stored or removed by a worker's KV events",
            ),
            observed: count(
                r,
                "worker_observed_blocks",
                "Blocks that the worker holds by its own events",
            ),
            leaving: count(
                r,
                "worker_leaving_blocks",
                "Of those, blocks that the worker is about to evict for what was sent to it",
            ),
            ranks: count(
                r,
                "worker_kv_ranks",
                "Ranks of the worker whose events say all they hold (live), or do not (uncertain)",
            ),
            bytes: count(r, "observed_bytes", "Memory of observed residency"),
        }
    }

    pub(super) fn fill(&self, pools: &[PoolRow]) {
        self.events.clear();
        self.blocks.clear();
        self.observed.clear();
        self.leaving.clear();
        self.ranks.clear();
        self.bytes.clear();
        for pool in pools {
            let name: Arc<str> = Arc::from(pool.pool.as_str());
            set(
                &self.bytes,
                &[("pool", Arc::clone(&name))],
                pool.observed_bytes as u64,
            );
            for worker in &pool.workers {
                if let Some(counts) = worker.kv {
                    let own: Arc<str> = Arc::from(worker.name.as_str());
                    self.fill_worker(&name, &own, counts, &worker.view);
                }
            }
        }
    }

    fn fill_worker(&self, pool: &Arc<str>, worker: &Arc<str>, counts: KvCounts, view: &WorkerView) {
        let labels = [("pool", Arc::clone(pool)), ("worker", Arc::clone(worker))];
        let with = |key, value: &str| {
            [
                ("pool", Arc::clone(pool)),
                ("worker", Arc::clone(worker)),
                (key, Arc::from(value)),
            ]
        };
        for (what, value) in named(counts) {
            set(&self.events, &with("what", what), value);
        }
        set(&self.blocks, &labels, counts.blocks);
        set(&self.observed, &labels, view.observed_blocks);
        set(&self.leaving, &labels, view.leaving_blocks);
        let flow = view.events;
        set(&self.ranks, &with("state", "live"), u64::from(flow.live));
        let uncertain = with("state", "uncertain");
        set(&self.ranks, &uncertain, u64::from(flow.uncertain));
    }
}

/// The counts by name, blocks left out.
pub(crate) fn named(counts: KvCounts) -> [(&'static str, u64); 12] {
    [
        ("batches", counts.batches),
        ("events", counts.events),
        ("unknown", counts.unknown),
        ("duplicates", counts.duplicates),
        ("malformed", counts.malformed),
        ("gaps", counts.gaps),
        ("lost", counts.lost),
        ("replays", counts.replays),
        ("replays_failed", counts.replays_failed),
        ("restarts", counts.restarts),
        ("uncertain", counts.uncertain),
        ("connections", counts.connections),
    ]
}

fn count<const N: usize>(r: &mut Registry, name: &str, help: &str) -> Count<N> {
    let family = Count::default();
    r.register(name, help, family.clone());
    family
}

fn set<const N: usize>(family: &Count<N>, labels: &Labels<N>, value: u64) {
    family
        .get_or_create(labels)
        .set(i64::try_from(value).unwrap_or(i64::MAX));
}
