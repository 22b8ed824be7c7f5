//! Chats on workers that complete plain prompts: the pool's template makes the prompt, its tokenizer
//! counts the answer.

use super::{PATH, at_rest, attempts, client, room, soon};
use maitred_gateway::Running;
use maitred_gateway::config::{Config, IdentitySettings, PullSettings, PullToken, hash_token};
use maitred_tests::{Client, Response, byte_tokenizer, request};
use serde_json::{Value, json};
use std::fs::write;
use std::path::Path;

/// A beginning of text, and for each message its role, its text and an end of text.
const TEMPLATE: &str =
    "{{ bos_token }}{% for m in messages %}{{ m.role }}{{ m.content }}<e>{% endfor %}";

/// A tokenizer of one token for each byte that begins every text itself.
fn model(folder: &Path) {
    let mut tokenizer = byte_tokenizer();
    let begin = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    tokenizer["post_processor"] = json!({"type": "TemplateProcessing", "single": [begin, text],
        "pair": [begin, text, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}}});
    write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    write(folder.join("chat_template.jinja"), TEMPLATE).unwrap();
    let special = json!({"bos_token": "<s>", "eos_token": "<e>"});
    write(folder.join("tokenizer_config.json"), special.to_string()).unwrap();
}

fn pulling(folder: &Path) -> impl FnOnce(&mut Config) {
    let mut identity = IdentitySettings::default();
    identity.files.directory = Some(folder.to_owned());
    let mut pull = PullSettings::at("127.0.0.1:0".parse().unwrap());
    pull.tokens.push(PullToken {
        owner: "o".to_owned(),
        hash: hash_token("key"),
        pools: Vec::new(),
        workers: Vec::new(),
        tenants: Vec::new(),
    });
    move |config| {
        config.pools[0].identity = Some(identity);
        config.pull = Some(pull);
    }
}

async fn call(running: &Running, what: &str, body: &Value) -> Value {
    let path = format!("/api/v2/generate/text/{what}");
    let headers = [("apikey", "key"), ("content-type", "application/json")];
    let bytes = request("POST", &path, &headers, body.to_string());
    let mut worker = Client::connect(running.pull.unwrap()).await;
    let answer = soon(worker.exchange(&bytes)).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    answer.json()
}

/// Asks, and has the worker say `text`; returns the job's payload, and the answer.
async fn told(running: &Running, id: &str, body: &Value, text: &str) -> (Value, Response) {
    let mut guest = client(running).await;
    let headers = [("content-type", "application/json"), ("x-request-id", id)];
    guest
        .send(request("POST", PATH, &headers, body.to_string()))
        .await;
    let ask = json!({"name": "w", "max_length": 9, "max_context_length": 64});
    let job = call(running, "pop", &ask).await;
    let said = json!({"id": job["id"], "generation": text});
    assert!(call(running, "submit", &said).await["reward"].is_number());
    (job["payload"].clone(), soon(guest.read_response()).await)
}

fn hello(more: Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn a_chat_is_rendered_for_a_plain_worker_and_its_answer_counted() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let running = room(&[], pulling(folder.path())).await;
    let (payload, answer) = told(
        &running,
        "one",
        &hello(json!({"stop": "!"})),
        "Hi there<e>!",
    )
    .await;
    // Its tokenizer puts the beginning of text there itself.
    assert_eq!(payload["prompt"], "userhello<e>");
    assert_eq!(payload["stop_sequence"], json!(["!", "<e>"]));
    assert_eq!(
        (&payload["max_length"], &payload["max_context_length"]),
        (&json!(9), &json!(64))
    );
    let answer = answer.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "Hi there");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    // <s> user hello <e>: 1 + 4 + 5 + 1.
    let counted = json!({"prompt_tokens": 11, "completion_tokens": 8, "total_tokens": 19});
    assert_eq!(answer["usage"], counted);
    let record = attempts(&running, "one", 1).await.remove(0);
    assert_eq!(
        (record.prompt_tokens, record.output_tokens),
        (Some(11), Some(8))
    );
    assert_eq!(record.cached_tokens, None, "nobody said");
    assert_eq!(record.pull.as_deref(), Some("horde"));

    // As long as the worker may go.
    let (_, answer) = told(&running, "two", &hello(json!({})), "123456789").await;
    assert_eq!(answer.json()["choices"][0]["finish_reason"], "length");

    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let (_, answer) = told(&running, "three", &hello(options), "Hi").await;
    assert!(answer.complete);
    let text = answer.text();
    let events: Vec<&str> = text.trim_end().split("\n\n").collect();
    assert_eq!((events.len(), events[3]), (4, "data: [DONE]"), "{text}");
    let event = |n: usize| -> Value { serde_json::from_str(&events[n][6..]).unwrap() };
    let delta = json!({"role": "assistant", "content": "Hi"});
    assert_eq!(event(0)["choices"][0]["delta"], delta);
    assert_eq!(event(1)["choices"][0]["finish_reason"], "stop");
    assert_eq!(event(2)["choices"], json!([]));
    assert_eq!(event(2)["usage"]["completion_tokens"], 2);
    at_rest(&running).await;
    running.shutdown(std::time::Duration::ZERO).await;
}
