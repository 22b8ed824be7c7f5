//! Handles for the hot path: each series is resolved once and then only counted up.

use super::stages::{CancelStage, WaitEnd};
use super::{Families, Labels, Times};
use maitred_core::decision::{Decision, PredictionSource, Reason};
use maitred_core::miss::{CAUSES, Misses};
use maitred_core::request::{Failure, Identity, KeySource, Usage};
use maitred_records::{Name, Outcome};
use maitred_wire::Endpoint;
use parking_lot::{Mutex, RwLock};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Model names with series of their own, per pool; more are `other`.
const MODELS_MAX: usize = 64;

const FAILURES: [Failure; 9] = [
    Failure::Connect,
    Failure::Reset,
    Failure::FirstByteTimeout,
    Failure::IdleTimeout,
    Failure::TotalTimeout,
    Failure::Truncated,
    Failure::ServerError,
    Failure::Saturated,
    Failure::Protocol,
];

const SOURCES: [KeySource; 8] = [
    KeySource::Header,
    KeySource::HarnessHeader,
    KeySource::PromptCacheKey,
    KeySource::SessionParams,
    KeySource::Conversation,
    KeySource::Metadata,
    KeySource::Content,
    KeySource::None,
];

/// As many as [`Endpoint`] has variants; a variant beyond it is counted as `Other`.
const ENDPOINTS: usize = Endpoint::Other as usize + 1;

fn text(value: &str) -> Arc<str> {
    Arc::from(value)
}

fn owned<const N: usize>(family: &Family<Labels<N>, Counter>, labels: &Labels<N>) -> Counter {
    family.get_or_create(labels).clone()
}

/// The words for first turns and the others.
const TURNS: [&str; 2] = ["first", "follow_up"];

fn turn_pair(times: &Times, pool: &Arc<str>) -> [Histogram; 2] {
    TURNS.map(|turn| {
        times
            .get_or_create(&[("pool", Arc::clone(pool)), ("turn", text(turn))])
            .clone()
    })
}

fn turn_index(turn: u32) -> usize {
    usize::from(turn > 1)
}

/// One counter per reason, made when it is first needed.
type ReasonCounters = Arc<[OnceLock<Counter>; Reason::ALL.len()]>;

