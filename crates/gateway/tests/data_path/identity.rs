//! Prompts known by their tokens: a tokenizer of one token for each byte, and a template of a line.

use super::{PATH, at_rest, attempts, client, room, soon};
use maitred_core::place::PolicyConfig;
use maitred_gateway::Running;
use maitred_gateway::config::{Config, IdentitySettings, check};
use maitred_records::AttemptRecord;
use maitred_tests::{Response, Script, Worker, eventually};
use serde_json::{Value, json};
use std::fs::write;
use std::path::Path;
use std::sync::Arc;

/// 6 tokens of frame for a user's message, its bytes, and 1 to begin the answer.
const TEMPLATE: &str = "{% if reasoning_effort %}[{{ reasoning_effort }}]{% endif %}\
{% if enable_thinking is defined %}[{{ enable_thinking }}]{% endif %}\
{% for t in tools or [] %}{{ t.function.name }}{% endfor %}\
{% for m in messages %}{% if 'MARK' in m.content %}{{ raise_exception('no ' + m.content) }}{% endif %}\
<s>{{ m.role }}{{ m.content }}<e>{% endfor %}<s>";

fn model(folder: &Path) {
    maitred_tests::write_model(folder, TEMPLATE);
}

fn known_by_tokens(folder: &Path) -> impl FnOnce(&mut Config) {
    let mut identity = IdentitySettings::default();
    identity.files.directory = Some(folder.to_owned());
    move |config| {
        config.pools[0].identity = Some(identity);
        config.pools[0].core.policy = PolicyConfig::named("cache_aware").unwrap();
    }
}

async fn ask(running: &Running, id: &str, body: &Value) -> Response {
    let headers = [("content-type", "application/json"), ("x-request-id", id)];
    let request = maitred_tests::request("POST", PATH, &headers, body.to_string());
    soon(client(running).await.exchange(&request)).await
}

async fn asked(running: &Running, id: &str, body: &Value) -> Arc<AttemptRecord> {
    assert_eq!(ask(running, id, body).await.status(), 200);
    attempts(running, id, 1).await.remove(0)
}

fn chat(messages: &[(&str, &str)]) -> Value {
    let messages: Vec<Value> = messages
        .iter()
        .map(|(role, content)| json!({"role": role, "content": content}))
        .collect();
    json!({"model": "m", "messages": messages})
}

fn fallback(record: &AttemptRecord) -> (&str, Option<&str>) {
    (&record.identity, record.identity_fallback.as_deref())
}

async fn metrics(running: &Running) -> String {
    let mut admin = maitred_tests::Client::connect(running.admin).await;
    let request = maitred_tests::request("GET", "/metrics", &[("host", "127.0.0.1")], "");
    soon(admin.exchange(&request)).await.text()
}

#[tokio::test]
async fn follow_ups_match_exactly_in_tokens() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let workers = [
        Worker::start(Script::ok()).await,
        Worker::start(Script::ok()).await,
    ];
    let running = room(&[&workers[0], &workers[1]], known_by_tokens(folder.path())).await;
    let long = "x".repeat(200);
    let first = asked(&running, "one", &chat(&[("user", &long)])).await;
    assert_eq!(fallback(&first), ("tokens", None));
    // <s> user 200 <e> <s>
    assert_eq!(first.prompt_tokens_estimated, Some(207));
    assert_eq!(first.predicted_cached_tokens, Some(0));
    let more = chat(&[("user", &long), ("assistant", "yes"), ("user", "and?")]);
    let second = asked(&running, "two", &more).await;
    assert_eq!(second.worker, first.worker);
    // Of the first prompt all 207 come again: 12 blocks of 16.
    assert_eq!(second.predicted_cached_tokens, Some(192));
    assert_eq!(
        second.prompt_tokens_estimated,
        Some(207 + 9 + 3 + 1 + 1 + 4 + 4 + 1 + 1)
    );
    // The client's own ids of the same prompt meet them.
    let ids = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let prompt = [&[256][..], &ids("user"), &ids(&long), &[257, 256]].concat();
    let body = json!({"model": "m", "prompt": prompt}).to_string();
    let headers = [
        ("content-type", "application/json"),
        ("x-request-id", "ids"),
    ];
    let request = maitred_tests::request("POST", "/v1/completions", &headers, body);
    assert_eq!(
        soon(client(&running).await.exchange(&request))
            .await
            .status(),
        200
    );
    let own = attempts(&running, "ids", 1).await.remove(0);
    assert_eq!(own.predicted_cached_tokens, Some(192));
    let text = metrics(&running).await;
    for line in [
        r#"maitred_identity_requests_total{pool="p",identity="tokens",reason="rendered"} 2"#,
        r#"maitred_identity_requests_total{pool="p",identity="tokens",reason="client_ids"} 1"#,
        r#"maitred_tokenise_seconds_count{pool="p"} 2"#,
        r#"maitred_memo_texts{pool="p",result="hit"} 1"#,
        // The engine says how many tokens the prompt had, not how many were cached.
        r#"maitred_cached_tokens_error_unknown_total{pool="p",source="predicted"} 2"#,
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    at_rest(&running).await;
}

