//! What a conversation's next turn costs by its tokens: 100,000 tokens said before, 1,000 new ones
//! in each iteration. Beside it the plain tokenizers over the whole prompt. Needs the public
//! tokenizers and texts; without them nothing is measured.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr
)]

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use maitred_text::model::in_tokens;
use maitred_text::template::WallTime;
use maitred_text::{Context, ModelFiles, TextModel, TextOptions, identify};
use maitred_wire::{Endpoint, RequestHead, head};
use serde_json::{Value, json};
use std::hint::black_box;
use std::path::Path;

/// As in the product.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data");

/// About 100,000 tokens of the texts at hand, and about 1,000.
const OLD_BYTES: usize = 460_000;
const NEW_BYTES: usize = 4_200;

/// Bytes of one message.
const MESSAGE_BYTES: usize = 2_000;

fn unpack(path: &Path) -> Vec<u8> {
    zstd::decode_all(&std::fs::read(path).unwrap()[..]).unwrap()
}

fn load(name: &str) -> TextModel {
    let root = Path::new(DATA).join("tokenizers").join(name);
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = folder.path().join("tokenizer.json");
    std::fs::write(&tokenizer, unpack(&root.join("tokenizer.json.zst"))).unwrap();
    let files = ModelFiles {
        directory: Some(root),
        tokenizer: Some(tokenizer),
        ..ModelFiles::default()
    };
    TextModel::load(&files, TextOptions::default()).unwrap()
}

/// Texts of web pages, code and answers, no two alike.
fn text(bytes: usize) -> String {
    let path = Path::new(DATA).join("text/lmcache-magentic-requests.jsonl.zst");
    let lines = String::from_utf8(unpack(&path)).unwrap();
    let mut found = String::new();
    let mut last = String::new();
    for line in lines.lines() {
        let request: Value = serde_json::from_str(line).unwrap();
        // Of a session that only grew, only what is new.
        let input = request["input"].as_str().unwrap();
        let common = input
            .bytes()
            .zip(last.bytes())
            .take_while(|(a, b)| a == b)
            .count();
        found.push_str(&String::from_utf8_lossy(&input.as_bytes()[common..]));
        found.push_str(request["output"].as_str().unwrap());
        last = input.to_owned();
        if found.len() > bytes {
            break;
        }
    }
    found
}

fn messages(text: &str) -> Vec<Value> {
    let chars: Vec<char> = text.chars().collect();
    let mut messages = vec![json!({"role": "system", "content": "You are a careful assistant."})];
    for (n, some) in chars.chunks(MESSAGE_BYTES).enumerate() {
        let role = if n % 2 == 0 { "user" } else { "assistant" };
        messages.push(json!({"role": role, "content": some.iter().collect::<String>()}));
    }
    messages
}

fn context() -> Context<'static> {
    Context {
        scope: 1,
        tenant: 1,
        client_scope: 0,
        pool: 1,
        block_bytes: 64,
        token_block: 16,
        session_headers: &[],
        scenario_header: "x-scenario",
        header: &|_| None,
    }
}

fn parse(body: &str) -> RequestHead<'_> {
    head::parse(Endpoint::Chat, body.as_bytes(), 128).unwrap()
}

/// Bodies of next turns: the same history, each with new text of its own.
fn next_turn(history: &[Value], pool: &str, n: usize) -> String {
    let chars: Vec<char> = pool.chars().collect();
    let from = (n * 977) % (chars.len() - NEW_BYTES);
    let half = NEW_BYTES / 2;
    let cut = |from: usize| chars[from..from + half].iter().collect::<String>();
    let mut messages = history.to_vec();
    messages.push(json!({"role": "assistant", "content": format!("{n} {}", cut(from))}));
    messages.push(json!({"role": "user", "content": format!("{n} {}", cut(from + half))}));
    json!({"model": "m", "messages": messages}).to_string()
}

fn turn(criterion: &mut Criterion) {
    if !Path::new(DATA).exists() {
        eprintln!("skipped: no shared data at hand");
        return;
    }
    let whole = text(OLD_BYTES + 200_000);
    let (old, pool) = whole.split_at(whole.floor_char_boundary(OLD_BYTES));
    let mut history = messages(old);
    if history.last().unwrap()["role"] == "assistant" {
        history.pop();
    }
    for name in ["qwen3", "gpt-oss"] {
        let model = load(name);
        let mut group = criterion.benchmark_group(name);
        group.sample_size(20);
        let now = WallTime::default();
        let mut n = 0;
        let mut new_body = || {
            n += 1;
            next_turn(&history, pool, n)
        };
        let warm = new_body();
        let head = parse(&warm);
        let rendered = model
            .templates()
            .render(Endpoint::Chat, &head, now, 1 << 26)
            .unwrap();
        let text = rendered.text.clone().into_text();
        let ids = model
            .ids(model.plan(Endpoint::Chat, &head, now).unwrap())
            .unwrap();
        eprintln!(
            "{name}: body {} bytes, rendered {} bytes, {} tokens",
            warm.len(),
            text.len(),
            ids.count()
        );
        group.bench_function("next turn: render, tokenise, chain", |b| {
            b.iter_batched(
                &mut new_body,
                |body| {
                    let head = parse(&body);
                    let plan = model.plan(Endpoint::Chat, &head, now).unwrap();
                    let ids = model.ids(plan).unwrap();
                    let bytes = identify(Endpoint::Chat, &head, &context());
                    black_box(in_tokens(bytes, &ids, 1, 16));
                },
                BatchSize::PerIteration,
            );
        });
        group.bench_function("parse and identify by bytes (part of the above)", |b| {
            b.iter(|| black_box(identify(Endpoint::Chat, &parse(&warm), &context())));
        });
        group.bench_function("render", |b| {
            b.iter(|| {
                black_box(
                    model
                        .templates()
                        .render(Endpoint::Chat, &head, now, 1 << 26),
                )
            });
        });
        group.bench_function("cut, look up and join, all warm", |b| {
            b.iter_batched(
                || rendered.text.clone(),
                |text| {
                    black_box(
                        model
                            .tokenizer()
                            .finish(model.tokenizer().plan(text, false)),
                    )
                },
                BatchSize::PerIteration,
            );
        });
        let bytes = identify(Endpoint::Chat, &head, &context());
        group.bench_function("chain", |b| {
            b.iter_batched(
                || bytes.clone(),
                |bytes| black_box(in_tokens(bytes, &ids, 1, 16)),
                BatchSize::PerIteration,
            );
        });
        group.sample_size(10);
        group.bench_function("plain tokenizer of Hugging Face, whole prompt", |b| {
            b.iter(|| black_box(model.tokenizer().reference_ids(&text, false)));
        });
        group.finish();
    }
}

criterion_group!(benches, turn);
criterion_main!(benches);
