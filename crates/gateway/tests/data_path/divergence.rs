//! Prompts whose beginnings change between turns: what the worker gets is what the client sent, the
//! conversation stays where it was, and what is believed to be held ends where the prompts part.

use super::{PATH, attempts, client, room, soon};
use maitred_core::place::PolicyConfig;
use maitred_gateway::Running;
use maitred_gateway::config::{Config, Isolation, IsolationSettings, Secret};
use maitred_records::AttemptRecord;
use maitred_tests::{Script, Worker};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes of a block of the chain.
const BLOCK: usize = 64;
const MESSAGES: &str = "/v1/messages";

/// A system text of 8 KiB.
fn sys() -> String {
    "All who come are seated, and none waits without being told. "
        .repeat(140)
        .split_at(8_192)
        .0
        .to_owned()
}

fn by_session(config: &mut Config) {
    config.pools[0].core.policy = PolicyConfig::named("session").unwrap();
}

/// Some workers behind a gateway.
struct Room {
    workers: Vec<Worker>,
    running: Running,
    asked: u32,
}

/// What a request came to.
struct Came {
    worker: String,
    blocks: usize,
    session: Option<u64>,
}

impl Room {
    async fn new(count: usize) -> Self {
        let mut workers = Vec::new();
        for _ in 0..count {
            workers.push(Worker::start(Script::ok()).await);
        }
        let all: Vec<&Worker> = workers.iter().collect();
        let running = room(&all, by_session).await;
        Self {
            workers,
            running,
            asked: 0,
        }
    }

    /// Asks, and holds that every byte of the body arrived as it was.
    async fn ask(&mut self, path: &str, body: &str, headers: &[(&str, &str)]) -> Came {
        self.asked += 1;
        let id = format!("r{}", self.asked);
        let mut all = vec![
            ("content-type", "application/json"),
            ("x-request-id", id.as_str()),
        ];
        all.extend(headers);
        let request = maitred_tests::request("POST", path, &all, body);
        let answer = soon(client(&self.running).await.exchange(&request)).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let record: Arc<AttemptRecord> = attempts(&self.running, &id, 1).await.remove(0);
        let name = record.worker.clone().unwrap();
        let place: usize = name.strip_prefix('w').unwrap().parse().unwrap();
        assert!(self.workers[place - 1].last().body == body.as_bytes());
        Came {
            worker: name.to_string(),
            blocks: record.belief.as_ref().unwrap().predicted as usize,
            session: record.session,
        }
    }

    async fn chat(&mut self, body: &Value) -> Came {
        self.ask(PATH, &body.to_string(), &[]).await
    }

    /// One after the other: the second goes where the first went.
    async fn pair(&mut self, path: &str, bodies: [Value; 2], headers: &[(&str, &str)]) -> Came {
        let [first, second] = bodies.map(|body| body.to_string());
        let one = self.ask(path, &first, headers).await;
        let two = self.ask(path, &second, headers).await;
        assert_eq!(one.worker, two.worker);
        assert_eq!(one.session, two.session);
        two
    }
}

fn chat(messages: Value) -> Value {
    json!({"model": "m", "messages": messages})
}

