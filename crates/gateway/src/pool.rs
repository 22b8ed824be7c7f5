//! A pool at run time: its driver (the scheduler and those who wait for it) and its workers' addresses.

use crate::config::{PoolSettings, WorkerSettings};
use crate::driver::Driver;
use crate::metrics::{Metrics, PoolMetrics};
use crate::pull::Desk;
use crate::text::PoolText;
use crate::upstream::Upstream;
use maitred_core::ids::{ModelKey, WorkerId};
use maitred_core::pool::{FleetChange, Report, RequestLimits, Seats, WorkerSpec};
use maitred_core::scheduler::{ConfigError, WorkerView};
use maitred_core::{Input, Scheduler};
use maitred_records::Name;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How idle connections to a worker are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleSettings {
    /// A connection idle for longer is closed; must stay below the worker's own limit (uvicorn: 5 s).
    pub timeout: Duration,
    /// Idle connections kept per worker and per thread.
    pub connections_max: usize,
}

impl Default for IdleSettings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(4),
            connections_max: 128,
        }
    }
}

/// Why a worker could not be added.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// The credential to send it is no header value.
    #[error("worker `{0}`: `api_key` is empty, or has characters that a header can not hold")]
    Credential(String),
    /// Its KV events cannot be followed.
    #[error("worker `{worker}`: `kv_events`: {source}")]
    KvEvents {
        /// Whose.
        worker: String,
        /// Why.
        source: maitred_zmtp::EndpointError,
    },
    /// The name is taken.
    #[error("worker `{0}` is already there")]
    Duplicate(String),
    /// The pool is full.
    #[error("a pool has at most {} workers", maitred_core::limits::WORKERS_MAX)]
    Full,
}

/// No worker of that name.
#[derive(Debug, thiserror::Error)]
#[error("no worker `{0}`")]
pub struct UnknownWorker(pub String);

/// A worker with its name, as the admin API shows it.
#[derive(Clone, Debug)]
pub struct NamedView {
    /// Its address.
    pub upstream: Arc<Upstream>,
    /// What the scheduler knows.
    pub view: WorkerView,
}

/// A pool at run time.
pub struct Pool {
    /// Its name.
    pub name: String,
    /// The same, as records share it.
    pub shared_name: Name,
    /// Model names and aliases it serves; empty: whatever its workers list.
    pub models: Vec<String>,
    /// The scheduler and those who wait for it.
    pub driver: Arc<Driver>,
    /// Settings.
    pub settings: PoolSettings,
    /// Its counters.
    pub metrics: PoolMetrics,
    /// A number that is equal in every process for an equal name.
    pub key: u64,
    /// How its requests become tokens; None: chains are over bytes.
    pub text: Option<Arc<PoolText>>,
    workers: RwLock<Vec<Option<Arc<Upstream>>>>,
    listed: RwLock<Arc<BTreeMap<String, u32>>>,
    /// Held while workers are added or removed, so that id and slot agree.
    change: Mutex<()>,
    shards: usize,
}

impl Pool {
    /// A pool without workers (those of `settings` are added by the caller). `origin` is the time
    /// that its nanoseconds count from; `shards` the number of threads that open connections.
    ///
    /// # Errors
    /// A setting is out of its range.
    pub fn new(
        settings: PoolSettings,
        metrics: &Metrics,
        origin: Instant,
        shards: usize,
        seed: u64,
    ) -> Result<Self, ConfigError> {
        let scheduler = Scheduler::new(settings.core.clone(), seed)?;
        let models: Vec<String> = settings
            .model
            .iter()
            .chain(&settings.aliases)
            .cloned()
            .collect();
        let key = maitred_text::model_key(&settings.name).0;
        let counters = metrics.pool(&settings.name);
        for model in &models {
            counters.know_model(model);
        }
        Ok(Self {
            name: settings.name.clone(),
            shared_name: Name::from(settings.name.as_str()),
            driver: Arc::new(Driver::new(&settings.name, scheduler, origin)),
            key,
            text: None,
            models,
            settings,
            metrics: counters,
            workers: RwLock::new(Vec::new()),
            listed: RwLock::default(),
            change: Mutex::new(()),
            shards: shards.max(1),
        })
    }

