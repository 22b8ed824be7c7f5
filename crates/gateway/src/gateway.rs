//! What all parts of the running gateway share.

use crate::config::Config;
use crate::fleet::Fleet;
use crate::metrics::Metrics;
use crate::pool::Pool;
use crate::recent::Recent;
use crate::tenants::Registry;
use maitred_core::{Input, Nanos};
use maitred_records::{AttemptRecord, RecordSink};
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The running gateway.
pub struct Gateway {
    /// The configuration it started with.
    pub config: Config,
    /// One per pool of the configuration, in its order.
    pub pools: Vec<Arc<Pool>>,
    /// The workers' tasks; adds and removes workers.
    pub fleet: Fleet,
    /// Who may call, as last read.
    pub(crate) tenants: RwLock<Arc<Registry>>,
    /// Counters and histograms.
    pub metrics: Arc<Metrics>,
    /// The last attempts.
    pub recent: Recent,
    /// Where records go.
    pub records: RecordSink,
    /// Zero of [`Gateway::now`].
    pub origin: Instant,
    /// No new requests are taken.
    pub closing: AtomicBool,
}

impl Gateway {
    /// The schedulers' clock.
    #[must_use]
    pub fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Who may call.
    #[must_use]
    pub fn tenants(&self) -> Arc<Registry> {
        Arc::clone(&self.tenants.read())
    }

    /// Takes `tenants` and `anonymous` of a configuration that was read again, and reads the keys
    /// again from where they are. All else stays as it was at the start. Terms hold for requests
    /// that arrive from now on; who waits already keeps the place that he has. Returns how many
    /// tenants there are.
    ///
    /// # Errors
    /// What cannot be used; then nothing was changed.
    pub fn reload_tenants(&self, fresh: &Config) -> Result<usize, String> {
        let config = Config {
            tenants: fresh.tenants.clone(),
            anonymous: fresh.anonymous,
            ..self.config.clone()
        };
        let known = |name: &String| {
            let mut bands = self.pools.iter().flat_map(|pool| &pool.settings.core.bands);
            bands.any(|band| band.name == *name)
        };
        for tenant in &config.tenants {
            if let Some(band) = tenant.band.as_ref().filter(|band| !known(band)) {
                let name = &tenant.name;
                return Err(format!(
                    "tenant {name}: no pool has had a band `{band}` since the start"
                ));
            }
        }
        let registry = Arc::new(Registry::load(&config)?);
        // Under the lock: of two readings the later one holds everywhere.
        let mut place = self.tenants.write();
        for pool in &self.pools {
            let terms = registry.terms(&pool.settings.core.bands);
            pool.driver.handle(Input::SetTenants(Box::new(terms)));
        }
        *place = registry;
        Ok(config.tenants.len())
    }

    /// Keeps a finished attempt (or a request that came to none) for `/explain` and hands it to
    /// the record sink. Never blocks.
    pub fn keep(&self, record: AttemptRecord) {
        let record = Arc::new(record);
        self.recent.push(Arc::clone(&record));
        self.records.send(record);
    }

    /// Whether the gateway is shutting down.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// The pool of that name.
    #[must_use]
    pub fn pool(&self, name: &str) -> Option<&Arc<Pool>> {
        self.pools.iter().find(|pool| pool.name == name)
    }
}