fn system(text: &str) -> Value {
    json!({"role": "system", "content": text})
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn assistant(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

/// A coding agent's attribution line, with a hash of each request.
#[tokio::test]
async fn attribution_lines_move_no_conversation() {
    let mut room = Room::new(4).await;
    let body = |hash: &str| {
        let line = format!(
            "x-anthropic-billing-header: cc_version=9.9.9.a1; cc_entrypoint=cli; cch={hash};"
        );
        json!({"model": "m", "max_tokens": 9, "messages": [user("hello")],
            "system": [{"type": "text", "text": line}, {"type": "text", "text": sys()}]})
    };
    let second = room
        .pair(MESSAGES, [body("00001"), body("00002")], &[])
        .await;
    // They part in the line: a block of what is before it at most.
    assert!(second.blocks <= 1, "{}", second.blocks);
    // Who quotes such a line says something: it is content, and arrives.
    let mut room = Room::new(1).await;
    let quote = |hash: &str| {
        json!({"model": "m", "max_tokens": 9, "system": sys(),
            "messages": [user(&format!("x-anthropic-billing-header: cch={hash}; what is this?"))]})
    };
    let [one, two] = ["00001", "00002"].map(|hash| quote(hash).to_string());
    let one = room.ask(MESSAGES, &one, &[]).await;
    let two = room.ask(MESSAGES, &two, &[]).await;
    assert_ne!(one.session, two.session);
    assert!(two.blocks >= 8_192 / BLOCK, "{}", two.blocks);
}

/// A status at the end of the system text, and a clock at its beginning.
#[tokio::test]
async fn status_and_clock_move_no_conversation() {
    let mut room = Room::new(4).await;
    let named: &[(&str, &str)] = &[("x-session-id", "s1")];
    let tree = |status: &str, more: &[Value]| {
        let text = format!(
            "{}\nworktree: {status}. {}",
            sys(),
            "Files follow. ".repeat(100)
        );
        let messages = [&[system(&text), user("hello")], more].concat();
        chat(json!(messages))
    };
    let next = [assistant("yes"), user("and now?")];
    let second = room
        .pair(PATH, [tree("clean", &[]), tree("1 changed", &next)], named)
        .await;
    // All of the 8 KiB before the status, nothing of the 1,400 bytes behind it.
    let whole = 8_192 / BLOCK;
    assert!(
        (whole..whole + 3).contains(&second.blocks),
        "{}",
        second.blocks
    );
    let clock = |time: &str| {
        chat(json!([
            system(&format!("Now 2026-11-29 {time}. {}", sys())),
            user("hi")
        ]))
    };
    let second = room
        .pair(PATH, [clock("10:00:59"), clock("10:01:00")], &[])
        .await;
    assert!(second.blocks <= 1, "{}", second.blocks);
}

/// Equal tools in another order, and equal schemas with their keys in another order, are other prompts.
#[tokio::test]
async fn the_order_of_tools_and_of_their_keys_is_the_clients() {
    let mut room = Room::new(1).await;
    let tool = |name: &str, first: &str, second: &str| {
        let values = |key: &str| match key {
            "properties" => json!({"city": {"type": "string"}}),
            _ => json!(["city"]),
        };
        // Written by hand: the order of keys is the point.
        format!(
            r#"{{"type":"function","function":{{"name":"{name}","description":"{}","parameters":{{"type":"object","{first}":{},"{second}":{}}}}}}}"#,
            "does what it says. ".repeat(10),
            values(first),
            values(second)
        )
    };
    let body = |tools: &[String]| {
        let history = chat(json!([system(&sys()), user("hello")])).to_string();
        let tools = tools.join(",");
        format!(
            r#"{},"tools":[{tools}]}}"#,
            history.strip_suffix('}').unwrap()
        )
    };
    let plain = |name: &str| tool(name, "properties", "required");
    let [a, b, c] = ["a", "b", "c"].map(plain);
    let whole = body(&[a.clone(), b.clone(), c.clone()]);
    room.ask(PATH, &whole, &[]).await;
    let again = room.ask(PATH, &whole, &[]).await;
    assert!(again.blocks > 8_192 / BLOCK);
    let moved = room
        .ask(PATH, &body(&[b.clone(), a.clone(), c.clone()]), &[])
        .await;
    assert!(moved.blocks <= 1, "{}", moved.blocks);
    let late = room.ask(PATH, &body(&[a.clone(), c, b]), &[]).await;
    assert!(
        (1..8).contains(&late.blocks),
        "the first tool is the same: {}",
        late.blocks
    );
    let keys = room
        .ask(PATH, &body(&[tool("a", "required", "properties")]), &[])
        .await;
    assert!(
        (1..6).contains(&keys.blocks),
        "up to the keys: {}",
        keys.blocks
    );
}

/// Histories that clients change: reasoning left out, a picture replaced, the oldest message dropped.
#[tokio::test]
async fn a_changed_history_is_known_up_to_the_change() {
    let mut room = Room::new(4).await;
    let named: &[(&str, &str)] = &[("x-session-id", "s1")];
    let long = "words that were said before ".repeat(40);
    let thought = |reasoning: bool| {
        let mut said = assistant(&format!("4 {long}"));
        if reasoning {
            said["reasoning_content"] = format!("2+2 {long}").into();
        }
        chat(json!([system(&sys()), user(&long), said, user("and 3+3?")]))
    };
    let up_to = (8_192 + long.len()) / BLOCK;
    let second = room
        .pair(PATH, [thought(true), thought(false)], named)
        .await;
    assert!(
        (up_to..up_to + 3).contains(&second.blocks),
        "{}",
        second.blocks
    );
    let shown = |part: Value| {
        let text = json!({"type": "text", "text": long});
        chat(
            json!([system(&sys()), {"role": "user", "content": [text, part]}, assistant(&long), user("go on")]),
        )
    };
    let image = json!({"type": "image_url", "image_url": {"url": "http://h/a"}});
    let marker = json!({"type": "text", "text": "[image dropped]"});
    let named: &[(&str, &str)] = &[("x-session-id", "s2")];
    let second = room.pair(PATH, [shown(image), shown(marker)], named).await;
    assert!(
        (up_to..up_to + 3).contains(&second.blocks),
        "{}",
        second.blocks
    );
    let said: Vec<Value> = (0..20).map(|n| user(&format!("{n} {long}"))).collect();
    let shifted =
        |from: usize, to: usize| chat(json!([&[system(&sys())], &said[from..to]].concat()));
    let named: &[(&str, &str)] = &[("x-session-id", "s3")];
    let second = room
        .pair(PATH, [shifted(0, 19), shifted(1, 20)], named)
        .await;
    let up_to = 8_192 / BLOCK;
    assert!(
        (up_to..up_to + 2).contains(&second.blocks),
        "{}",
        second.blocks
    );
}

/// Between two turns of a chat the front end asks for a title of it, in the same session.
#[tokio::test]
async fn side_calls_take_nothing_from_the_chat() {
    let mut room = Room::new(4).await;
    let named: &[(&str, &str)] = &[("x-session-id", "s1")];
    let long = "words that were said before ".repeat(40);
    let first = chat(json!([system(&sys()), user(&long)]));
    let title = chat(json!([user(&format!("Title for: {} {long}", sys()))]));
    let second = chat(json!([
        system(&sys()),
        user(&long),
        assistant("yes"),
        user("go on")
    ]));
    let one = room.ask(PATH, &first.to_string(), named).await;
    let between = room.ask(PATH, &title.to_string(), named).await;
    assert_eq!((one.blocks, between.blocks), (0, 0));
    let two = room.ask(PATH, &second.to_string(), named).await;
    assert_eq!(one.worker, two.worker);
    let whole = (8_192 + long.len()) / BLOCK;
    assert!((whole..whole + 2).contains(&two.blocks), "{}", two.blocks);
}

/// Other pictures beside equal words, and equal pictures in another order.
#[tokio::test]
async fn pictures_and_their_order_are_content() {
    let mut room = Room::new(1).await;
    let with = |pictures: &[&str]| {
        let text = json!({"type": "text", "text": "look at this ".repeat(20)});
        let image = |name: &&str| json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{name}")}});
        let parts: Vec<Value> = [text]
            .into_iter()
            .chain(pictures.iter().map(image))
            .collect();
        chat(json!([{"role": "user", "content": parts}]))
    };
    let mut found = Vec::new();
    for pictures in [
        &["A"][..],
        &["B"],
        &["A"],
        &["A", "B"],
        &["B", "A"],
        &["A", "B"],
    ] {
        found.push(room.chat(&with(pictures)).await.blocks);
    }
    let words = found[1];
    assert!((1..=5).contains(&words), "the words alone: {found:?}");
    // A picture counts for 4 KiB.
    assert_eq!(found[0], 0);
    assert!(found[2] >= words + 60, "{found:?}");
    assert_eq!(found[3], found[2], "one picture of two: {found:?}");
    assert!(
        (found[2] - 2..found[2] + 2).contains(&found[4]),
        "B was seen first of one: {found:?}"
    );
    assert!(found[5] >= found[2] + 60, "{found:?}");
}

/// A rewritten body came out of a map in any order, and no two were equal.
#[tokio::test]
async fn whatever_is_changed_is_changed_alike_in_every_gateway() {
    let worker = Worker::start(Script::ok()).await;
    let set = |config: &mut Config| {
        config.salt_secret = Some(Secret::new("a secret of the house"));
        let pool = &mut config.pools[0];
        pool.aliases = vec!["other-name".to_owned()];
        pool.developer_as_system = true;
        pool.isolation = IsolationSettings {
            mode: Isolation::Tenant,
            inject_cache_salt: true,
        };
    };
    let gateways = [room(&[&worker], set).await, room(&[&worker], set).await];
    let body = json!({"z": 1, "model": "other-name", "y": [3, 1], "temperature": 0.10, "b": null, "a": {"d": 1, "c": 2},
        "messages": [{"role": "developer", "content": "be kind"}, user("hello")]});
    for _ in 0..20 {
        for running in &gateways {
            let answer = soon(client(running).await.post(PATH, body.to_string())).await;
            assert_eq!(answer.status(), 200, "{}", answer.text());
        }
    }
    let bodies: BTreeSet<Vec<u8>> = worker.requests().into_iter().map(|r| r.body).collect();
    assert_eq!((worker.count(), bodies.len()), (40, 1));
    let sent = worker.last().json();
    assert_eq!(
        (&sent["model"], &sent["messages"][0]["role"]),
        (&json!("m"), &json!("system"))
    );
    assert!(sent["cache_salt"].is_string());
}
