//! Public texts through public models' tokenizers: the gateway's chain of a request is the one that
//! the plain tokenizer's ids of the rendered text make. The ids go in as an engine's events would bring
//! them, so a request that finds all its blocks has exactly these ids.

use super::{PATH, attempts, client, room, soon};
use maitred_core::place::PolicyConfig;
use maitred_gateway::Running;
use maitred_gateway::config::IdentitySettings;
use maitred_gateway::kv::{Belief, KvSink, Source};
use maitred_records::AttemptRecord;
use maitred_tests::{Script, Worker};
use maitred_text::template::WallTime;
use maitred_wire::kv::{EngineHash, KvBatch, KvEvent, Stored};
use maitred_wire::{Endpoint, head};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

/// Requests of each file, and bytes of the longest: the plain tokenizer is slow.
const REQUESTS: usize = 2;
const BYTES_MAX: usize = 25_000;
const BLOCK: u32 = 16;

fn data(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    if !path.is_dir() {
        eprintln!("skipped: no {name}");
        return None;
    }
    Some(path.join(name))
}

fn unpacked(name: &str) -> Vec<u8> {
    let bytes = std::fs::read(data(name).unwrap()).unwrap();
    match name.strip_suffix(".zst") {
        Some(_) => zstd::decode_all(&bytes[..]).unwrap(),
        None => bytes,
    }
}

fn lines(name: &str) -> Vec<Value> {
    let text = String::from_utf8(unpacked(name)).unwrap();
    let parse = |line: &str| serde_json::from_str(line).unwrap();
    text.lines().map(parse).collect()
}

