//! One worker's task.

use super::events::Events;
use super::fetch::{FetchError, Fetched, get};
use super::probe_wait;
use crate::config::WorkerSettings;
use crate::pool::Pool;
use crate::upstream::Upstream;
use maitred_core::WorkerId;
use maitred_core::pool::{Gauges, Report, Seats};
use maitred_engine::{EngineKind, Readiness, gauges, slots};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two looks at the list of models.
const MODELS_EVERY: Duration = Duration::from_secs(30);
/// The same while the worker's KV events wait for it.
const MODELS_SOON: Duration = Duration::from_secs(1);
/// The list is fetched before a worker counts as ready, but a hanging list must not keep it out.
const MODELS_FIRST: Duration = Duration::from_secs(1);
/// Names that one worker may list, and their length.
const MODELS_MAX: usize = 4_096;
const MODEL_BYTES_MAX: usize = 512;
/// Bytes of a health answer, of a list of models, of a metrics text.
const HEALTH_BYTES_MAX: usize = 64 << 10;
const MODELS_BYTES_MAX: usize = 4 << 20;
/// And of what tells its slots, which has its chat template beside them.
const SLOTS_BYTES_MAX: usize = 4 << 20;
const METRICS_BYTES_MAX: usize = 8 << 20;
/// A worker without metrics is asked again this rarely.
const NO_METRICS_WAIT: Duration = Duration::from_secs(30);

/// What a worker's task has seen, for the admin API.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The engine, set or found out.
    pub engine: Option<EngineKind>,
    /// The last probe's result in words; None: none is finished yet.
    pub probe: Option<String>,
    /// When it came.
    pub probed: Option<Instant>,
    /// The last scrape's failure in words; None: it succeeded, or there was none.
    pub scrape_error: Option<String>,
}

struct State {
    seen: Seen,
    up: bool,
    down_since: Instant,
    /// The engine has no health path: its list of models stands in.
    probe_models: bool,
    models_known: bool,
    /// How many requests at once it says that it takes; None: it does not say.
    slots_told: Option<u32>,
    /// The limits that the scheduler goes by.
    seats: Seats,
}

pub(super) struct Watch {
    pool: Arc<Pool>,
    id: WorkerId,
    settings: WorkerSettings,
    /// Its KV events, where it publishes any: they wait for its list.
    events: Option<Arc<Events>>,
    state: Mutex<State>,
}

impl Watch {
    pub(super) fn new(
        pool: Arc<Pool>,
        id: WorkerId,
        settings: WorkerSettings,
        events: Option<Arc<Events>>,
    ) -> Self {
        let engine = settings.engine.set();
        let seats = settings.seats_as(engine, None);
        Self {
            pool,
            id,
            settings,
            events,
            state: Mutex::new(State {
                seen: Seen {
                    engine,
                    ..Seen::default()
                },
                up: false,
                down_since: Instant::now(),
                probe_models: false,
                models_known: false,
                slots_told: None,
                seats,
            }),
        }
    }

    pub(super) fn seen(&self) -> Seen {
        self.state.lock().seen.clone()
    }

    pub(super) async fn run(self: Arc<Self>) {
        let Some(upstream) = self.pool.upstream(self.id) else {
            return;
        };
        tokio::join!(
            self.keep_probing(&upstream),
            self.keep_scraping(&upstream),
            self.keep_listing(&upstream),
        );
    }

    fn kind(&self) -> EngineKind {
        self.state.lock().seen.engine.unwrap_or_default()
    }

    fn learn_kind(&self, kind: Option<EngineKind>) {
        let mut state = self.state.lock();
        // What more than one look agrees on is not looked for again.
        if state.seen.engine.is_none() && kind.is_some() {
            state.seen.engine = kind;
            drop(state);
            if let Some(upstream) = self.pool.upstream(self.id) {
                upstream.is(kind);
            }
            self.fit_seats();
        }
    }

    /// How many requests it takes at once, where it says so: it may come back with another number.
    async fn ask_slots(&self, upstream: &Upstream, timeout: Duration) {
        let wanted = self.settings.seats.slots.is_none() && self.pool.settings.core.learn_slots;
        let Some(path) = self.kind().slots_path().filter(|_| wanted) else {
            return;
        };
        let answer = self.fetch(upstream, path, timeout, SLOTS_BYTES_MAX).await;
        // Unknown is not zero: what it said before holds.
        if let Some(told) = answer.ok().and_then(|answer| slots(&answer.body)) {
            self.state.lock().slots_told = Some(told);
            self.fit_seats();
        }
    }

    /// Its limits are others where its engine, or what that says, allows others.
    fn fit_seats(&self) {
        let mut state = self.state.lock();
        let seats = self.settings.seats_as(state.seen.engine, state.slots_told);
        if std::mem::replace(&mut state.seats, seats) != seats {
            drop(state);
            self.pool.seats(self.id, seats);
        }
    }

    async fn keep_probing(&self, upstream: &Upstream) {
        loop {
            let report = self.probe(upstream).await;
            let wait = self.note(report);
            self.pool.report(self.id, report);
            tokio::time::sleep(wait).await;
        }
    }

