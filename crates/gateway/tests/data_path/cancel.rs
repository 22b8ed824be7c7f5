//! A client that leaves is noticed at every stage: the worker is told, the lease comes back.

use crate::{CHAT, CHAT_STREAM, PATH, at_rest, attempts, client, room};
use maitred_records::Outcome;
use maitred_tests::{Gate, Script, Step, Worker, eventually, json_answer, request, sse_event};
use std::time::Duration;

fn tagged(id: &str, body: &str) -> Vec<u8> {
    request("POST", PATH, &[("x-request-id", id)], body)
}

#[tokio::test]
async fn while_the_worker_has_not_answered() {
    let worker = Worker::start(Script::each(vec![Step::Hang])).await;
    let running = room(&[&worker], |_| {}).await;
    let mut client = client(&running).await;
    client.send(tagged("a", CHAT)).await;
    worker.wait_for_requests(1).await;
    drop(client);
    worker.wait_for_cancels(1).await;
    let record = &attempts(&running, "a", 1).await[0];
    assert_eq!(record.outcome, Outcome::Cancelled);
    assert_eq!(record.failure.as_deref(), Some("waiting"));
    at_rest(&running).await;
}

#[tokio::test]
async fn in_the_middle_of_a_silent_stream() {
    let worker = Worker::start(Script::each(vec![
        Step::head(
            200,
            &[
                ("content-type", "text/event-stream"),
                ("transfer-encoding", "chunked"),
            ],
        ),
        Step::chunk(sse_event(r#"{"choices":[{"delta":{"content":"a"}}]}"#)),
        Step::Hang,
    ]))
    .await;
    let running = room(&[&worker], |_| {}).await;
    let mut client = client(&running).await;
    client.send(tagged("b", CHAT_STREAM)).await;
    client.read_head().await;
    client.read_piece().await.unwrap();
    drop(client);
    worker.wait_for_cancels(1).await;
    let record = &attempts(&running, "b", 1).await[0];
    assert_eq!(record.outcome, Outcome::Cancelled);
    assert_eq!(record.failure.as_deref(), Some("streaming"));
    at_rest(&running).await;
}

#[tokio::test]
async fn in_the_line() {
    let gate = Gate::new();
    let mut steps = vec![Step::Wait(gate.clone())];
    steps.extend(json_answer(200, "{}"));
    let worker = Worker::start(Script::each(steps)).await;
    let running = room(&[&worker], |c| {
        c.pools[0].workers[0].seats.slots = Some(1);
    })
    .await;
    let mut first = client(&running).await;
    first.send(tagged("c1", CHAT)).await;
    worker.wait_for_requests(1).await;
    let mut second = client(&running).await;
    second.send(tagged("c2", CHAT)).await;
    let pool = &running.gateway.pools[0];
    eventually("the second waits", || {
        pool.driver.read(|s| s.line_len()) == 1
    })
    .await;
    drop(second);
    eventually("the line is empty", || {
        pool.driver.read(|s| s.line_len()) == 0
    })
    .await;
    let record = &attempts(&running, "c2", 1).await[0];
    assert_eq!(record.failure.as_deref(), Some("queued"));
    gate.open();
    assert_eq!(first.read_response().await.status(), 200);
    assert_eq!(worker.count(), 1);
    at_rest(&running).await;
}

#[tokio::test]
async fn in_the_middle_of_the_upload() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |_| {}).await;
    let mut client = client(&running).await;
    client
        .send(format!(
            "POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{{"
        ))
        .await;
    drop(client);
    let open = &running.gateway;
    eventually("it is gone", || open.pools[0].driver.live() == 0).await;
    assert_eq!(worker.count(), 0);
}

