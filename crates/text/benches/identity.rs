//! CPU of reading a request and finding its identity, by size and kind of text.

#![allow(clippy::unwrap_used, missing_docs)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use maitred_text::{Context, identify};
use maitred_wire::{Endpoint, StreamObserver, head};
use std::hint::black_box;

/// Prose: long runs without escapes.
const PROSE: &str = "The quick brown fox jumps over the lazy dog near the river bank. ";
/// Code as JSON holds it: an escape every few bytes.
const CODE: &str = "fn a() {\\n    let s = \\\"x\\\";\\n    if b {\\n\\treturn 1;\\n    }\\n}\\n";

/// A chat of about `bytes` bytes: a third system text, then turns of 2 KiB.
fn chat(bytes: usize, text: &str) -> Vec<u8> {
    let fill = |n: usize| text.repeat(n / text.len() + 1);
    let mut body = format!(
        "{{\"model\":\"m\",\"stream\":true,\"messages\":[{{\"role\":\"system\",\"content\":\"{}\"}}",
        fill(bytes / 3)
    );
    let turn = (bytes / 4).min(2048);
    while body.len() + turn < bytes {
        for role in ["user", "assistant"] {
            body.push_str(&format!(
                ",{{\"role\":\"{role}\",\"content\":\"{}\"}}",
                fill(turn / 2)
            ));
        }
    }
    body.push_str("]}");
    body.into_bytes()
}

fn tokens(count: usize) -> Vec<u8> {
    let ids: Vec<_> = (0..count).map(|n| (n * 7 % 50_000).to_string()).collect();
    format!("{{\"model\":\"m\",\"prompt\":[{}]}}", ids.join(",")).into_bytes()
}

fn identity(endpoint: Endpoint, body: &[u8]) -> usize {
    let head = head::parse(endpoint, body, 128).unwrap();
    let context = Context {
        scope: 1,
        tenant: 2,
        client_scope: 3,
        pool: 4,
        block_bytes: 64,
        token_block: 16,
        session_headers: &["x-session-id"],
        scenario_header: "x-scenario",
        header: &|_| None,
    };
    identify(endpoint, &head, &context).chain.len()
}

fn requests(c: &mut Criterion) {
    let mut group = c.benchmark_group("identity");
    for (name, endpoint, body) in [
        ("prose-1k", Endpoint::Chat, chat(1 << 10, PROSE)),
        ("code-1k", Endpoint::Chat, chat(1 << 10, CODE)),
        ("prose-256k", Endpoint::Chat, chat(256 << 10, PROSE)),
        ("code-256k", Endpoint::Chat, chat(256 << 10, CODE)),
        ("tokens-256k", Endpoint::Completions, tokens(46_000)),
    ] {
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(BenchmarkId::new("parse", name), |b| {
            b.iter(|| head::parse(endpoint, black_box(&body), 128).unwrap().stream);
        });
        group.bench_function(BenchmarkId::new("parse+identify", name), |b| {
            b.iter(|| identity(endpoint, black_box(&body)));
        });
    }
}

fn streams(c: &mut Criterion) {
    let chunk = b"data: {\"id\":\"chatcmpl-8b51b57e983970a8\",\"object\":\"chat.completion.chunk\",\"created\":1795956753,\"model\":\"tiny-llama\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" regon\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n";
    let mut group = c.benchmark_group("stream");
    group.bench_function("chunk", |b| {
        let mut observer = StreamObserver::new(Endpoint::Chat);
        b.iter(|| observer.push(black_box(chunk)));
    });
}

criterion_group!(benches, requests, streams);
criterion_main!(benches);
