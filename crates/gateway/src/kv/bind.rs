//! Taking in engines that connect to us: one bound endpoint for many, told apart by their topics.

use super::connect::SILENT_AFTER;
use super::follower::Follower;
use bytes::Bytes;
use maitred_zmtp::{Endpoint, Incoming, Kind, Listener};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

/// Engines connected to one endpoint at once.
const CONNECTIONS_MAX: usize = 1_024;
/// Messages that wait for one follower; then its engine waits.
const SIGNALS_MAX: usize = 256;
/// Topics of one connection that are remembered for its end.
const TOPICS_MAX: usize = 64;
/// Between attempts to bind.
const REBIND: Duration = Duration::from_secs(2);

/// What a follower hears.
#[derive(Debug)]
pub(super) enum Signal {
    Message(Vec<Bytes>),
    /// A connection that carried its topic broke.
    Broken,
}

#[derive(Debug)]
struct Target {
    id: u64,
    topic: String,
    sender: mpsc::Sender<Signal>,
}

type Targets = RwLock<Vec<Target>>;

/// All bound endpoints.
#[derive(Debug)]
pub(super) struct Hub {
    runtime: Handle,
    bound: Mutex<HashMap<Endpoint, Bound>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct Bound {
    targets: Arc<Targets>,
    task: JoinHandle<()>,
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A topic's way to its follower; it ends when this is dropped, and the endpoint with its last one.
#[derive(Debug)]
pub(super) struct Route {
    hub: Weak<Hub>,
    endpoint: Endpoint,
    id: u64,
}

impl Drop for Route {
    fn drop(&mut self) {
        let Some(hub) = self.hub.upgrade() else {
            return;
        };
        let mut bound = hub.bound.lock();
        if let Some(here) = bound.get(&self.endpoint) {
            let mut targets = here.targets.write();
            targets.retain(|target| target.id != self.id);
            let empty = targets.is_empty();
            drop(targets);
            if empty {
                bound.remove(&self.endpoint);
            }
        }
    }
}

impl Hub {
    pub(super) fn new(runtime: Handle) -> Self {
        Self {
            runtime,
            bound: Mutex::default(),
            next: AtomicU64::new(0),
        }
    }

    /// Binds the endpoint if that is not done yet, and sends what is published there under `topic` (or
    /// a topic that begins so) to the receiver.
    pub(super) fn route(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        topic: &str,
    ) -> (Route, mpsc::Receiver<Signal>) {
        let (sender, receiver) = mpsc::channel(SIGNALS_MAX);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut bound = self.bound.lock();
        let here = bound.entry(endpoint.clone()).or_insert_with(|| {
            let targets = Arc::<Targets>::default();
            let task = serve(endpoint.clone(), Arc::clone(&targets));
            Bound {
                targets,
                task: self.runtime.spawn(task),
            }
        });
        here.targets.write().push(Target {
            id,
            topic: topic.to_owned(),
            sender,
        });
        let route = Route {
            hub: Arc::downgrade(self),
            endpoint: endpoint.clone(),
            id,
        };
        (route, receiver)
    }
}

/// Whose topic this is: the longest that it begins with, as whole words (`kv@10.0.0.1` does not begin
/// `kv@10.0.0.12@model`).
fn target(targets: &Targets, topic: &[u8]) -> Option<(u64, mpsc::Sender<Signal>)> {
    let targets = targets.read();
    let fits = |target: &&Target| {
        let rest = topic.strip_prefix(target.topic.as_bytes());
        let word = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte);
        rest.is_some_and(|rest| !rest.first().is_some_and(word))
    };
    let fitting = targets.iter().filter(fits);
    let best = fitting.max_by_key(|target| target.topic.len())?;
    Some((best.id, best.sender.clone()))
}

async fn serve(endpoint: Endpoint, targets: Arc<Targets>) {
    let listener = loop {
        match Listener::bind(&endpoint).await {
            Ok(listener) => break listener,
            Err(error) => {
                tracing::error!(%endpoint, %error, "cannot wait for KV events");
                tokio::time::sleep(REBIND).await;
            }
        }
    };
    let seats = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let Ok(seat) = Arc::clone(&seats).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok(incoming) => {
                let targets = Arc::clone(&targets);
                let endpoint = endpoint.clone();
                connections.spawn(async move {
                    converse(&endpoint, incoming, &targets).await;
                    drop(seat);
                });
            }
            Err(error) => {
                tracing::warn!(%endpoint, %error, "accept failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn converse(endpoint: &Endpoint, incoming: Incoming, targets: &Targets) {
    let mut peer = match incoming.shake(Kind::Sub).await {
        Ok(peer) => peer,
        Err(error) => {
            tracing::warn!(%endpoint, %error, "not a publisher of KV events");
            return;
        }
    };
    if let Err(error) = peer.subscribe(b"").await {
        tracing::debug!(%endpoint, %error, "publisher left at once");
        return;
    }
    let mut carried: Vec<(u64, mpsc::Sender<Signal>)> = Vec::new();
    let mut strangers = 0_u64;
    let error = loop {
        let frames = match peer.recv().await {
            Ok(frames) => frames,
            Err(error) => break error,
        };
        let topic = frames.first().map(|topic| &topic[..]).unwrap_or_default();
        let Some((id, sender)) = target(targets, topic) else {
            if strangers == 0 {
                let topic = String::from_utf8_lossy(topic);
                tracing::warn!(%endpoint, %topic, "KV events of no worker");
            }
            strangers += 1;
            continue;
        };
        if carried.len() < TOPICS_MAX && carried.iter().all(|(known, _)| *known != id) {
            carried.push((id, sender.clone()));
        }
        // The follower is gone only if its worker is.
        let _ = sender.send(Signal::Message(frames)).await;
    };
    tracing::info!(%endpoint, %error, strangers, "publisher of KV events left");
    for (_, sender) in carried {
        let _ = sender.send(Signal::Broken).await;
    }
}

/// Follows for as long as the route is there.
pub(super) async fn follow(
    mut signals: mpsc::Receiver<Signal>,
    mut follower: Follower,
    mut again: watch::Receiver<u64>,
) {
    // An engine that was there before us has something to tell; one that comes later tells it then.
    follower.connected().await;
    let mut broken = false;
    loop {
        let signal = tokio::select! {
            biased;
            Ok(()) = again.changed() => {
                follower.read_again().await;
                continue;
            }
            signal = signals.recv() => signal,
            () = tokio::time::sleep(SILENT_AFTER), if broken => {
                broken = false;
                // An engine with nothing to say is not one that cannot be heard.
                if !follower.prove().await {
                    follower.silent();
                }
                continue;
            }
        };
        match signal {
            Some(Signal::Message(frames)) => {
                broken = false;
                follower.live(&frames).await;
            }
            Some(Signal::Broken) => {
                tracing::info!(worker = %follower.name(), "KV events broke off");
                broken = true;
                follower.lost();
            }
            None => return,
        }
    }
}
