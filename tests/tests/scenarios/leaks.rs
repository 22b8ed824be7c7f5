//! Whatever way a request ends, its lease, its place in the line and its worker's time are free.
use maitred_tests::{Client, Gate, Script, Step, Worker, json_answer, request, sse_event};

use crate::{Served, chat, serve, statuses};

const CHAT: &str = "/v1/chat/completions";

/// Waits until nothing is counted as running, dispatched, resident or waiting.
async fn wait_until_empty(served: &Served) {
    let gauges = [
        "maitred_worker_running",
        "maitred_worker_prefill_tokens",
        "maitred_worker_resident_tokens",
        "maitred_line_requests",
        "maitred_connections{",
        "maitred_connections ",
    ];
    maitred_tests::within("every count to be zero again", async {
        for gauge in gauges {
            while served.metric(gauge).await != 0.0 {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
    })
    .await;
}

/// Phantom requests piled up on workers: each stage of a request that a client can leave at.
#[tokio::test]
async fn clients_that_leave_at_any_stage_leave_nothing_behind() {
    let stream = [
        ("content-type", "text/event-stream"),
        ("transfer-encoding", "chunked"),
    ];
    let never = Gate::new();
    let silent = vec![Step::Wait(never.clone())];
    let begun = vec![Step::head(200, &stream), Step::Hang];
    let mid = vec![
        Step::head(200, &stream),
        Step::chunk(sse_event("{}")),
        Step::Wait(never.clone()),
    ];
    let worker = Worker::start(Script::by(move |request| match request.target() {
        "/silent" => silent.clone(),
        "/begun" => begun.clone(),
        "/mid" => mid.clone(),
        _ => json_answer(200, "{}"),
    }))
    .await;
    let served = serve(&[&worker], &["slots: 8"]).await;
    let body = chat("leaving");
    for _ in 0..10 {
        let mut leaving = Vec::new();
        for path in ["/silent", "/begun", "/mid"] {
            for _ in 0..5 {
                let mut client = served.client().await;
                client.send(request("POST", path, &[], &body)).await;
                leaving.push(client);
            }
        }
        // 8 hold the slots, 7 wait in the line.
        maitred_tests::eventually("the slots to fill", || worker.in_flight() == 8).await;
        crate::fleet::wait_for_line(&served, 7).await;
        for cut in [10, 90, 150] {
            let mut client = served.client().await;
            let whole = request("POST", CHAT, &[], &body);
            client.send(&whole[..cut.min(whole.len() - 1)]).await;
            leaving.push(client);
        }
        let before = worker.cancelled().len();
        for (index, client) in leaving.into_iter().enumerate() {
            if index % 2 == 0 {
                client.abort();
            } else {
                drop(client);
            }
        }
        worker.wait_for_cancels(before + 1).await;
        maitred_tests::eventually("every attempt to be cancelled", || worker.in_flight() == 0)
            .await;
        worker_settles(&served, &worker).await;
    }
    wait_until_empty(&served).await;
    assert_eq!(served.post(CHAT, body).await.status(), 200);
}

/// Those who were waiting when the others left may be dispatched before their own leaving is
/// seen: the next round starts when all of that is over.
async fn worker_settles(served: &Served, worker: &Worker) {
    wait_until_empty(served).await;
    maitred_tests::eventually("every attempt to be cancelled", || worker.in_flight() == 0).await;
}

/// A limiter drained until it only refused: clients that left kept their seats.
#[tokio::test]
async fn seats_of_clients_that_left_are_free() {
    let gate = Gate::new();
    let mut steps = vec![Step::Wait(gate.clone())];
    steps.extend(json_answer(200, "{}"));
    let worker = Worker::start(steps).await;
    let served = serve(&[&worker], &["slots: 4"]).await;
    let mut leaving = Vec::new();
    for n in 0..40 {
        let mut client = served.client().await;
        client
            .send(request("POST", CHAT, &[], chat(&n.to_string())))
            .await;
        leaving.push(client);
    }
    gate.wait_for_waiting(4).await;
    drop(leaving);
    wait_until_empty(&served).await;

    let addr = served.addr;
    let five: Vec<_> = (0..5)
        .map(|n| {
            tokio::spawn(async move {
                Client::connect(addr)
                    .await
                    .post(CHAT, chat(&format!("late {n}")))
                    .await
            })
        })
        .collect();
    gate.wait_for_waiting(4).await;
    crate::fleet::wait_for_line(&served, 1).await;
    assert_eq!(worker.in_flight(), 4);
    gate.admit(1);
    maitred_tests::eventually("the fifth to start", || gate.waiting() == 4).await;
    gate.open();
    let mut answers = Vec::new();
    for one in five {
        answers.push(one.await.unwrap());
    }
    assert_eq!(statuses(&answers), [200; 5]);
}

/// A re-created worker showed negative load: the end of an old attempt was counted to it.
#[tokio::test]
async fn an_attempt_ends_on_the_worker_it_began_on() {
    let gate = Gate::new();
    let mut steps = vec![Step::Wait(gate.clone())];
    steps.extend(json_answer(200, "{}"));
    let worker = Worker::start(steps).await;
    let served = serve(&[&worker], &[]).await;
    let addr = served.addr;
    let running =
        tokio::spawn(async move { Client::connect(addr).await.post(CHAT, chat("long")).await });
    gate.wait_for_waiting(1).await;
    crate::fleet::remove(&served, &worker).await;
    crate::fleet::add(&served, &worker).await;
    served.wait_for_ready(1).await;
    let load = |workers: Vec<serde_json::Value>| workers[0]["running"].as_u64();
    assert_eq!(load(served.workers().await), Some(0));
    gate.open();
    running.await.unwrap();
    assert_eq!(load(served.workers().await), Some(0));
    assert_eq!(served.post(CHAT, chat("next")).await.status(), 200);
}

/// Prompts ended up in ordinary logs and metrics.
#[tokio::test]
async fn no_prompt_in_logs_or_metrics() {
    const MARK: &str = "ZX-MARK-77";
    let worker = Worker::start(Script::sequence(vec![
        json_answer(200, "{}"),
        json_answer(400, "{}"),
        vec![Step::Reset],
        vec![
            Step::head(200, &[("content-length", "10")]),
            Step::raw("ab"),
            Step::Reset,
        ],
    ]))
    .await;
    let served = serve(&[&worker], &["attempts: 1"]).await;
    for _ in 0..4 {
        let _ = served.post(CHAT, chat(MARK)).await;
    }
    let broken = format!("{{\"model\":\"m\",\"messages\":[{{\"content\":\"{MARK}\"");
    assert_eq!(served.post(CHAT, broken).await.status(), 400);
    assert!(!served.log().contains(MARK), "{}", served.log());
    assert!(!served.admin_get("/metrics").await.text().contains(MARK));
    maitred_tests::eventually("the records", || served.records().len() >= 4).await;
    assert!(
        !served
            .records()
            .iter()
            .any(|record| record.to_string().contains(MARK))
    );
}
