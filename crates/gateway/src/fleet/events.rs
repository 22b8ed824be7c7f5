//! A worker's KV events, followed from when it is known which model they are about.
//!
//! Events name adapters, and the model itself by no name. In a pool that names its `model` that is the
//! one; in any other it is what the worker lists first that is no adapter of another.

use crate::config::{KvEventsSettings, WorkerSettings};
use crate::kv::{Belief, Following, KvCounts, KvEvents, KvSink};
use crate::pool::Pool;
use maitred_core::WorkerId;
use maitred_zmtp::EndpointError;
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;

pub(super) struct Events {
    kv: Arc<KvEvents>,
    pool: Arc<Pool>,
    id: WorkerId,
    name: String,
    place: KvEventsSettings,
    /// The model, where the pool names none.
    model: Arc<RwLock<Option<String>>>,
    following: Mutex<Option<Following>>,
}

impl Events {
    /// Of a worker that publishes any; followed at once where the pool names its model.
    ///
    /// # Errors
    /// The last rank would have no port.
    pub(super) fn of(
        kv: &Arc<KvEvents>,
        pool: &Arc<Pool>,
        id: WorkerId,
        settings: &WorkerSettings,
    ) -> Result<Option<Arc<Self>>, EndpointError> {
        let Some(place) = settings.kv_events.clone() else {
            return Ok(None);
        };
        let events = Self {
            kv: Arc::clone(kv),
            pool: Arc::clone(pool),
            id,
            name: settings.name.clone(),
            place,
            model: Arc::default(),
            following: Mutex::default(),
        };
        if events.pool.models.is_empty() {
            // What can never be followed is refused now.
            events.place.of_rank(events.place.ranks.max(1) - 1)?;
        } else {
            events.begin()?;
        }
        Ok(Some(Arc::new(events)))
    }

    /// The worker listed its models; this is the first that is no adapter.
    pub(super) fn listed(&self, model: &str) {
        if !self.pool.models.is_empty() || self.model.read().as_deref() == Some(model) {
            return;
        }
        let (pool, worker) = (&self.pool.name, &self.name);
        tracing::info!(%pool, %worker, model, "KV events are about this model");
        *self.model.write() = Some(model.to_owned());
        if let Err(error) = self.begin() {
            tracing::error!(%pool, %worker, %error, "KV events cannot be followed");
        }
    }

    fn begin(&self) -> Result<(), EndpointError> {
        let mut following = self.following.lock();
        if following.is_some() {
            return Ok(());
        }
        let (pool, model) = (Arc::clone(&self.pool), Arc::clone(&self.model));
        let seeds = move |adapter: Option<&str>, salt: Option<&str>| {
            pool.reported_seed(adapter.or(model.read().as_deref()), salt)
        };
        let belief = Belief::new(Arc::clone(&self.pool.driver), Box::new(seeds));
        let salted = self.pool.settings.isolation.inject_cache_salt;
        let sink: Arc<dyn KvSink> = Arc::new(belief.salted(salted));
        let begun = self.kv.follow(&self.name, self.id, &self.place, &sink)?;
        self.pool.driver.follow(self.id, begun.read_again());
        *following = Some(begun);
        Ok(())
    }

    /// They wait for the worker's list.
    pub(super) fn wait(&self) -> bool {
        self.following.lock().is_none()
    }

    pub(super) fn model(&self) -> Option<String> {
        self.model.read().clone()
    }

    /// What came of them so far; None: they are not followed yet.
    pub(super) fn counts(&self) -> Option<KvCounts> {
        Some(self.following.lock().as_ref()?.counters.read())
    }
}
