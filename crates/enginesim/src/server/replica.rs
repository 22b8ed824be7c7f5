//! One replica: the model, a clock, and the calls that wait for its tokens.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hashbrown::HashMap;
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use super::ServerConfig;
use super::kv_events::KvPublisher;
use super::zero::Zero;
use crate::model::{Engine, Event, Job, Metrics, SubmitError, Usage};

/// What a call receives about one of its choices.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    First { token: u32, cached: usize },
    Token(u32),
    Done(Usage),
}

/// One engine with its clock.
#[derive(Debug)]
pub struct Replica {
    pub(super) served_model: String,
    pub(super) started: Duration,
    pub(super) context_tokens: usize,
    pub(super) block_tokens: usize,
    pub(super) zero: Option<Zero>,
    kv: Option<Arc<KvPublisher>>,
    clock: Clock,
    inner: Mutex<Inner>,
    wake: Notify,
}

#[derive(Debug)]
struct Clock {
    origin: Instant,
    speed: f64,
}

impl Clock {
    fn now(&self) -> u64 {
        (self.origin.elapsed().as_nanos() as f64 * self.speed) as u64
    }

    fn instant(&self, at: u64) -> Instant {
        self.origin + Duration::from_nanos((at as f64 / self.speed) as u64)
    }
}

type Sink = mpsc::Sender<(usize, Part)>;

#[derive(Debug)]
struct Inner {
    engine: Engine,
    /// By job: its place in the call, and the call's channel.
    sinks: HashMap<u64, (usize, Sink), FxBuildHasher>,
    next_id: u64,
    events: Vec<Event>,
    kv: Option<Arc<KvPublisher>>,
}

impl Inner {
    /// Brings the model to `now` and hands out what happened.
    fn pump(&mut self, now: u64) -> Option<u64> {
        let next = self.engine.step(now, &mut self.events);
        if let Some(kv) = &self.kv {
            // Under the lock, so that messages go out in the order of what they tell.
            kv.publish(&self.engine.take_kv_events());
        }
        for event in self.events.drain(..) {
            let (id, part) = match event {
                Event::FirstToken {
                    id, token, cached, ..
                } => (id, Part::First { token, cached }),
                Event::Token { id, token, .. } => (id, Part::Token(token)),
                Event::Finished { id, usage, .. } => (id, Part::Done(usage)),
                Event::Preempted { .. } => continue,
            };
            let done = matches!(part, Part::Done(_));
            if let Some((choice, sink)) = self.sinks.get(&id) {
                // The channel has room for every token of the call; it only fails when the receiver is gone,
                // and then the call's drop is about to cancel the job.
                let _ = sink.try_send((*choice, part));
            }
            if done {
                self.sinks.remove(&id);
            }
        }
        next
    }
}

impl Replica {
    pub(super) fn new(config: &ServerConfig, kv: Option<Arc<KvPublisher>>) -> Self {
        let mut engine = Engine::new(config.engine.clone());
        if kv.is_some() {
            engine.note_kv_events();
        }
        let started = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            served_model: config.served_model.clone(),
            started,
            context_tokens: engine.context_tokens(),
            block_tokens: engine.config().block_tokens,
            zero: config
                .zero
                .then(|| Zero::new(&config.served_model, started.as_secs(), config.zero_gap)),
            kv: kv.clone(),
            clock: Clock {
                origin: Instant::now(),
                speed: config.speed,
            },
            inner: Mutex::new(Inner {
                engine,
                sinks: HashMap::with_hasher(FxBuildHasher),
                next_id: 0,
                events: Vec::new(),
                kv,
            }),
            wake: Notify::new(),
        }
    }

    /// The model's gauges and counters.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.inner.lock().engine.metrics()
    }

    /// Forgets the prefix cache.
    pub fn reset_cache(&self) {
        self.inner.lock().engine.reset_cache();
    }

    /// The cache and its KV events begin anew, as after a restart of the engine; running jobs go on.
    pub fn restart_kv(&self) {
        let mut inner = self.inner.lock();
        inner.engine.reset_cache();
        // A dead engine says no farewell.
        drop(inner.engine.take_kv_events());
        if let Some(kv) = &self.kv {
            kv.restart();
        }
    }

    /// Closes every connection of KV events.
    pub fn disconnect_kv(&self) {
        if let Some(kv) = &self.kv {
            kv.disconnect();
        }
    }

    /// Advances the model as wall time passes; never returns.
    pub(super) async fn drive(&self) {
        loop {
            let woken = self.wake.notified();
            let next = self.inner.lock().pump(self.clock.now());
            match next {
                Some(at) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(self.clock.instant(at)) => {}
                        () = woken => {}
                    }
                }
                None => woken.await,
            }
        }
    }

    /// Submits one job per prompt; all answers arrive on one channel, each with the index of its prompt.
    pub(super) fn call(
        self: &Arc<Self>,
        prompts: Vec<(Vec<u32>, u64)>,
        max_tokens: usize,
        salt: Option<Arc<str>>,
    ) -> Result<Call, SubmitError> {
        let room = prompts
            .len()
            .saturating_mul(max_tokens + 1)
            .clamp(1, 1 << 30);
        let (sink, parts) = mpsc::channel(room);
        let scope = salt.as_ref().map_or(0, |salt| xxh3_64(salt.as_bytes()));
        let mut call = Call {
            ids: Vec::with_capacity(prompts.len()),
            replica: Arc::clone(self),
            parts,
        };
        let submitted = {
            let mut inner = self.inner.lock();
            let now = self.clock.now();
            inner.pump(now);
            let submitted =
                prompts
                    .into_iter()
                    .enumerate()
                    .try_for_each(|(choice, (tokens, seed))| {
                        let id = inner.next_id;
                        inner.next_id += 1;
                        inner.engine.submit(
                            now,
                            Job {
                                id,
                                tokens,
                                max_tokens,
                                seed,
                                scope,
                                salt: salt.clone(),
                            },
                        )?;
                        inner.sinks.insert(id, (choice, sink.clone()));
                        call.ids.push(id);
                        Ok(())
                    });
            inner.pump(now);
            submitted
        };
        // `call` is dropped on an error, outside the lock, and takes back what was submitted.
        submitted?;
        self.wake.notify_one();
        Ok(call)
    }
}

/// Jobs of one client call. Dropping it takes the unfinished ones out of the engine.
#[derive(Debug)]
pub(super) struct Call {
    ids: Vec<u64>,
    replica: Arc<Replica>,
    pub(super) parts: mpsc::Receiver<(usize, Part)>,
}

impl Call {
    /// Jobs of this call.
    pub(super) fn choices(&self) -> usize {
        self.ids.len()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut inner = self.replica.inner.lock();
        inner.pump(self.replica.clock.now());
        for id in &self.ids {
            inner.engine.cancel(*id);
            inner.sinks.remove(id);
        }
    }
}
