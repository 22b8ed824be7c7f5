//! Events of workers that a fleet watches.

use super::{Engine, message, publish};
use crate::config::{PoolSettings, WorkerSettings};
use crate::fleet::Fleet;
use crate::metrics::Metrics;
use crate::pool::Pool;
use crate::scripted::{Worker, until};
use maitred_core::pool::Report;
use maitred_core::scheduler::WorkerView;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

struct Room {
    pool: Arc<Pool>,
    fleet: Fleet,
}

impl Room {
    fn new(model: Option<&str>) -> Self {
        let mut settings = PoolSettings::named("p");
        settings.model = model.map(str::to_owned);
        settings.probe.interval = Duration::from_millis(10);
        settings.probe.interval_down = Duration::from_millis(5);
        let pool = Pool::new(settings, &Metrics::new(), Instant::now(), 1, 7).unwrap();
        Self {
            pool: Arc::new(pool),
            fleet: Fleet::new(Handle::current()),
        }
    }

    fn add(&self, worker: &Worker, engine: &Engine) -> WorkerSettings {
        let mut settings = self.pool.settings.worker(&worker.url()).unwrap();
        settings.kv_events = Some(engine.settings.clone());
        self.fleet.add(&self.pool, &settings).unwrap();
        settings
    }

    fn view(&self) -> WorkerView {
        self.pool.views().remove(0).view
    }

    async fn holds(&self, blocks: u64) {
        until("the blocks", || {
            (self.view().observed_blocks == blocks).then_some(())
        })
        .await;
    }
}

/// A restart that probes see, and events do not: what was taken is forgotten, and read again from the
/// beginning.
#[tokio::test]
async fn a_new_life_seen_by_others_is_read_again() {
    let room = Room::new(Some("m"));
    let (worker, engine) = (Worker::ready(&["m"]).await, Engine::new().await);
    engine.keep(0..=2, 1.0);
    room.add(&worker, &engine);
    let mut peer = engine.subscriber().await;
    room.holds(3).await;
    assert_eq!(
        (room.view().epoch, engine.asked.lock().clone()),
        (0, vec![0])
    );
    // Its new life has stored less.
    engine.kept.lock().clear();
    engine.keep(0..=0, 50.0);
    until("a good probe", || {
        (room.view().availability == maitred_core::pool::Availability::Ready).then_some(())
    })
    .await;
    room.pool
        .report(room.view().worker, Report::Dead { refused: true });
    until("a new life", || (room.view().epoch == 1).then_some(())).await;
    room.holds(1).await;
    assert_eq!(*engine.asked.lock(), [0, 0]);
    // And what it says next is its own.
    publish(&mut peer, b"t", 1, &message(1, 50.0)).await;
    room.holds(2).await;
    assert_eq!(room.view().epoch, 1);
}

#[tokio::test]
async fn without_a_models_name_the_workers_list_tells_it() {
    let room = Room::new(None);
    let (worker, engine) = (Worker::start().await, Engine::new().await);
    engine.keep(0..=1, 1.0);
    worker.say("/health", 200, "");
    worker.say("/v1/models", 200, r#"{"data":[]}"#);
    let name = room.add(&worker, &engine).name;
    until("a probe", || room.fleet.seen("p", &name)?.1.probe).await;
    assert_eq!(room.fleet.kv_counts("p", &name), None, "about what?");
    worker.say(
        "/v1/models",
        200,
        r#"{"data":[{"id":"tuned","parent":"base"},{"id":"base","parent":null}]}"#,
    );
    let _peer = engine.subscriber().await;
    room.holds(2).await;
    assert_eq!(room.fleet.kv_counts("p", &name).unwrap().events, 2);
    assert_eq!(room.fleet.kv_model("p", &name).as_deref(), Some("base"));
}

/// A worker's removal waited for its events, and the next worker for the removal.
#[tokio::test]
async fn a_worker_that_floods_is_removed_at_once_and_keeps_nobody_waiting() {
    let room = Room::new(Some("m"));
    let (loud, flood) = (Worker::ready(&["m"]).await, Engine::new().await);
    let name = room.add(&loud, &flood).name;
    let mut peer = flood.subscriber().await;
    let flooding = tokio::spawn(async move {
        for seq in 0_u64.. {
            let payload = message(seq % 100, 1.0);
            let frames: [&[u8]; 3] = [b"t", &seq.to_be_bytes(), &payload];
            if peer.send(&frames).await.is_err() {
                break;
            }
        }
    });
    let some = || (room.view().observed_blocks > 0).then_some(());
    until("some of the flood", some).await;
    assert!(!flooding.is_finished());
    room.fleet.remove(&room.pool, &name).unwrap();
    assert!(room.pool.views().is_empty(), "it is gone while it floods");
    let (next, engine) = (Worker::ready(&["m"]).await, Engine::new().await);
    room.add(&next, &engine);
    let mut peer = engine.subscriber().await;
    for seq in 0..3 {
        publish(&mut peer, b"t", seq, &message(seq, 1.0)).await;
    }
    // Of its own three alone, whatever was under way of the other's.
    room.holds(3).await;
    // Nobody listens to the flood any more.
    tokio::time::timeout(super::SOON, flooding)
        .await
        .unwrap()
        .unwrap();
    room.holds(3).await;
    room.pool.driver.read(|s| s.check()).unwrap();
}