/// A pool's handles.
pub struct PoolMetrics {
    families: Families,
    pool: Arc<str>,
    ttft: [Histogram; 2],
    e2e: [Histogram; 2],
    /// By how they ended, then by turn.
    queue: [[Histogram; 2]; 3],
    prompt_tokens: Counter,
    output_tokens: Counter,
    cached_tokens: Counter,
    cached_unknown: Counter,
    miss_tokens: [Counter; CAUSES],
    predicted_cached_tokens: Counter,
    tokenise: Histogram,
    cached_error: [Histogram; PredictionSource::ALL.len()],
    cached_error_unknown: [Counter; PredictionSource::ALL.len()],
    stale_decisions: Counter,
    cancels: [Counter; 4],
    retries: [Counter; FAILURES.len()],
    sources: [Counter; SOURCES.len()],
    /// One entry per policy that was ever in force; first the present one, usually the only one.
    decisions: RwLock<Vec<(&'static str, ReasonCounters)>>,
    identities: RwLock<Vec<(Identity, &'static str, Counter)>>,
    models: RwLock<HashMap<Name, Arc<ModelMetrics>>>,
    workers: Living,
    other: Arc<ModelMetrics>,
}

impl PoolMetrics {
    pub(super) fn new(families: &Families, name: &str) -> Self {
        let pool = text(name);
        let one: Labels<1> = [("pool", Arc::clone(&pool))];
        let with = |key: &'static str, value: &str| -> Labels<2> {
            [("pool", Arc::clone(&pool)), (key, text(value))]
        };
        Self {
            ttft: turn_pair(&families.ttft, &pool),
            e2e: turn_pair(&families.e2e, &pool),
            queue: WaitEnd::ALL.map(|end| {
                TURNS.map(|turn| {
                    let [pool, turn] = with("turn", turn);
                    let labels = [pool, turn, ("end", text(end.as_str()))];
                    families.queue.get_or_create(&labels).clone()
                })
            }),
            prompt_tokens: owned(&families.prompt_tokens, &one),
            output_tokens: owned(&families.output_tokens, &one),
            cached_tokens: owned(&families.cached_tokens, &one),
            cached_unknown: owned(&families.cached_unknown, &one),
            miss_tokens: Misses::default()
                .causes()
                .map(|(cause, _)| owned(&families.miss_tokens, &with("cause", cause))),
            predicted_cached_tokens: owned(&families.predicted_cached_tokens, &one),
            tokenise: families.tokenise.get_or_create(&one).clone(),
            cached_error: PredictionSource::ALL.map(|source| {
                let labels = with("source", source.as_str());
                families.cached_error.get_or_create(&labels).clone()
            }),
            cached_error_unknown: PredictionSource::ALL.map(|source| {
                let labels = with("source", source.as_str());
                owned(&families.cached_error_unknown, &labels)
            }),
            stale_decisions: owned(&families.stale_decisions, &one),
            cancels: CancelStage::ALL
                .map(|stage| owned(&families.cancels, &with("stage", stage.as_str()))),
            retries: FAILURES
                .map(|failure| owned(&families.retries, &with("failure", failure.as_str()))),
            sources: SOURCES
                .map(|source| owned(&families.session_keys, &with("source", source.as_str()))),
            decisions: RwLock::new(Vec::new()),
            identities: RwLock::new(Vec::new()),
            models: RwLock::new(HashMap::new()),
            workers: Living::default(),
            other: Arc::new(ModelMetrics::new(families, &pool, "other")),
            families: families.clone(),
            pool,
        }
    }

    /// Gives a configured or discovered model name a series of its own (up to a bound).
    pub fn know_model(&self, model: &str) {
        let mut models = self.models.write();
        if models.len() < MODELS_MAX && !models.contains_key(&Name::from(model)) {
            let handles = Arc::new(ModelMetrics::new(&self.families, &self.pool, model));
            models.insert(handles.name.clone(), handles);
        }
    }

    /// The handles of a model by the name that a client sent; `other` where it is not known.
    #[must_use]
    pub fn model(&self, name: &str) -> Arc<ModelMetrics> {
        let models = self.models.read();
        // Few names: comparing them costs less than making a key.
        let known = models.iter().find(|(known, _)| known.as_str() == name);
        Arc::clone(known.map_or(&self.other, |(_, handles)| handles))
    }

    /// The handles for requests without a known model.
    #[must_use]
    pub fn other_model(&self) -> Arc<ModelMetrics> {
        Arc::clone(&self.other)
    }

    /// The handles of a worker; ask once and keep them. A worker that is added again while attempts
    /// of its former life still end shares their handles.
    #[must_use]
    pub fn worker(&self, name: &str) -> WorkerMetrics {
        let mut workers = self.workers.lock();
        if let Some(living) = workers.get(name).and_then(Weak::upgrade) {
            return WorkerMetrics(living);
        }
        let series = Arc::new(WorkerSeries {
            families: self.families.clone(),
            pool: Arc::clone(&self.pool),
            worker: text(name),
            failures: std::array::from_fn(|_| OnceLock::new()),
            living: Arc::clone(&self.workers),
        });
        workers.insert(Arc::clone(&series.worker), Arc::downgrade(&series));
        WorkerMetrics(series)
    }

    /// A request waited for its first seat, and that wait ended.
    pub(crate) fn waited(&self, turn: u32, wait: Duration, end: WaitEnd) {
        self.queue[end as usize][turn_index(turn)].observe(wait.as_secs_f64());
    }

    /// A request was placed: policy, reason, prediction, wait.
    pub fn decided(&self, decision: &Decision) {
        // Of another attempt the first one would be part of the wait.
        if decision.attempt.number == 1 {
            let wait = decision.dispatched.since(decision.arrived);
            self.waited(decision.turn, wait, WaitEnd::Seated);
        }
        self.predicted_cached_tokens
            .inc_by(u64::from(decision.predicted_cached_tokens));
        if decision.stale {
            self.stale_decisions.inc();
        }
        let cells = self.decision_cells(decision.policy);
        let index = decision.reason as usize;
        if let Some(cell) = cells.get(index) {
            cell.get_or_init(|| {
                owned(
                    &self.families.decisions,
                    &[
                        ("pool", Arc::clone(&self.pool)),
                        ("policy", text(decision.policy)),
                        ("reason", text(decision.reason.as_str())),
                    ],
                )
            })
            .inc();
        }
    }

    fn decision_cells(&self, policy: &'static str) -> ReasonCounters {
        let find = |all: &[(&'static str, ReasonCounters)]| {
            all.iter()
                .find(|(name, _)| *name == policy)
                .map(|(_, cells)| Arc::clone(cells))
        };
        if let Some(cells) = find(&self.decisions.read()) {
            return cells;
        }
        let mut all = self.decisions.write();
        find(&all).unwrap_or_else(|| {
            let cells = Arc::new(std::array::from_fn(|_| OnceLock::new()));
            all.push((policy, Arc::clone(&cells)));
            cells
        })
    }

    /// The first token came, `after` the arrival.
    pub fn first_token(&self, turn: u32, after: Duration) {
        self.ttft[turn_index(turn)].observe(after.as_secs_f64());
    }

    /// A request was served to its end, `after` its arrival.
    pub fn served(&self, turn: u32, after: Duration, usage: &Usage) {
        self.e2e[turn_index(turn)].observe(after.as_secs_f64());
        self.prompt_tokens
            .inc_by(u64::from(usage.prompt_tokens.unwrap_or(0)));
        self.output_tokens
            .inc_by(u64::from(usage.output_tokens.unwrap_or(0)));
        match usage.cached_tokens {
            Some(cached) => self.cached_tokens.inc_by(u64::from(cached)),
            None => self.cached_unknown.inc(),
        };
    }

    /// A served attempt's prompt tokens were accounted for.
    pub fn accounted(&self, misses: &Misses) {
        for (counter, (_, tokens)) in self.miss_tokens.iter().zip(misses.causes()) {
            counter.inc_by(u64::from(tokens));
        }
    }

    /// How near the prediction of a served attempt came to what its engine says.
    pub fn predicted(&self, decision: &Decision, usage: &Usage) {
        let source = decision.belief.source as usize;
        match decision.prediction_error(usage) {
            Some(error) => {
                if let Some(errors) = self.cached_error.get(source) {
                    errors.observe(error as f64);
                }
            }
            None => {
                if let Some(unknown) = self.cached_error_unknown.get(source) {
                    unknown.inc();
                }
            }
        }
    }

    /// A request came; what it is known by, and how that came about (one of a few fixed words).
    pub fn identity(&self, identity: Identity, origin: &'static str) {
        let kind = match identity {
            Identity::Bytes => "bytes",
            Identity::Tokens => "tokens",
        };
        let find = |all: &[(Identity, &'static str, Counter)]| {
            all.iter()
                .find(|(known, why, _)| *known == identity && *why == origin)
                .map(|(_, _, counter)| counter.clone())
        };
        let known = find(&self.identities.read());
        let counter = known.unwrap_or_else(|| {
            let mut all = self.identities.write();
            find(&all).unwrap_or_else(|| {
                let labels = [
                    ("pool", Arc::clone(&self.pool)),
                    ("identity", text(kind)),
                    ("reason", text(origin)),
                ];
                let counter = owned(&self.families.identities, &labels);
                all.push((identity, origin, counter.clone()));
                counter
            })
        });
        counter.inc();
    }

    /// A request was rendered and tokenised.
    pub fn tokenised(&self, took: Duration) {
        self.tokenise.observe(took.as_secs_f64());
    }

    /// Another attempt follows this failure.
    pub fn retried(&self, failure: Failure) {
        if let Some(index) = FAILURES.iter().position(|known| *known == failure) {
            self.retries[index].inc();
        }
    }

    /// The client left.
    pub fn cancelled(&self, stage: CancelStage) {
        self.cancels[stage as usize].inc();
    }

    /// A request came, its session key from this source.
    pub fn session_key(&self, source: KeySource) {
        if let Some(index) = SOURCES.iter().position(|known| *known == source) {
            self.sources[index].inc();
        }
    }
}

/// A model's handles in a pool.
pub struct ModelMetrics {
    name: Name,
    pool: Arc<str>,
    family: Family<Labels<4>, Counter>,
    requests: [[OnceLock<Counter>; Outcome::ALL.len()]; ENDPOINTS],
}

impl ModelMetrics {
    fn new(families: &Families, pool: &Arc<str>, name: &str) -> Self {
        Self {
            name: Name::from(name),
            pool: Arc::clone(pool),
            family: families.requests.clone(),
            requests: std::array::from_fn(|_| std::array::from_fn(|_| OnceLock::new())),
        }
    }

    /// For requests that reach no pool.
    pub(super) fn unrouted(families: &Families) -> Self {
        Self::new(families, &text("none"), "other")
    }

    /// The bounded name, for records too.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// A request ended (once per request, not per attempt).
    pub fn request(&self, endpoint: Endpoint, outcome: Outcome) {
        let row = self
            .requests
            .get(endpoint as usize)
            .unwrap_or(&self.requests[ENDPOINTS - 1]);
        row[outcome as usize]
            .get_or_init(|| {
                owned(
                    &self.family,
                    &[
                        ("pool", Arc::clone(&self.pool)),
                        ("model", text(&self.name)),
                        ("route", text(endpoint.route())),
                        ("outcome", text(outcome.as_str())),
                    ],
                )
            })
            .inc();
    }
}

/// Workers with handles, by name.
type Living = Arc<Mutex<HashMap<Arc<str>, Weak<WorkerSeries>>>>;

/// A worker's handles. Its series go with the last of them.
#[derive(Clone)]
pub struct WorkerMetrics(Arc<WorkerSeries>);

struct WorkerSeries {
    families: Families,
    pool: Arc<str>,
    worker: Arc<str>,
    failures: [OnceLock<Counter>; FAILURES.len()],
    living: Living,
}

impl WorkerMetrics {
    /// An attempt on it failed.
    pub fn failed(&self, failure: Failure) {
        let series = &*self.0;
        if let Some(index) = FAILURES.iter().position(|known| *known == failure) {
            series.failures[index]
                .get_or_init(|| {
                    owned(
                        &series.families.upstream_failures,
                        &series.failure_labels(failure),
                    )
                })
                .inc();
        }
    }

    /// A health probe of it failed.
    pub fn probe_failed(&self) {
        let family = &self.0.families.probe_failures;
        family.get_or_create(&self.0.labels()).inc();
    }

    /// A scrape of its metrics failed.
    pub fn scrape_failed(&self) {
        let family = &self.0.families.scrape_failures;
        family.get_or_create(&self.0.labels()).inc();
    }
}

impl WorkerSeries {
    fn labels(&self) -> Labels<2> {
        [
            ("pool", Arc::clone(&self.pool)),
            ("worker", Arc::clone(&self.worker)),
        ]
    }

    fn failure_labels(&self, failure: Failure) -> Labels<3> {
        let [pool, worker] = self.labels();
        [pool, worker, ("failure", text(failure.as_str()))]
    }
}

impl Drop for WorkerSeries {
    /// Workers come and go for ever; their series must not.
    fn drop(&mut self) {
        let mut living = self.living.lock();
        if living
            .get(&self.worker)
            .is_some_and(|series| series.strong_count() > 0)
        {
            // The name has a new life already, and the series are its own now.
            return;
        }
        living.remove(&self.worker);
        self.families.probe_failures.remove(&self.labels());
        self.families.scrape_failures.remove(&self.labels());
        for failure in FAILURES {
            let labels = self.failure_labels(failure);
            self.families.upstream_failures.remove(&labels);
        }
    }
}