    fn note(&self, report: Report) -> Duration {
        let mut state = self.state.lock();
        let up = report == Report::Alive;
        if state.up && !up {
            state.down_since = Instant::now();
            // It may come back with other models.
            state.models_known = false;
        }
        state.up = up;
        state.seen.probed = Some(Instant::now());
        probe_wait(&self.pool.settings, up, state.down_since.elapsed())
    }

    async fn probe(&self, upstream: &Upstream) -> Report {
        let timeout = self.pool.settings.probe.timeout;
        let set_path = self.pool.settings.probe.path.as_deref();
        if set_path.is_none() && self.state.lock().probe_models {
            return self.probe_by_models(upstream, timeout).await;
        }
        let path = set_path.unwrap_or_else(|| self.kind().probe_path());
        match self.fetch(upstream, path, timeout, HEALTH_BYTES_MAX).await {
            Ok(answer) if answer.status == 404 && set_path.is_none() => {
                self.state.lock().probe_models = true;
                self.probe_by_models(upstream, timeout).await
            }
            Ok(answer) => match self.kind().readiness(answer.status, &answer.body) {
                Readiness::Ready => self.ready(upstream).await,
                Readiness::Loading => self.said("loading", Report::Loading),
                Readiness::Unready => {
                    let words = format!("{path}: status {}", answer.status);
                    self.dead(&words, false)
                }
            },
            Err(error) => self.failed(&error),
        }
    }

    /// Health says yes; the list of models, where there is one, must not be empty.
    async fn ready(&self, upstream: &Upstream) -> Report {
        if self.state.lock().models_known {
            return self.said("ready", Report::Alive);
        }
        let timeout = MODELS_FIRST.min(self.pool.settings.probe.timeout);
        let listed = self.list(upstream, timeout).await;
        self.ask_slots(upstream, timeout).await;
        match listed {
            Some(models) if models.is_empty() => self.said("no model yet", Report::Loading),
            Some(models) => {
                self.listed(models);
                self.said("ready", Report::Alive)
            }
            // Unknown is not empty.
            None => {
                self.state.lock().models_known = true;
                self.said("ready; lists no models", Report::Alive)
            }
        }
    }

