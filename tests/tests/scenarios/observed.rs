//! What an answer says is read beside it, and changes nothing of it.
use std::time::Duration;

use maitred_tests::{Script, Step, Worker, json_answer, sse_event, stream_answer};
use serde_json::{Value, json};

use crate::{Served, serve};

const CHAT: &str = "/v1/chat/completions";

/// One worker with these steps, asked once: what the client got, and the record of it.
async fn observe(path: &str, steps: Vec<Step>) -> (String, Value) {
    let worker = Worker::start(steps).await;
    let served = serve(&[&worker], &[]).await;
    let body = json!({"model": "m", "stream": true, "max_tokens": 9, "input": "a",
        "messages": [{"role": "user", "content": "a"}]});
    let answer = served.post(path, body.to_string()).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    (answer.text(), one_record(&served).await)
}

async fn one_record(served: &Served) -> Value {
    maitred_tests::eventually("a record", || served.records().len() == 1).await;
    served.records().remove(0)
}

fn tokens(record: &Value) -> [Option<u64>; 3] {
    ["prompt_tokens", "cached_tokens", "output_tokens"].map(|name| record[name].as_u64())
}

/// A leading chunk with usage and no choices was taken for the end of the stream.
#[tokio::test]
async fn a_leading_usage_chunk_is_not_the_end() {
    let said = r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#;
    let events = [
        r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1}}"#,
        said,
        said,
        said,
        r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":25}}"#,
    ];
    let (text, record) = observe(CHAT, stream_answer(events)).await;
    assert_eq!(text.matches("content").count(), 3);
    assert!(text.ends_with("data: [DONE]\n\n"));
    assert_eq!(tokens(&record), [Some(7), None, Some(25)]);
    assert_eq!(record["outcome"], "served");
}