    /// Adds a worker; `assume_ready`: it may get work before its first good probe.
    ///
    /// # Errors
    /// Its name is taken, its credential can not be sent, or the pool is full.
    pub fn add_worker(
        &self,
        settings: &WorkerSettings,
        assume_ready: bool,
    ) -> Result<WorkerId, AddError> {
        self.join(settings, assume_ready, None)
    }

    /// Adds a worker that pulls.
    ///
    /// # Errors
    /// As [`Self::add_worker`].
    pub(crate) fn add_pulling(
        &self,
        settings: &WorkerSettings,
        desk: Arc<Desk>,
        limits: RequestLimits,
    ) -> Result<WorkerId, AddError> {
        self.join(settings, true, Some((desk, limits)))
    }

    fn join(
        &self,
        settings: &WorkerSettings,
        assume_ready: bool,
        pulls: Option<(Arc<Desk>, RequestLimits)>,
    ) -> Result<WorkerId, AddError> {
        let _change = self.change.lock();
        if self.upstream_named(&settings.name).is_some() {
            return Err(AddError::Duplicate(settings.name.clone()));
        }
        if self.upstreams().len() >= maitred_core::limits::WORKERS_MAX {
            return Err(AddError::Full);
        }
        let id = self.driver.next_worker_id();
        let counters = self.metrics.worker(&settings.name);
        let upstream = Upstream::new(
            id,
            settings,
            counters,
            self.settings.pass_credentials,
            self.settings.idle,
            self.shards,
        )
        .ok_or_else(|| AddError::Credential(settings.name.clone()))?;
        let bands = self.settings.core.bands.len() as u16;
        let upstream = upstream.told_bands(self.settings.forward_priority.then_some(bands));
        let (desk, limits) = pulls.unzip();
        let upstream = match &desk {
            Some(desk) => upstream.pulling(Arc::clone(desk)),
            None => upstream,
        };
        let slot = id.slot as usize;
        {
            // The address must be there before the first dispatch to it.
            let mut workers = self.workers.write();
            if workers.len() <= slot {
                workers.resize(slot + 1, None);
            }
            workers[slot] = Some(Arc::new(upstream));
        }
        for model in &settings.models {
            self.metrics.know_model(model);
        }
        let pulls = desk.is_some();
        self.driver.desk(id, desk);
        self.driver.add(
            id,
            WorkerSpec {
                identity: maitred_text::model_key(&settings.name).0,
                seats: settings.seats_as(settings.engine.set(), None),
                models: keys(&settings.models),
                assume_ready,
                pulls,
                limits: limits.unwrap_or_default(),
            },
            &Name::from(settings.name.as_str()),
        );
        self.recount();
        Ok(id)
    }

    /// No new work; what runs may finish within `deadline` (None: for ever).
    ///
    /// # Errors
    /// No such worker.
    pub fn drain(&self, name: &str, deadline: Option<Duration>) -> Result<(), UnknownWorker> {
        let id = self.id_of(name)?;
        let deadline = deadline.map(|d| self.driver.now() + d);
        self.driver
            .handle(Input::Fleet(FleetChange::Drain(id, deadline)));
        Ok(())
    }

    /// Takes new work again.
    ///
    /// # Errors
    /// No such worker.
    pub fn resume(&self, name: &str) -> Result<(), UnknownWorker> {
        let id = self.id_of(name)?;
        self.driver.handle(Input::Fleet(FleetChange::Resume(id)));
        Ok(())
    }

    /// Removes a worker; what runs on it is aborted.
    ///
    /// # Errors
    /// No such worker.
    pub fn remove(&self, name: &str) -> Result<(), UnknownWorker> {
        let _change = self.change.lock();
        let id = self.id_of(name)?;
        self.driver.handle(Input::Fleet(FleetChange::Remove(id)));
        self.driver.desk(id, None);
        if let Some(place) = self.workers.write().get_mut(id.slot as usize) {
            *place = None;
        }
        self.recount();
        Ok(())
    }

    /// A probe's or a scrape's result.
    pub fn report(&self, worker: WorkerId, report: Report) {
        self.driver.handle(Input::Report { worker, report });
    }

    /// What a worker's limits are, now that its engine is known.
    pub(crate) fn seats(&self, worker: WorkerId, seats: Seats) {
        self.driver
            .handle(Input::Fleet(FleetChange::Seats(worker, seats)));
    }

