//! Gauges that are read off the schedulers when somebody scrapes.

use super::{Labels, PoolRow};
use crate::kv::KvCounts;
use crate::pull::PullView;
use maitred_core::pool::Availability;
use maitred_core::scheduler::WorkerView;
use maitred_records::{Name, SinkCounts};
use maitred_text::model::TextCounts;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

const AVAILABILITIES: [Availability; 5] = [
    Availability::Starting,
    Availability::Ready,
    Availability::Broken,
    Availability::Unhealthy,
    Availability::Draining,
];

/// A worker as a scrape shows it.
#[derive(Clone, Debug)]
pub struct WorkerRow {
    /// Its name.
    pub name: Name,
    /// What the scheduler knows.
    pub view: WorkerView,
    /// The worker's report is older than the pool's bound, or it never reported.
    pub stale: bool,
    /// What came of its KV events; None: they are not followed.
    pub kv: Option<KvCounts>,
    /// Its polls and jobs, where it pulls.
    pub pull: Option<PullView>,
}

type Count<const N: usize> = Family<Labels<N>, Gauge>;
type Share = Family<Labels<2>, Gauge<f64, AtomicU64>>;

pub(super) struct Gauges {
    line_len: Count<1>,
    index_bytes: Count<1>,
    running: Count<2>,
    prefill: Count<2>,
    resident: Count<2>,
    believed: Count<2>,
    sessions: Count<2>,
    epoch: Count<2>,
    stale: Count<2>,
    available: Count<3>,
    slots_learnt: Count<2>,
    engine_running: Count<2>,
    engine_waiting: Count<2>,
    engine_kv_usage: Share,
    records: Count<1>,
    memo_bytes: Count<1>,
    memo_texts: Count<2>,
    memo_text_bytes: Count<2>,
    tokenizer_mismatches: Count<1>,
}

impl Gauges {
    pub(super) fn register(r: &mut Registry) -> Self {
        let engine_kv_usage = Share::default();
        let all = Self {
            line_len: count(r, "line_requests", "Requests in the line"),
            index_bytes: count(r, "index_bytes", "Memory of predicted residency"),
            running: count(
                r,
                "worker_running",
                "In-flight attempts (open leases) per worker",
            ),
            prefill: count(
                r,
                "worker_prefill_tokens",
                "Uncached prompt tokens dispatched and not yet answered",
            ),
            resident: count(r, "worker_resident_tokens", "Tokens of all open leases"),
            believed: count(
                r,
                "worker_believed_blocks",
                "Blocks that the worker is predicted to hold, by what was sent to it",
            ),
            sessions: count(r, "worker_sessions", "Sessions at home on the worker"),
            epoch: count(r, "worker_epoch", "Lives of the worker's cache so far"),
            stale: count(
                r,
                "worker_report_stale",
                "1: the worker's own metrics are missing or old; own leases rule",
            ),
            available: count(
                r,
                "worker_availability",
                "1 for the state the worker is in, 0 for the others",
            ),
            slots_learnt: count(
                r,
                "worker_slots_learnt",
                "Requests at once that the engine was seen to run, where it let more wait",
            ),
            engine_running: count(r, "engine_running", "Running, by the engine's own word"),
            engine_waiting: count(r, "engine_waiting", "Waiting, by the engine's own word"),
            engine_kv_usage: engine_kv_usage.clone(),
            memo_bytes: count(r, "memo_bytes", "Memory of what is remembered of texts"),
            memo_texts: count(
                r,
                "memo_texts",
                "Texts looked for among the tokenised since start: hit, miss",
            ),
            memo_text_bytes: count(
                r,
                "memo_text_bytes",
                "Bytes of texts looked for among the tokenised since start: hit, miss",
            ),
            tokenizer_mismatches: count(
                r,
                "tokenizer_mismatches",
                "Texts on which the fast tokenizer was wrong: it is not used any more",
            ),
            records: count(
                r,
                "attempt_records",
                "Attempt records since start: sent, written, lost, errors",
            ),
        };
        r.register(
            "engine_kv_usage",
            "Share of the KV cache in use, by the engine's own word",
            engine_kv_usage,
        );
        all
    }

