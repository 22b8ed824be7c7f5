//! The fleet: every worker has one task, which lives exactly as long as the worker. It probes the
//! worker's health, scrapes its metrics and refreshes its list of models, each on its own beat, so
//! that none waits for another.

mod events;
mod fetch;
mod watch;

pub use fetch::{FetchError, Fetched, get};
pub use watch::Seen;

use crate::config::{PoolSettings, WorkerSettings};
use crate::kv::{KvCounts, KvEvents};
use crate::pool::{AddError, Pool, UnknownWorker};
use events::Events;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use watch::Watch;

struct Member {
    settings: WorkerSettings,
    watch: Arc<Watch>,
    task: JoinHandle<()>,
    events: Option<Arc<Events>>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The tasks of all workers, by pool and worker name.
pub struct Fleet {
    runtime: Handle,
    events: Arc<KvEvents>,
    members: Mutex<HashMap<(String, String), Member>>,
}

impl Fleet {
    /// A fleet whose tasks run on `runtime`.
    #[must_use]
    pub fn new(runtime: Handle) -> Self {
        Self {
            events: Arc::new(KvEvents::new(runtime.clone())),
            runtime,
            members: Mutex::new(HashMap::new()),
        }
    }

    /// Adds a worker to its pool and starts to watch it.
    ///
    /// # Errors
    /// The pool does not take it.
    pub fn add(&self, pool: &Arc<Pool>, settings: &WorkerSettings) -> Result<(), AddError> {
        // Held over both steps, so that a removal cannot come between them.
        let mut members = self.members.lock();
        let id = pool.add_worker(settings, settings.assume_ready)?;
        let events = match Events::of(&self.events, pool, id, settings) {
            Ok(events) => events,
            Err(source) => {
                // It was there a moment ago, and nobody else removes it.
                let _ = pool.remove(&settings.name);
                let worker = settings.name.clone();
                return Err(AddError::KvEvents { worker, source });
            }
        };
        let watch = Watch::new(Arc::clone(pool), id, settings.clone(), events.clone());
        let watch = Arc::new(watch);
        let task = self.runtime.spawn(Arc::clone(&watch).run());
        members.insert(
            (pool.name.clone(), settings.name.clone()),
            Member {
                settings: settings.clone(),
                watch,
                task,
                events,
            },
        );
        Ok(())
    }

    /// What came of the worker's events so far; None: it has none to follow.
    #[must_use]
    pub fn kv_counts(&self, pool: &str, name: &str) -> Option<KvCounts> {
        let members = self.members.lock();
        let member = members.get(&(pool.to_owned(), name.to_owned()))?;
        member.events.as_ref()?.counts()
    }

    /// The model that the worker's events are about, where its pool names none.
    #[must_use]
    pub fn kv_model(&self, pool: &str, name: &str) -> Option<String> {
        let members = self.members.lock();
        let member = members.get(&(pool.to_owned(), name.to_owned()))?;
        member.events.as_ref()?.model()
    }

    /// Removes a worker and ends its task.
    ///
    /// # Errors
    /// The pool has no such worker.
    pub fn remove(&self, pool: &Arc<Pool>, name: &str) -> Result<(), UnknownWorker> {
        let member = {
            let mut members = self.members.lock();
            pool.remove(name)?;
            members.remove(&(pool.name.clone(), name.to_owned()))
        };
        drop(member);
        Ok(())
    }

    /// What the task of a worker has seen last, and the settings it was added with.
    #[must_use]
    pub fn seen(&self, pool: &str, name: &str) -> Option<(WorkerSettings, Seen)> {
        let members = self.members.lock();
        let member = members.get(&(pool.to_owned(), name.to_owned()))?;
        Some((member.settings.clone(), member.watch.seen()))
    }

    /// Tasks running.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.members.lock().len()
    }

    /// Ends all tasks; the workers stay in their pools.
    pub fn stop(&self) {
        self.members.lock().clear();
    }
}

/// The wait until the next probe: short while a worker is expected to come up, longer again where
/// it has been away for a while.
fn probe_wait(settings: &PoolSettings, up: bool, down_for: Duration) -> Duration {
    /// A worker that is away for longer is not waited for every quarter of a second.
    const PATIENCE: Duration = Duration::from_secs(60);
    let probe = &settings.probe;
    if up || down_for > PATIENCE {
        probe.interval
    } else {
        probe.interval_down.min(probe.interval)
    }
}

#[cfg(test)]
mod tests;
