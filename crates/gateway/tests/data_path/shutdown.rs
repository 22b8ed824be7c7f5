//! The end: what runs may finish, nobody else is waited for.

use crate::{CHAT, CHAT_STREAM, PATH, client, room, soon};
use maitred_tests::{Client, Gate, Script, Step, Worker, request, sse_event};
use std::time::Duration;

/// Longer than any test may take: whoever is waited for to the end of it fails the test.
const GRACE: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn those_who_ask_for_nothing_are_not_waited_for() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |_| {}).await;
    let mut silent = client(&running).await;
    let mut idle = client(&running).await;
    assert_eq!(idle.post(PATH, CHAT).await.status(), 200);
    soon(running.shutdown(GRACE)).await;
    soon(silent.closed()).await;
    soon(idle.closed()).await;
}

#[tokio::test]
async fn a_running_stream_is_given_its_time_and_new_guests_are_not_taken() {
    let event = sse_event(r#"{"choices":[{"delta":{"content":"a"}}]}"#);
    let gate = Gate::new();
    let worker = Worker::start(Script::each(vec![
        Step::head(
            200,
            &[
                ("content-type", "text/event-stream"),
                ("transfer-encoding", "chunked"),
            ],
        ),
        Step::chunk(event.clone()),
        Step::Wait(gate.clone()),
        Step::chunk(sse_event("[DONE]")),
        Step::End,
    ]))
    .await;
    let running = room(&[&worker], |_| {}).await;
    let data = running.data;
    let mut streaming = client(&running).await;
    streaming
        .send(request("POST", PATH, &[], CHAT_STREAM))
        .await;
    let head = streaming.read_head().await;
    assert_eq!(
        streaming.read_piece().await.unwrap().unwrap(),
        event.as_bytes()
    );
    let ending = tokio::spawn(running.shutdown(GRACE));
    soon(async {
        while tokio::net::TcpStream::connect(data).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(!ending.is_finished());
    gate.open();
    let rest: maitred_tests::Response = Client::finish(&mut streaming, head).await;
    assert!(rest.complete && rest.text().contains("[DONE]"));
    soon(ending).await.unwrap();
}

#[tokio::test]
async fn what_outlasts_the_grace_breaks_off_openly() {
    let worker = Worker::start(Script::each(vec![Step::Hang])).await;
    let running = room(&[&worker], |_| {}).await;
    let mut waiting = client(&running).await;
    waiting.send(request("POST", PATH, &[], CHAT)).await;
    worker.wait_for_requests(1).await;
    soon(running.shutdown(Duration::ZERO)).await;
    assert!(soon(waiting.closed()).await.is_empty());
    worker.wait_for_cancels(1).await;
}
