//! Followers against scripted publishers over real sockets.
#![allow(clippy::unwrap_used, clippy::panic)]

mod in_a_fleet;

use super::{Doubt, Following, KvEvents, KvSink, Source};
use crate::config::{KvEventsMode, KvEventsSettings};
use maitred_core::ids::WorkerId;
use maitred_wire::kv::{KvBatch, KvEvent};
use maitred_zmtp::{Endpoint, Kind, Listener, Peer};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;

const SOON: Duration = Duration::from_secs(30);

// === what is observed ===

#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    /// Blocks by slot and rank.
    held: BTreeMap<(u32, Option<u32>), BTreeSet<u64>>,
    doubts: Vec<Doubt>,
    certain: bool,
    restarts: u32,
    batches: u32,
}

impl Seen {
    fn held(&self, slot: u32, rank: Option<u32>) -> Vec<u64> {
        let held = self.held.get(&(slot, rank));
        held.into_iter().flatten().copied().collect()
    }
}

struct Index {
    seen: watch::Sender<Seen>,
}

impl Index {
    fn new() -> Arc<Self> {
        let (seen, _) = watch::channel(Seen::default());
        Arc::new(Self { seen })
    }

    /// Waits until what was seen is so.
    async fn until(&self, what: &str, so: impl FnMut(&Seen) -> bool) -> Seen {
        let mut seen = self.seen.subscribe();
        let Ok(found) = tokio::time::timeout(SOON, seen.wait_for(so)).await else {
            panic!("not {what}: {:?}", *self.seen.borrow());
        };
        found.unwrap().clone()
    }

    fn change(&self, source: Source, change: impl FnOnce(&mut Seen, &mut BTreeSet<u64>)) {
        self.seen.send_modify(|seen| {
            let key = (source.worker.slot, source.rank);
            let mut held = seen.held.remove(&key).unwrap_or_default();
            change(seen, &mut held);
            seen.held.insert(key, held);
        });
    }
}

impl KvSink for Index {
    fn batch(&self, source: Source, batch: KvBatch) {
        self.change(source, |seen, held| {
            seen.batches += 1;
            for event in batch.events {
                match event {
                    KvEvent::Stored(stored) => held.extend(stored.hashes.iter().map(|h| h.0)),
                    KvEvent::Removed(removed) => {
                        held.retain(|hash| !removed.hashes.iter().any(|h| h.0 == *hash));
                    }
                    KvEvent::Cleared => held.clear(),
                }
            }
        });
    }

    fn uncertain(&self, source: Source, doubt: Doubt) {
        self.change(source, |seen, held| {
            held.clear();
            seen.certain = false;
            seen.doubts.push(doubt);
        });
    }

    fn certain(&self, source: Source) {
        self.change(source, |seen, _| seen.certain = true);
    }

    fn restarted(&self, source: Source) {
        self.change(source, |seen, held| {
            held.clear();
            seen.restarts += 1;
        });
    }
}

// === a scripted publisher ===

/// A batch that stores one block, in the array form.
fn storing(ts: f64, hash: u8) -> Vec<u8> {
    let mut payload = vec![0x93, 0xcb];
    payload.extend(ts.to_be_bytes());
    payload.extend([0x91, 0x96, 0xab]);
    payload.extend(b"BlockStored");
    payload.extend([0x91, hash, 0xc0, 0x91, 0x05, 0x01, 0xc0]);
    payload.push(0xc0);
    payload
}

fn clearing(ts: f64) -> Vec<u8> {
    let mut payload = vec![0x93, 0xcb];
    payload.extend(ts.to_be_bytes());
    payload.extend([0x91, 0x91, 0xb0]);
    payload.extend(b"AllBlocksCleared");
    payload.push(0xc0);
    payload
}

type Kept = Arc<Mutex<BTreeMap<u64, Vec<u8>>>>;

struct Engine {
    publisher: Listener,
    settings: KvEventsSettings,
    kept: Kept,
    asked: Arc<Mutex<Vec<u64>>>,
}

async fn listener() -> (Listener, Endpoint) {
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listener = Listener::of_tcp(socket);
    let endpoint = listener.endpoint().unwrap();
    (listener, endpoint)
}

impl Engine {
    async fn new() -> Self {
        let (publisher, endpoint) = listener().await;
        let (router, replay) = listener().await;
        let (kept, asked) = (Kept::default(), Arc::default());
        tokio::spawn(replaying(router, Arc::clone(&kept), Arc::clone(&asked)));
        Self {
            publisher,
            settings: KvEventsSettings {
                replay: Some(replay),
                ..KvEventsSettings::at(endpoint)
            },
            kept,
            asked,
        }
    }

