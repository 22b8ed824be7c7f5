//! Load is counted when the decision is made, on every path.
use maitred_tests::{Gate, Script, Step, Worker, eventually, json_answer};

use crate::{burst, chat, serve, statuses};

/// Workers that all wait at one gate before they answer anything.
async fn waiting_workers(count: usize, gate: &Gate) -> Vec<Worker> {
    let mut workers = Vec::new();
    for _ in 0..count {
        let mut steps = vec![Step::Wait(gate.clone())];
        steps.extend(json_answer(200, "{}"));
        workers.push(Worker::start(steps).await);
    }
    workers
}

async fn all_in_flight(workers: &[Worker], count: usize) -> Vec<usize> {
    let in_flight = || workers.iter().map(Worker::in_flight).collect::<Vec<_>>();
    let name = format!("{count} requests in flight");
    eventually(&name, || in_flight().iter().sum::<usize>() == count).await;
    in_flight()
}

/// One engine took all traffic on endpoints that the router had no type for.
#[tokio::test]
async fn unknown_paths_are_counted_as_load() {
    let gate = Gate::new();
    let workers = waiting_workers(8, &gate).await;
    let all: Vec<&Worker> = workers.iter().collect();
    for policy in ["policy: session", "policy: chwbl", "policy: least_load"] {
        let served = serve(&all, &[policy]).await;
        let start = "the same start ".repeat(140);
        let bodies = (0..160)
            .map(|n| format!("{{\"prompt\":\"{start}{n}\"}}"))
            .collect();
        let watch = async {
            let counts = all_in_flight(&workers, 160).await;
            for _ in 0..160 {
                gate.admit(1);
            }
            counts
        };
        let (answers, counts) =
            tokio::join!(burst(&served, "/inference/x/generate", bodies), watch);
        assert!(answers.iter().all(|answer| answer.status() == 200));
        let most = counts.iter().max().unwrap();
        assert!(
            *most <= 25,
            "{policy}: at most 1.25 x the mean of 20, but {counts:?}"
        );
    }
}

/// Bursts queued on some replicas while others idled: decisions used metrics that lag.
#[tokio::test]
async fn a_burst_spreads_before_any_metric_moves() {
    let gate = Gate::new();
    let workers = waiting_workers(8, &gate).await;
    let all: Vec<&Worker> = workers.iter().collect();
    let served = serve(&all, &["policy: least_load"]).await;
    let bodies = (0..64).map(|n| chat(&format!("question {n}"))).collect();
    let watch = async {
        let counts = all_in_flight(&workers, 64).await;
        gate.open();
        counts
    };
    let (_, counts) = tokio::join!(burst(&served, "/v1/chat/completions", bodies), watch);
    assert!(
        counts.iter().all(|count| (7..=9).contains(count)),
        "{counts:?}"
    );
}

/// Long prompts with one-token answers all hit the first worker: load was counted only at the
/// response's head, and ties fell to the first.
#[tokio::test]
async fn requests_count_before_their_head_comes() {
    let gate = Gate::new();
    let workers = waiting_workers(4, &gate).await;
    let all: Vec<&Worker> = workers.iter().collect();
    let served = serve(&all, &["policy: least_load"]).await;
    let bodies = (0..16).map(|_| chat(&"word ".repeat(2_000))).collect();
    let watch = async {
        let counts = all_in_flight(&workers, 16).await;
        gate.open();
        counts
    };
    let (_, counts) = tokio::join!(burst(&served, "/v1/chat/completions", bodies), watch);
    assert_eq!(counts, [4, 4, 4, 4]);
}

/// The queue stood in the engine: many dispatches happened between two scrapes.
#[tokio::test]
async fn a_worker_never_gets_more_than_its_slots() {
    let gate = Gate::new();
    let workers = waiting_workers(1, &gate).await;
    let served = serve(&[&workers[0]], &["slots: 8"]).await;
    let bodies = (0..100).map(|n| chat(&format!("question {n}"))).collect();
    let watch = async {
        gate.wait_for_waiting(8).await;
        gate.open();
    };
    let (answers, ()) = tokio::join!(burst(&served, "/v1/chat/completions", bodies), watch);
    assert_eq!(statuses(&answers), [200; 100]);
    assert_eq!(workers[0].in_flight_most(), 8);
}

/// Unrelated prompts sent one at a time all went to the first worker: ties by position.
#[tokio::test]
async fn unrelated_prompts_one_at_a_time_spread() {
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(Worker::start(Script::ok()).await);
    }
    let all: Vec<&Worker> = workers.iter().collect();
    for policy in [
        "policy: session",
        "policy: cache_aware",
        "policy: least_load",
    ] {
        let served = serve(&all, &[policy]).await;
        let before: Vec<usize> = workers.iter().map(Worker::count).collect();
        let mut client = served.client().await;
        for n in 0..60 {
            let body = chat(&format!("{n} is the number of this unrelated question"));
            assert_eq!(
                client.post("/v1/chat/completions", body).await.status(),
                200
            );
        }
        let counts: Vec<usize> = workers
            .iter()
            .zip(before)
            .map(|(worker, before)| worker.count() - before)
            .collect();
        assert!(
            counts.iter().all(|&count| count >= 5),
            "{policy}: {counts:?}"
        );
    }
}

/// One conversation more than slots on each engine, and all ran cold: which slot to take went by
/// likeness, and nobody counted the conversations that lived in them.
#[tokio::test]
async fn conversations_share_the_slots_and_the_ninth_goes_where_one_is_idle_longest() {
    let workers = [
        Worker::start(Script::ok()).await,
        Worker::start(Script::ok()).await,
    ];
    let lines = ["engine: llamacpp", "slots: 4"];
    let served = serve(&[&workers[0], &workers[1]], &lines).await;
    let ask = async |name: usize| {
        let answer = served
            .post(
                "/v1/chat/completions",
                chat(&format!("conversation {name}")),
            )
            .await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        answer.head.header("x-maitred-worker").unwrap().to_owned()
    };
    let mut homes = Vec::new();
    for name in 0..8 {
        homes.push(ask(name).await);
    }
    // A while later the first is the one that rested longest.
    for (name, home) in homes.iter().enumerate() {
        assert_eq!(&ask(name).await, home, "conversation {name} stays");
    }
    let first = homes.iter().filter(|home| **home == homes[0]).count();
    assert_eq!(first, 4, "four on each: {homes:?}");
    assert_eq!(ask(8).await, homes[0]);
}