    /// The models and adapters that a worker lists by its own word. The pool's own names go
    /// without saying; the others are what only its listers serve.
    pub fn listed_by(&self, worker: WorkerId, models: Vec<String>) {
        let Some(upstream) = self.upstream(worker) else {
            return;
        };
        if *upstream.listed.read() == models {
            return;
        }
        for model in &models {
            self.metrics.know_model(model);
        }
        let keys = keys(&models);
        *upstream.listed.write() = models;
        self.recount();
        self.driver
            .handle(Input::Fleet(FleetChange::Models(worker, keys)));
    }

    /// The worker's address, if that very worker is still there.
    #[must_use]
    pub fn upstream(&self, worker: WorkerId) -> Option<Arc<Upstream>> {
        let workers = self.workers.read();
        let upstream = workers.get(worker.slot as usize)?.as_ref()?;
        (upstream.id == worker).then(|| Arc::clone(upstream))
    }

    /// Gives `read` a way from a worker to its name, under one lock.
    pub(crate) fn names<R>(&self, read: impl FnOnce(&dyn Fn(WorkerId) -> Option<Name>) -> R) -> R {
        let workers = self.workers.read();
        read(&|id| {
            let upstream = workers.get(id.slot as usize)?.as_ref()?;
            (upstream.id == id).then(|| upstream.shared_name.clone())
        })
    }

    /// The worker of that name.
    #[must_use]
    pub fn upstream_named(&self, name: &str) -> Option<Arc<Upstream>> {
        let workers = self.workers.read();
        workers.iter().flatten().find(|u| u.name == name).cloned()
    }

    /// All workers' addresses, in slot order.
    #[must_use]
    pub fn upstreams(&self) -> Vec<Arc<Upstream>> {
        self.workers.read().iter().flatten().cloned().collect()
    }

    /// All workers as the scheduler sees them, with their names.
    #[must_use]
    pub fn views(&self) -> Vec<NamedView> {
        let views = self.driver.workers();
        views
            .into_iter()
            .filter_map(|view| {
                let upstream = self.upstream(view.worker)?;
                Some(NamedView { upstream, view })
            })
            .collect()
    }

    /// The name of a band, by its place among the pool's bands. A pool without bands has one, `all`.
    #[must_use]
    pub fn band_name(&self, place: u16) -> &str {
        let bands = &self.settings.core.bands;
        let band = bands.get(usize::from(place)).or(bands.last());
        band.map_or("all", |band| band.name.as_str())
    }

    /// Whether requests for this model are served here: by configuration, or because a worker
    /// lists it. A pool without configured names whose workers list nothing takes any.
    #[must_use]
    pub fn serves(&self, model: &str) -> bool {
        if self.is_configured(model) {
            return true;
        }
        let listed = self.listed.read();
        listed.contains_key(model) || (self.models.is_empty() && listed.is_empty())
    }

    /// Whether the name is one of the pool's own, which every worker of it serves.
    #[must_use]
    pub fn is_configured(&self, model: &str) -> bool {
        self.models.iter().any(|m| m == model)
    }

    /// Whether a worker lists the name by its own word.
    #[must_use]
    pub fn is_listed(&self, model: &str) -> bool {
        self.listed.read().contains_key(model)
    }

    /// Every name that this pool serves, configured ones first.
    #[must_use]
    pub fn model_names(&self) -> Vec<String> {
        let listed = self.listed.read();
        let others = listed.keys().filter(|m| !self.is_configured(m)).cloned();
        self.models.iter().cloned().chain(others).collect()
    }

    fn id_of(&self, name: &str) -> Result<WorkerId, UnknownWorker> {
        self.upstream_named(name)
            .map(|u| u.id)
            .ok_or_else(|| UnknownWorker(name.to_owned()))
    }

    fn recount(&self) {
        let mut count = BTreeMap::new();
        for upstream in self.workers.read().iter().flatten() {
            let listed = upstream.listed.read();
            for model in listed.iter() {
                *count.entry(model.clone()).or_insert(0) += 1;
            }
        }
        *self.listed.write() = Arc::new(count);
    }
}

fn keys(models: &[String]) -> Vec<ModelKey> {
    models.iter().map(|m| maitred_text::model_key(m)).collect()
}