    async fn probe_by_models(&self, upstream: &Upstream, timeout: Duration) -> Report {
        match self
            .fetch(upstream, "/v1/models", timeout, MODELS_BYTES_MAX)
            .await
        {
            Ok(answer) if (200..300).contains(&answer.status) => {
                match self.read_models(&answer.body) {
                    Some(models) if models.is_empty() => self.said("no model yet", Report::Loading),
                    Some(models) => {
                        self.listed(models);
                        self.said("ready (by /v1/models)", Report::Alive)
                    }
                    None => self.said("ready (by /v1/models)", Report::Alive),
                }
            }
            Ok(answer) if answer.status == 503 => self.said("loading", Report::Loading),
            // Neither path exists, so it does not tell; it answers, and that is life.
            Ok(answer) if (400..500).contains(&answer.status) => {
                self.said("alive; no health path", Report::Alive)
            }
            Ok(answer) => self.dead(&format!("/v1/models: status {}", answer.status), false),
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&self, error: &FetchError) -> Report {
        self.dead(&error.to_string(), matches!(error, FetchError::Refused))
    }

    fn dead(&self, words: &str, refused: bool) -> Report {
        if let Some(upstream) = self.pool.upstream(self.id) {
            upstream.metrics.probe_failed();
        }
        self.said(words, Report::Dead { refused })
    }

    fn said(&self, words: &str, report: Report) -> Report {
        let mut state = self.state.lock();
        if state.seen.probe.as_deref() != Some(words) {
            let (pool, worker) = (&self.pool.name, &self.settings.name);
            if matches!(report, Report::Dead { .. }) {
                tracing::warn!(%pool, %worker, probe = words, "worker does not answer as it should");
            } else {
                tracing::info!(%pool, %worker, probe = words, "worker probed");
            }
            state.seen.probe = Some(words.to_owned());
        }
        report
    }

    async fn keep_scraping(&self, upstream: &Upstream) {
        let scrape = &self.pool.settings.scrape;
        if scrape.interval.is_zero() {
            return;
        }
        loop {
            let wait = match self.kind().metrics_path() {
                Some(path) => self.scrape(upstream, path).await,
                None => NO_METRICS_WAIT,
            };
            tokio::time::sleep(wait.max(scrape.interval)).await;
        }
    }

    /// One scrape; the least wait until the next.
    async fn scrape(&self, upstream: &Upstream, path: &str) -> Duration {
        let timeout = self.pool.settings.scrape.timeout;
        let answer = self.fetch(upstream, path, timeout, METRICS_BYTES_MAX).await;
        let failure = match answer {
            Ok(answer) if answer.status == 200 => {
                let text = String::from_utf8_lossy(&answer.body);
                self.learn_kind(EngineKind::of_metrics(&text));
                let told = told(gauges(self.kind(), &text));
                if told != Gauges::default() {
                    self.pool.report(self.id, Report::Gauges(told));
                }
                None
            }
            // Many engines have none (or none switched on); that is no failure.
            Ok(answer) if matches!(answer.status, 404 | 405 | 501) => {
                let seen =
                    Some("it has no metrics (llama-server: start it with --metrics)".to_owned());
                let mut state = self.state.lock();
                if state.seen.scrape_error != seen {
                    state.seen.scrape_error = seen;
                    tracing::info!(
                        pool = %self.pool.name,
                        worker = %self.settings.name,
                        "worker exports no metrics: its load is what this gateway sent it"
                    );
                }
                return NO_METRICS_WAIT;
            }
            Ok(answer) => Some(format!("{path}: status {}", answer.status)),
            Err(error) => Some(error.to_string()),
        };
        if failure.is_some() {
            upstream.metrics.scrape_failed();
        }
        self.state.lock().seen.scrape_error = failure;
        Duration::ZERO
    }

    async fn keep_listing(&self, upstream: &Upstream) {
        loop {
            let waited = self.events.as_ref().is_some_and(|events| events.wait());
            tokio::time::sleep(if waited { MODELS_SOON } else { MODELS_EVERY }).await;
            if !self.state.lock().up {
                continue;
            }
            let timeout = self.pool.settings.probe.timeout;
            if let Some(models) = self.list(upstream, timeout).await
                && !models.is_empty()
            {
                self.listed(models);
            }
            self.ask_slots(upstream, timeout).await;
        }
    }

    async fn list(&self, upstream: &Upstream, timeout: Duration) -> Option<Vec<String>> {
        let answer = self
            .fetch(upstream, "/v1/models", timeout, MODELS_BYTES_MAX)
            .await
            .ok()?;
        if answer.status != 200 {
            return None;
        }
        self.read_models(&answer.body)
    }

    fn read_models(&self, body: &[u8]) -> Option<Vec<String>> {
        self.learn_kind(EngineKind::of_models(body));
        let models = models(body)?;
        if let Some(events) = &self.events
            && let Some(model) = models.iter().find(|model| model.parent.is_none())
        {
            events.listed(&model.id);
        }
        Some(names(models))
    }

    /// The worker's own list counts where the configuration gives none.
    fn listed(&self, models: Vec<String>) {
        let known = std::mem::replace(&mut self.state.lock().models_known, true);
        if !known {
            self.compare(&models);
        }
        if self.settings.models.is_empty() {
            self.pool.listed_by(self.id, models);
        }
    }

    /// Says so where the worker lists other models than the one it will be asked for: it will refuse every request.
    fn compare(&self, models: &[String]) {
        let pool = &self.pool.settings;
        let asked = pool.upstream_model.as_ref().or(pool.model.as_ref());
        if let Some(asked) = asked.filter(|asked| !models.contains(asked)) {
            tracing::warn!(
                pool = %self.pool.name,
                worker = %self.settings.name,
                model = %asked,
                lists = %models.join(", "),
                "worker does not list the pool's model; `upstream_model` sets what it is called there"
            );
        }
    }

    async fn fetch(
        &self,
        upstream: &Upstream,
        path: &str,
        timeout: Duration,
        bytes_max: usize,
    ) -> Result<Fetched, FetchError> {
        get(
            &upstream.url,
            path,
            upstream.authorization.as_ref(),
            timeout,
            bytes_max,
        )
        .await
    }
}

fn told(said: maitred_engine::EngineGauges) -> Gauges {
    Gauges {
        running: said.running,
        waiting: said.waiting,
        kv_usage: said.kv_usage,
        kv_tokens: said.kv_tokens,
        started: said.started,
    }
}

#[derive(serde::Deserialize)]
struct Model {
    id: String,
    /// Of an adapter: the model that it adapts.
    #[serde(default)]
    parent: Option<serde_json::Value>,
}

/// An OpenAI-shaped list of models, in its order; None where it is none.
fn models(body: &[u8]) -> Option<Vec<Model>> {
    #[derive(serde::Deserialize)]
    struct List {
        data: Vec<Model>,
    }
    let list: List = serde_json::from_slice(body).ok()?;
    let named = |model: &Model| !model.id.is_empty() && model.id.len() <= MODEL_BYTES_MAX;
    let models = list.data.into_iter().filter(named);
    Some(models.take(MODELS_MAX).collect())
}

/// Their ids, sorted, without doubles.
fn names(models: Vec<Model>) -> Vec<String> {
    let mut names: Vec<String> = models.into_iter().map(|model| model.id).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::{models, names};

    fn model_names(body: &[u8]) -> Option<Vec<String>> {
        models(body).map(names)
    }

    #[test]
    fn reads_lists_of_models() {
        let body = br#"{"object":"list","data":[{"id":"b","x":1},{"id":"a"},{"id":"b"}]}"#;
        assert_eq!(
            model_names(body),
            Some(vec!["a".to_owned(), "b".to_owned()])
        );
        assert_eq!(model_names(br#"{"data":[]}"#), Some(Vec::new()));
        assert_eq!(model_names(b"<html>"), None);
        assert_eq!(model_names(br#"{"models":[]}"#), None);
    }
}
