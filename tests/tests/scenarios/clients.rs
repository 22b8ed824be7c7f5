//! What clients send arrives, on every endpoint, byte for byte.
use maitred_tests::{Script, Worker, json_answer, sse_event, stream_answer, text};
use serde_json::json;

use crate::{Served, chat, serve, serve_file};

const CHAT: &str = "/v1/chat/completions";

async fn one() -> (Worker, Served) {
    let worker = Worker::start(Script::ok()).await;
    let served = serve(&[&worker], &[]).await;
    (worker, served)
}

/// Typed routers dropped or refused fields that they did not know.
#[tokio::test]
async fn every_field_arrives_byte_for_byte() {
    let (worker, served) = one().await;
    let bodies = [
        r#"{"model":"m","messages":[{"role":"user","content":"a"}],"return_token_ids":true,"chat_template_kwargs":{"a":1},"vendor_x":[1]}"#,
        r#"{"model":"m","messages":[],"max_completion_tokens":3,"stream_options":null,"service_tier":"auto","chat_template_kwargs":{}}"#,
        // Odd spacing, order, escapes, big integers and duplicate keys are the client's own.
        "{ \"seed\":12345678901234567890123 ,\n\t\"messages\" : [{\"content\":\"\\u00e9\\/\",\"role\":\"user\"}],\"model\":\"m\", \"x\":1, \"x\":2 }",
        r#"{"model":"m","messages":[{"role":"developer","content":"short"},{"role":"user","content":"a"},{"role":"system","content":"b"}]}"#,
        r#"{"model":"m","messages":[{"role":"user","content":"é ☃ 𝄞"}],"temperature":1.0,"top_p":1e0}"#,
    ];
    for body in bodies {
        assert_eq!(served.post(CHAT, body).await.status(), 200, "{body}");
        assert_eq!(text(worker.last().body), body);
    }
}

/// The second turn after a tool call failed: content null, empty, missing, or of unknown parts.
#[tokio::test]
async fn odd_contents_are_forwarded() {
    let (worker, served) = one().await;
    let body = json!({"model": "m", "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "new_kind", "x": {}}]},
        {"role": "assistant", "content": null, "tool_calls":
            [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "ok"}]},
        {"role": "assistant", "content": []},
        {"role": "assistant"},
        {"role": "user", "content": ""},
    ]})
    .to_string();
    let answer = served.post(CHAT, &body).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert_eq!(text(worker.last().body), body);
    maitred_tests::eventually("a record", || served.records().len() == 1).await;
    assert_eq!(
        served.records()[0]["turn"],
        4,
        "three assistant messages came before"
    );
}

/// Token-id prompts were refused or had no key; all four shapes are prompts.
#[tokio::test]
async fn all_shapes_of_prompts_are_forwarded_and_have_a_key() {
    let (worker, served) = one().await;
    for prompt in [
        json!([1, 2, 3]),
        json!([[1, 2], [3]]),
        json!(["a", "b"]),
        json!(""),
    ] {
        let body = json!({"model": "m", "prompt": prompt}).to_string();
        let answer = served.post("/v1/completions", &body).await;
        assert_eq!(answer.status(), 200, "{prompt}: {}", answer.text());
        assert_eq!(text(worker.last().body), body);
    }

    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(Worker::start(Script::ok()).await);
    }
    let all: Vec<&Worker> = workers.iter().collect();
    let served = serve(&all, &["policy: cache_aware"]).await;
    let ids: Vec<u32> = (0..1_000).collect();
    for tail in 0..6 {
        let prompt: Vec<u32> = ids.iter().copied().chain([5_000 + tail]).collect();
        let body = json!({"model": "m", "prompt": prompt}).to_string();
        assert_eq!(served.post("/v1/completions", body).await.status(), 200);
    }
    let counts: Vec<usize> = workers.iter().map(Worker::count).collect();
    assert!(counts.contains(&6), "equal ids stick together: {counts:?}");
}

/// Clients of other families needed a translator: endpoints were a closed list.
#[tokio::test]
async fn messages_and_unknown_paths_reach_a_worker() {
    let (worker, served) = one().await;
    let body = json!({"model": "m", "max_tokens": 3, "system": "s",
        "messages": [{"role": "user", "content": "hi"}]})
    .to_string();
    for path in [
        "/v1/messages?beta=true",
        "/v1/messages/count_tokens",
        "/v1/unknown?a=%20b&c",
    ] {
        let answer = served.post(path, &body).await;
        assert_eq!(answer.status(), 200, "{path}: {}", answer.text());
        assert_eq!(worker.last().target(), path);
        assert_eq!(text(worker.last().body), body);
    }
    maitred_tests::eventually("three records", || served.records().len() == 3).await;
    let outcomes: Vec<_> = served
        .records()
        .iter()
        .map(|one| one["outcome"].clone())
        .collect();
    assert_eq!(outcomes, ["served", "served", "served"]);
}

