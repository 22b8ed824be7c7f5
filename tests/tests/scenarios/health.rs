//! Who is up, who only seems to be down, and what a request does meanwhile.
use std::time::Duration;

use maitred_tests::{Script, Step, Worker, eventually, json_answer, sse_event};
use serde_json::json;

use crate::{burst, chat, serve, serve_file, statuses};

const CHAT: &str = "/v1/chat/completions";

/// A saturated engine was shut out for the whole cool-down: its queue-full answer counted as a
/// fault.
async fn saturated(status: u16, count: usize) {
    let full = json_answer(status, r#"{"error":{"message":"queue full"}}"#);
    let worker = Worker::start(full).await;
    let served = serve(&[&worker], &["breaker: { faults: 3, open: 60s }"]).await;
    for n in 0..count {
        let answer = served.post(CHAT, chat(&n.to_string())).await;
        assert_eq!(answer.status(), status, "{}", answer.text());
    }
    assert!(
        worker.count() >= count,
        "each was tried: {}",
        worker.count()
    );
    worker.set_script(Script::ok());
    assert_eq!(served.post(CHAT, chat("and now")).await.status(), 200);
}

#[tokio::test]
async fn a_full_worker_does_not_open_the_breaker() {
    saturated(503, 5).await;
}

#[tokio::test]
async fn a_limiting_worker_does_not_open_the_breaker() {
    saturated(429, 5).await;
}

/// A few bad requests made healthy workers unavailable for all: 4xx counted as a fault.
#[tokio::test]
async fn client_errors_do_not_open_the_breaker() {
    let bad = json_answer(400, r#"{"error":{"message":"max_tokens is too large"}}"#);
    let worker = Worker::start(bad).await;
    let served = serve(&[&worker], &["breaker: { faults: 3, open: 60s }"]).await;
    for n in 0..20 {
        let answer = served.post(CHAT, chat(&n.to_string())).await;
        assert_eq!(answer.status(), 400);
        assert_eq!(answer.json()["error"]["message"], "max_tokens is too large");
    }
    assert_eq!(worker.count(), 20, "a deterministic error is not retried");
    worker.set_script(Script::ok());
    assert_eq!(served.post(CHAT, chat("good")).await.status(), 200);
}

/// A busy worker was declared dead during a long prefill: health depended on an answer in time.
#[tokio::test]
async fn a_worker_that_streams_is_alive_whatever_its_probe_says() {
    let mut ticks = vec![Step::head(
        200,
        &[
            ("content-type", "text/event-stream"),
            ("transfer-encoding", "chunked"),
        ],
    )];
    for _ in 0..400 {
        ticks.push(Step::chunk(sse_event("{}")));
        ticks.push(Step::Delay(Duration::from_millis(20)));
    }
    let worker = Worker::start(Script::by(move |request| {
        if request.target() == "/tick" {
            ticks.clone()
        } else {
            json_answer(200, "{}")
        }
    }))
    .await;
    let served = serve(
        &[&worker],
        &["probe: { interval: 50ms, timeout: 100ms, failures: 2 }"],
    )
    .await;

    let mut stream = served.client().await;
    stream
        .send(maitred_tests::request("POST", "/tick", &[], "{}"))
        .await;
    stream.read_head().await;
    worker.answer("/health", vec![Step::Hang]);
    let probed = worker.probes("/health");
    eventually("five probes to hang", || {
        worker.probes("/health") >= probed + 5
    })
    .await;
    assert_eq!(served.post(CHAT, chat("now")).await.status(), 200);
    assert!(
        stream.read_piece().await.unwrap().is_some(),
        "the stream goes on"
    );
}

/// The last worker is never taken away by probes alone: where connects succeed, it is tried.
#[tokio::test]
async fn the_last_worker_is_tried_although_its_probes_fail() {
    let worker = Worker::start(Script::ok()).await;
    let served = serve(&[&worker], &["no_worker_wait: 100ms"]).await;
    worker.answer("/health", vec![Step::Hang]);
    let probed = worker.probes("/health");
    eventually("five probes to hang", || {
        worker.probes("/health") >= probed + 5
    })
    .await;
    assert_eq!(served.post(CHAT, chat("now")).await.status(), 200);
}

/// The router refused to start because one worker was down or slow to load.
#[tokio::test]
async fn starts_with_those_that_are_there_and_late_ones_join() {
    let first = Worker::start(Script::ok()).await;
    let second = Worker::start(Script::ok()).await;
    let late = Worker::start(Script::ok()).await;
    let late_addr = late.addr();
    let late_url = late.url();
    late.kill().await;

    let urls = json!([first.url(), second.url(), late_url]);
    let text = format!(
        "pools:\n  - name: p\n    policy: round_robin\n    workers: {urls}\n    probe: {{ interval: 100ms, interval_down: 50ms }}\n"
    );
    let served = serve_file(&text, 2).await;
    let bodies: Vec<String> = (0..8).map(|n| chat(&n.to_string())).collect();
    assert_eq!(
        statuses(&burst(&served, CHAT, bodies.clone()).await),
        [200; 8]
    );

    let late = Worker::start_on(late_addr, Script::ok()).await;
    served.wait_for_ready(3).await;
    assert_eq!(statuses(&burst(&served, CHAT, bodies).await), [200; 8]);
    assert!(late.count() > 0);
}

/// Requests failed while a model loaded: the model list answers before the model is ready.
#[tokio::test]
async fn a_loading_worker_gets_nothing_until_it_is_ready() {
    let worker = Worker::start(Script::ok()).await;
    worker.loading();
    let urls = json!([worker.url()]);
    let text = format!(
        "pools:\n  - name: p\n    workers: {urls}\n    breaker: {{ faults: 1, open: 60s }}\n    probe: {{ interval_down: 50ms, path: /health }}\n"
    );
    let served = serve_file(&text, 0).await;
    let addr = served.addr;
    let asked = tokio::spawn(async move {
        maitred_tests::Client::connect(addr)
            .await
            .post(CHAT, chat("early"))
            .await
    });
    let probed = worker.probes("/health");
    eventually("four probes", || worker.probes("/health") >= probed + 4).await;
    assert_eq!(worker.count(), 0, "nothing is sent before it is ready");
    worker.healthy();
    assert_eq!(asked.await.unwrap().status(), 200);
    assert_eq!(worker.count(), 1);
}

/// Requests queued at zero replicas were never sent: candidates were frozen at arrival.
#[tokio::test]
async fn a_request_waits_for_the_first_worker_to_be_added() {
    let served = serve_file("pools:\n  - name: p\n    no_worker_wait: 30s\n", 0).await;
    let bodies: Vec<String> = (0..5).map(|n| chat(&n.to_string())).collect();
    let worker = Worker::start(Script::ok()).await;
    let add = async {
        crate::fleet::wait_for_line(&served, 5).await;
        crate::fleet::add(&served, &worker).await;
    };
    let (answers, ()) = tokio::join!(burst(&served, CHAT, bodies), add);
    assert_eq!(statuses(&answers), [200; 5]);
    assert_eq!(worker.count(), 5);
}

/// One late metrics scrape blocked a healthy single-worker pool.
#[tokio::test]
async fn a_scrape_that_hangs_stops_nothing() {
    let worker = Worker::start(Script::ok()).await;
    worker.answer("/metrics", vec![Step::Hang]);
    let lines = [
        "scrape: { interval: 50ms, timeout: 200ms }",
        "stale_after: 300ms",
    ];
    let served = serve(&[&worker], &lines).await;
    eventually("two scrapes", || worker.probes("/metrics") >= 2).await;
    let bodies = (0..20).map(|n| chat(&n.to_string())).collect();
    assert_eq!(statuses(&burst(&served, CHAT, bodies).await), [200; 20]);
    assert_eq!(served.metric("maitred_worker_report_stale").await, 1.0);
    eventually("all are recorded", || served.records().len() == 20).await;
    for record in served.records() {
        // Seated in the moment it came, and known to be without a fresh report.
        assert_eq!(
            (&record["queue_ms"], &record["stale"]),
            (&json!(0.0), &json!(true))
        );
    }
}
