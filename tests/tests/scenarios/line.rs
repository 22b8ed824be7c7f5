//! Who waits, who is refused, and what they are told.

use crate::{chat, serve, serve_file};
use maitred_tests::{Gate, Step, Worker, json_answer, request};
use serde_json::json;
use std::time::Duration;

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
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    tokio::time::sleep(Duration::from_millis(10)).await;

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

/// Overload showed as a spike of 500: what expired or left before it had a place in the queue was
/// mapped to whatever was left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overload_is_only_ever_served_or_told_429() {
    let mut steps = vec![Step::Delay(Duration::from_millis(20))];
    steps.extend(json_answer(200, "{}"));
    let worker = Worker::start(steps).await;
    let lines = ["slots: 1", "fairness: fcfs", "max_wait: 100ms"];
    let served = serve(&[&worker], &lines).await;
    let addr = served.addr;
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..1_000 {
        clients.spawn(async move {
            let mut client = maitred_tests::Client::connect(addr).await;
            let ask = request("POST", CHAT, &[], chat(&number.to_string()));
            if number % 10 == 0 {
                client.send(ask).await;
                return None;
            }
            let answer = client.exchange(&ask).await;
            let reason = answer.header("x-maitred-reason").map(str::to_owned);
            let again = answer.header("retry-after").is_some();
            Some((answer.status(), reason, again))
        });
    }
    let (mut good, mut expired) = (0, 0);
    while let Some(answer) = clients.join_next().await {
        match answer.unwrap() {
            Some((200, None, _)) => good += 1,
            Some((429, Some(reason), again)) => {
                assert_eq!((reason.as_str(), again), ("ttl-expired", false));
                expired += 1;
            }
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
    assert_eq!(good + expired, 900);
    assert!(good > 0 && expired > 0, "{good} served, {expired} expired");
    let known = ["served", "refused", "cancelled"];
    // Who leaves before it was read is nobody.
    let records = || served.records();
    maitred_tests::eventually("all are recorded", || records().len() >= 900).await;
    for record in records() {
        assert!(
            known.contains(&record["outcome"].as_str().unwrap()),
            "{record}"
        );
    }
}

/// One status and one text for all: callers could not tell why they were not served.
#[tokio::test]
async fn each_refusal_has_a_word_of_its_own_and_the_documents_list_it() {
    let gate = Gate::new();
    let worker = held(&gate).await;
    let text = format!(
        "limits: {{ body_max_bytes: 64KiB }}\npools:\n  - {{ name: p, model: m, slots: 1, line_max: 1, max_wait: 1s, workers: ['{}'] }}\n  \
         - {{ name: q, model: nobody, no_worker_wait: 0s }}\n",
        worker.url()
    );
    let served = serve_file(&text, 1).await;
    let mut running = served.client().await;
    running
        .send(request("POST", CHAT, &[], chat("first")))
        .await;
    gate.wait_for_waiting(1).await;
    let mut waiting = served.client().await;
    waiting
        .send(request("POST", CHAT, &[], chat("second")))
        .await;
    crate::fleet::wait_for_line(&served, 1).await;
    let nobody = chat("fourth").replace("\"m\"", "\"nobody\"");
    let mut told = Vec::new();
    for (body, status) in [
        (chat("third"), 429),
        (nobody, 503),
        (chat(&"long ".repeat(20_000)), 413),
    ] {
        let answer = served.post(CHAT, body).await;
        assert_eq!(answer.status(), status, "{}", answer.text());
        told.push(answer);
    }
    told.push(waiting.read_response().await);
    let words: Vec<&str> = told
        .iter()
        .map(|answer| answer.header("x-maitred-reason").unwrap())
        .collect();
    let expected = ["queue-full", "no-workers", "body-too-large", "ttl-expired"];
    assert_eq!(words, expected);
    let documents = include_str!("../../../docs/tenants.md");
    for answer in &told {
        let word = answer.header("x-maitred-reason").unwrap();
        assert_eq!(answer.json()["error"]["code"], word);
        assert!(documents.contains(&format!("`{word}`")), "{word}");
    }
    gate.open();
    assert_eq!(running.read_response().await.status(), 200);
}