    pub(super) fn fill(&self, pools: &[PoolRow], records: SinkCounts) {
        self.clear();
        for (what, value) in [
            ("sent", records.sent),
            ("written", records.written),
            ("lost", records.lost),
            ("errors", records.errors),
        ] {
            set(&self.records, &[("state", Arc::from(what))], value);
        }
        for pool in pools {
            let name: Arc<str> = Arc::from(pool.pool.as_str());
            let labels = [("pool", Arc::clone(&name))];
            set(&self.line_len, &labels, pool.line_len as u64);
            set(&self.index_bytes, &labels, pool.index_bytes as u64);
            if let Some(text) = &pool.text {
                self.fill_text(&labels, text);
            }
            for worker in &pool.workers {
                self.fill_worker(&name, worker);
            }
        }
    }

    fn fill_text(&self, pool: &Labels<1>, text: &TextCounts) {
        let memo = &text.tokenizer.memo;
        set(&self.memo_bytes, pool, memo.bytes);
        let mismatches = text.tokenizer.mismatches;
        set(&self.tokenizer_mismatches, pool, mismatches);
        for (result, texts, bytes) in [
            ("hit", memo.hits, memo.hit_bytes),
            ("miss", memo.misses, memo.missed_bytes),
        ] {
            let [pool] = pool.clone();
            let labels = [pool, ("result", Arc::from(result))];
            set(&self.memo_texts, &labels, texts);
            set(&self.memo_text_bytes, &labels, bytes);
        }
    }

    fn fill_worker(&self, pool: &Arc<str>, row: &WorkerRow) {
        let worker: Arc<str> = Arc::from(row.name.as_str());
        let labels = [("pool", Arc::clone(pool)), ("worker", Arc::clone(&worker))];
        let view = &row.view;
        set(&self.running, &labels, u64::from(view.running));
        set(&self.prefill, &labels, view.prefill_tokens);
        set(&self.resident, &labels, view.resident_tokens);
        set(&self.believed, &labels, view.believed_blocks);
        set(&self.sessions, &labels, u64::from(view.sessions));
        set(&self.epoch, &labels, u64::from(view.epoch));
        set(&self.stale, &labels, u64::from(row.stale));
        for state in AVAILABILITIES {
            let labels = [
                ("pool", Arc::clone(pool)),
                ("worker", Arc::clone(&worker)),
                ("state", Arc::from(state.as_str())),
            ];
            set(
                &self.available,
                &labels,
                u64::from(state == view.availability),
            );
        }
        if let Some(slots) = view.slots_learnt {
            set(&self.slots_learnt, &labels, u64::from(slots));
        }
        let Some((gauges, _)) = &view.gauges else {
            return;
        };
        // What the engine does not tell has no series: unknown is not zero.
        if let Some(running) = gauges.running {
            set(&self.engine_running, &labels, u64::from(running));
        }
        if let Some(waiting) = gauges.waiting {
            set(&self.engine_waiting, &labels, u64::from(waiting));
        }
        if let Some(usage) = gauges.kv_usage {
            self.engine_kv_usage.get_or_create(&labels).set(usage);
        }
    }

    fn clear(&self) {
        for family in [
            &self.line_len,
            &self.index_bytes,
            &self.records,
            &self.memo_bytes,
            &self.tokenizer_mismatches,
        ] {
            family.clear();
        }
        for family in [
            &self.running,
            &self.prefill,
            &self.resident,
            &self.believed,
            &self.sessions,
            &self.epoch,
            &self.stale,
            &self.memo_texts,
            &self.memo_text_bytes,
            &self.slots_learnt,
            &self.engine_running,
            &self.engine_waiting,
        ] {
            family.clear();
        }
        self.available.clear();
        self.engine_kv_usage.clear();
    }
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
