//! Prometheus metrics, prefix `maitred_`. Every label is bounded: pools and workers by their
//! configured names, routes by template, models by configured or discovered names (else `other`).
//!
//! Hot paths hold handles ([`PoolMetrics`], [`ModelMetrics`], [`WorkerMetrics`]) that were resolved
//! once. Gauges of the schedulers' state are computed when somebody scrapes.

mod gauges;
mod kv;
mod lines;
mod pool;
mod pull;
mod stages;

pub use gauges::WorkerRow;
pub(crate) use kv::named as kv_named;
pub use pool::{ModelMetrics, PoolMetrics, WorkerMetrics};
pub(crate) use pull::{Popped, PullCounts, Submitted};
pub use stages::CancelStage;
pub(crate) use stages::WaitEnd;

use gauges::Gauges;
use lines::LineGauges;
use maitred_core::line::LinesView;
use maitred_records::{Name, SinkCounts};
use maitred_text::model::TextCounts;
use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;

/// Upper bounds of the time histograms, seconds: from a cache hit on a small model to a long
/// agent answer.
const TIME_BUCKETS: [f64; 16] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0,
];

/// `N` labels: names are fixed, values shared texts.
pub(crate) type Labels<const N: usize> = [(&'static str, Arc<str>); N];

#[derive(Clone)]
pub(crate) struct TimeHistogram;

impl MetricConstructor<Histogram> for TimeHistogram {
    fn new_metric(&self) -> Histogram {
        Histogram::new(TIME_BUCKETS)
    }
}

/// Upper bounds of the time to render and tokenise, seconds.
const TOKENISE_BUCKETS: [f64; 12] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5,
];

/// Upper bounds of the error of predicted cached tokens. Within a block of 16: above -17, up to 16.
const ERROR_BUCKETS: [f64; 14] = [
    -16_385.0, -4_097.0, -1_025.0, -257.0, -65.0, -17.0, -1.0, 0.0, 16.0, 64.0, 256.0, 1_024.0,
    4_096.0, 16_384.0,
];

#[derive(Clone)]
pub(crate) struct TokeniseHistogram;

impl MetricConstructor<Histogram> for TokeniseHistogram {
    fn new_metric(&self) -> Histogram {
        Histogram::new(TOKENISE_BUCKETS)
    }
}

#[derive(Clone)]
pub(crate) struct ErrorHistogram;

impl MetricConstructor<Histogram> for ErrorHistogram {
    fn new_metric(&self) -> Histogram {
        Histogram::new(ERROR_BUCKETS)
    }
}

pub(crate) type Times = Family<Labels<2>, Histogram, TimeHistogram>;

/// The families that pools and workers take their handles from.
#[derive(Clone)]
pub(crate) struct Families {
    pub(crate) requests: Family<Labels<4>, Counter>,
    pub(crate) ttft: Times,
    pub(crate) e2e: Times,
    pub(crate) queue: Family<Labels<3>, Histogram, TimeHistogram>,
    pub(crate) prompt_tokens: Family<Labels<1>, Counter>,
    pub(crate) output_tokens: Family<Labels<1>, Counter>,
    pub(crate) cached_tokens: Family<Labels<1>, Counter>,
    pub(crate) cached_unknown: Family<Labels<1>, Counter>,
    pub(crate) miss_tokens: Family<Labels<2>, Counter>,
    pub(crate) predicted_cached_tokens: Family<Labels<1>, Counter>,
    pub(crate) identities: Family<Labels<3>, Counter>,
    pub(crate) tokenise: Family<Labels<1>, Histogram, TokeniseHistogram>,
    pub(crate) cached_error: Family<Labels<2>, Histogram, ErrorHistogram>,
    pub(crate) cached_error_unknown: Family<Labels<2>, Counter>,
    pub(crate) decisions: Family<Labels<3>, Counter>,
    pub(crate) stale_decisions: Family<Labels<1>, Counter>,
    pub(crate) retries: Family<Labels<2>, Counter>,
    pub(crate) cancels: Family<Labels<2>, Counter>,
    pub(crate) session_keys: Family<Labels<2>, Counter>,
    pub(crate) upstream_failures: Family<Labels<3>, Counter>,
    pub(crate) probe_failures: Family<Labels<2>, Counter>,
    pub(crate) scrape_failures: Family<Labels<2>, Counter>,
}

impl Families {
    fn register(r: &mut Registry) -> Self {
        Self {
            requests: family(r, "requests", "Requests by route and outcome"),
            ttft: times(
                r,
                "time_to_first_token",
                "From arrival to the first token; turn: first or follow_up",
            ),
            e2e: times(
                r,
                "request_duration",
                "From arrival to the end of served requests",
            ),
            queue: {
                let family = Family::new_with_constructor(TimeHistogram);
                let help = "From arrival to the end of the wait; end: seated, refused or left";
                r.register_with_unit("queue_wait", help, Unit::Seconds, family.clone());
                family
            },
            prompt_tokens: family(r, "prompt_tokens", "Prompt tokens, as engines report them"),
            output_tokens: family(r, "output_tokens", "Answer tokens, as engines report them"),
            cached_tokens: family(
                r,
                "cached_tokens",
                "Prompt tokens served from cache, as engines report them",
            ),
            cached_unknown: family(
                r,
                "cached_unknown",
                "Served attempts whose engine did not say what was cached",
            ),
            miss_tokens: family(
                r,
                "miss_tokens",
                "Prompt tokens of served attempts that were not, or not known to be, cached, by cause",
            ),
            predicted_cached_tokens: family(
                r,
                "predicted_cached_tokens",
                "Prompt tokens that were believed to be cached where they were sent",
            ),
            identities: family(
                r,
                "identity_requests",
                "Requests by what they are known by, and how that came about",
            ),
            tokenise: {
                let family = Family::new_with_constructor(TokeniseHistogram);
                let help = "Rendering and tokenising of requests known by their tokens";
                r.register_with_unit("tokenise", help, Unit::Seconds, family.clone());
                family
            },
            cached_error: {
                let family = Family::new_with_constructor(ErrorHistogram);
                let help = "Cached tokens predicted less those reported, by what was gone by";
                r.register("cached_tokens_error", help, family.clone());
                family
            },
            cached_error_unknown: family(
                r,
                "cached_tokens_error_unknown",
                "Predictions that the engine did not answer, by what was gone by",
            ),
            decisions: family(r, "decisions", "Placement decisions by policy and reason"),
            stale_decisions: family(
                r,
                "stale_decisions",
                "Decisions without a fresh report of the chosen worker",
            ),
            retries: family(r, "retries", "Attempts made again, by the failure before"),
            cancels: family(r, "cancels", "Requests whose client left, by stage"),
            session_keys: family(r, "session_keys", "Requests by source of the session key"),
            upstream_failures: family(r, "upstream_failures", "Failed attempts by worker"),
            probe_failures: family(r, "probe_failures", "Failed health probes by worker"),
            scrape_failures: family(r, "scrape_failures", "Failed metrics scrapes by worker"),
        }
    }
}

fn family<const N: usize>(r: &mut Registry, name: &str, help: &str) -> Family<Labels<N>, Counter> {
    let family = Family::default();
    r.register(name, help, family.clone());
    family
}

fn times(r: &mut Registry, name: &str, help: &str) -> Times {
    let family = Times::new_with_constructor(TimeHistogram);
    r.register_with_unit(name, help, Unit::Seconds, family.clone());
    family
}

/// All metrics of a gateway.
pub struct Metrics {
    registry: Registry,
    families: Families,
    gauges: Gauges,
    lines: LineGauges,
    kv: kv::KvGauges,
    pull_gauges: pull::PullGauges,
    /// Of workers that pull.
    pub(crate) pull: PullCounts,
    unrouted: Arc<ModelMetrics>,
    connections: Gauge,
    connections_refused: Counter,
    /// One scrape at a time: gauges are emptied and filled again.
    scrape: Mutex<()>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All families, empty.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("maitred");
        let families = Families::register(&mut registry);
        let gauges = Gauges::register(&mut registry);
        let lines = LineGauges::register(&mut registry);
        let kv = kv::KvGauges::register(&mut registry);
        let (pull, pull_gauges) = pull::PullGauges::register(&mut registry);
        let connections = Gauge::default();
        registry.register(
            "connections",
            "Open client connections",
            connections.clone(),
        );
        let connections_refused = Counter::default();
        registry.register(
            "connections_refused",
            "Client connections closed at once: too many",
            connections_refused.clone(),
        );
        Self {
            unrouted: Arc::new(ModelMetrics::unrouted(&families)),
            registry,
            families,
            gauges,
            lines,
            kv,
            pull_gauges,
            pull,
            connections,
            connections_refused,
            scrape: Mutex::new(()),
        }
    }

    /// The handles of a pool; ask once and keep them.
    #[must_use]
    pub fn pool(&self, name: &str) -> PoolMetrics {
        PoolMetrics::new(&self.families, name)
    }

    /// The handles for requests that reach no pool (unknown model, bad body, unknown path).
    #[must_use]
    pub fn unrouted(&self) -> Arc<ModelMetrics> {
        Arc::clone(&self.unrouted)
    }

    /// A client connected.
    pub fn connection_opened(&self) {
        self.connections.inc();
    }

    /// A client's connection ended.
    pub fn connection_closed(&self) {
        self.connections.dec();
    }

    /// A connection was closed at once because there are too many.
    pub fn connection_refused(&self) {
        self.connections_refused.inc();
    }

    /// The text exposition, with gauges filled from `pools` and `records`.
    #[must_use]
    pub fn render(&self, pools: &[PoolRow], records: SinkCounts) -> String {
        let _one_at_a_time = self.scrape.lock();
        self.gauges.fill(pools, records);
        self.lines.fill(pools);
        self.kv.fill(pools);
        self.pull_gauges.fill(pools);
        let mut text = String::with_capacity(16 << 10);
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// What a scrape needs to know of a pool.
#[derive(Clone, Debug)]
pub struct PoolRow {
    /// Its name.
    pub pool: Name,
    /// Requests in the line.
    pub line_len: usize,
    /// The queue.
    pub lines: LinesView,
    /// The names of the bands of its lines.
    pub bands: Vec<Name>,
    /// Bytes of predicted residency.
    pub index_bytes: usize,
    /// Bytes of observed residency.
    pub observed_bytes: usize,
    /// What its tokenizer did, where it has one.
    pub text: Option<TextCounts>,
    /// Its workers.
    pub workers: Vec<WorkerRow>,
}

#[cfg(test)]
mod tests;
