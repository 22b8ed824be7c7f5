//! Streams: relayed as they come, and honest about how they end.

use crate::{CHAT, CHAT_STREAM, PATH, at_rest, attempts, client, room};
use maitred_records::Outcome;
use maitred_tests::{Gate, Script, Step, Worker, json_answer, request, sse_event, stream_answer};

const EVENTS: [(&str, &str); 1] = [("content-type", "text/event-stream")];

fn head() -> Step {
    let mut fields = EVENTS.to_vec();
    fields.push(("transfer-encoding", "chunked"));
    Step::head(200, &fields)
}

#[tokio::test]
async fn each_chunk_is_passed_on_before_the_next_one_comes() {
    let gate = Gate::new();
    let worker = Worker::start(Script::each(vec![
        head(),
        Step::chunk(sse_event(r#"{"choices":[{"delta":{"content":"a"}}]}"#)),
        Step::Wait(gate.clone()),
        Step::chunk(sse_event("[DONE]")),
        Step::End,
    ]))
    .await;
    let running = room(&[&worker], |_| {}).await;
    let mut client = client(&running).await;
    client.send(request("POST", PATH, &[], CHAT_STREAM)).await;
    let head = client.read_head().await;
    let first = client.read_piece().await.unwrap().unwrap();
    assert!(first.starts_with(b"data: {"));
    gate.open();
    let response = client.finish(head).await;
    assert!(response.complete);
    assert!(response.text().ends_with("data: [DONE]\n\n"));
    at_rest(&running).await;
}

#[tokio::test]
async fn characters_cut_between_writes_arrive_whole() {
    let event = "data: {\"choices\":[{\"delta\":{\"content\":\"北🙂\"}}]}\n\ndata: [DONE]\n\n";
    let mut steps = vec![head()];
    steps.extend(event.bytes().map(|b| Step::chunk(vec![b])));
    steps.push(Step::End);
    let worker = Worker::start(Script::each(steps)).await;
    let running = room(&[&worker], |_| {}).await;
    let response = client(&running).await.post(PATH, CHAT_STREAM).await;
    assert_eq!(response.text(), event);
    assert!(response.complete);
}

#[tokio::test]
async fn usage_comes_from_its_last_complete_word() {
    let worker = Worker::start(Script::each(stream_answer([
        r#"{"choices":[],"usage":{"prompt_tokens":400,"completion_tokens":1}}"#,
        r#"{"choices":[{"index":1,"delta":{"content":"a"},"logprobs":{"content":[]}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"b"},"logprobs":{"content":[]}}]}"#,
        r#"{"choices":[{"finish_reason":"stop","delta":{}}],"usage":{"prompt_tokens":400,"completion_tokens":3}}"#,
        r#"{"choices":[],"usage":{"prompt_tokens":400,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":320}}}"#,
    ])))
    .await;
    let running = room(&[&worker], |_| {}).await;
    let sent = request("POST", PATH, &[("x-request-id", "u")], CHAT_STREAM);
    let response = client(&running).await.exchange(&sent).await;
    assert!(response.complete && response.text().ends_with("data: [DONE]\n\n"));
    let record = &attempts(&running, "u", 1).await[0];
    assert_eq!(record.outcome, Outcome::Served);
    assert_eq!(record.prompt_tokens, Some(400));
    assert_eq!(record.cached_tokens, Some(320));
    assert_eq!(record.output_tokens, Some(3));
    assert!(record.ttft_ms.is_some());
}

#[tokio::test]
async fn a_worker_that_dies_in_its_answer_is_not_taken_for_finished() {
    let worker = Worker::start(Script::each(vec![
        head(),
        Step::chunk(sse_event(r#"{"choices":[{"delta":{"role":"assistant"}}]}"#)),
        Step::chunk(sse_event(r#"{"choices":[{"delta":{"content":"Hel"}}]}"#)),
        Step::chunk(sse_event(r#"{"choices":[{"delta":{"content":"lo"}}]}"#)),
        Step::Reset,
    ]))
    .await;
    let other = Worker::start(Script::ok()).await;
    let running = room(&[&worker, &other], |_| {}).await;
    let mut seen = 0;
    for turn in 0..40 {
        let id = format!("t{turn}");
        let sent = request("POST", PATH, &[("x-request-id", &id)], CHAT_STREAM);
        let response = client(&running).await.exchange(&sent).await;
        let record = attempts(&running, &id, 1).await;
        if record[0].worker.as_deref() != Some("w1") {
            continue;
        }
        seen += 1;
        assert_eq!(record.len(), 1, "nothing is tried again");
        assert_eq!(record[0].outcome, Outcome::Failed);
        assert_eq!(record[0].failure.as_deref(), Some("truncated"));
        assert!(!response.complete);
        let text = response.text();
        assert!(text.contains("\"Hel\""), "{text}");
        assert!(
            text.contains("error") && text.contains("upstream-truncated"),
            "{text}"
        );
        assert!(
            !text.contains("[DONE]") && !text.contains("finish_reason"),
            "{text}"
        );
        if seen == 2 {
            break;
        }
    }
    assert!(seen > 0);
    assert!(
        other
            .requests()
            .iter()
            .all(|r| r.body == CHAT_STREAM.as_bytes())
    );
    at_rest(&running).await;
}

#[tokio::test]
async fn over_http2_a_broken_answer_is_a_reset_stream() {
    use http_body_util::{BodyExt, Full};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let worker = Worker::start(Script::each(vec![
        head(),
        Step::chunk(sse_event(r#"{"choices":[{"delta":{"content":"a"}}]}"#)),
        Step::Close,
    ]))
    .await;
    let running = room(&[&worker], |_| {}).await;
    let socket = tokio::net::TcpStream::connect(running.data).await.unwrap();
    let (mut send, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket))
            .await
            .unwrap();
    tokio::spawn(connection);
    let ask = http::Request::post(format!("http://{}{PATH}", running.data))
        .body(Full::new(bytes::Bytes::from_static(CHAT_STREAM.as_bytes())))
        .unwrap();
    let mut body = send.send_request(ask).await.unwrap().into_body();
    let mut text = Vec::new();
    let broken = loop {
        match body.frame().await {
            Some(Ok(frame)) => text.extend_from_slice(&frame.into_data().unwrap()),
            Some(Err(_)) => break true,
            None => break false,
        }
    };
    assert!(broken);
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("upstream-truncated"), "{text}");
    at_rest(&running).await;
}

#[tokio::test]
async fn a_stream_without_its_end_mark_is_relayed_and_counted_as_cut() {
    let worker = Worker::start(Script::each(vec![
        head(),
        Step::chunk(sse_event(r#"{"choices":[{"delta":{"content":"a"}}]}"#)),
        Step::End,
    ]))
    .await;
    let running = room(&[&worker], |_| {}).await;
    let sent = request("POST", PATH, &[("x-request-id", "cut")], CHAT_STREAM);
    let response = client(&running).await.exchange(&sent).await;
    assert!(response.complete && !response.text().contains("[DONE]"));
    let record = &attempts(&running, "cut", 1).await[0];
    assert_eq!(record.failure.as_deref(), Some("truncated"));
}

#[tokio::test]
async fn a_document_cut_short_is_an_error_that_names_the_status() {
    let worker = Worker::start(Script::each(vec![
        Step::head(
            200,
            &[
                ("content-type", "application/json"),
                ("content-length", "100"),
            ],
        ),
        Step::raw("{\"id\":"),
        Step::Close,
    ]))
    .await;
    let running = room(&[&worker], |_| {}).await;
    let sent = request("POST", PATH, &[("x-request-id", "doc")], CHAT);
    let response = client(&running).await.exchange(&sent).await;
    assert_eq!(response.status(), 502);
    assert_eq!(
        response.head.header("x-maitred-reason"),
        Some("upstream-truncated")
    );
    assert!(response.text().contains("200"));
    let record = &attempts(&running, "doc", 1).await[0];
    assert_eq!(
        (record.outcome, record.status),
        (Outcome::Failed, Some(200))
    );
}

#[tokio::test]
async fn large_documents_stream_through_and_break_off_openly() {
    let big = vec![b'x'; 300 << 10];
    let length = (big.len() * 2).to_string();
    let fields = [
        ("content-type", "application/octet-stream"),
        ("content-length", length.as_str()),
    ];
    let gate = Gate::new();
    let worker = Worker::start(Script::sequence(vec![
        vec![
            Step::head(200, &fields),
            Step::raw(big.clone()),
            Step::raw(big.clone()),
        ],
        vec![
            Step::head(200, &fields),
            Step::raw(big.clone()),
            Step::Wait(gate.clone()),
            Step::Reset,
        ],
    ]))
    .await;
    let running = room(&[&worker], |_| {}).await;
    let response = client(&running).await.get("/v1/files/1").await;
    assert!(response.complete && response.body.len() == big.len() * 2);
    let mut client = client(&running).await;
    client.send(request("GET", "/v1/files/1", &[], "")).await;
    let head = client.read_head().await;
    client.read_at_least(big.len()).await;
    gate.open();
    let response = client.finish(head).await;
    assert!(!response.complete);
    at_rest(&running).await;
}

#[tokio::test]
async fn a_slow_client_holds_the_worker_back() {
    let piece = vec![b'x'; 64 << 10];
    let mut steps = vec![Step::head(200, &[("transfer-encoding", "chunked")])];
    steps.extend((0..1_024).map(|_| Step::chunk(piece.clone())));
    steps.push(Step::End);
    let worker = Worker::start(Script::each(steps)).await;
    let running = room(&[&worker], |_| {}).await;
    let mut client = client(&running).await;
    client.send(request("GET", "/v1/files/1", &[], "")).await;
    let head = client.read_head().await;
    client.read_at_least(1 << 20).await;
    // The sockets' buffers are full when nothing more is taken for a while.
    let mut before = worker.written(0);
    loop {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        let now = worker.written(0);
        if now == before {
            break;
        }
        before = now;
    }
    assert!(before < 48 << 20, "{before} bytes of 64 MiB were taken");
    let response = client.finish(head).await;
    assert!(response.complete);
}

/// What had come before the break is the client's, also where the worker broke off within an event:
/// an error event there would become a part of it.
#[tokio::test]
async fn a_stream_that_breaks_within_an_event_gives_what_had_come() {
    let first = sse_event(r#"{"choices":[{"delta":{"content":"Hel"}}]}"#);
    let worker = Worker::start(Script::each(vec![
        head(),
        Step::chunk(format!("{first}data: {{\"choi")),
        Step::Close,
    ]))
    .await;
    let running = room(&[&worker], |_| {}).await;
    let sent = request("POST", PATH, &[("x-request-id", "half")], CHAT_STREAM);
    let response = client(&running).await.exchange(&sent).await;
    assert!(!response.complete);
    assert_eq!(response.text(), format!("{first}data: {{\"choi"));
    let record = &attempts(&running, "half", 1).await[0];
    assert_eq!(record.failure.as_deref(), Some("truncated"));
    at_rest(&running).await;
}

/// An engine that is told to stop ends its answers with `abort`: relayed as it is, but not served.
#[tokio::test]
async fn an_answer_that_the_engine_gave_up_is_relayed_and_counted_as_cut() {
    let chunk = r#"{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"abort"}]}"#;
    let document = r#"{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"abort"}]}"#;
    let worker = Worker::start(Script::by(move |asked| {
        if asked.json()["stream"] == true {
            stream_answer([chunk])
        } else {
            json_answer(200, document)
        }
    }))
    .await;
    let running = room(&[&worker], |_| {}).await;
    for (id, body) in [("s", CHAT_STREAM), ("d", CHAT)] {
        let sent = request("POST", PATH, &[("x-request-id", id)], body);
        let response = client(&running).await.exchange(&sent).await;
        assert!(response.complete && response.text().contains("abort"));
        let record = &attempts(&running, id, 1).await[0];
        assert_eq!(
            (record.outcome, record.failure.as_deref()),
            (Outcome::Failed, Some("truncated")),
            "{id}"
        );
    }
    at_rest(&running).await;
}

/// Comments are no sign of life: a stream of nothing else passes the limits of time.
#[tokio::test]
async fn a_stream_of_comments_is_silent() {
    let gap = std::time::Duration::from_millis(20);
    let comments = (0..500).flat_map(|_| [Step::chunk(": ping\n\n"), Step::Delay(gap)]);
    let begun = [head(), Step::chunk(sse_event(r#"{"choices":[]}"#))];
    let late: Vec<Step> = begun.into_iter().chain(comments.clone()).collect();
    let never: Vec<Step> = std::iter::once(head()).chain(comments).collect();
    let worker = Worker::start(Script::sequence(vec![late, never])).await;
    let running = room(&[&worker], |c| {
        c.timeouts.idle = std::time::Duration::from_millis(200);
        c.timeouts.first_byte = std::time::Duration::from_millis(200);
    })
    .await;
    for (id, limit) in [("late", "idle-timeout"), ("never", "first-byte-timeout")] {
        let sent = request("POST", PATH, &[("x-request-id", id)], CHAT_STREAM);
        let response = client(&running).await.exchange(&sent).await;
        assert!(!response.complete);
        assert!(response.text().contains(": ping\n\n"));
        assert!(response.text().contains(limit), "{}", response.text());
        let record = &attempts(&running, id, 1).await[0];
        assert_eq!(record.outcome, Outcome::Failed);
    }
    worker.wait_for_cancels(2).await;
    at_rest(&running).await;
}
