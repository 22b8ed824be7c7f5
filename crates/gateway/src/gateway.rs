//! What all parts of the running gateway share.

use crate::config::Config;
use crate::fleet::Fleet;
use crate::metrics::Metrics;
use crate::pool::Pool;
use crate::recent::Recent;
use crate::tenants::Registry;
use maitred_core::Nanos;
use maitred_records::{AttemptRecord, RecordSink};
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
    /// Who may call.
    pub tenants: Registry,
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
