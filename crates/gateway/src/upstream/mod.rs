//! A worker's address and the connections to it.

mod conn;
mod framing;

pub(crate) use conn::{BodyBroken, Conn, ExchangeError, Head, gather};
pub(crate) use framing::{Framing, FramingError, Step};

use crate::config::{WorkerSettings, WorkerUrl};
use crate::metrics::WorkerMetrics;
use crate::pool::IdleSettings;
use crate::pull::Desk;
use http::HeaderValue;
use maitred_core::ids::WorkerId;
use maitred_engine::EngineKind;
use maitred_records::Name;
use parking_lot::{Mutex, RwLock};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A worker as the shell knows it: one life of a name, never reused.
pub struct Upstream {
    /// The scheduler's id.
    pub id: WorkerId,
    /// Its name in logs, records, metrics and error texts.
    pub name: String,
    /// The same, as records share it.
    pub shared_name: Name,
    /// The same, as answers show it.
    pub(crate) shown_name: HeaderValue,
    /// Where it is.
    pub url: WorkerUrl,
    /// `host:port` as the `Host` header has it.
    pub authority: String,
    /// Where it gets its requests, where it pulls.
    pub(crate) desk: Option<Arc<Desk>>,
    /// Its counters.
    pub metrics: WorkerMetrics,
    /// `Authorization` of requests to it.
    pub authorization: Option<HeaderValue>,
    /// Models and adapters that it lists beside the pool's own.
    pub listed: RwLock<Vec<String>>,
    /// Whether the client's own credential goes to it.
    pub(crate) pass_credentials: bool,
    /// How many bands there are, where it is told a request's own; None: it is not.
    bands: Option<u16>,
    /// How many ranks it has, where requests may name one; 0: they may not.
    ranks: u16,
    /// What it is, as soon as that is known.
    engine: RwLock<Option<EngineKind>>,
    settings: IdleSettings,
    /// Idle connections, one stack per thread: a socket belongs to its thread's reactor.
    idle: Box<[Mutex<VecDeque<Conn>>]>,
    started: Instant,
    /// Milliseconds since `started` at which life was last reported.
    life: AtomicU64,
}

impl Upstream {
    /// The worker of these settings; `shards` threads will open connections to it. None: its
    /// credential has characters that a header can not hold.
    #[must_use]
    pub fn new(
        id: WorkerId,
        settings: &WorkerSettings,
        metrics: WorkerMetrics,
        pass_credentials: bool,
        idle: IdleSettings,
        shards: usize,
    ) -> Option<Self> {
        let authorization = match &settings.api_key {
            // A credential that is none helps nobody.
            Some(key) if key.reveal().trim().is_empty() => return None,
            Some(key) => {
                let mut value = HeaderValue::from_str(&format!("Bearer {}", key.reveal())).ok()?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        Some(Self {
            id,
            name: settings.name.clone(),
            shared_name: Name::from(settings.name.as_str()),
            shown_name: HeaderValue::from_str(&settings.name)
                .unwrap_or(HeaderValue::from_static("unnamed")),
            url: settings.url.clone(),
            authority: settings.url.authority(),
            desk: None,
            metrics,
            authorization,
            pass_credentials,
            bands: None,
            ranks: settings
                .kv_events
                .as_ref()
                .filter(|events| events.rank_header)
                .map_or(0, |events| events.ranks),
            engine: RwLock::new(settings.engine.set()),
            listed: RwLock::new(settings.models.clone()),
            settings: idle,
            idle: (0..shards.max(1)).map(|_| Mutex::default()).collect(),
            started: Instant::now(),
            life: AtomicU64::new(0),
        })
    }

    /// The same as one that is told the band of each request, of that many.
    pub(crate) fn told_bands(mut self, bands: Option<u16>) -> Self {
        self.bands = bands;
        self
    }

    /// It was found out what it is.
    pub(crate) fn is(&self, engine: Option<EngineKind>) {
        *self.engine.write() = engine;
    }

    /// What `priority` a request of that band gets; None: none.
    pub(crate) fn priority(&self, band: u16) -> Option<u16> {
        let bands = self.bands?;
        (*self.engine.read())?.priority(band, bands)
    }

    /// That rank, where a request may ask for it. A number beyond the configured ones is none of this
    /// engine's: it would refuse the request.
    pub(crate) fn takes_rank(&self, rank: u32) -> Option<u32> {
        (rank < u32::from(self.ranks)).then_some(rank)
    }

    /// The same as a worker that pulls.
    pub(crate) fn pulling(mut self, desk: Arc<Desk>) -> Self {
        self.desk = Some(desk);
        self
    }

    /// The most recently used idle connection of this thread that is still open.
    pub(crate) fn take_idle(&self, shard: usize) -> Option<Conn> {
        let mut idle = self.idle.get(shard)?.lock();
        while let Some(mut conn) = idle.pop_back() {
            if conn.idle_for() < self.settings.timeout && conn.is_open() {
                return Some(conn);
            }
        }
        None
    }

    /// Keeps a connection whose answer was read to its end.
    pub(crate) fn give_back(&self, shard: usize, mut conn: Conn) {
        let Some(place) = self.idle.get(shard) else {
            return;
        };
        conn.rest();
        let mut idle = place.lock();
        if idle.len() >= self.settings.connections_max {
            idle.pop_front();
        }
        if self.settings.connections_max > 0 {
            idle.push_back(conn);
        }
    }

    /// Closes what has been idle for too long on this thread.
    pub(crate) fn sweep(&self, shard: usize) {
        let Some(place) = self.idle.get(shard) else {
            return;
        };
        let mut idle = place.lock();
        while idle
            .front()
            .is_some_and(|c| c.idle_for() >= self.settings.timeout)
        {
            idle.pop_front();
        }
    }

    /// Whether a sign of life is worth a report now: at most one a second.
    pub(crate) fn life_due(&self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.started).as_millis();
        let now = u64::try_from(since).unwrap_or(u64::MAX);
        let last = self.life.load(Ordering::Relaxed);
        if now < last.saturating_add(1_000) {
            return false;
        }
        self.life
            .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream")
            .field("id", &self.id)
            .field("name", &self.name)
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}