#[tokio::test]
async fn a_client_that_closes_its_sending_side_counts_as_gone_unless_tolerated() {
    for tolerate in [false, true] {
        let gate = Gate::new();
        let mut steps = vec![Step::Wait(gate.clone())];
        steps.extend(json_answer(200, "{}"));
        let worker = Worker::start(Script::each(steps)).await;
        let running = room(&[&worker], |c| c.tolerate_half_close = tolerate).await;
        let mut client = client(&running).await;
        client.send(tagged("half", CHAT)).await;
        worker.wait_for_requests(1).await;
        client.half_close().await;
        if tolerate {
            gate.open();
            let response = client.read_response().await;
            assert_eq!((response.status(), response.text().as_str()), (200, "{}"));
        } else {
            worker.wait_for_cancels(1).await;
            let record = &attempts(&running, "half", 1).await[0];
            assert_eq!(record.outcome, Outcome::Cancelled);
        }
        at_rest(&running).await;
    }
}

#[tokio::test]
async fn hundreds_at_random_stages_leave_nothing_behind() {
    let worker = Worker::start(Script::by(|r| {
        let mut steps = vec![Step::Delay(Duration::from_millis((r.number % 7) as u64))];
        steps.push(Step::head(
            200,
            &[
                ("content-type", "text/event-stream"),
                ("transfer-encoding", "chunked"),
            ],
        ));
        for _ in 0..5 {
            steps.push(Step::chunk(sse_event(
                r#"{"choices":[{"delta":{"content":"a"}}]}"#,
            )));
            steps.push(Step::Delay(Duration::from_millis(2)));
        }
        steps.push(Step::chunk(sse_event("[DONE]")));
        steps.push(Step::End);
        steps
    }))
    .await;
    let running = room(&[&worker], |c| {
        c.threads = 2;
        c.pools[0].workers[0].seats.slots = Some(8);
    })
    .await;
    let mut clients = tokio::task::JoinSet::new();
    for n in 0..300_u64 {
        let data = running.data;
        clients.spawn(async move {
            let mut client = maitred_tests::Client::connect(data).await;
            client.send(request("POST", PATH, &[], CHAT_STREAM)).await;
            tokio::time::sleep(Duration::from_millis(n % 41)).await;
            client.abort();
        });
    }
    while clients.join_next().await.is_some() {}
    at_rest(&running).await;
    assert_eq!(
        client(&running)
            .await
            .post(PATH, CHAT_STREAM)
            .await
            .status(),
        200
    );
    at_rest(&running).await;
}