    fn keep(&self, seqs: impl IntoIterator<Item = u64>, life: f64) {
        for seq in seqs {
            self.kept.lock().insert(seq, message(seq, life));
        }
    }

    /// The follower's connection, once it has subscribed.
    async fn subscriber(&self) -> Peer {
        let incoming = self.publisher.accept().await.unwrap();
        let mut peer = incoming.shake(Kind::Pub).await.unwrap();
        peer.subscription().await.unwrap();
        peer
    }
}

/// What a life of an engine says under a number: it stores the block of that number, plus one.
fn message(seq: u64, life: f64) -> Vec<u8> {
    storing(life + seq as f64, seq as u8 + 1)
}

async fn replaying(router: Listener, kept: Kept, asked: Arc<Mutex<Vec<u64>>>) {
    loop {
        let incoming = router.accept().await.unwrap();
        let mut peer = incoming.shake(Kind::Router).await.unwrap();
        let request = peer.recv().await.unwrap();
        let start = u64::from_be_bytes(request[1][..].try_into().unwrap());
        asked.lock().push(start);
        let from: Vec<_> = kept
            .lock()
            .range(start..)
            .map(|(s, p)| (*s, p.clone()))
            .collect();
        for (seq, payload) in from {
            peer.send(&[b"", b"t".as_slice(), &seq.to_be_bytes(), &payload])
                .await
                .unwrap();
        }
        peer.send(&[b"", b"".as_slice(), &[0xff; 8], b""])
            .await
            .unwrap();
    }
}

async fn publish(peer: &mut Peer, topic: &[u8], seq: u64, payload: &[u8]) {
    peer.send(&[topic, &seq.to_be_bytes(), payload])
        .await
        .unwrap();
}

fn worker(slot: u32) -> WorkerId {
    WorkerId {
        slot,
        generation: 0,
    }
}

fn follow(settings: &KvEventsSettings, index: &Arc<Index>) -> Following {
    let sink: Arc<dyn KvSink> = Arc::clone(index) as _;
    KvEvents::new(Handle::current())
        .follow("w", worker(0), settings, &sink)
        .unwrap()
}

// === the streams' ways ===

#[tokio::test]
async fn a_gap_is_asked_for_and_filled() {
    let engine = Engine::new().await;
    let index = Index::new();
    let following = follow(&engine.settings, &index);
    let mut peer = engine.subscriber().await;
    for seq in [0, 1, 2] {
        publish(&mut peer, b"t", seq, &message(seq, 1.0)).await;
    }
    index
        .until("three", |seen| seen.held(0, None).len() == 3)
        .await;
    engine.keep(0..=5, 1.0);
    publish(&mut peer, b"t", 5, &message(5, 1.0)).await;
    let seen = index
        .until("six", |seen| seen.held(0, None).len() == 6)
        .await;
    assert_eq!((seen.batches, seen.certain), (6, true));
    assert_eq!(*engine.asked.lock(), [0, 3]);
    publish(&mut peer, b"t", 6, &message(6, 1.0)).await;
    index
        .until("seven", |seen| seen.held(0, None).len() == 7)
        .await;
    let counts = following.counters.read();
    assert_eq!((counts.gaps, counts.lost, counts.uncertain), (1, 0, 0));
    assert_eq!((counts.batches, counts.duplicates), (7, 1));
}

#[tokio::test]
async fn a_gap_that_cannot_be_filled_is_a_doubt() {
    let engine = Engine::new().await;
    let index = Index::new();
    let following = follow(&engine.settings, &index);
    let mut peer = engine.subscriber().await;
    for seq in [0, 1, 2, 5] {
        publish(&mut peer, b"t", seq, &message(seq, 1.0)).await;
    }
    let seen = index
        .until("in doubt", |seen| seen.held(0, None) == [6])
        .await;
    assert_eq!(seen.doubts, [Doubt::Missed]);
    assert!(!seen.certain);
    let counts = following.counters.read();
    assert_eq!((counts.gaps, counts.lost, counts.uncertain), (1, 2, 1));
    // Nothing is in the cache any more, and that is certain.
    publish(&mut peer, b"t", 6, &clearing(9.0)).await;
    index.until("certain", |seen| seen.certain).await;
}