/// Follow-ups of the Responses API failed: the state lives where the last answer was made, and
/// each answer has a new id, in a stream in its first event.
#[tokio::test]
async fn a_response_is_continued_where_it_was_made() {
    let mut workers = Vec::new();
    for index in 0..4 {
        let script = Script::by(move |request| {
            let id = format!("resp_{index}_{}", request.number);
            let object = json!({"id": id, "object": "response", "status": "completed"});
            if request.json()["stream"] == true {
                let created = json!({"type": "response.created", "response": object});
                let event = format!(
                    "event: response.created\n{}",
                    sse_event(&created.to_string())
                );
                let mut steps = stream_answer([]);
                steps.insert(1, maitred_tests::Step::chunk(event));
                return steps;
            }
            json_answer(200, &object.to_string())
        });
        workers.push(Worker::start(script).await);
    }
    let all: Vec<&Worker> = workers.iter().collect();
    let served = serve(&all, &["policy: round_robin"]).await;
    let counts = || workers.iter().map(Worker::count).collect::<Vec<_>>();
    let first = served
        .post("/v1/responses", r#"{"model":"m","input":"a"}"#)
        .await;
    let mut id = first.json()["id"].as_str().unwrap().to_owned();
    let home = counts().iter().position(|&count| count == 1).unwrap();
    for turn in 0..4 {
        let stream = turn % 2 == 0;
        let body =
            json!({"model": "m", "input": "b", "previous_response_id": id, "stream": stream});
        let answer = served.post("/v1/responses", body.to_string()).await;
        assert_eq!(answer.status(), 200);
        let said = answer.text();
        let start = said.find("resp_").unwrap();
        id = said[start..].split('"').next().unwrap().to_owned();
    }
    assert_eq!(counts()[home], 5, "{:?}", counts());
}

/// A name that nobody serves is answered with the names that are.
#[tokio::test]
async fn an_unknown_model_is_told_the_known_ones() {
    let worker = Worker::start(Script::ok()).await;
    worker.models(&["llama"]);
    let other = Worker::start(Script::ok()).await;
    other.models(&["bge"]);
    let (first, second) = (worker.url(), other.url());
    let file = format!(
        "pools:
  - {{ name: a, model: llama, aliases: [gpt-4o], workers: ['{first}'] }}
  - {{ name: b, model: bge, workers: ['{second}'] }}
"
    );
    let served = serve_file(&file, 2).await;
    let ask = |model: &str| json!({"model": model, "messages": []}).to_string();
    let answer = served.post(CHAT, ask("nobody")).await;
    assert_eq!(answer.status(), 404);
    let message = answer.json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    for name in ["nobody", "llama", "gpt-4o", "bge"] {
        assert!(message.contains(name), "{name} in: {message}");
    }
    assert_eq!((worker.count(), other.count()), (0, 0));

    assert_eq!(served.post(CHAT, ask("gpt-4o")).await.status(), 200);
    assert_eq!(
        worker.last().json()["model"],
        "llama",
        "the worker's own name for it"
    );
    let anthropic = served.post("/v1/messages", ask("nobody")).await;
    assert_eq!(
        (anthropic.status(), anthropic.json()["type"].clone()),
        (404, json!("error"))
    );

    let models = served.client().await.get("/v1/models").await.json();
    let names: Vec<&str> = models["data"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["id"].as_str())
        .collect();
    for name in ["llama", "gpt-4o", "bge"] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
}

/// Strict mode names the field that nothing supports; the default passes it through.
#[tokio::test]
async fn strict_mode_names_the_field() {
    let worker = Worker::start(Script::ok()).await;
    let url = worker.url();
    let file = format!("strict: true\npools:\n  - {{ name: p, workers: ['{url}'] }}\n");
    let served = serve_file(&file, 1).await;
    let body = r#"{"model":"m","messages":[{"role":"user","content":"a"}],"temprature":0.1}"#;
    let answer = served.post(CHAT, body).await;
    assert_eq!(answer.status(), 400, "{}", answer.text());
    let error = answer.json()["error"].clone();
    assert_eq!(error["param"], "temprature", "{error}");
    assert_eq!(worker.count(), 0);
    assert_eq!(served.post(CHAT, chat("a")).await.status(), 200);
}

/// Junk model names blew up memory and the scrape: request strings were labels.
#[tokio::test]
async fn junk_names_make_no_series() {
    let (_worker, served) = one().await;
    let series = || async {
        let text = served.admin_get("/metrics").await.text();
        text.lines().filter(|line| !line.starts_with('#')).count()
    };
    let ask = |n: usize| json!({"model": format!("junk-{n}"), "messages": []}).to_string();
    let mut client = served.client().await;
    client.post(CHAT, ask(0)).await;
    client.post("/junk-0", "{}").await;
    let before = series().await;
    for n in 1..300 {
        client.post(CHAT, ask(n)).await;
        client.post(&format!("/junk-{n}"), "{}").await;
    }
    assert_eq!(series().await, before);
}

/// `soft_affinity` promises the worker of the previous turn to the same caller only: equal openings,
/// and equal cache keys, of anonymous callers are not the same conversation.
#[tokio::test]
async fn anonymous_callers_never_steer_each_other() {
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(Worker::start(Script::ok()).await);
    }
    let urls: Vec<String> = workers.iter().map(Worker::url).collect();
    let file = format!(
        "trusted_proxies: [127.0.0.1]\npools:\n  - {{ name: p, policy: soft_affinity, workers: {} }}\n",
        json!(urls)
    );
    let served = serve_file(&file, 4).await;
    let opening = json!({"model": "m", "messages": [{"role": "system", "content": "You help."},
        {"role": "user", "content": "hello"}]});
    let mut keyed = opening.clone();
    keyed["prompt_cache_key"] = json!("same");
    for (kind, body) in [(0, opening.to_string()), (1, keyed.to_string())] {
        let mut client = served.client().await;
        let mut ask = async |caller: u32| {
            let from = format!("10.{kind}.0.{caller}");
            let headers = [("x-forwarded-for", from.as_str())];
            let sent = maitred_tests::request("POST", CHAT, &headers, &body);
            let answer = client.exchange(&sent).await;
            let said = |name| answer.header(name).unwrap_or_default().to_owned();
            (said("x-maitred-placed"), said("x-maitred-worker"))
        };
        let mut homes = Vec::new();
        for caller in 1..=20 {
            let (placed, home) = ask(caller).await;
            assert_eq!(placed, "least_load", "caller {caller} is new");
            homes.push(home);
        }
        for caller in (1..=20).rev() {
            let (placed, home) = ask(caller).await;
            assert_eq!(placed, "home", "caller {caller} was here");
            assert_eq!(home, homes[caller as usize - 1]);
        }
        let used = workers.iter().filter(|worker| worker.count() > 0).count();
        assert!(used >= 3, "they spread: {homes:?}");
    }
}