#[tokio::test]
async fn what_changes_the_rendering_changes_the_chain() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], known_by_tokens(folder.path())).await;
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let with = |field: &str, value: Value| {
        let mut body = chat(&[("user", &"y".repeat(100))]);
        body[field] = value;
        body
    };
    let bodies = [
        chat(&[("user", &"y".repeat(100))]),
        with("tools", json!([tool("a"), tool("b")])),
        with("tools", json!([tool("b"), tool("a")])),
        with("reasoning_effort", json!("low")),
        with("reasoning_effort", json!("high")),
        with("chat_template_kwargs", json!({"enable_thinking": true})),
        with("chat_template_kwargs", json!({"enable_thinking": false})),
    ];
    for round in 0..2 {
        for (n, body) in bodies.iter().enumerate() {
            let record = asked(&running, &format!("{round}-{n}"), body).await;
            assert_eq!(fallback(&record), ("tokens", None), "{body}");
            let predicted = record.predicted_cached_tokens.unwrap();
            // None finds another's; each finds its own.
            assert_eq!(predicted > 0, round == 1, "{body}");
        }
    }
    // What the client sent is what the worker got.
    assert_eq!(worker.last().json(), bodies[6]);
}

/// A template prints the local time of the engines, which need not be ours.
#[tokio::test]
async fn the_time_is_that_of_the_engines_zone() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let dated = format!("{{{{ strftime_now('%H') }}}}{TEMPLATE}");
    write(folder.path().join("chat_template.jinja"), dated).unwrap();
    let said = "d".repeat(100);
    for offset in [0, 7_200] {
        let worker = Worker::start(Script::ok()).await;
        let running = room(&[&worker], |config| {
            known_by_tokens(folder.path())(config);
            let identity = config.pools[0].identity.as_mut().unwrap();
            identity.utc_offset_seconds = offset;
        })
        .await;
        let hour = |offset: i32| {
            let unix = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
            let hour = (unix.as_secs() + offset as u64) / 3_600 % 24;
            format!("{hour:02}")
        };
        // The hour may turn between: then once more.
        let mut tries = 0;
        let now = loop {
            let before = hour(offset);
            tries += 1;
            asked(&running, &format!("{tries}"), &chat(&[("user", &said)])).await;
            if before == hour(offset) {
                break before;
            }
        };
        // The client's own ids of what was rendered find it; those of another hour do not.
        for (id, hour, found) in [("own", now, 96), ("other", hour(offset + 3_600), 0)] {
            let ids = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
            let prompt = [&ids(&hour)[..], &[256], &ids("user"), &ids(&said)].concat();
            let body = json!({"model": "m", "prompt": prompt}).to_string();
            let headers = [("content-type", "application/json"), ("x-request-id", id)];
            let request = maitred_tests::request("POST", "/v1/completions", &headers, body);
            soon(client(&running).await.exchange(&request)).await;
            let record = attempts(&running, id, 1).await.remove(0);
            assert_eq!(
                record.predicted_cached_tokens,
                Some(found),
                "{offset}: {id}"
            );
        }
    }
}

#[tokio::test]
async fn what_cannot_be_rendered_is_served_by_its_bytes() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], known_by_tokens(folder.path())).await;
    let raises = chat(&[("user", &format!("MARK-77 {}", "z".repeat(200)))]);
    let record = asked(&running, "raised", &raises).await;
    assert_eq!(fallback(&record), ("bytes", Some("raised")));
    // Its bytes are found again, and are never taken for tokens.
    let again = asked(&running, "again", &raises).await;
    assert!(again.predicted_cached_tokens.unwrap() > 0);
    let mut cut = chat(&[("user", &"v".repeat(300))]);
    cut["truncate_prompt_tokens"] = json!(20);
    let record = asked(&running, "cut", &cut).await;
    assert_eq!(fallback(&record), ("bytes", Some("truncated")));
    let picture = |url: &str| {
        let parts = json!([{"type": "text", "text": "w".repeat(300)},
            {"type": "image_url", "image_url": {"url": url}}]);
        json!({"model": "m", "messages": [{"role": "user", "content": parts}]})
    };
    let first = asked(&running, "picture", &picture("http://h/a")).await;
    assert_eq!(fallback(&first), ("bytes", Some("media")));
    let other = asked(&running, "other", &picture("http://h/b")).await;
    let same = asked(&running, "same", &picture("http://h/a")).await;
    assert!(same.predicted_cached_tokens > other.predicted_cached_tokens);
    let text = metrics(&running).await;
    for line in [
        r#"maitred_identity_requests_total{pool="p",identity="bytes",reason="raised"} 2"#,
        r#"maitred_identity_requests_total{pool="p",identity="bytes",reason="media"} 3"#,
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let mut admin = maitred_tests::Client::connect(running.admin).await;
    let request = maitred_tests::request("GET", "/explain/raised", &[("host", "127.0.0.1")], "");
    let told = soon(admin.exchange(&request)).await.text();
    assert!(
        told.contains("not its tokens: the chat template refused it"),
        "{told}"
    );
    // The template's message quotes the prompt: it goes nowhere.
    assert!(!told.contains("MARK") && !text.contains("MARK"), "{told}");
}