#[tokio::test]
async fn a_lower_number_is_a_new_life() {
    let engine = Engine::new().await;
    engine.keep(100..=100, 1.0);
    let index = Index::new();
    let following = follow(&engine.settings, &index);
    let mut peer = engine.subscriber().await;
    index
        .until("held", |seen| seen.held(0, None) == [101])
        .await;
    publish(&mut peer, b"t", 101, &message(101, 1.0)).await;
    let seen = index
        .until("both", |seen| seen.held(0, None) == [101, 102])
        .await;
    // It began before we came.
    assert_eq!(seen.doubts, [Doubt::Unseen]);
    publish(&mut peer, b"t", 0, &message(0, 1_000.0)).await;
    let seen = index.until("anew", |seen| seen.held(0, None) == [1]).await;
    assert_eq!((seen.restarts, seen.certain), (1, true));
    assert_eq!(following.counters.read().restarts, 1);
}

#[tokio::test]
async fn what_came_while_away_is_made_up_for() {
    let engine = Engine::new().await;
    let index = Index::new();
    let following = follow(&engine.settings, &index);
    let mut peer = engine.subscriber().await;
    engine.keep(0..=1, 1.0);
    for seq in [0, 1] {
        publish(&mut peer, b"t", seq, &message(seq, 1.0)).await;
    }
    index
        .until("two", |seen| seen.held(0, None) == [1, 2])
        .await;
    drop(peer);
    engine.keep(2..=3, 1.0);
    let mut peer = engine.subscriber().await;
    let seen = index
        .until("four", |seen| seen.held(0, None) == [1, 2, 3, 4])
        .await;
    assert_eq!((seen.restarts, seen.certain), (0, true));
    publish(&mut peer, b"t", 4, &message(4, 1.0)).await;
    index
        .until("five", |seen| seen.held(0, None).len() == 5)
        .await;
    assert_eq!(following.counters.read().uncertain, 0);
    // The life was proven by the last message that we had.
    assert_eq!(engine.asked.lock().last(), Some(&1));
}

#[tokio::test]
async fn a_new_life_is_found_out_though_its_numbers_go_on() {
    let engine = Engine::new().await;
    let index = Index::new();
    let _following = follow(&engine.settings, &index);
    let mut peer = engine.subscriber().await;
    for seq in [0, 1] {
        publish(&mut peer, b"t", seq, &message(seq, 1.0)).await;
    }
    index
        .until("two", |seen| seen.held(0, None) == [1, 2])
        .await;
    drop(peer);
    // The engine restarts, stores another block, and is at 3 when we are back.
    engine.kept.lock().insert(0, storing(500.0, 77));
    engine.keep(1..=2, 500.0);
    let mut peer = engine.subscriber().await;
    publish(&mut peer, b"t", 3, &message(3, 500.0)).await;
    let seen = index
        .until("anew", |seen| seen.held(0, None) == [2, 3, 4, 77])
        .await;
    assert_eq!((seen.restarts, seen.certain), (1, true));
    assert_eq!(seen.doubts, []);
}

#[tokio::test]
async fn a_new_life_with_little_to_tell_is_found_out() {
    let engine = Engine::new().await;
    let index = Index::new();
    let _following = follow(&engine.settings, &index);
    let mut peer = engine.subscriber().await;
    for seq in [0, 1] {
        publish(&mut peer, b"t", seq, &message(seq, 1.0)).await;
    }
    index
        .until("two", |seen| seen.held(0, None) == [1, 2])
        .await;
    drop(peer);
    let _peer = engine.subscriber().await;
    let seen = index
        .until("anew", |seen| seen.restarts == 1 && seen.certain)
        .await;
    assert!(seen.held(0, None).is_empty());
}

#[tokio::test]
async fn replay_and_live_overlap_without_doubles() {
    let engine = Engine::new().await;
    engine.keep(0..=50, 1.0);
    let index = Index::new();
    let following = follow(&engine.settings, &index);
    let mut peer = engine.subscriber().await;
    for seq in 40..=60 {
        publish(&mut peer, b"t", seq, &message(seq, 1.0)).await;
    }
    let seen = index
        .until("all", |seen| seen.held(0, None).len() == 61)
        .await;
    assert_eq!((seen.batches, seen.certain, seen.restarts), (61, true, 0));
    assert_eq!(following.counters.read().duplicates, 11);
}

