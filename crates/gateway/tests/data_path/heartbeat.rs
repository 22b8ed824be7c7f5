//! Comments in streams that wait in the line.

use crate::{CHAT, CHAT_STREAM, PATH, at_rest, client, room};
use maitred_gateway::Running;
use maitred_tests::{
    Client, Gate, Head, Script, Step, Worker, eventually, json_answer, request, stream_answer,
};
use serde_json::Value;
use std::time::Duration;

const COMMENT: &[u8] = b": waiting\n\n";
const EVENT: &str = r#"{"choices":[{"delta":{"content":"a"}}]}"#;

/// A worker with one slot that holds its first request at a gate, and then answers so.
async fn busy(then: Vec<Step>) -> (Worker, Gate) {
    let gate = Gate::new();
    let mut first = vec![Step::Wait(gate.clone())];
    first.extend(json_answer(200, "{}"));
    (
        Worker::start(Script::sequence(vec![first, then])).await,
        gate,
    )
}

/// The gateway before it, and the client whose request has the slot.
async fn full(worker: &Worker, gate: &Gate) -> (Running, Client) {
    let running = room(&[worker], |config| {
        let pool = &mut config.pools[0];
        pool.workers[0].seats.slots = Some(1);
        pool.queue_heartbeat = Duration::from_millis(5);
        pool.core.no_worker_wait = Duration::ZERO;
    })
    .await;
    let mut holder = client(&running).await;
    holder.send(request("POST", PATH, &[], CHAT)).await;
    gate.wait_for_waiting(1).await;
    (running, holder)
}

/// A client whose stream waits in the line and has been told so.
async fn waiting(running: &Running, path: &str, body: &str) -> (Client, Head) {
    let mut waiting = client(running).await;
    waiting.send(request("POST", path, &[], body)).await;
    let head = waiting.read_head().await;
    assert_eq!(head.status(), 200);
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    assert!(head.header("x-request-id").is_some());
    for _ in 0..2 {
        assert_eq!(waiting.read_piece().await.unwrap().unwrap(), COMMENT);
    }
    (waiting, head)
}

/// What follows the comments.
fn after_comments(body: &[u8]) -> String {
    let mut rest = body;
    while let Some(next) = rest.strip_prefix(COMMENT) {
        rest = next;
    }
    String::from_utf8(rest.to_vec()).unwrap()
}

#[tokio::test]
async fn a_waiting_stream_is_told_so_until_its_answer_comes() {
    let (worker, gate) = busy(stream_answer([EVENT])).await;
    let (running, mut holder) = full(&worker, &gate).await;
    let (mut stream, head) = waiting(&running, PATH, CHAT_STREAM).await;
    gate.open();
    let answer = stream.finish(head).await;
    assert!(answer.complete);
    assert_eq!(
        after_comments(&answer.body),
        format!("data: {EVENT}\n\ndata: [DONE]\n\n")
    );
    assert_eq!(holder.read_response().await.status(), 200);
    at_rest(&running).await;
}

#[tokio::test]
async fn a_refusal_after_the_head_is_the_familys_error_event() {
    let messages = r#"{"model":"m","max_tokens":8,"stream":true,"messages":[{"role":"user","content":"hello"}]}"#;
    let responses = r#"{"model":"m","stream":true,"input":"hello"}"#;
    let openai = ("/error/code", "no-workers");
    for (path, body, event, (pointer, told)) in [
        (PATH, CHAT_STREAM, "data: ", openai),
        (
            "/v1/messages",
            messages,
            "event: error\ndata: ",
            ("/error/type", "overloaded_error"),
        ),
        (
            "/v1/responses",
            responses,
            "event: error\ndata: ",
            ("/code", "no-workers"),
        ),
    ] {
        let (worker, gate) = busy(stream_answer([EVENT])).await;
        let (running, _holder) = full(&worker, &gate).await;
        let (mut stream, head) = waiting(&running, path, body).await;
        running.gateway.pools[0].remove("w1").unwrap();
        let answer = stream.finish(head).await;
        assert!(!answer.complete, "{path}: no end is invented");
        let text = after_comments(&answer.body);
        let data = text.strip_prefix(event).expect(path).trim_end();
        let data: Value = serde_json::from_str(data).expect(path);
        assert_eq!(data.pointer(pointer).expect(path), told);
        at_rest(&running).await;
    }
}

#[tokio::test]
async fn a_workers_own_error_is_told_in_the_stream() {
    let error = r#"{"error":{"message":"too many tokens","type":"invalid_request_error"}}"#;
    let (worker, gate) = busy(json_answer(400, error)).await;
    let (running, _holder) = full(&worker, &gate).await;
    let (mut stream, head) = waiting(&running, PATH, CHAT_STREAM).await;
    gate.open();
    let answer = stream.finish(head).await;
    let text = after_comments(&answer.body);
    let data: Value = serde_json::from_str(text.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(data["error"]["message"], "too many tokens");
    assert_eq!(data["error"]["type"], "invalid_request_error");
    at_rest(&running).await;
}

#[tokio::test]
async fn other_requests_wait_for_their_head() {
    let (worker, gate) = busy(json_answer(200, r#"{"choices":[]}"#)).await;
    let (running, _holder) = full(&worker, &gate).await;
    let mut plain = client(&running).await;
    plain.send(request("POST", PATH, &[], CHAT)).await;
    // A stream that came after it was told; it was not.
    let (stream, _) = waiting(&running, PATH, CHAT_STREAM).await;
    drop(stream);
    running.gateway.pools[0].remove("w1").unwrap();
    let answer = plain.read_response().await;
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.header("x-maitred-reason"), Some("no-workers"));
    at_rest(&running).await;
}

#[tokio::test]
async fn a_client_that_leaves_its_waiting_stream_leaves_the_line() {
    let (worker, gate) = busy(stream_answer([EVENT])).await;
    let (running, mut holder) = full(&worker, &gate).await;
    let (stream, _) = waiting(&running, PATH, CHAT_STREAM).await;
    let driver = &running.gateway.pools[0].driver;
    assert_eq!(driver.live(), 2);
    drop(stream);
    eventually("it left the line", || driver.live() == 1).await;
    gate.open();
    assert_eq!(holder.read_response().await.status(), 200);
    assert_eq!(worker.count(), 1);
    at_rest(&running).await;
}
