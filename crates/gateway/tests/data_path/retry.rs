//! Another worker is tried only while nothing reached the client, and never the same one.

use crate::{CHAT, PATH, at_rest, attempts, client, room};
use maitred_records::Outcome;
use maitred_tests::{Script, Step, Worker, json_answer, request};
use std::time::Duration;

#[tokio::test]
async fn another_worker_serves_what_the_first_could_not() {
    let bad = Worker::start(Script::each(vec![Step::Reset])).await;
    let full = Worker::start(Script::each(json_answer(503, "{}"))).await;
    let good = Worker::start(Script::ok()).await;
    let running = room(&[&bad, &full, &good], |_| {}).await;
    let mut retried = 0;
    for turn in 0..20 {
        let id = format!("r{turn}");
        let sent = request("POST", PATH, &[("x-request-id", &id)], CHAT);
        let response = client(&running).await.exchange(&sent).await;
        assert_eq!(response.status(), 200);
        let tried = attempts(&running, &id, 1).await;
        let mut workers: Vec<_> = tried.iter().filter_map(|a| a.worker.clone()).collect();
        assert_eq!(
            workers.last().map(|w| w.as_str().to_owned()),
            Some("w3".to_owned())
        );
        assert!(
            tried
                .iter()
                .rev()
                .skip(1)
                .all(|a| a.outcome == Outcome::Retried)
        );
        retried += tried.len() - 1;
        let count = workers.len();
        workers.sort();
        workers.dedup();
        assert_eq!(workers.len(), count, "no worker twice");
    }
    assert!(retried > 0);
    at_rest(&running).await;
}

#[tokio::test]
async fn a_full_worker_is_relayed_when_no_other_is_left_and_is_not_shut_out() {
    let mut steps = vec![];
    for _ in 0..10 {
        let mut refusal = json_answer(503, r#"{"error":{"message":"queue full"}}"#);
        if let Some(Step::Head(_, fields)) = refusal.first_mut() {
            fields.push(("retry-after".to_owned(), "7".to_owned()));
        }
        steps.push(refusal);
    }
    steps.push(json_answer(200, "{}"));
    let worker = Worker::start(Script::sequence(steps)).await;
    let running = room(&[&worker], |_| {}).await;
    let mut client = client(&running).await;
    for _ in 0..10 {
        let response = client.post(PATH, CHAT).await;
        assert_eq!(response.status(), 503);
        assert_eq!(response.text(), r#"{"error":{"message":"queue full"}}"#);
        assert_eq!(response.head.header("retry-after"), Some("7"));
    }
    assert_eq!(client.post(PATH, CHAT).await.status(), 200);
    at_rest(&running).await;
}

#[tokio::test]
async fn an_idle_connection_that_the_worker_closed_costs_nothing() {
    // The worker closes each connection with its answer sent and says nothing of it.
    let mut steps = json_answer(200, "{}");
    steps.push(Step::Close);
    let worker = Worker::start(Script::each(steps)).await;
    let running = room(&[&worker], |_| {}).await;
    let mut client = client(&running).await;
    for turn in 0..50 {
        assert_eq!(client.post(PATH, CHAT).await.status(), 200, "turn {turn}");
        if turn % 10 == 0 {
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }
    assert_eq!(worker.count(), 50);
    at_rest(&running).await;
}

#[tokio::test]
async fn connections_are_used_again() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |_| {}).await;
    let mut client = client(&running).await;
    for _ in 0..20 {
        assert_eq!(client.post(PATH, CHAT).await.status(), 200);
    }
    let used: Vec<usize> = worker.requests().iter().map(|r| r.connection).collect();
    assert!(used.iter().all(|c| *c == used[0]), "{used:?}");
}

#[tokio::test]
async fn each_limit_of_time_is_its_own() {
    let answer = json_answer(200, "{}");
    let mut late = vec![Step::Delay(Duration::from_millis(300))];
    late.extend(answer.clone());
    let worker = Worker::start(Script::each(late)).await;
    let running = room(&[&worker], |c| {
        c.timeouts.first_byte = Duration::from_millis(50);
    })
    .await;
    let sent = request("POST", PATH, &[("x-request-id", "late")], CHAT);
    let response = client(&running).await.exchange(&sent).await;
    assert_eq!(response.status(), 504);
    assert_eq!(
        response.head.header("x-maitred-reason"),
        Some("first-byte-timeout")
    );
    worker.wait_for_cancels(1).await;

    let events = [
        ("content-type", "text/event-stream"),
        ("transfer-encoding", "chunked"),
    ];
    let event = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    // A long wait before the first event, and comments all the while: first_byte allows it.
    let mut steps = vec![
        Step::head(200, &events),
        Step::Delay(Duration::from_millis(200)),
        Step::chunk(event),
    ];
    for _ in 0..20 {
        steps.push(Step::Delay(Duration::from_millis(20)));
        steps.push(Step::chunk(": alive\n\n"));
    }
    steps.push(Step::Hang);
    worker.set_script(Script::each(steps));
    let running = room(&[&worker], |c| {
        c.timeouts.first_byte = Duration::from_secs(30);
        c.timeouts.idle = Duration::from_millis(100);
    })
    .await;
    let sent = request(
        "POST",
        PATH,
        &[("x-request-id", "idle")],
        crate::CHAT_STREAM,
    );
    let response = client(&running).await.exchange(&sent).await;
    assert!(!response.complete);
    assert!(
        response.text().contains("idle-timeout"),
        "{}",
        response.text()
    );
    let record = &attempts(&running, "idle", 1).await[0];
    assert_eq!(record.failure.as_deref(), Some("idle_timeout"));
    at_rest(&running).await;
}