/// Path and body of a few requests of each text.
fn requests() -> Vec<(&'static str, Value)> {
    let mut files: Vec<Vec<(&'static str, Value)>> = Vec::new();
    let agents = lines("text/agentperf-requests.jsonl.zst").into_iter();
    let chat =
        |messages: &Value, tools: &Value| (PATH, json!({"messages": messages, "tools": tools}));
    files.push(agents.map(|r| chat(&r["messages"], &r["tools"])).collect());
    for name in ["miniswe", "magentic"] {
        let all = lines(&format!("text/lmcache-{name}-requests.jsonl.zst")).into_iter();
        let prompt = |r: Value| ("/v1/completions", json!({"prompt": r["input"]}));
        files.push(all.map(prompt).collect());
    }
    let questions = lines("text/mtbench-questions.jsonl").into_iter();
    files.push(
        questions
            .map(|q| {
                chat(
                    &json!([{"role": "user", "content": q["turns"][0]}]),
                    &Value::Null,
                )
            })
            .collect(),
    );
    let tools: Value =
        serde_json::from_slice(&unpacked("text/taubench-airline-tools.json")).unwrap();
    let mut airline = Vec::new();
    for dialogue in lines("text/taubench-airline-gpt4o-sessions.jsonl.zst") {
        let messages = dialogue["messages"].as_array().unwrap();
        let answered = messages.iter().rposition(|m| m["role"] == "assistant");
        airline.push(chat(&messages[..answered.unwrap()].into(), &tools));
    }
    files.push(airline);
    let short = |(_, body): &(&str, Value)| body.to_string().len() < BYTES_MAX;
    let some = files.into_iter().flat_map(|file| {
        let file: Vec<_> = file.into_iter().filter(short).collect();
        let step = (file.len() / REQUESTS).max(1);
        file.into_iter().step_by(step).take(REQUESTS)
    });
    some.map(|(path, mut body)| {
        body["model"] = "m".into();
        (path, body)
    })
    .collect()
}

fn now() -> WallTime {
    let unix = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    WallTime {
        unix_seconds: unix.as_secs() as i64,
        offset_seconds: 0,
    }
}

async fn asked(running: &Running, id: &str, path: &str, body: &Value) -> Arc<AttemptRecord> {
    let headers = [("content-type", "application/json"), ("x-request-id", id)];
    let request = maitred_tests::request("POST", path, &headers, body.to_string());
    let answer = soon(client(running).await.exchange(&request)).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    attempts(running, id, 1).await.remove(0)
}

async fn compare(model: &str) {
    let Some(directory) = data(&format!("tokenizers/{model}")) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = folder.path().join("tokenizer.json");
    let name = format!("tokenizers/{model}/tokenizer.json.zst");
    std::fs::write(&tokenizer, unpacked(&name)).unwrap();
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |config| {
        let mut identity = IdentitySettings::default();
        identity.files.directory = Some(directory);
        identity.files.tokenizer = Some(tokenizer);
        config.pools[0].identity = Some(identity);
        config.pools[0].core.policy = PolicyConfig::named("cache_aware").unwrap();
        config.pools[0].core.token_block = BLOCK;
    })
    .await;
    let pool = Arc::clone(&running.gateway.pools[0]);
    let text = pool.text.clone().unwrap();
    let asking = Arc::clone(&pool);
    let belief = Belief::new(
        Arc::clone(&pool.driver),
        Box::new(move |adapter, salt| asking.reported_seed(adapter, salt)),
    );
    let source = Source {
        worker: pool.upstreams()[0].id,
        rank: None,
    };
    belief.certain(source);
    let requests = requests();
    assert!(requests.len() >= 8, "{}", requests.len());
    let mut blocks = 0;
    for (number, (path, body)) in requests.iter().enumerate() {
        let endpoint = match *path {
            PATH => Endpoint::Chat,
            _ => Endpoint::Completions,
        };
        let bytes = body.to_string();
        let head = head::parse(endpoint, bytes.as_bytes(), 128).unwrap();
        let rendered = text.model.templates();
        let rendered = rendered.render(endpoint, &head, now(), 1 << 24).unwrap();
        let plain = text.model.tokenizer();
        let whole = rendered.text.into_text();
        let ids = plain.reference_ids(&whole, rendered.add_special_tokens);
        let mut ids = ids.unwrap();
        let tokens = ids.len() as u32;
        let whole = tokens / BLOCK;
        ids.truncate((whole * BLOCK) as usize);
        // Names of this request's own: texts that begin alike are held twice.
        let first = 1 + 1_000_000 * number as u64;
        let stored = Stored {
            hashes: (first..).take(whole as usize).map(EngineHash).collect(),
            token_ids: ids,
            block_size: BLOCK,
            ..Stored::default()
        };
        let batch = KvBatch {
            events: vec![KvEvent::Stored(stored)],
            ..KvBatch::default()
        };
        belief.batch(source, batch);
        let record = asked(&running, &format!("r{number}"), path, body).await;
        assert_eq!(record.identity, "tokens", "{:?}", record.identity_fallback);
        assert_eq!(record.prompt_tokens_estimated, Some(tokens), "{bytes:.300}");
        let held = record.belief.as_ref().unwrap().observed;
        assert_eq!(held, whole, "{model} {number}: {bytes:.300}");
        blocks += whole;
    }
    eprintln!(
        "{model}: {} requests, {blocks} blocks of {BLOCK} found by plain ids",
        requests.len()
    );
    // What goes by its bytes says why.
    let own = json!({"model": "m", "chat_template": "{{ messages }}", "messages": [{"role": "user", "content": "a"}]});
    let record = asked(&running, "own", PATH, &own).await;
    assert_eq!(record.identity_fallback.as_deref(), Some("own_template"));
    let picture = json!({"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://h/a"}}]}]});
    let record = asked(&running, "picture", PATH, &picture).await;
    assert_eq!(record.identity_fallback.as_deref(), Some("media"));
    let counts = text.model.counts();
    assert_eq!(counts.tokenizer.mismatches, 0);
    let mut admin = maitred_tests::Client::connect(running.admin).await;
    let request = maitred_tests::request("GET", "/metrics", &[("host", "127.0.0.1")], "");
    let metrics = soon(admin.exchange(&request)).await.text();
    let counted = |identity: &str, reason: &str| {
        format!(
            r#"maitred_identity_requests_total{{pool="p",identity="{identity}",reason="{reason}"}} "#
        )
    };
    for (line, count) in [
        (counted("tokens", "rendered"), requests.len()),
        (counted("bytes", "own_template"), 1),
        (counted("bytes", "media"), 1),
    ] {
        assert!(
            metrics.contains(&format!("{line}{count}\n")),
            "{line}{count}\n{metrics}"
        );
    }
}

#[tokio::test]
async fn qwen3_is_known_by_its_own_tokens() {
    compare("qwen3").await;
}

#[tokio::test]
async fn gpt_oss_is_known_by_its_own_tokens() {
    compare("gpt-oss").await;
}
