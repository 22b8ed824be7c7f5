//! KV events of the server, as a subscriber sees them.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::{KvConfig, KvFormat, Running, ServerConfig, start};
use maitred_wire::kv::{KvBatch, KvEvent, Replayed, decode, live, replay_request, replayed};
use maitred_zmtp::{Kind, Peer};
use serde_json::json;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

async fn engine(kv: KvConfig) -> Running {
    let config = ServerConfig {
        speed: 1_000.0,
        kv: Some(kv),
        ..ServerConfig::default()
    };
    start(config).await.unwrap()
}

async fn subscribe(running: &Running) -> Peer {
    let mut peer = Peer::connect(&running.kv[0].events, Kind::Sub, SOON)
        .await
        .unwrap();
    peer.subscribe(b"kv@").await.unwrap();
    peer
}

async fn next(peer: &mut Peer) -> (u64, KvBatch) {
    let frames = tokio::time::timeout(SOON, peer.recv())
        .await
        .unwrap()
        .unwrap();
    let frames: Vec<&[u8]> = frames.iter().map(|frame| &frame[..]).collect();
    let message = live(&frames).unwrap();
    assert!(message.topic.ends_with(b"@sim"));
    (message.seq, decode(message.payload).unwrap())
}

async fn replay(running: &Running, start: u64) -> Vec<(u64, KvBatch)> {
    let mut peer = Peer::connect(&running.kv[0].replay, Kind::Dealer, SOON)
        .await
        .unwrap();
    let start = replay_request(start);
    peer.send(&[&[], start.as_slice()]).await.unwrap();
    let mut all = Vec::new();
    loop {
        let frames = peer.recv().await.unwrap();
        let frames: Vec<&[u8]> = frames.iter().map(|frame| &frame[..]).collect();
        match replayed(&frames).unwrap() {
            Replayed::Batch { seq, payload, .. } => all.push((seq, decode(payload).unwrap())),
            Replayed::End => return all,
        }
    }
}

/// One request whose prompt has three whole blocks of its own.
async fn ask(running: &Running, name: &str) {
    let prompt = format!("{name:<200}");
    let body = json!({"model": "sim", "prompt": prompt, "max_tokens": 1, "cache_salt": name});
    super::tests::value(&running.urls[0], "/v1/completions", body).await;
}

#[tokio::test]
async fn both_formats_say_the_same() {
    let mut said = Vec::new();
    for format in [KvFormat::Map, KvFormat::Array] {
        let running = engine(KvConfig {
            format,
            ..KvConfig::default()
        })
        .await;
        ask(&running, "a").await;
        let all = replay(&running, 0).await;
        let (seq, batch) = &all[0];
        assert_eq!((*seq, batch.rank, all.len()), (0, Some(0), 1));
        let KvEvent::Stored(stored) = &batch.events[0] else {
            panic!("{batch:?}");
        };
        assert_eq!(
            (stored.blocks().unwrap().count(), stored.salt()),
            (3, Some("a"))
        );
        said.push(batch.events.clone());
        running.shutdown().await;
    }
    assert_eq!(said[0], said[1]);
}

#[tokio::test]
async fn what_is_dropped_can_be_replayed_and_what_is_lost_cannot() {
    let running = engine(KvConfig {
        drop_every: 2,
        lose_every: 3,
        buffer: 3,
        ..KvConfig::default()
    })
    .await;
    let mut peer = subscribe(&running).await;
    // A subscription takes effect when the engine has read it: until a message comes, there is none.
    let first = loop {
        ask(&running, &format!("{:?}", std::time::Instant::now())).await;
        if let Ok(first) = tokio::time::timeout(Duration::from_millis(50), next(&mut peer)).await {
            break first.0;
        }
    };
    for name in ["a", "b", "c", "d", "e", "f"] {
        ask(&running, name).await;
    }
    let (second, _) = next(&mut peer).await;
    assert!(first < second);
    assert!(
        [first, second]
            .iter()
            .all(|seq| (seq + 1) % 2 > 0 && (seq + 1) % 3 > 0)
    );
    let kept: Vec<u64> = replay(&running, 0)
        .await
        .iter()
        .map(|(seq, _)| *seq)
        .collect();
    assert_eq!(kept.len(), 3);
    assert!(kept.iter().all(|seq| (seq + 1) % 3 > 0));
    assert!(kept.iter().any(|seq| (seq + 1) % 2 == 0));
}

#[tokio::test]
async fn a_restart_begins_at_nothing() {
    let running = engine(KvConfig::default()).await;
    let mut peer = subscribe(&running).await;
    ask(&running, "a").await;
    ask(&running, "b").await;
    assert_eq!(replay(&running, 1).await.len(), 1);
    let url = &running.urls[0];
    super::tests::text(url, "/kv_events/restart", Some(json!({}))).await;
    while peer.recv().await.is_ok() {}
    assert_eq!(replay(&running, 0).await, []);
    ask(&running, "a").await;
    let all = replay(&running, 0).await;
    assert_eq!((all.len(), all[0].0), (1, 0));
    // A reset is told with the next step.
    super::tests::text(url, "/reset_prefix_cache", Some(json!({}))).await;
    ask(&running, "c").await;
    let events: Vec<KvEvent> = replay(&running, 1)
        .await
        .into_iter()
        .flat_map(|(_, batch)| batch.events)
        .collect();
    assert_eq!((&events[0], events.len()), (&KvEvent::Cleared, 2));
}
