#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
//! The server over real sockets, far faster than real time.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::*;

fn quick() -> ServerConfig {
    ServerConfig {
        speed: 1_000.0,
        ..ServerConfig::default()
    }
}

async fn send(
    url: &str,
    path: &str,
    body: Option<Value>,
) -> hyper::Response<hyper::body::Incoming> {
    let socket = TcpStream::connect(url.trim_start_matches("http://"))
        .await
        .unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    let method = if body.is_some() { "POST" } else { "GET" };
    let request = hyper::Request::builder()
        .method(method)
        .uri(path)
        .header("host", "engine")
        .header("x-request-id", "abc")
        .body(Full::<bytes::Bytes>::from(
            body.map(|b| b.to_string()).unwrap_or_default(),
        ))
        .unwrap();
    sender.send_request(request).await.unwrap()
}

pub(super) async fn text(url: &str, path: &str, body: Option<Value>) -> (u16, String) {
    let response = send(url, path, body).await;
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

pub(super) async fn value(url: &str, path: &str, body: Value) -> Value {
    let (status, text) = text(url, path, Some(body)).await;
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

fn events(stream: &str) -> Vec<Value> {
    stream
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .filter(|data| *data != "[DONE]")
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

#[tokio::test]
async fn a_conversation_finds_its_earlier_turns() {
    let running = start(quick()).await.unwrap();
    let url = running.urls[0].clone();
    let mut messages = vec![json!({"role": "user", "content": "x".repeat(400)})];
    let ask =
        |m: &Vec<Value>| json!({"model": "sim", "messages": m, "max_tokens": 40, "unknown": 1});
    let first = value(&url, "/v1/chat/completions", ask(&messages)).await;
    // A role mark, 400 / 4 pieces, the mark of the reply.
    assert_eq!(first["usage"]["prompt_tokens"], 102);
    assert_eq!(first["usage"]["completion_tokens"], 40);
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(first["id"], "chatcmpl-abc");
    assert_eq!(first["choices"][0]["finish_reason"], "length");
    messages.push(first["choices"][0]["message"].clone());
    messages.push(json!({"role": "user", "content": "and then?"}));
    let mut messages_plain = messages.clone();
    messages_plain[1] =
        json!({"role": "assistant", "content": first["choices"][0]["message"]["content"]});
    let second = value(&url, "/v1/chat/completions", ask(&messages_plain)).await;
    // 102 + 39 computed tokens: eight whole blocks.
    assert_eq!(
        second["usage"]["prompt_tokens_details"]["cached_tokens"],
        128
    );
    running.reset_caches();
    let third = value(&url, "/v1/chat/completions", ask(&messages_plain)).await;
    assert_eq!(third["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let (_, metrics) = text(&url, "/metrics", None).await;
    assert!(
        metrics.contains("vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"sim\"} 128\n"),
        "{metrics}"
    );
    running.shutdown().await;
}

#[tokio::test]
async fn streams_of_every_family() {
    let running = start(quick()).await.unwrap();
    let url = &running.urls[0];
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "stream": true, "n": 2,
        "stream_options": {"include_usage": true}});
    let (_, stream) = text(url, "/v1/chat/completions", Some(chat)).await;
    assert!(stream.ends_with("data: [DONE]\n\n"));
    let chunks = events(&stream);
    assert_eq!(chunks.len(), 2 * (1 + 5 + 1) + 1);
    assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], 10);
    assert_eq!(chunks.last().unwrap()["usage"]["prompt_tokens"], 3);

    let body = json!({"prompt": "hello", "max_tokens": 3, "stream": true});
    let (_, stream) = text(url, "/v1/completions", Some(body)).await;
    assert_eq!(events(&stream).len(), 4);

    let body = json!({"input": "hello", "max_output_tokens": 3, "stream": true});
    let (_, stream) = text(url, "/v1/responses", Some(body)).await;
    let chunks = events(&stream);
    assert_eq!(chunks[0]["type"], "response.created");
    let last = chunks.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    assert_eq!(last["response"]["usage"]["output_tokens"], 3);
    assert_eq!(last["response"]["id"], "resp_abc");

    let body =
        json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": true});
    let (_, stream) = text(url, "/v1/messages", Some(body)).await;
    let kinds: Vec<Value> = events(&stream).iter().map(|e| e["type"].clone()).collect();
    assert_eq!(kinds.first().unwrap(), "message_start");
    assert_eq!(kinds.last().unwrap(), "message_stop");
}

#[tokio::test]
async fn prompts_in_every_form() {
    let running = start(quick()).await.unwrap();
    let url = &running.urls[0];
    let body = json!({"prompt": ["abcd", "abcdefgh"], "max_tokens": 2, "n": 2});
    let two = value(url, "/v1/completions", body).await;
    assert_eq!(two["choices"].as_array().unwrap().len(), 4);
    assert_eq!(two["usage"]["prompt_tokens"], 3);
    let ids = value(
        url,
        "/v1/completions",
        json!({"prompt": [1, 2, 3], "max_tokens": 2}),
    )
    .await;
    assert_eq!(ids["usage"]["prompt_tokens"], 3);
    let whole = value(
        url,
        "/v1/responses",
        json!({"input": [{"role": "user", "content": "hi"}]}),
    )
    .await;
    assert_eq!(whole["usage"]["output_tokens"], 64);
    assert_eq!(
        whole["output"][0]["content"][0]["text"]
            .as_str()
            .unwrap()
            .len(),
        256
    );
    let vectors = value(url, "/v1/embeddings", json!({"input": ["a", "b"]})).await;
    assert_eq!(vectors["data"].as_array().unwrap().len(), 2);
    let counted = value(url, "/tokenize", json!({"prompt": "abcdef"})).await;
    assert_eq!(counted["count"], 2);
    let back = value(url, "/detokenize", json!({"tokens": counted["tokens"]})).await;
    assert_eq!(back["prompt"], "abcdef");
}

#[tokio::test]
async fn refusals_name_the_field() {
    let running = start(quick()).await.unwrap();
    let url = &running.urls[0];
    let cases = [
        (
            json!({"prompt": "a", "max_tokens": "many"}),
            400,
            "max_tokens",
        ),
        (json!({"prompt": "a", "model": "other"}), 404, "model"),
        (json!({"prompt": {}}), 400, "prompt"),
        (json!({"prompt": "a", "n": 0}), 400, "n"),
        (
            json!({"prompt": "a", "max_tokens": 300_000}),
            400,
            "max_tokens",
        ),
    ];
    for (body, status, field) in cases {
        let (got, body) = text(url, "/v1/completions", Some(body)).await;
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (got, body["error"]["param"].as_str()),
            (status, Some(field))
        );
    }
    assert_eq!(text(url, "/nowhere", None).await.0, 404);
    assert_eq!(text(url, "/health", None).await, (200, String::new()));
}

