//! The scripted worker and the raw client against each other: what the other scenarios rely on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use maitred_tests::{
    Client, Framing, Gate, Script, Step, Worker, json_answer, request, stream_answer, text,
};

#[tokio::test]
async fn records_the_bytes_of_the_wire() {
    let worker = Worker::start(Script::ok()).await;
    let mut client = Client::connect(worker.addr()).await;
    let sent = request(
        "POST",
        "/v1/chat/completions?a=1",
        &[("X-Odd", " v ")],
        "{\"a\": 1}",
    );
    assert_eq!(client.exchange(&sent).await.status(), 200);
    let chunked =
        "POST /x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n";
    assert_eq!(client.exchange(chunked.as_bytes()).await.status(), 200);

    let requests = worker.requests();
    assert_eq!(
        [&requests[0].head.raw[..], &requests[0].body_raw[..]].concat(),
        sent
    );
    assert_eq!(requests[0].target(), "/v1/chat/completions?a=1");
    assert_eq!(requests[1].body, b"abcd");
    assert_eq!(
        text(&requests[1].body_raw),
        "3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n"
    );
    assert_eq!((worker.connections(), worker.finished()), (1, 2));
}

#[tokio::test]
async fn probes_are_counted_apart() {
    let worker = Worker::start(Script::ok()).await;
    let mut client = Client::connect(worker.addr()).await;
    assert_eq!(client.get("/health").await.status(), 200);
    worker.loading();
    assert_eq!(client.get("/health").await.status(), 503);
    worker.models(&["a", "b"]);
    assert_eq!(client.get("/v1/models").await.json()["data"][1]["id"], "b");
    assert_eq!((worker.probes("/health"), worker.count()), (2, 0));
}

#[tokio::test]
async fn a_stream_keeps_its_chunks_and_waits_at_a_gate() {
    let gate = Gate::new();
    let mut steps = stream_answer(["{}"]);
    steps.insert(2, Step::Wait(gate.clone()));
    let worker = Worker::start(steps).await;
    let mut client = Client::connect(worker.addr()).await;
    client
        .send(request("POST", "/v1/chat/completions", &[], "{}"))
        .await;
    let head = client.read_head().await;
    assert_eq!(
        text(client.read_piece().await.unwrap().unwrap()),
        "data: {}\n\n"
    );
    gate.wait_for_waiting(1).await;
    gate.open();
    let rest = client.finish(head).await;
    assert_eq!((rest.framing, rest.complete), (Framing::Chunked, true));
    assert_eq!(rest.chunks.len(), 1);
}

#[tokio::test]
async fn ends_are_told_apart() {
    let head = || Step::head(200, &[("transfer-encoding", "chunked")]);
    let worker = Worker::start(Script::sequence(vec![
        vec![head(), Step::chunk("a"), Step::Close],
        vec![head(), Step::chunk("a"), Step::Reset],
        vec![Step::Reset],
        json_answer(500, "{}"),
    ]))
    .await;
    let send = request("POST", "/", &[], "{}");
    let cut = Client::connect(worker.addr()).await.exchange(&send).await;
    assert_eq!(
        (cut.complete, cut.error),
        (false, Some(std::io::ErrorKind::UnexpectedEof))
    );
    let reset = Client::connect(worker.addr()).await.exchange(&send).await;
    assert_eq!(
        (reset.complete, reset.error),
        (false, Some(std::io::ErrorKind::ConnectionReset))
    );
    let mut client = Client::connect(worker.addr()).await;
    client.send(&send).await;
    assert!(client.try_read_head().await.is_err());
    let failed = Client::connect(worker.addr()).await.exchange(&send).await;
    assert_eq!((failed.status(), failed.complete), (500, true));
}

#[tokio::test]
async fn a_client_that_leaves_is_seen() {
    let worker = Worker::start(vec![Step::head(200, &[]), Step::Hang]).await;
    let mut client = Client::connect(worker.addr()).await;
    client.send(request("POST", "/", &[], "{}")).await;
    client.read_head().await;
    assert_eq!((worker.in_flight(), worker.open_connections()), (1, 1));
    client.abort();
    worker.wait_for_cancels(1).await;
    let client = Client::connect(worker.addr()).await;
    drop(client);
    let addr = worker.addr();
    worker.kill().await;
    let again = Worker::start_on(addr, Script::ok()).await;
    assert_eq!(
        Client::connect(again.addr())
            .await
            .post("/", "{}")
            .await
            .status(),
        200
    );
}