#[tokio::test]
async fn a_removed_workers_streams_end_and_its_successor_starts_at_zero() {
    let script = Script::each(vec![
        Step::head(
            200,
            &[
                ("content-type", "text/event-stream"),
                ("transfer-encoding", "chunked"),
            ],
        ),
        Step::chunk(sse_event(r#"{"choices":[{"delta":{"content":"a"}}]}"#)),
        Step::Hang,
    ]);
    let worker = Worker::start(script).await;
    let running = room(&[&worker], |_| {}).await;
    let mut client = client(&running).await;
    client.send(tagged("r", CHAT_STREAM)).await;
    let head = client.read_head().await;
    client.read_piece().await.unwrap();
    let pool = &running.gateway.pools[0];
    let settings = running.gateway.config.pools[0].workers[0].clone();
    running.gateway.fleet.remove(pool, "w1").unwrap();
    running.gateway.fleet.add(pool, &settings).unwrap();
    worker.wait_for_cancels(1).await;
    let response = client.finish(head).await;
    assert!(!response.complete);
    at_rest(&running).await;
}

#[tokio::test]
async fn an_http2_stream_that_is_reset() {
    use http_body_util::{BodyExt, Full};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let stream = [
        ("content-type", "text/event-stream"),
        ("transfer-encoding", "chunked"),
    ];
    let worker = Worker::start(Script::sequence(vec![
        vec![Step::Hang],
        vec![
            Step::head(200, &stream),
            Step::chunk(sse_event(r#"{"choices":[{"delta":{"content":"a"}}]}"#)),
            Step::Hang,
        ],
    ]))
    .await;
    let running = room(&[&worker], |_| {}).await;
    let socket = tokio::net::TcpStream::connect(running.data).await.unwrap();
    let (mut send, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket))
            .await
            .unwrap();
    let task = tokio::spawn(connection);
    let ask = || {
        http::Request::post(format!("http://{}{PATH}", running.data))
            .body(Full::new(bytes::Bytes::from_static(CHAT_STREAM.as_bytes())))
            .unwrap()
    };
    let waiting = tokio::spawn(send.send_request(ask()));
    worker.wait_for_requests(1).await;
    waiting.abort();
    worker.wait_for_cancels(1).await;
    let response = send.send_request(ask()).await.unwrap();
    let mut body = response.into_body();
    assert!(body.frame().await.unwrap().is_ok());
    drop(body);
    worker.wait_for_cancels(2).await;
    at_rest(&running).await;
    drop(send);
    task.await.unwrap().unwrap();
}

/// Bytes of a next request wait with the gateway, so that it does not read on to the end.
#[tokio::test]
async fn behind_a_request_that_waits_its_turn() {
    for tolerate in [false, true] {
        let worker = Worker::start(Script::each(vec![Step::Hang])).await;
        let running = room(&[&worker], |c| c.tolerate_half_close = tolerate).await;
        let mut together = client(&running).await;
        together
            .send([tagged("p1", CHAT), tagged("p2", CHAT)].concat())
            .await;
        worker.wait_for_requests(1).await;
        let mut later = client(&running).await;
        later.send(tagged("q1", CHAT)).await;
        worker.wait_for_requests(2).await;
        later.send(tagged("q2", CHAT)).await;
        later.send("GET / HT").await;
        if tolerate {
            // A reset is no half-close.
            together.abort();
            later.half_close().await;
            later.abort();
        } else {
            drop(together);
            later.half_close().await;
        }
        worker.wait_for_cancels(2).await;
        for id in ["p1", "q1"] {
            let record = &attempts(&running, id, 1).await[0];
            assert_eq!(record.outcome, Outcome::Cancelled);
            assert_eq!(record.failure.as_deref(), Some("waiting"));
        }
        at_rest(&running).await;
        assert_eq!(worker.count(), 2, "nobody is left to read a second answer");
    }
}

#[tokio::test]
async fn behind_a_request_that_waits_for_a_silent_stream() {
    let head = [
        ("content-type", "text/event-stream"),
        ("transfer-encoding", "chunked"),
    ];
    let worker = Worker::start(Script::each(vec![
        Step::head(200, &head),
        Step::chunk(sse_event(r#"{"choices":[{"delta":{"content":"a"}}]}"#)),
        Step::Hang,
    ]))
    .await;
    let running = room(&[&worker], |_| {}).await;
    let mut client = client(&running).await;
    let both = [tagged("s1", CHAT_STREAM), tagged("s2", CHAT_STREAM)].concat();
    client.send(both).await;
    client.read_head().await;
    client.read_piece().await.unwrap();
    drop(client);
    worker.wait_for_cancels(1).await;
    let record = &attempts(&running, "s1", 1).await[0];
    assert_eq!(record.failure.as_deref(), Some("streaming"));
    at_rest(&running).await;
}

#[tokio::test]
async fn who_sends_ahead_and_stays_gets_every_answer_in_order() {
    let gate = Gate::new();
    let worker = Worker::start(Script::by({
        let gate = gate.clone();
        move |r| {
            let mut steps = vec![Step::Wait(gate.clone())];
            let id = r.header("x-request-id").unwrap_or_default();
            steps.extend(json_answer(200, &format!("{{\"for\":\"{id}\"}}")));
            steps
        }
    }))
    .await;
    for tolerate in [false, true] {
        let running = room(&[&worker], |c| c.tolerate_half_close = tolerate).await;
        let mut client = client(&running).await;
        let all = ["o1", "o2", "o3"].map(|id| tagged(id, CHAT));
        client.send(all.concat()).await;
        worker.wait_for_requests(1).await;
        gate.open();
        if tolerate {
            client.half_close().await;
        }
        for id in ["o1", "o2", "o3"] {
            let response = client.read_response().await;
            assert_eq!(response.text(), format!("{{\"for\":\"{id}\"}}"));
        }
        at_rest(&running).await;
    }
}