#[tokio::test]
async fn all_is_read_again_when_asked() {
    let engine = Engine::new().await;
    engine.keep(0..=2, 1.0);
    let index = Index::new();
    let following = follow(&engine.settings, &index);
    let mut peer = engine.subscriber().await;
    index
        .until("three", |seen| seen.certain && seen.batches == 3)
        .await;
    following.read_again().ask();
    index.until("three again", |seen| seen.batches == 6).await;
    publish(&mut peer, b"t", 2, &message(2, 1.0)).await;
    publish(&mut peer, b"t", 3, &message(3, 1.0)).await;
    let seen = index.until("one more", |seen| seen.batches == 7).await;
    assert_eq!(seen.held(0, None), [1, 2, 3, 4]);
    assert_eq!((seen.restarts, seen.doubts.len()), (0, 1));
}

#[tokio::test]
async fn what_cannot_be_read_is_a_doubt_and_no_end() {
    let engine = Engine::new().await;
    let index = Index::new();
    let following = follow(&engine.settings, &index);
    let mut peer = engine.subscriber().await;
    publish(&mut peer, b"t", 0, &message(0, 1.0)).await;
    publish(&mut peer, b"t", 1, b"\xc1 no batch").await;
    publish(&mut peer, b"t", 2, &message(2, 1.0)).await;
    peer.send(&[b"one frame"]).await.unwrap();
    publish(&mut peer, b"t", 3, &message(3, 1.0)).await;
    let seen = index
        .until("the last", |seen| seen.held(0, None) == [4])
        .await;
    assert_eq!(seen.doubts, [Doubt::Malformed, Doubt::Malformed]);
    let counts = following.counters.read();
    assert_eq!((counts.malformed, counts.batches), (2, 3));
}

#[tokio::test]
async fn a_publisher_that_speaks_nonsense_is_left_and_tried_again() {
    let engine = Engine::new().await;
    let index = Index::new();
    let _following = follow(&engine.settings, &index);
    let stranger = engine.publisher.accept().await.unwrap();
    assert!(stranger.shake(Kind::Router).await.is_err());
    let mut peer = engine.subscriber().await;
    publish(&mut peer, b"t", 0, &message(0, 1.0)).await;
    index.until("one", |seen| seen.held(0, None) == [1]).await;
}

#[tokio::test]
async fn without_a_replay_the_stream_alone_tells() {
    let engine = Engine::new().await;
    let mut settings = engine.settings.clone();
    settings.replay = None;
    let index = Index::new();
    let _following = follow(&settings, &index);
    let mut peer = engine.subscriber().await;
    publish(&mut peer, b"t", 7, &message(7, 1.0)).await;
    let seen = index.until("one", |seen| seen.held(0, None) == [8]).await;
    assert_eq!((seen.certain, seen.doubts.len()), (false, 1));
    publish(&mut peer, b"t", 0, &message(0, 9.0)).await;
    let seen = index.until("anew", |seen| seen.held(0, None) == [1]).await;
    assert!(seen.certain);
}

#[tokio::test]
async fn engines_that_connect_are_told_apart_by_their_topics() {
    let (free, endpoint) = listener().await;
    drop(free);
    let index = Index::new();
    let sink: Arc<dyn KvSink> = Arc::clone(&index) as _;
    let events = KvEvents::new(Handle::current());
    let bound = |topic: &str, ranks| KvEventsSettings {
        topic: topic.to_owned(),
        mode: KvEventsMode::Bind,
        ranks,
        ..KvEventsSettings::at(endpoint.clone())
    };
    let one = events.follow("a", worker(1), &bound("kv@a", 1), &sink);
    let two = events.follow("b", worker(2), &bound("kv@ab-{rank}", 2), &sink);
    let mut peer = loop {
        match Peer::connect(&endpoint, Kind::Pub, SOON).await {
            Ok(peer) => break peer,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    peer.subscription().await.unwrap();
    // Not the topic of `kv@a`, and nobody's.
    publish(&mut peer, b"kv@a0", 0, &message(3, 1.0)).await;
    publish(&mut peer, b"other", 0, &message(4, 1.0)).await;
    publish(&mut peer, b"kv@a@model", 0, &message(0, 1.0)).await;
    publish(&mut peer, b"kv@ab-0", 0, &message(1, 1.0)).await;
    publish(&mut peer, b"kv@ab-1", 0, &message(2, 1.0)).await;
    index.until("all", |seen| seen.batches == 3).await;
    let seen = index.until("told apart", |_| true).await;
    assert_eq!(seen.held(1, None), [1]);
    assert_eq!(
        (seen.held(2, Some(0)), seen.held(2, Some(1))),
        (vec![2], vec![3])
    );
    // With its last worker the endpoint is let go.
    drop((one, two));
    while Listener::bind(&endpoint).await.is_err() {
        tokio::task::yield_now().await;
    }
}