/// Nobody who did not ask for usage gets it: nothing is put into the client's body.
#[tokio::test]
async fn usage_is_not_asked_for_in_the_clients_name() {
    let worker = Worker::start(Script::by(|asked| {
        assert!(asked.json().get("stream_options").is_none());
        stream_answer([r#"{"choices":[{"delta":{"content":"a"}}]}"#])
    }))
    .await;
    let served = serve(&[&worker], &[]).await;
    let body = r#"{"model":"m","stream":true,"messages":[]}"#;
    let answer = served.post(CHAT, body).await;
    assert!(!answer.text().contains("usage"));
    assert_eq!(maitred_tests::text(worker.last().body), body);
}

/// The time to the first token was that of the first words after all thinking, was missing where
/// only tools were called, or was that of the last chunk.
#[tokio::test]
async fn the_first_token_is_the_first_output_of_any_kind() {
    let stream = |first: &str| {
        let mut steps = stream_answer([
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#,
            first,
            r#"{"choices":[{"index":0,"delta":{"content":"late"}}]}"#,
        ]);
        steps.insert(3, Step::Delay(Duration::from_millis(1_500)));
        steps.insert(2, Step::Delay(Duration::from_millis(100)));
        steps
    };
    for first in [
        r#"{"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"reasoning":"hm"}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":"f"}}]}}]}"#,
        r#"{"choices":[{"index":1,"delta":{"content":"a"}}]}"#,
    ] {
        let (_, record) = observe(CHAT, stream(first)).await;
        let ttft = record["ttft_ms"].as_f64().unwrap();
        let whole = record["e2e_ms"].as_f64().unwrap();
        // The empty words before it do not count, what comes behind does not either.
        assert!(ttft >= 100.0, "{first}: {ttft}");
        assert!(whole - ttft >= 1_400.0, "{first}: {ttft} of {whole}");
    }
}

/// Zero hits and unknown looked the same.
#[tokio::test]
async fn cached_tokens_have_three_states() {
    for (details, cached) in [
        ("", None),
        (r#","prompt_tokens_details":null"#, None),
        (r#","prompt_tokens_details":{"cached_tokens":0}"#, Some(0)),
        (
            r#","prompt_tokens_details":{"cached_tokens":320}"#,
            Some(320),
        ),
    ] {
        let usage = format!(r#""usage":{{"prompt_tokens":400,"completion_tokens":3{details}}}"#);
        let whole = format!(r#"{{"choices":[],{usage}}}"#);
        let (_, record) = observe(CHAT, json_answer(200, &whole)).await;
        assert_eq!(tokens(&record), [Some(400), cached, Some(3)], "{details}");
        let (_, record) = observe(CHAT, stream_answer([whole.as_str()])).await;
        assert_eq!(tokens(&record), [Some(400), cached, Some(3)], "{details}");
    }
}

/// Prompt totals were too small, and hit ratios above one: Anthropic counts cached input apart.
#[tokio::test]
async fn cached_input_is_part_of_the_prompt_in_every_family() {
    let usage = r#""usage":{"input_tokens":12,"cache_read_input_tokens":988,"output_tokens":4}"#;
    let whole = format!(r#"{{"type":"message","id":"msg_1","content":[],{usage}}}"#);
    let (_, record) = observe("/v1/messages", json_answer(200, &whole)).await;
    assert_eq!(tokens(&record), [Some(1_000), Some(988), Some(4)]);
    let event = |kind: &str, rest: &str| {
        let data = format!(r#"{{"type":"{kind}"{rest}}}"#);
        Step::chunk(format!("event: {kind}\n{}", sse_event(&data)))
    };
    let start = format!(r#","message":{{"id":"msg_1",{usage}}}"#);
    let said = r#","index":0,"delta":{"type":"text_delta","text":"a"}"#;
    let steps = vec![
        Step::head(
            200,
            &[
                ("content-type", "text/event-stream; charset=utf-8"),
                ("transfer-encoding", "chunked"),
            ],
        ),
        event("message_start", &start),
        event("content_block_delta", said),
        event(
            "message_delta",
            r#","delta":{},"usage":{"output_tokens":4}"#,
        ),
        event("message_stop", ""),
        Step::End,
    ];
    let (_, record) = observe("/v1/messages", steps).await;
    assert_eq!(tokens(&record), [Some(1_000), Some(988), Some(4)]);
    assert_eq!(record["outcome"], "served");
}

/// Log probabilities were lost and usage was counted once a choice: the answer was rebuilt.
#[tokio::test]
async fn interleaved_choices_arrive_as_they_were_sent() {
    let chunk = |index: u32, text: &str| {
        format!(
            r#"{{"choices":[{{"index":{index},"delta":{{"content":"{text}"}},"logprobs":{{"content":[{{"token":"{text}","logprob":-0.25,"top_logprobs":[{{"token":"x","logprob":-1e0}}]}}]}}}}]}}"#
        )
    };
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":4}}"#.to_owned();
    let events = [
        chunk(1, "b"),
        chunk(0, "a"),
        chunk(1, "d"),
        chunk(0, "c"),
        usage,
    ];
    let mut sent: String = events.iter().map(|event| sse_event(event)).collect();
    sent.push_str(&sse_event("[DONE]"));
    let (text, record) = observe(CHAT, stream_answer(events.iter().map(String::as_str))).await;
    assert_eq!(text, sent);
    assert_eq!(tokens(&record), [Some(4), None, Some(4)]);
    assert!(record["ttft_ms"].as_f64().is_some());
}

/// An error under status 200 hid behind an answer without choices.
#[tokio::test]
async fn an_error_under_status_200_is_relayed_and_counted_as_failed() {
    let body = r#"{"choices":null,"error":{"code":429}}"#;
    let (text, record) = observe(CHAT, json_answer(200, body)).await;
    assert_eq!(text, body);
    assert_eq!(record["outcome"], "failed");
    let failed = stream_answer([r#"{"error":{"message":"out of memory","code":500}}"#]);
    let (text, record) = observe(CHAT, failed).await;
    assert!(text.contains("out of memory"));
    assert_eq!(record["outcome"], "failed");
}