#[tokio::test]
async fn large_prompts_wait_for_a_place_or_go_by_their_bytes() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], known_by_tokens(folder.path())).await;
    let text = running.gateway.pools[0].text.clone().unwrap();
    let free = text.places.free().available_permits();
    let held = Arc::clone(text.places.free()).try_acquire_many_owned(u32::try_from(free).unwrap());
    let held = held.unwrap();
    let body = |c: &str| chat(&[("user", &c.repeat(100_000))]);
    let busy = asked(&running, "busy", &body("a")).await;
    assert_eq!(fallback(&busy), ("bytes", Some("busy")));
    // Small ones need no place.
    let small = asked(&running, "small", &chat(&[("user", "hi")])).await;
    assert_eq!(fallback(&small), ("tokens", None));
    // A client that leaves while it waits leaves nothing behind.
    let mut leaver = client(&running).await;
    let bytes = maitred_tests::request("POST", PATH, &[], body("b").to_string());
    leaver.send(&bytes).await;
    eventually("it waits", || text.places.waiting() == 1).await;
    leaver.abort();
    eventually("it waits no more", || text.places.waiting() == 0).await;
    drop(held);
    let large = asked(&running, "large", &body("c")).await;
    assert_eq!(fallback(&large), ("tokens", None));
    assert_eq!(large.prompt_tokens_estimated, Some(100_007));
    eventually("all places are free", || {
        text.places.free().available_permits() == free
    })
    .await;
    at_rest(&running).await;
    assert!(
        metrics(&running).await.contains(
            r#"maitred_identity_requests_total{pool="p",identity="bytes",reason="busy"} 1"#
        )
    );
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named_with_their_place() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let dir = folder.path().display();
    let file = |line: &str| format!("pools:\n  - workers: [http://h:1]\n    identity: {line}\n");
    let good = check(&file(&format!("{{ model_dir: {dir}, dialect: sglang }}"))).unwrap();
    assert_eq!(good.show()["pools"][0]["identity"]["dialect"], "sglang");
    check(&file(&dir.to_string())).unwrap();
    let ahead = format!("{{ model_dir: {dir}, utc_offset: \"+02:00\" }}");
    let ahead = check(&file(&ahead)).unwrap().show();
    assert_eq!(ahead["pools"][0]["identity"]["utc_offset"], "+02:00");
    for (line, field, message) in [
        ("/no/where".to_owned(), "identity", "is no directory"),
        (
            format!("{{ model_dir: {dir}, chat_template: none.jinja }}"),
            "identity.chat_template",
            "`none.jinja` is no file",
        ),
        (
            format!("{{ model_dir: {dir}, dialect: x }}"),
            "identity.dialect",
            "must be vllm",
        ),
        (
            format!("{{ model_dir: {dir}, utc_offset: Berlin }}"),
            "identity.utc_offset",
            "must be an offset from UTC",
        ),
        (
            "{ content: string }".to_owned(),
            "identity",
            "no tokenizer.json",
        ),
    ] {
        let problems = check(&file(&line)).unwrap_err();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(
            (problems[0].line, problems[0].field.as_str()),
            (3, format!("pools[0].{field}").as_str())
        );
        assert!(problems[0].message.contains(message), "{problems:?}");
    }
    write(folder.path().join("chat_template.jinja"), "{% if %}").unwrap();
    let mut config = super::empty();
    config.pools = vec![super::pool("p", Some("m"), &[])];
    known_by_tokens(folder.path())(&mut config);
    let error = maitred_gateway::start(config)
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.starts_with("pool p: identity: ") && error.contains("chat_template.jinja"),
        "{error}"
    );
}
