#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::{Fleet, get};
use crate::config::{PoolSettings, WorkerSettings, WorkerUrl};
use crate::metrics::Metrics;
use crate::pool::{NamedView, Pool};
use crate::scripted::{Worker, until};
use maitred_core::pool::Availability;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::runtime::Handle;

struct Room {
    pool: Arc<Pool>,
    fleet: Fleet,
}

/// A pool that probes quickly.
fn room() -> Room {
    let mut settings = PoolSettings::named("p");
    settings.probe.interval = Duration::from_millis(10);
    settings.probe.interval_down = Duration::from_millis(5);
    settings.scrape.interval = Duration::from_millis(10);
    let pool = Pool::new(settings, &Metrics::new(), Instant::now(), 1, 7).unwrap();
    Room {
        pool: Arc::new(pool),
        fleet: Fleet::new(Handle::current()),
    }
}

impl Room {
    fn add(&self, url: &str) -> WorkerSettings {
        let worker = self.pool.settings.worker(url).unwrap();
        self.fleet.add(&self.pool, &worker).unwrap();
        worker
    }

    fn view(&self, name: &str) -> NamedView {
        let views = self.pool.views();
        views.into_iter().find(|v| v.upstream.name == name).unwrap()
    }

    async fn becomes(&self, name: &str, state: Availability) {
        until(state.as_str(), || {
            (self.view(name).view.availability == state).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn loading_is_neither_ready_nor_failed() {
    let room = room();
    let worker = Worker::start().await;
    worker.say(
        "/health",
        503,
        r#"{"error":{"message":"Loading model","code":503}}"#,
    );
    worker.lists(&["m"]);
    let name = room.add(&worker.url()).name;
    let probed = |words: &str| {
        let seen = room.fleet.seen("p", &name)?.1;
        (seen.probe.as_deref() == Some(words)).then_some(())
    };
    until("a probe", || probed("loading")).await;
    assert_eq!(room.view(&name).view.availability, Availability::Starting);
    worker.say("/health", 200, "ok");
    room.becomes(&name, Availability::Ready).await;
    assert_eq!(room.pool.model_names(), ["m"]);
}

#[tokio::test]
async fn an_empty_list_of_models_is_not_ready() {
    let room = room();
    let worker = Worker::ready(&[]).await;
    let name = room.add(&worker.url()).name;
    until("a probe", || room.fleet.seen("p", &name)?.1.probe).await;
    assert_eq!(room.view(&name).view.availability, Availability::Starting);
    worker.lists(&["late"]);
    room.becomes(&name, Availability::Ready).await;
}

#[tokio::test]
async fn without_a_health_path_the_list_of_models_stands_in() {
    let room = room();
    let worker = Worker::start().await;
    worker.lists(&["a", "b"]);
    let name = room.add(&worker.url()).name;
    room.becomes(&name, Availability::Ready).await;
    assert_eq!(room.pool.model_names(), ["a", "b"]);
}

#[tokio::test]
async fn a_worker_that_is_not_there_yet_joins_when_it_answers() {
    let room = room();
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    drop(socket);
    let name = room.add(&format!("http://{address}")).name;
    let refused = || {
        let probe = room.fleet.seen("p", &name)?.1.probe?;
        (probe == "connection refused").then_some(())
    };
    until("a refused probe", refused).await;
    let worker = Worker::on(TcpListener::bind(address).await.unwrap());
    worker.say("/health", 200, "");
    room.becomes(&name, Availability::Ready).await;
}

#[tokio::test]
async fn hanging_metrics_and_lists_delay_nothing() {
    let room = room();
    let worker = Worker::start().await;
    worker.say("/health", 200, "");
    worker.hang("/metrics");
    worker.hang("/v1/models");
    let name = room.add(&worker.url()).name;
    room.becomes(&name, Availability::Ready).await;
    let seen = room.fleet.seen("p", &name).unwrap().1;
    assert_eq!(seen.probe.as_deref(), Some("ready; lists no models"));
    assert!(
        room.view(&name).view.gauges.is_none(),
        "unknown is not zero"
    );
}

#[tokio::test]
async fn a_scrape_becomes_a_report() {
    let room = room();
    let worker = Worker::ready(&["m"]).await;
    worker.say(
        "/metrics",
        200,
        "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"m\"} 3\n\
         vllm:num_requests_waiting{model_name=\"m\"} 2\n",
    );
    let name = room.add(&worker.url()).name;
    let (gauges, _) = until("a report", || room.view(&name).view.gauges).await;
    assert_eq!((gauges.running, gauges.waiting), (Some(3), Some(2)));
    assert_eq!(gauges.kv_usage, None);
    let engine = room.fleet.seen("p", &name).unwrap().1.engine;
    assert_eq!(engine, Some(maitred_engine::EngineKind::Vllm));
}

/// Where each slot keeps one conversation, the engine says how many it has; a new start may have another
/// number, and what is configured goes before both.
#[tokio::test]
async fn slots_are_those_that_the_engine_has() {
    let room = room();
    let worker = Worker::ready(&["m"]).await;
    worker.say(
        "/v1/models",
        200,
        r#"{"object":"list","data":[{"id":"m","owned_by":"llamacpp"}]}"#,
    );
    worker.say("/props", 200, r#"{"total_slots":3}"#);
    let name = room.add(&worker.url()).name;
    room.becomes(&name, Availability::Ready).await;
    let seats = |name: &str| room.view(name).view.seats;
    assert_eq!(
        (seats(&name).slots, seats(&name).cache_slots),
        (Some(3), Some(3))
    );
    // It is away, and comes back with another number.
    worker.say("/props", 200, r#"{"total_slots":5}"#);
    worker.say("/health", 503, "Loading model");
    let probed = || {
        room.fleet
            .seen("p", &name)?
            .1
            .probe
            .filter(|p| p == "loading")
    };
    until("a new start", probed).await;
    worker.say("/health", 200, "");
    until("the new number", || {
        (seats(&name).slots == Some(5)).then_some(())
    })
    .await;
    // What is no answer changes nothing, and who has set a number is not asked for it.
    let mut set = room.pool.settings.worker(&worker.url()).unwrap();
    set.name = "set".to_owned();
    set.seats.slots = Some(2);
    room.fleet.add(&room.pool, &set).unwrap();
    room.becomes("set", Availability::Ready).await;
    assert_eq!(
        (seats("set").slots, seats("set").cache_slots),
        (Some(2), Some(2))
    );
}

#[tokio::test]
async fn tasks_end_with_their_workers() {
    let room = room();
    let worker = Worker::ready(&["m"]).await;
    let url = worker.url();
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for round in 0..1_000 {
        let name = room.add(&url).name;
        if round % 100 == 0 {
            room.becomes(&name, Availability::Ready).await;
        }
        room.fleet.remove(&room.pool, &name).unwrap();
        tokio::task::yield_now().await;
    }
    assert_eq!(room.fleet.tasks(), 0);
    assert!(room.pool.views().is_empty());
    until("the tasks' end", || (tasks() <= before + 2).then_some(())).await;
}

#[tokio::test]
async fn a_probe_has_bounds() {
    let worker = Worker::start().await;
    worker.say("/big", 200, &"x".repeat(10_000));
    worker.hang("/slow");
    let url = WorkerUrl::parse(&worker.url()).unwrap();
    let short = Duration::from_millis(20);
    let long = Duration::from_secs(60);
    assert!(get(&url, "/big", None, long, 9_999).await.is_err());
    let whole = get(&url, "/big", None, long, 10_000).await.unwrap();
    assert_eq!((whole.status, whole.body.len()), (200, 10_000));
    let slow = get(&url, "/slow", None, short, 10).await.unwrap_err();
    assert_eq!(slow.to_string(), "no answer within 20ms");
}
