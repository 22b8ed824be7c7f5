//! Framing, sizes and expectations of requests.

use crate::{CHAT, PATH, at_rest, client, room, soon};
use maitred_tests::{Client, Script, Worker, request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn ambiguous_framing_is_refused_and_the_connection_closed() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |_| {}).await;
    for order in [
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    ] {
        let mut client = client(&running).await;
        // One good request before it on the same connection.
        assert_eq!(client.post(PATH, CHAT).await.status(), 200);
        let raw = format!("POST {PATH} HTTP/1.1\r\nhost: x\r\n{order}\r\n0\r\n\r\n");
        let response = client.exchange(raw.as_bytes()).await;
        assert_eq!(response.status(), 400, "{order}");
        assert_eq!(
            response.head.header("x-maitred-reason"),
            Some("ambiguous-framing")
        );
        soon(client.closed()).await;
    }
    assert_eq!(worker.count(), 2);
}

#[tokio::test]
async fn chunked_requests_arrive_with_a_length() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |_| {}).await;
    let mut client = client(&running).await;
    for _ in 0..3 {
        let (a, b) = CHAT.split_at(10);
        let raw = format!(
            "POST {PATH} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{a}\r\n{:x}\r\n{b}\r\n0\r\n\r\n",
            a.len(),
            b.len()
        );
        assert_eq!(client.exchange(raw.as_bytes()).await.status(), 200);
        let got = worker.last();
        assert_eq!(got.header("transfer-encoding"), None);
        assert_eq!(got.body, CHAT.as_bytes());
    }
}

#[tokio::test]
async fn expectations_are_met_here() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |_| {}).await;
    let mut socket = TcpStream::connect(running.data).await.unwrap();
    let text = "x".repeat(2 << 20);
    let body = format!("{{\"model\":\"m\",\"prompt\":\"{text}\"}}");
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut told = [0_u8; 25];
    soon(socket.read_exact(&mut told)).await.unwrap();
    assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n");
    socket.write_all(body.as_bytes()).await.unwrap();
    let mut answer = [0_u8; 15];
    soon(socket.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
    assert_eq!(worker.last().header("expect"), None);
    assert!(worker.last().body == body.as_bytes());
}

#[tokio::test]
async fn what_is_declared_too_large_is_refused_before_it_is_sent() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |c| c.limits.body_max_bytes = 1 << 20).await;
    let mut socket = TcpStream::connect(running.data).await.unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 1073741824\r\n\r\n";
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut told = [0_u8; 12];
    soon(socket.read_exact(&mut told)).await.unwrap();
    assert_eq!(&told, b"HTTP/1.1 413");
    // Undeclared, it is refused as soon as it is too large.
    let mut client = Client::connect(running.data).await;
    client
        .send("POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        .await;
    let piece = format!("{:x}\r\n{}\r\n", 1 << 20, "x".repeat(1 << 20));
    let _ = client.try_send(&piece).await;
    let _ = client.try_send(&piece).await;
    assert_eq!(client.read_response().await.status(), 413);
    assert_eq!(worker.count(), 0);
    at_rest(&running).await;
}

#[tokio::test]
async fn heads_and_nesting_are_bounded() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |_| {}).await;
    let huge = "x".repeat(80 << 10);
    let sent = request("POST", PATH, &[("x-huge", &huge)], CHAT);
    assert_eq!(client(&running).await.exchange(&sent).await.status(), 431);
    let names: Vec<String> = (0..80).map(|n| format!("x-{n}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    let sent = request("POST", PATH, &many, CHAT);
    let refused = client(&running).await.exchange(&sent).await;
    assert_eq!(refused.status(), 431);
    assert_eq!(refused.json()["error"]["code"], "headers-too-large");
    let deep = format!(
        "{{\"model\":\"m\",\"x\":{}{}}}",
        "[".repeat(5_000),
        "]".repeat(5_000)
    );
    assert_eq!(client(&running).await.post(PATH, &deep).await.status(), 400);
    let fair = format!(
        "{{\"model\":\"m\",\"x\":{}{}}}",
        "[".repeat(100),
        "]".repeat(100)
    );
    assert_eq!(client(&running).await.post(PATH, &fair).await.status(), 200);
    assert_eq!(worker.last().body, fair.as_bytes());
}

#[tokio::test]
async fn large_bodies_pass_whole_while_health_stays_quick() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |_| {}).await;
    let text = "y".repeat(1 << 20);
    let body = format!("{{\"model\":\"m\",\"prompt\":\"{text}\"}}");
    let mut posts = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (data, body) = (running.data, body.clone());
        posts.spawn(async move {
            Client::connect(data)
                .await
                .post("/v1/completions", &body)
                .await
                .status()
        });
    }
    for _ in 0..5 {
        assert_eq!(client(&running).await.get("/health").await.status(), 200);
    }
    while let Some(status) = posts.join_next().await {
        assert_eq!(status.unwrap(), 200);
    }
    assert!(worker.requests().iter().all(|r| r.body == body.as_bytes()));
    at_rest(&running).await;
}

