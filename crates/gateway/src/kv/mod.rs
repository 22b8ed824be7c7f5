//! What engines say about their caches: one follower per worker and rank reads its KV events, finds
//! gaps and restarts, asks for what it missed, and hands on what is whole.
//!
//! By file: `follower` knows what is known (no sockets but the replay's), `connect` follows an engine
//! that publishes at an endpoint, `bind` takes engines in that connect to us, `replay` asks for what is
//! buffered, `pieces` cuts long batches, `translate` and [`Belief`] take what is observed to the scheduler. All of it runs on the control runtime, away from the data path.

mod belief;
mod bind;
mod connect;
mod counters;
mod follower;
mod pieces;
mod replay;
#[cfg(test)]
mod tests;
mod translate;

pub use belief::Belief;
pub use counters::{KvCounters, KvCounts};
pub use translate::{Seeds, Translator};

use crate::config::{KvEventsMode, KvEventsSettings};
use bind::Hub;
use follower::Follower;
use maitred_core::ids::WorkerId;
use maitred_wire::kv::KvBatch;
use maitred_zmtp::EndpointError;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Whose cache: a worker and, where it says so, a data-parallel rank of it. None is not rank 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source {
    /// The worker.
    pub worker: WorkerId,
    /// The rank.
    pub rank: Option<u32>,
}

/// Why what was observed of a source is not the whole truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doubt {
    /// It began before we listened and does not remember that far: it may hold more than we know.
    Unseen,
    /// Messages are lost for good: what we knew may be gone.
    Missed,
    /// A message could not be read.
    Malformed,
    /// It cannot be heard.
    Disconnected,
}

impl Doubt {
    /// Its name in logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unseen => "unseen",
            Self::Missed => "missed",
            Self::Malformed => "malformed",
            Self::Disconnected => "disconnected",
        }
    }
}

/// Takes what is observed. Called in order for one source, first with how certain it is; every call must
/// be short.
pub trait KvSink: Send + Sync + 'static {
    /// The next events of this source.
    fn batch(&self, source: Source, batch: KvBatch);
    /// What was observed of it so far is not to be believed any more: forget it. What comes next is true
    /// again, but builds on nothing, so it is a part of what the engine holds.
    fn uncertain(&self, source: Source, doubt: Doubt);
    /// What is observed of it is all that it holds, until the next doubt.
    fn certain(&self, source: Source);
    /// Its engine began anew, with nothing in its cache.
    fn restarted(&self, source: Source);
}

/// Follows the KV events of workers.
#[derive(Debug)]
pub struct KvEvents {
    runtime: Handle,
    hub: Arc<Hub>,
}

/// A worker's events are followed as long as this lives.
#[derive(Debug)]
pub struct Following {
    tasks: Vec<JoinHandle<()>>,
    routes: Vec<bind::Route>,
    again: Arc<watch::Sender<u64>>,
    /// What happened so far, over all ranks.
    pub counters: Arc<KvCounters>,
}

impl Drop for Following {
    fn drop(&mut self) {
        self.routes.clear();
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Has a worker's events read again from the start of the engine's buffer, because whoever takes them
/// has forgotten them. Does nothing once they are not followed any more.
#[derive(Clone, Debug)]
pub struct ReadAgain(Arc<watch::Sender<u64>>);

impl ReadAgain {
    /// Asks for it, without waiting.
    pub fn ask(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    /// Nobody follows the events any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.is_closed()
    }
}

impl Following {
    /// For those who learn that what was taken is forgotten.
    #[must_use]
    pub fn read_again(&self) -> ReadAgain {
        ReadAgain(Arc::clone(&self.again))
    }
}

impl KvEvents {
    /// Followers will run on `runtime`.
    #[must_use]
    pub fn new(runtime: Handle) -> Self {
        let hub = Arc::new(Hub::new(runtime.clone()));
        Self { runtime, hub }
    }

    /// Follows a worker's events, of every rank it has; `name` is for logs.
    ///
    /// # Errors
    /// The last rank would have no port.
    pub fn follow(
        &self,
        name: &str,
        worker: WorkerId,
        settings: &KvEventsSettings,
        sink: &Arc<dyn KvSink>,
    ) -> Result<Following, EndpointError> {
        let mut following = Following {
            tasks: Vec::new(),
            routes: Vec::new(),
            again: Arc::new(watch::channel(0).0),
            counters: Arc::default(),
        };
        for rank in 0..settings.ranks.max(1) {
            let place = settings.of_rank(rank)?;
            let source = Source {
                worker,
                rank: (settings.ranks > 1).then_some(u32::from(rank)),
            };
            let follower = Follower::new(
                name,
                source,
                place.replay,
                Arc::clone(sink),
                Arc::clone(&following.counters),
            );
            let again = following.again.subscribe();
            let task = match settings.mode {
                KvEventsMode::Connect => self.runtime.spawn(connect::follow(
                    place.endpoint,
                    place.topic,
                    follower,
                    again,
                )),
                KvEventsMode::Bind => {
                    let (route, signals) = self.hub.route(&place.endpoint, &place.topic);
                    following.routes.push(route);
                    self.runtime.spawn(bind::follow(signals, follower, again))
                }
            };
            following.tasks.push(task);
        }
        Ok(following)
    }
}
