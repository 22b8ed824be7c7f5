//! Reads what real engines said and what was asked of them, where the recordings are at hand.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use maitred_engine::{EngineKind, gauges, slots};
use maitred_wire::{Endpoint, StreamObserver, answer, head, opening};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// The recordings beside the workspace; None where they are not.
fn fixtures() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures");
    if path.is_dir() {
        return Some(path);
    }
    println!("skipped: no recordings beside the workspace");
    None
}

fn exchanges(directory: &Path) -> Vec<(PathBuf, Value)> {
    let files = fs::read_dir(directory).unwrap().map(|f| f.unwrap().path());
    let files = files.filter(|f| f.extension().is_some_and(|e| e == "json"));
    let read = |f: PathBuf| {
        let json: Value = serde_json::from_slice(&fs::read(&f).unwrap()).unwrap();
        (f, json)
    };
    let all = files.map(read);
    all.filter(|(_, e)| e["request"]["method"].is_string())
        .collect()
}

fn endpoint(exchange: &Value) -> Endpoint {
    let request = &exchange["request"];
    Endpoint::of(
        request["method"].as_str().unwrap(),
        request["path"].as_str().unwrap(),
    )
}

#[test]
fn metrics_of_real_engines_are_read() {
    let Some(root) = fixtures() else { return };
    let text = fs::read_to_string(root.join("vllm-0.32.0/metrics-under-load.txt")).unwrap();
    assert_eq!(EngineKind::of_metrics(&text), Some(EngineKind::Vllm));
    let read = gauges(EngineKind::Vllm, &text);
    assert_eq!((read.running, read.waiting), (Some(3), Some(9)));
    assert!(read.kv_usage.is_some_and(|u| (0.81..0.82).contains(&u)));
    assert_eq!(read.block_tokens, Some(32));
    assert_eq!(read.kv_tokens, Some(160 * 32));
    assert!(read.started.is_some());
    let text = fs::read_to_string(root.join("llamacpp-b11434/41-metrics-under-load.txt")).unwrap();
    assert_eq!(EngineKind::of_metrics(&text), Some(EngineKind::LlamaCpp));
    let read = gauges(EngineKind::LlamaCpp, &text);
    assert_eq!((read.running, read.waiting), (Some(4), Some(4)));
    let props = fs::read(root.join("llamacpp-b11434/http/02-props.json")).unwrap();
    let props: Value = serde_json::from_slice(&props).unwrap();
    let body = props["response"]["json"].to_string();
    assert_eq!(slots(body.as_bytes()), Some(4));
}

#[test]
fn requests_of_real_clients_are_read() {
    let Some(root) = fixtures() else { return };
    let mut prompts = 0;
    for engine in ["vllm-0.32.0", "llamacpp-b11434"] {
        for (file, exchange) in exchanges(&root.join(engine).join("http")) {
            let endpoint = endpoint(&exchange);
            let body = &exchange["request"]["body"];
            if !body.is_object() {
                continue;
            }
            let text = body.to_string();
            let head = head::parse(endpoint, text.as_bytes(), 128).unwrap();
            assert_eq!(head.model.as_deref(), body["model"].as_str(), "{file:?}");
            let opening = opening::read(endpoint, &head);
            let asks = ["messages", "prompt", "input"];
            if asks.iter().any(|name| body.get(name).is_some()) {
                assert!(!opening.first_user.is_empty(), "{file:?}");
                prompts += 1;
            }
        }
    }
    assert!(prompts > 20);
}

#[test]
fn answers_of_real_engines_are_read() {
    let Some(root) = fixtures() else { return };
    let (mut streams, mut wholes) = (0, 0);
    for engine in ["vllm-0.32.0", "llamacpp-b11434"] {
        for (file, exchange) in exchanges(&root.join(engine).join("http")) {
            let endpoint = endpoint(&exchange);
            let response = &exchange["response"];
            if let Some(stream) = response["raw_sse"].as_str() {
                check_stream(endpoint, stream, &exchange, &file);
                streams += 1;
            } else if let Some(prompt) = response["json"]["usage"]["prompt_tokens"].as_u64() {
                let facts = answer::read(endpoint, response["json"].to_string().as_bytes());
                assert_eq!(facts.usage.prompt_tokens.map(u64::from), Some(prompt));
                let details = &response["json"]["usage"]["prompt_tokens_details"];
                let cached = details["cached_tokens"].as_u64();
                assert_eq!(facts.usage.cached_tokens.map(u64::from), cached, "{file:?}");
                assert!(!facts.error, "{file:?}");
                wholes += 1;
            } else if !response["json"]["error"].is_null() {
                let facts = answer::read(endpoint, response["json"].to_string().as_bytes());
                assert!(facts.error, "{file:?}");
            } else if endpoint == Endpoint::Models {
                let kind = EngineKind::of_models(response["json"].to_string().as_bytes());
                assert!(engine.starts_with(kind.unwrap().as_str()), "{file:?}");
            }
        }
    }
    assert!(streams >= 5 && wholes >= 10, "{streams} {wholes}");
}

fn check_stream(endpoint: Endpoint, stream: &str, exchange: &Value, file: &Path) {
    let mut observer = StreamObserver::new(endpoint);
    for piece in stream.as_bytes().chunks(7) {
        observer.push(piece);
    }
    assert!(observer.first_token() && observer.finished(), "{file:?}");
    assert!(observer.at_boundary() && !observer.error(), "{file:?}");
    let asked = exchange["request"]["body"]["stream_options"]["include_usage"] == true;
    if asked {
        let usage = observer.usage();
        assert!(usage.prompt_tokens > Some(0), "{file:?}");
        assert!(usage.cached_tokens.is_some(), "{file:?}");
        assert!(usage.output_tokens > Some(0), "{file:?}");
    }
}

#[test]
fn stopped_engines_are_seen_to_stop() {
    let Some(root) = fixtures() else { return };
    let path = root.join("vllm-0.32.0/http/50-stream-aborted-by-sigterm.sse.txt");
    let mut observer = StreamObserver::new(Endpoint::Completions);
    observer.push(&fs::read(path).unwrap());
    assert!(observer.aborted() && observer.finished());
    let path = root.join("llamacpp-b11434/http/50-stream-stalled-by-sigterm.sse.txt");
    let stream = fs::read(path).unwrap();
    let comments = stream.windows(3).position(|w| w == b"\n:\n");
    let comments = comments.unwrap() + 1;
    let mut observer = StreamObserver::new(Endpoint::Completions);
    observer.push(&stream[..comments]);
    let before = observer.data_events();
    observer.push(&stream[comments..]);
    assert_eq!(observer.data_events(), before);
    assert!(!observer.finished());
}
