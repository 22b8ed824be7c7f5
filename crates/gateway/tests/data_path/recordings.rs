//! Recordings of real engines, played: their events over a real socket, the recorded requests behind
//! them. What a request must find follows from what the engine was asked before, and is written here;
//! the engine had 160 blocks of 32 tokens.

use super::{attempts, client, room, soon};
use maitred_core::place::PolicyConfig;
use maitred_gateway::Running;
use maitred_gateway::config::{Config, IdentitySettings, Isolation, KvEventsSettings};
use maitred_records::AttemptRecord;
use maitred_tests::{Step, Worker, eventually, json_answer};
use maitred_zmtp::{Kind, Listener, Peer};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

const MODEL: &str = "tiny-llama";
/// Tokens of an engine block.
const BLOCK: u32 = 32;

fn fixtures() -> Option<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures");
    if !path.is_dir() {
        eprintln!("skipped: no recordings");
        return None;
    }
    Some(path)
}

fn exchange(engine: &str, name: &str) -> Value {
    let path = fixtures().unwrap().join(engine).join("http");
    let text = std::fs::read_to_string(path.join(format!("{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn unhex(text: &Value) -> Vec<u8> {
    let digits = text.as_str().unwrap().as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap();
    let byte = |pair: &[u8]| u8::try_from(digit(pair[0]) << 4 | digit(pair[1])).unwrap();
    digits.chunks_exact(2).map(byte).collect()
}

fn vllm_tokens(config: &mut Config, token_block: u32) {
    let folder = fixtures().unwrap().join("vllm-0.32.0");
    let mut identity = IdentitySettings::default();
    identity.files.directory = Some(folder);
    let pool = &mut config.pools[0];
    pool.model = Some(MODEL.to_owned());
    pool.identity = Some(identity);
    pool.core.policy = PolicyConfig::named("cache_aware").unwrap();
    pool.core.token_block = token_block;
}

/// A gateway in front of one worker.
struct Played {
    running: Running,
    worker: Worker,
    asked: u32,
}

impl Played {
    async fn new(set: impl FnOnce(&mut Config)) -> Self {
        let worker = Worker::start(json_answer(200, "{}")).await;
        let running = room(&[&worker], set).await;
        Self {
            running,
            worker,
            asked: 0,
        }
    }

    async fn ask(&mut self, path: &str, body: &Value) -> Arc<AttemptRecord> {
        self.asked += 1;
        let id = format!("r{}", self.asked);
        let headers = [
            ("content-type", "application/json"),
            ("x-request-id", id.as_str()),
        ];
        let request = maitred_tests::request("POST", path, &headers, body.to_string());
        let answer = soon(client(&self.running).await.exchange(&request)).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        attempts(&self.running, &id, 1).await.remove(0)
    }

    /// Asks a recorded request, and has it answered as it was.
    async fn again(&mut self, exchange: &Value) -> Arc<AttemptRecord> {
        let answer = &exchange["response"];
        self.worker.set_script(match answer.get("raw_sse") {
            Some(events) => {
                let headers = [
                    ("content-type", "text/event-stream"),
                    ("transfer-encoding", "chunked"),
                ];
                vec![
                    Step::head(200, &headers),
                    Step::chunk(events.as_str().unwrap().to_owned()),
                    Step::End,
                ]
            }
            None => json_answer(200, &answer["json"].to_string()),
        });
        let path = exchange["request"]["path"].as_str().unwrap();
        self.ask(path, &exchange["request"]["body"]).await
    }
}

/// An engine's recorded events, published one by one.
struct Events {
    peer: Peer,
    lines: Vec<Value>,
    /// Blocks stored and removed by what was published.
    told: (u64, u64),
    next: u64,
    _publisher: Listener,
}

impl Events {
    async fn follow(recording: &str, token_block: u32) -> (Played, Self) {
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let publisher = Listener::of_tcp(socket);
        let endpoint = publisher.endpoint().unwrap();
        let played = Played::new(|config| {
            vllm_tokens(config, token_block);
            let worker = &mut config.pools[0].workers[0];
            worker.models = ["lora-a", "lora-b"].map(str::to_owned).to_vec();
            worker.kv_events = Some(KvEventsSettings::at(endpoint));
        });
        let subscribed = async {
            let mut peer = publisher.accept().await.unwrap().shake(Kind::Pub).await;
            peer.as_mut().unwrap().subscription().await.unwrap();
            peer.unwrap()
        };
        let (played, peer) = tokio::join!(played, soon(subscribed));
        let text = std::fs::read_to_string(fixtures().unwrap().join(recording)).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let events = Self {
            peer,
            lines: lines.collect(),
            told: (0, 0),
            next: 0,
            _publisher: publisher,
        };
        (played, events)
    }

    /// The recorded message of that number.
    fn line(&self, seq: u64) -> &Value {
        let found = self.lines.iter().find(|line| line["seq"] == seq);
        found.unwrap()
    }

    /// Publishes it, numbered on from the one before, and waits until it has been taken in.
    async fn publish(&mut self, running: &Running, seq: u64) {
        let line = self.line(seq).clone();
        let topic = line["topic"].as_str().unwrap().as_bytes().to_vec();
        let frames = [
            topic,
            self.next.to_be_bytes().to_vec(),
            unhex(&line["payload_hex"]),
        ];
        self.next += 1;
        self.peer.send(&frames).await.unwrap();
        for event in line["decoded"][1].as_array().unwrap() {
            let (kind, hashes) = match event {
                Value::Array(items) => (&items[0], items.get(1)),
                map => (&map["type"], map.get("block_hashes")),
            };
            let count = hashes.map_or(0, |h| h.as_array().unwrap().len() as u64);
            match kind.as_str().unwrap() {
                "BlockStored" => self.told.0 += count,
                "BlockRemoved" => self.told.1 += count,
                _ => {}
            }
        }
        let driver = &running.gateway.pools[0].driver;
        eventually("the events are taken in", || {
            let counts = driver.read(|s| s.kv_counts());
            let removed = counts.removed + counts.removed_unknown;
            (counts.stored + counts.parked, removed) == self.told
        })
        .await;
        driver.read(|s| s.check()).unwrap();
    }

    /// All token ids of what the message of that number, or several, stored.
    fn tokens(&self, seqs: &str) -> Vec<u64> {
        let seqs = seqs.split('+').map(|seq| seq.parse().unwrap());
        let events = seqs.flat_map(|seq| self.line(seq)["decoded"][1].as_array().unwrap());
        let ids = events.flat_map(|event| match event {
            Value::Array(items) if items[0] == "BlockStored" => items[3].as_array().unwrap(),
            map if map["type"] == "BlockStored" => map["token_ids"].as_array().unwrap(),
            _ => [].as_slice(),
        });
        ids.map(|id| id.as_u64().unwrap()).collect()
    }

    /// Path and body of one of the requests that the tables name.
    fn request(&self, name: &str) -> (String, Value) {
        let ids = |ids: Vec<u64>| {
            let body = json!({"model": MODEL, "prompt": ids});
            ("/v1/completions".to_owned(), body)
        };
        let recorded = |name: &str| {
            let request = &exchange("vllm-0.32.0", name)["request"];
            let path = request["path"].as_str().unwrap();
            (path.to_owned(), request["body"].clone())
        };
        match name {
            "chat" => recorded("11-chat-warm"),
            "shared" => recorded("12-chat-shared-prefix"),
            "text" => recorded("16-completions"),
            "ids" => recorded("17-completions-token-ids"),
            "salted" => recorded("21-chat-cache-salt-warm"),
            "other-salt" => {
                let (path, mut body) = recorded("21-chat-cache-salt-warm");
                body["cache_salt"] = "tenant-2".into();
                (path, body)
            }
            "priority" => recorded("22-chat-priority"),
            "lora-a" => recorded("23-chat-lora-a"),
            "lora-b" => recorded("24-chat-lora-b"),
            "after-reset" => recorded("42-chat-after-reset"),
            // What the engine wrote stands behind it.
            "answered" => ids(self.tokens("1+2")),
            load => ids(self.tokens(load.strip_prefix("load").unwrap())),
        }
    }
}

/// After each message, what requests find of the engine's blocks by its own word: `seq: request blocks`.
async fn residency(recording: &str, token_block: u32, table: &str) {
    let (mut played, mut events) = Events::follow(recording, token_block).await;
    let seqs: Vec<u64> = events
        .lines
        .iter()
        .map(|line| line["seq"].as_u64().unwrap())
        .collect();
    let mut seqs = seqs.into_iter().peekable();
    for row in table.lines().map(str::trim).filter(|row| !row.is_empty()) {
        let (upto, finds) = row.split_once(": ").unwrap();
        let upto: u64 = upto.parse().unwrap();
        while let Some(seq) = seqs.next_if(|seq| *seq <= upto) {
            events.publish(&played.running, seq).await;
        }
        for find in finds.split(", ") {
            let (name, blocks) = find.split_once(' ').unwrap();
            let (path, body) = events.request(name);
            let record = played.ask(&path, &body).await;
            assert_eq!(record.identity, "tokens", "{find}");
            let belief = record.belief.as_ref().unwrap();
            assert!(!belief.uncertain);
            // What ends within a block of the engine may end before the prompt does: it counts to
            // the last that is surely whole.
            let whole = blocks.parse::<u32>().unwrap() * BLOCK / token_block * token_block;
            let ours = whole / BLOCK * BLOCK / token_block;
            assert_eq!(
                belief.observed, ours,
                "{recording}, {token_block}: {upto}: {find}"
            );
        }
    }
    assert_eq!(seqs.next(), None, "all was published");
}

/// Prompts of four blocks: the chat (137 tokens), with a salt, with two adapters, and token ids; a text
/// of three, whose fourth is filled by the answer. Then eight prompts of 28 blocks. The fifth of them
/// has room for all but six, so the longest unused go, the deepest first: the answer's, the four of the
/// ids, the text's last. The sixth takes 28 more: two of the text, sixteen of the chats, ten of the
/// first of the eight; and so on. Then all is reset.
#[tokio::test]
async fn integer_hashes_give_what_was_asked() {
    if fixtures().is_none() {
        return;
    }
    let table = "
        0: chat 4, shared 4, salted 0, lora-a 0, text 0
        1: text 3, answered 3
        2: answered 4, ids 0
        3: ids 4
        4: salted 4, other-salt 0, priority 4, lora-a 0
        5: lora-a 4, lora-b 0
        6: lora-b 4, chat 4, load7 0
        10: load7 28, load10 28, answered 4, ids 4
        11: answered 2, text 2, ids 0, chat 4, salted 4, lora-a 4, lora-b 4, load7 28
        12: text 0, chat 0, salted 0, lora-a 0, lora-b 0, load7 18, load8 28
        13: load7 0, load8 18, load9 28
        14: load8 0, load9 18, load14 28, chat 0
        15: after-reset 4, salted 0, load14 0
    ";
    for hash in ["sha256", "sha256_cbor"] {
        let recording = format!("vllm-0.32.0/kv-events/int-hashes-{hash}.jsonl");
        // The engine's size of blocks, a half of it, and one that does not divide it.
        for token_block in [BLOCK, BLOCK / 2, 24] {
            residency(&recording, token_block, table).await;
        }
    }
}

/// The same without adapters, by an engine that takes 512 tokens in a step: 28 blocks come as 16 and 12.
#[tokio::test]
async fn hashes_of_bytes_and_prompts_in_chunks_give_what_was_asked() {
    if fixtures().is_none() {
        return;
    }
    let table = "
        0: chat 4, shared 4, salted 0, text 0
        2: answered 4, text 3, ids 0
        3: ids 4
        4: salted 4, other-salt 0
        5: load5+6 16
        6: load5+6 28
        14: chat 4, salted 4, answered 4, load13+14 28
        15: chat 3, salted 0, answered 0, ids 0, load15+16 16
        16: chat 0, load5+6 18, load15+16 28
        17: load5+6 3
        18: load5+6 0, load7+8 18
        20: load7+8 0, load9+10 18, load19+20 28
        21: chat 4, salted 0, load19+20 0
    ";
    let recording = "vllm-0.32.0/kv-events/bytes-hashes-sha256_cbor.jsonl";
    for token_block in [BLOCK, BLOCK / 2] {
        residency(recording, token_block, table).await;
    }
}

/// Six of those messages as older engines wrote them: the text's fourth block has no parent here. The
/// oldest two do not say salts, the oldest no adapter's name but a number.
#[tokio::test]
async fn older_encodings_give_what_they_can_say() {
    if fixtures().is_none() {
        return;
    }
    for version in ["0.11.0", "0.16.0", "0.23.0", "0.24.0", "0.26.0"] {
        let salted = if version < "0.23.0" { 0 } else { 4 };
        let named = if version < "0.16.0" { 0 } else { 4 };
        let table = format!(
            "0: chat 4, shared 4, salted 0
            2: load2 0
            4: chat 4, salted {salted}, other-salt 0
            5: chat 4, lora-a {named}, lora-b 0
            11: load11 28, chat 4
            15: chat 4, salted 0, lora-a 0, load11 0"
        );
        let recording = format!("vllm-older-encodings/events-{version}.jsonl");
        residency(&recording, BLOCK, &table).await;
    }
}

/// The recorded run from its first request: what was predicted for each is what its answer says.
#[tokio::test]
async fn predictions_are_what_the_recorded_answers_say() {
    if fixtures().is_none() {
        return;
    }
    let recording = "vllm-0.32.0/kv-events/int-hashes-sha256.jsonl";
    let (mut played, mut events) = Events::follow(recording, BLOCK).await;
    let mut published = 0;
    // A request, the cached tokens of its answer, and the messages that were sent by its end.
    for (name, cached, upto) in [
        ("10-chat-cold", Some(0), 1),
        ("11-chat-warm", Some(128), 1),
        ("12-chat-shared-prefix", Some(128), 1),
        ("13-chat-stream-include-usage", Some(128), 1),
        ("14-chat-stream-continuous-usage", Some(128), 1),
        ("15-chat-stream-no-usage", None, 1),
        ("16-completions", Some(0), 3),
        ("17-completions-token-ids", Some(0), 4),
        ("18-completions-stream", Some(96), 4),
        ("20-chat-cache-salt-cold", Some(0), 5),
        ("21-chat-cache-salt-warm", Some(128), 5),
        ("22-chat-priority", Some(128), 5),
        ("23-chat-lora-a", Some(0), 6),
        ("24-chat-lora-b", Some(0), 7),
        ("32-chat-return-token-ids", Some(128), 7),
        // A load of long prompts comes between.
        ("33-responses", Some(0), 15),
        ("42-chat-after-reset", Some(0), 16),
    ] {
        let record = played.again(&exchange("vllm-0.32.0", name)).await;
        assert_eq!(record.cached_tokens, cached, "{name}");
        let predicted = record.predicted_cached_tokens.unwrap();
        assert_eq!(predicted, cached.unwrap_or(128), "{name}");
        while published < upto {
            events.publish(&played.running, published).await;
            published += 1;
        }
    }
}

/// llama.cpp sends no events and counts by the token: belief from our own dispatches alone is less than
/// a block below it, and 0 for what is asked without the cache.
#[tokio::test]
async fn llamacpp_is_known_by_its_answers() {
    if fixtures().is_none() {
        return;
    }
    let mut played = Played::new(|config| {
        vllm_tokens(config, 16);
        config.pools[0].isolation.mode = Isolation::Pool;
    })
    .await;
    // Predicted from dispatches, and what the answer says: `usage`, or `timings` where it has none.
    for (name, prompt, predicted, cached) in [
        ("10-chat-cold", 137, 0, 0),
        ("11-chat-warm", 137, 128, 136),
        ("12-chat-shared-prefix", 147, 128, 132),
        ("13-chat-stream-include-usage", 137, 128, 132),
        ("15-chat-stream-no-usage", 137, 128, 136),
        ("16-completions", 121, 0, 0),
        ("17-completions-token-ids", 132, 0, 0),
        ("20-chat-cache-prompt-false", 137, 0, 0),
        ("21-chat-cache-salt-ignored", 137, 128, 136),
    ] {
        let record = played.again(&exchange("llamacpp-b11434", name)).await;
        assert_eq!(record.prompt_tokens, Some(prompt), "{name}");
        assert_eq!(record.prompt_tokens_estimated, Some(prompt), "{name}");
        assert_eq!(record.cached_tokens, Some(cached), "{name}");
        assert_eq!(record.predicted_cached_tokens, Some(predicted), "{name}");
    }
    // Its own completions are not read for placement; their answers are all the same.
    for name in ["18-native-completion", "19-native-completion-id-slot"] {
        let record = played.again(&exchange("llamacpp-b11434", name)).await;
        assert_eq!(
            (record.prompt_tokens, record.cached_tokens),
            (Some(121), Some(120)),
            "{name}"
        );
    }
}
