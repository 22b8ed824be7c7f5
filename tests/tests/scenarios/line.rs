//! Who waits, who is refused, and what they are told.

use crate::{chat, serve};
use maitred_tests::{Gate, Step, Worker, json_answer, request};
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";

/// A worker whose answers all wait at the gate.
async fn held(gate: &Gate) -> Worker {
    let mut steps = vec![Step::Wait(gate.clone())];
    steps.extend(json_answer(200, "{}"));
    Worker::start(steps).await
}

/// Newcomers were refused after they had waited; who would start too late is to know it at once.
#[tokio::test]
async fn a_newcomer_who_would_start_too_late_is_told_so_at_the_door() {
    let gate = Gate::new();
    let worker = held(&gate).await;
    let lines = [
        "slots: 1",
        "fairness: { name: promise, start_within_seconds: 0.001 }",
        "max_wait: 10m",
    ];
    let served = serve(&[&worker], &lines).await;
    let mut running = served.client().await;
    running
        .send(request("POST", CHAT, &[], chat("first")))
        .await;
    gate.wait_for_waiting(1).await;
    // Of the wait nothing is known yet: the second is let in, and sees nobody go.
    let mut waiting = served.client().await;
    waiting
        .send(request("POST", CHAT, &[], chat("second")))
        .await;
    maitred_tests::within("it waits", async {
        while served.metric("maitred_line_waiting{").await < 1.0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
    tokio::time::sleep(std::time::Duration::from_millis(10)).await;

    let message = json!([{ "role": "user", "content": "third" }]);
    let messages = json!({ "model": "m", "max_tokens": 8, "messages": message }).to_string();
    let responses = json!({ "model": "m", "input": "third", "stream": true }).to_string();
    for (path, body, (pointer, told)) in [
        (CHAT, chat("third"), ("/error/code", "start-too-late")),
        (
            "/v1/responses",
            responses,
            ("/error/code", "start-too-late"),
        ),
        (
            "/v1/messages",
            messages,
            ("/error/type", "rate_limit_error"),
        ),
    ] {
        let answer = served.post(path, body).await;
        assert_eq!(answer.status(), 429, "{path}");
        assert_eq!(answer.header("x-maitred-reason"), Some("start-too-late"));
        let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!(wait >= 1, "{path}");
        assert_eq!(answer.json().pointer(pointer).unwrap(), told, "{path}");
    }
    assert_eq!(worker.count(), 1, "they waited for nobody");
    gate.open();
    for client in [&mut running, &mut waiting] {
        assert_eq!(client.read_response().await.status(), 200);
    }
}
