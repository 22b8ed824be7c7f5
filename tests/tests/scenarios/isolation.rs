//! Tenants whose caches are apart, and prompts known by their tokens: what each may see of another.

use crate::kv::Place;
use crate::{Served, serve_file};
use maitred_tests::{Gate, Process, Script, Step, Worker, json_answer, sse_event};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";
/// Stands in everything that a client says.
const MARK: &str = "ZX-MARK-77";

/// One request by this key, and the record of it.
async fn ask(served: &Served, key: &str, id: &str, path: &str, body: &Value) -> Value {
    let bearer = format!("Bearer {key}");
    let headers = [
        ("authorization", bearer.as_str()),
        ("content-type", "application/json"),
        ("x-request-id", id),
    ];
    let request = maitred_tests::request("POST", path, &headers, body.to_string());
    let answer = served.client().await.exchange(&request).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let of = |record: &Value| record["request_id"] == id;
    maitred_tests::eventually("its record", || served.records().iter().any(of)).await;
    served.records().into_iter().find(of).unwrap()
}

/// Everything of 16 or more hexadecimal digits: hashes, whatever they are of.
fn hashes(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_ascii_hexdigit())
        .filter(|word| word.len() >= 16)
        .map(str::to_owned)
        .collect()
}

/// Waits until what the engine said of its cache has been taken in: `blocks` of it.
async fn observed(served: &Served, blocks: u64) {
    maitred_tests::within("its events", async {
        loop {
            let worker = &served.workers().await[0];
            if worker["kv_events"]["observed_blocks"] == blocks {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// One tenant was warmed by another's prompt, and saw it by the time and the count of cached tokens.
#[tokio::test]
async fn equal_prompts_of_two_tenants_meet_nowhere() {
    let place = Place::any();
    let _engine = place.engine(&[]).await;
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["key-a", "key-b"].map(|key| {
        let path = dir.path().join(key);
        std::fs::write(&path, key).unwrap();
        format!("key_file: '{}'", path.display())
    });
    let served = serve_file(
        &format!(
            "salt_secret: a-secret-of-the-house\ntenants: [{{ name: a, {a} }}, {{ name: b, {b} }}]\npools:\n  - name: p\n    model: m\n    isolation: tenant\n    inject_cache_salt: true\n    workers:\n{}",
            place.worker(true)
        ),
        1,
    )
    .await;
    let ids: Vec<u32> = (0..410).map(|n| n * 31 % 1_900 + 10).collect();
    let body = json!({"model": "m", "prompt": ids, "max_tokens": 3});
    let path = "/v1/completions";
    // 410 tokens are 25 blocks of 16; those generated fill no other.
    let first = ask(&served, "key-a", "a1", path, &body).await;
    observed(&served, 25).await;
    let other = ask(&served, "key-b", "b1", path, &body).await;
    // The engine holds it twice.
    observed(&served, 50).await;
    let again = ask(&served, "key-a", "a2", path, &body).await;
    let told = |record: &Value| {
        let belief = &record["belief"];
        let counts = [
            &belief["observed"],
            &belief["predicted"],
            &record["cached_tokens"],
        ];
        counts.map(|count| count.as_u64().unwrap())
    };
    assert_eq!(told(&first), [0, 0, 0]);
    assert_eq!(
        told(&other),
        [0, 0, 0],
        "b starts cold, here and in the engine"
    );
    assert_eq!(again["cached_tokens"], 400);
    assert_eq!(again["belief"]["observed"], 25);
    // A hash of a prompt would be equal for equal prompts, and tell one what the other asked.
    let own = first.to_string() + &served.admin_get("/explain/a1").await.text();
    let others = other.to_string() + &served.admin_get("/explain/b1").await.text();
    let (mut own, others) = (hashes(&own), hashes(&others));
    // Of the scheduler, whoever asks.
    assert!(own.remove(first["seed"].as_str().unwrap()));
    assert!(!own.is_empty() && !others.is_empty());
    let shared: Vec<_> = own.intersection(&others).collect();
    assert!(shared.is_empty(), "{shared:?}");
    // Nor is any a label of the metrics; their values are counts and times.
    let metrics = served.admin_get("/metrics").await.text();
    let series = metrics.lines().filter_map(|line| line.rsplit_once(' '));
    let labels: String = series.map(|(series, _)| series).collect();
    assert!(labels.contains("maitred_requests_total") && hashes(&labels).is_empty());
}

/// Prompts, tools and template options in logs, records and metrics: by templates that quote what they
/// refuse, by errors, by retries, at whatever level.
#[tokio::test]
async fn prompts_known_by_their_tokens_are_written_nowhere() {
    let template = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{{ mood }}\
        {% for m in messages %}{% if 'REFUSE' in m.content %}{{ raise_exception('not ' + m.content) }}{% endif %}\
        {% if 'WRONG' in m.content %}{{ m.content.no_such(m.content) }}{% endif %}\
        <s>{{ m.role }}{{ m.content }}<e>{% endfor %}<s>";
    let dir = tempfile::tempdir().unwrap();
    maitred_tests::write_model(dir.path(), template);
    let gate = Gate::new();
    let events = |last: Vec<Step>| {
        let headers = [
            ("content-type", "text/event-stream"),
            ("transfer-encoding", "chunked"),
        ];
        let said = format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"{MARK}"}}}}]}}"#);
        let mut steps = vec![Step::head(200, &headers), Step::chunk(sse_event(&said))];
        steps.extend(last);
        steps
    };
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":400,"completion_tokens":3}}"#;
    let held = gate.clone();
    let script = Script::by(
        move |asked| match asked.header("x-request-id").unwrap_or_default() {
            "full" => json_answer(503, &format!(r#"{{"error":{{"message":"{MARK}"}}}}"#)),
            "reset" => vec![Step::Reset],
            "cut" => events(vec![Step::Reset]),
            "wrong" => json_answer(
                200,
                &format!(r#"{{"choices":null,"error":{{"message":"{MARK}"}}}}"#),
            ),
            "late" => vec![Step::Hang],
            "left" => events(vec![Step::Wait(held.clone())]),
            "stream" => events(vec![
                Step::chunk(sse_event(usage)),
                Step::chunk(sse_event("[DONE]")),
                Step::End,
            ]),
            _ => json_answer(200, usage),
        },
    );
    let workers = [
        Worker::start(script.clone()).await,
        Worker::start(script).await,
    ];
    let file = dir.path().join("maitred.yaml");
    let text = format!(
        "timeouts: {{ first_byte: 300ms }}\npools:\n  - name: p\n    model: m\n    attempts: 2\n    identity: '{}'\n    workers: [{{ url: '{}', assume_ready: true }}, {{ url: '{}', assume_ready: true }}]\n",
        dir.path().display(),
        workers[0].url(),
        workers[1].url()
    );
    std::fs::write(&file, text).unwrap();
    let records = dir.path().join("records");
    let process = Process::serve(&[
        "--config",
        file.to_str().unwrap(),
        "--records",
        records.to_str().unwrap(),
        "--log",
        "trace",
    ])
    .await;
    let body = |text: &str| {
        json!({"model": "m", "stream": true, "user": MARK, "prompt_cache_key": MARK,
            "metadata": {"user_id": MARK}, "chat_template_kwargs": {"mood": MARK},
            "messages": [{"role": "system", "content": MARK}, {"role": "user", "content": format!("{text} {MARK}")}],
            "tools": [{"type": "function", "function": {"name": MARK, "parameters": {"type": MARK}}}]})
    };
    let mut own_template = body("");
    own_template["chat_template"] = MARK.into();
    let mut no_list = body("");
    no_list["messages"] = MARK.into();
    let large = body(&"x".repeat(100_000));
    let asks = [
        ("good", body("hello")),
        ("again", body("hello")),
        ("stream", body("hello")),
        ("large", large),
        ("refused", body("REFUSE")),
        ("failed", body("WRONG")),
        ("own", own_template),
        ("no-list", no_list),
        ("full", body("hello")),
        ("reset", body("hello")),
        ("cut", body("hello")),
        ("wrong", body("hello")),
        ("late", body("hello")),
        ("model", json!({"model": MARK, "messages": []})),
        ("left", body("hello")),
    ];
    for (id, body) in &asks {
        let headers = [
            ("content-type", "application/json"),
            ("x-request-id", *id),
            ("x-session-id", MARK),
        ];
        let target = format!("{CHAT}?q={MARK}");
        let request = maitred_tests::request("POST", &target, &headers, body.to_string());
        let mut client = process.client().await;
        if *id == "left" {
            client.send(&request).await;
            gate.wait_for_waiting(1).await;
            client.abort();
        } else {
            client.exchange(&request).await;
        }
    }
    let written = || {
        let files = std::fs::read_dir(&records).into_iter().flatten();
        let texts = files.map(|f| std::fs::read_to_string(f.unwrap().path()).unwrap());
        texts.collect::<String>()
    };
    let all = || {
        asks.iter()
            .all(|(id, _)| written().contains(&format!("\"{id}\"")))
    };
    maitred_tests::eventually("the records", all).await;
    // What this is about did happen.
    for what in [
        "\"tokens\"",
        "\"raised\"",
        "\"template\"",
        "\"own_template\"",
        "\"field\"",
        "\"retried\"",
        "\"cancelled\"",
        "\"failed\"",
        "\"rejected\"",
    ] {
        assert!(written().contains(what), "{what}\n{}", written());
    }
    assert!(!written().contains(MARK));
    for (id, _) in &asks {
        let told = process.admin_get(&format!("/explain/{id}")).await.text();
        assert!(told.contains(id) && !told.contains(MARK), "{told}");
    }
    for path in [
        "/metrics", "/config", "/lines", "/workers", "/pools", "/health",
    ] {
        let told = process.admin_get(path).await.text();
        assert!(!told.contains(MARK), "{path}: {told}");
    }
    let log = process.log();
    assert!(log.contains("TRACE"), "{log}");
    let line = log.lines().find(|line| line.contains(MARK));
    assert_eq!(line, None);
}
