//! What is known of one publisher: where its stream stands, and whether we have it all.

use super::counters::add;
use super::pieces::pieces;
use super::replay::{Replay, ReplayError};
use super::{Doubt, KvCounters, KvSink, Source};
use bytes::Bytes;
use maitred_wire::kv::{self, KvBatch, KvError, KvEvent, OnLive, OnReplay, Tracker};
use maitred_zmtp::Endpoint;
use std::sync::Arc;

/// Ranks that one publisher may speak for.
const RANKS_MAX: usize = 64;
/// How often one message may lead to another question. A restart and a gap in the new life make two.
const TURNS_MAX: usize = 6;

pub(super) struct Follower {
    name: String,
    source: Source,
    replay: Option<Endpoint>,
    sink: Arc<dyn KvSink>,
    counters: Arc<KvCounters>,
    tracker: Tracker,
    /// Everything since the engine's start (or since it cleared its cache) was applied.
    whole: bool,
    /// The connection broke: the engine may be another one than the one we know.
    suspicious: bool,
    /// Times that what we have became doubtful.
    doubts: u64,
    /// Ranks that spoke.
    ranks: Vec<Option<u32>>,
}

/// What a replay showed.
#[derive(PartialEq, Eq)]
enum Life {
    Same,
    New,
}

impl Follower {
    pub(super) fn new(
        name: &str,
        source: Source,
        replay: Option<Endpoint>,
        sink: Arc<dyn KvSink>,
        counters: Arc<KvCounters>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            source,
            replay,
            sink,
            counters,
            tracker: Tracker::default(),
            whole: false,
            suspicious: false,
            doubts: 0,
            ranks: Vec::new(),
        }
    }

    /// Its worker's name, for logs.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The live stream can be heard: gets what came before.
    pub(super) async fn connected(&mut self) {
        add(&self.counters.connections, 1);
        self.catch_up().await;
    }

    /// As [`Self::connected`], of an engine whose new life is known.
    pub(super) async fn connected_anew(&mut self) {
        add(&self.counters.connections, 1);
        self.read_again().await;
    }

    /// The live stream broke.
    pub(super) fn lost(&mut self) {
        self.suspicious = true;
    }

    /// What was handed on is forgotten there: everything again.
    pub(super) async fn read_again(&mut self) {
        self.tracker.restart();
        self.whole = false;
        self.suspicious = false;
        self.catch_up().await;
    }

    /// Whether the engine can still be asked, and has told all.
    pub(super) async fn prove(&mut self) -> bool {
        self.catch_up().await
    }

    /// The live stream has been away for too long to go by what it said.
    pub(super) fn silent(&mut self) {
        if self.tracker.is_new() && !self.whole {
            return;
        }
        self.doubt(Doubt::Disconnected);
        // Everything is asked for again.
        self.tracker.restart();
        self.suspicious = false;
    }

    /// A live message.
    pub(super) async fn live(&mut self, frames: &[Bytes]) {
        let borrowed: Vec<&[u8]> = frames.iter().map(|frame| &frame[..]).collect();
        let (seq, decoded) = match kv::live(&borrowed) {
            Ok(message) => (message.seq, kv::decode(message.payload)),
            Err(error) => return self.malformed(&error),
        };
        if self.suspicious {
            self.catch_up().await;
        }
        let ts = decoded.as_ref().map_or(f64::NAN, |batch| batch.ts);
        let mut asked = false;
        for _ in 0..TURNS_MAX {
            let fresh = self.tracker.is_new();
            match self.tracker.on_live(seq, ts) {
                OnLive::Apply => {
                    if fresh {
                        self.is_whole();
                    }
                    return self.apply(seq, decoded).await;
                }
                OnLive::Duplicate => return add(&self.counters.duplicates, 1),
                OnLive::Restart => {
                    self.restart();
                    asked = false;
                }
                OnLive::Gap { from, to } => {
                    if !asked {
                        asked = true;
                        // What was before we came is no gap.
                        if !fresh {
                            add(&self.counters.gaps, 1);
                            tracing::info!(worker = %self.name, from, to, "gap in KV events");
                        }
                        if self.catch_up().await {
                            continue;
                        }
                    }
                    let fresh = self.tracker.is_new();
                    let lost = self.tracker.give_up(seq);
                    self.lose(lost, fresh);
                }
            }
        }
        // Unreachable by the tracker's rules; should it come, nothing may be believed.
        self.doubt(Doubt::Missed);
    }

    /// Asks for what is missing; whether all of it came that there is.
    async fn catch_up(&mut self) -> bool {
        let Some(endpoint) = self.replay.clone() else {
            self.suspicious = false;
            return false;
        };
        // The second time is for a new life found out by the first.
        for _ in 0..2 {
            let proof = self.tracker.proof().filter(|_| self.suspicious);
            let fresh = self.tracker.is_new();
            let doubts = self.doubts;
            add(&self.counters.replays, 1);
            match self.read_replay(&endpoint, proof).await {
                Ok(Life::Same) => {
                    self.suspicious = false;
                    if fresh && self.doubts == doubts {
                        self.is_whole();
                    }
                    return true;
                }
                Ok(Life::New) => self.restart(),
                Err(error) => {
                    add(&self.counters.replays_failed, 1);
                    tracing::warn!(worker = %self.name, %endpoint, %error, "no replay of KV events");
                    self.suspicious = false;
                    return false;
                }
            }
        }
        false
    }

    async fn read_replay(
        &mut self,
        endpoint: &Endpoint,
        mut proof: Option<u64>,
    ) -> Result<Life, ReplayError> {
        let start = proof.unwrap_or_else(|| self.tracker.next());
        let mut replay = Replay::ask(endpoint, start).await?;
        while let Some(again) = replay.next().await? {
            let decoded = kv::decode(&again.payload);
            if let Some(marked) = proof {
                let ts = decoded.as_ref().map_or(f64::NAN, |batch| batch.ts);
                if self.tracker.same_life(again.seq, ts) == Some(false) {
                    return Ok(Life::New);
                }
                // Beyond the mark it is forgotten by the engine, and so lost: that is seen below.
                if again.seq >= marked {
                    proof = None;
                }
            }
            self.replayed(again.seq, decoded).await;
        }
        // An engine that never lost its life still has its last message.
        Ok(if proof.is_some() {
            Life::New
        } else {
            Life::Same
        })
    }

    async fn replayed(&mut self, seq: u64, decoded: Result<KvBatch, KvError>) {
        let fresh = self.tracker.is_new();
        match self.tracker.on_replay(seq) {
            OnReplay::Duplicate => return add(&self.counters.duplicates, 1),
            OnReplay::Apply => {}
            OnReplay::ApplyAfterLoss { from, to } => self.lose(to - from + 1, fresh),
        }
        self.apply(seq, decoded).await;
    }

    async fn apply(&mut self, seq: u64, decoded: Result<KvBatch, KvError>) {
        let batch = match decoded {
            Ok(batch) => batch,
            Err(error) => return self.malformed(&error),
        };
        self.tracker.applied(seq, batch.ts);
        let source = self.speaks(batch.rank);
        let cleared = batch.events.contains(&KvEvent::Cleared);
        self.count(&batch);
        let mut first = true;
        for piece in pieces(batch) {
            if !first {
                // Others of this runtime must not wait for a whole long batch.
                tokio::task::yield_now().await;
            }
            first = false;
            self.sink.batch(source, piece);
        }
        if cleared {
            self.is_whole();
        }
    }

    /// Whose batch it is; the first one of a rank is preceded by how certain it is.
    fn speaks(&mut self, rank: Option<u32>) -> Source {
        let source = Source {
            rank: rank.or(self.source.rank),
            ..self.source
        };
        if !self.ranks.contains(&source.rank) && self.ranks.len() < RANKS_MAX {
            self.ranks.push(source.rank);
            if self.whole {
                self.sink.certain(source);
            } else {
                self.sink.uncertain(source, Doubt::Unseen);
            }
        }
        source
    }

    fn count(&self, batch: &KvBatch) {
        add(&self.counters.batches, 1);
        add(&self.counters.events, batch.events.len() as u64);
        add(&self.counters.unknown, u64::from(batch.unknown));
        let blocks = batch.events.iter().map(|event| match event {
            KvEvent::Stored(stored) => stored.hashes.len() as u64,
            KvEvent::Removed(removed) => removed.hashes.len() as u64,
            KvEvent::Cleared => 0,
        });
        add(&self.counters.blocks, blocks.sum());
    }

    fn malformed(&mut self, error: &KvError) {
        add(&self.counters.malformed, 1);
        tracing::warn!(worker = %self.name, %error, "KV event message cannot be read");
        self.doubt(Doubt::Malformed);
    }

    fn lose(&mut self, messages: u64, fresh: bool) {
        if fresh {
            self.doubt(Doubt::Unseen);
        } else {
            add(&self.counters.lost, messages);
            self.doubt(Doubt::Missed);
        }
    }

    fn doubt(&mut self, doubt: Doubt) {
        self.whole = false;
        self.doubts += 1;
        add(&self.counters.uncertain, 1);
        tracing::info!(worker = %self.name, doubt = doubt.as_str(), "KV events are uncertain");
        self.each_rank(|sink, source| sink.uncertain(source, doubt));
    }

    fn is_whole(&mut self) {
        if !std::mem::replace(&mut self.whole, true) {
            self.each_rank(|sink, source| sink.certain(source));
        }
    }

    fn restart(&mut self) {
        add(&self.counters.restarts, 1);
        tracing::info!(worker = %self.name, "engine began anew");
        self.tracker.restart();
        self.suspicious = false;
        self.whole = false;
        self.each_rank(|sink, source| sink.restarted(source));
    }

    fn each_rank(&self, tell: impl Fn(&dyn KvSink, Source)) {
        for rank in &self.ranks {
            let source = Source {
                rank: *rank,
                ..self.source
            };
            tell(self.sink.as_ref(), source);
        }
    }
}