/// Affinity did nothing for clients without a session id, took an empty one for a session that all
/// of them share, or went by the id of each request.
#[tokio::test]
async fn chats_without_an_id_stay_together_and_spread() {
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(Worker::start(Script::ok()).await);
    }
    let all: Vec<&Worker> = workers.iter().collect();
    let served = serve(&all, &["policy: session"]).await;
    let mut client = served.client().await;
    let mut homes = std::collections::BTreeMap::new();
    for chat in 0..40 {
        // Half of them send the header, with nothing in it.
        let session = if chat % 2 == 0 { " " } else { "" };
        let mut messages = vec![json!({"role": "system", "content": "You help."})];
        let mut homes_of_chat = std::collections::BTreeSet::new();
        for turn in 0..4 {
            messages.push(json!({"role": "user", "content": format!("{chat}: what is {turn}?")}));
            let id = format!("fresh-{chat}-{turn}");
            let headers = [("x-request-id", id.as_str()), ("x-session-id", session)];
            let headers = if chat % 4 < 2 {
                &headers[..]
            } else {
                &headers[..1]
            };
            let body = json!({"model": "m", "messages": messages}).to_string();
            let answer = client
                .exchange(&maitred_tests::request("POST", CHAT, headers, body))
                .await;
            assert_eq!(answer.status(), 200);
            homes_of_chat.insert(answer.header("x-maitred-worker").unwrap().to_owned());
            messages.push(json!({"role": "assistant", "content": "ok"}));
        }
        assert_eq!(homes_of_chat.len(), 1, "chat {chat}: {homes_of_chat:?}");
        *homes.entry(homes_of_chat.pop_first().unwrap()).or_insert(0) += 1;
    }
    assert_eq!(homes.len(), 4, "{homes:?}");
    assert!(homes.values().all(|&chats| chats <= 15), "{homes:?}");
    maitred_tests::eventually("the records", || served.records().len() == 160).await;
    for record in served.records() {
        assert_ne!(record["session_source"], "header");
    }
}