#[tokio::test]
async fn a_client_that_hangs_up_frees_the_engine() {
    let running = start(ServerConfig::default()).await.unwrap();
    for stream in [true, false] {
        let body = json!({"prompt": "hello", "max_tokens": 100_000, "stream": stream});
        if stream {
            let mut response = send(&running.urls[0], "/v1/completions", Some(body)).await;
            response.frame().await.unwrap().unwrap();
            drop(response);
        } else {
            let url = running.urls[0].clone();
            let call = tokio::spawn(async move { send(&url, "/v1/completions", Some(body)).await });
            while running.replicas[0].metrics().running == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            call.abort();
        }
        while running.replicas[0].metrics().running > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(running.replicas[0].metrics().blocks_used, 0);
    }
}

#[tokio::test]
async fn zero_answers_as_the_model_does() {
    let config = ServerConfig {
        zero: true,
        replicas: 2,
        ..ServerConfig::default()
    };
    let running = start(config).await.unwrap();
    let url = &running.urls[1];
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "stream": true,
        "stream_options": {"include_usage": true}});
    let (_, stream) = text(url, "/v1/chat/completions", Some(chat)).await;
    let chunks = events(&stream);
    assert_eq!(chunks.len(), 1 + 8 + 1 + 1);
    assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], 8);
    let whole = value(
        url,
        "/v1/completions",
        json!({"prompt": "hi", "max_tokens": 2}),
    )
    .await;
    assert_eq!(whole["choices"][0]["text"], "bab bab ");
    // Unknown is not zero: it has no cache to report of.
    assert!(whole["usage"]["prompt_tokens_details"].is_null());
    // No answer is prepared for these: the model gives one.
    let vectors = value(url, "/v1/embeddings", json!({"input": ["a", "b"]})).await;
    assert_eq!(vectors["data"].as_array().unwrap().len(), 2);
}