/// A body in a coding that is not taken off, a tunnel, and a mirror: none of them goes to a worker.
#[tokio::test]
async fn other_codings_tunnels_and_mirrors_are_refused() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |_| {}).await;
    for (head, status, reason) in [
        (
            format!("POST {PATH} HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n"),
            400,
            "ambiguous-framing",
        ),
        (
            "CONNECT inner:80 HTTP/1.1\r\n".to_owned(),
            405,
            "method-not-allowed",
        ),
        ("TRACE / HTTP/1.1\r\n".to_owned(), 405, "method-not-allowed"),
    ] {
        let mut client = client(&running).await;
        let raw = format!("{head}host: x\r\n\r\n");
        client.send(raw.as_bytes()).await;
        let answer = client.read_head().await;
        assert_eq!(answer.status(), status, "{head}");
        assert_eq!(answer.header("x-maitred-reason"), Some(reason));
        soon(client.closed()).await;
    }
    assert_eq!(worker.count(), 0);
}

/// A client that sends its whole body before it reads still gets to know why it was refused.
#[tokio::test]
async fn a_refusal_is_read_by_a_client_that_is_still_sending() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |c| c.limits.body_max_bytes = 1 << 10).await;
    for _ in 0..8 {
        let mut client = client(&running).await;
        let sent = request("POST", PATH, &[], vec![b'x'; 8 << 20]);
        let _ = client.try_send(&sent).await;
        let answer = client.read_head().await;
        assert_eq!(answer.status(), 413);
        assert_eq!(answer.header("x-maitred-reason"), Some("body-too-large"));
    }
    at_rest(&running).await;
}

/// Heads that can not be read at all, and heads with more fields than are read.
#[tokio::test]
async fn unreadable_heads_are_refused_in_the_shape_of_the_api_too() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |_| {}).await;
    let many: String = (0..150).map(|n| format!("x-{n}: 1\r\n")).collect();
    let long = "a".repeat(70_000);
    let chat = format!("POST {PATH} HTTP/1.1\r\nhost: x\r\nx-request-id: job-17\r\n");
    let messages = "POST /v1/messages HTTP/1.1\r\nhost: x\r\n";
    for (raw, status, code) in [
        (format!("{chat}no colon\r\n\r\n"), 400, "malformed-request"),
        (format!("{chat}{many}\r\n"), 431, "headers-too-large"),
        (
            format!("{messages}content-length: five\r\n\r\n"),
            400,
            "malformed-request",
        ),
        (
            format!("GET /{long} HTTP/1.1\r\nhost: x\r\n\r\n"),
            414,
            "uri-too-long",
        ),
        ("\u{1}\r\n\r\n".to_owned(), 400, "malformed-request"),
    ] {
        for before in [false, true] {
            let mut client = client(&running).await;
            if before {
                // A good request before it on the same connection.
                assert_eq!(client.post(PATH, CHAT).await.status(), 200);
            }
            // What comes behind it must not destroy the answer.
            let _ = client
                .try_send([raw.as_bytes(), &[b'x'; 200_000]].concat())
                .await;
            let answer = client.read_response().await;
            assert_eq!(answer.status(), status, "{code}");
            assert_eq!(answer.head.header("x-maitred-reason"), Some(code));
            assert_eq!(answer.head.header("content-type"), Some("application/json"));
            let id = answer.head.header("x-request-id").unwrap();
            let error = answer.json();
            if raw.starts_with(&chat) {
                assert_eq!((id, &error["error"]["code"]), ("job-17", &code.into()));
            } else {
                assert!(id.starts_with("mtd-"), "{id}");
            }
            assert_eq!(raw.starts_with(messages), error["type"] == "error");
            assert!(!error["error"]["message"].as_str().unwrap().is_empty());
            soon(client.closed()).await;
        }
    }
    at_rest(&running).await;
}
