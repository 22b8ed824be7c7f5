//! What engines' events say, from their bytes to what a request finds: wrong beliefs known from the field.

use super::{at_rest, attempts, client, room, soon};
use maitred_core::place::PolicyConfig;
use maitred_gateway::Running;
use maitred_gateway::config::{Config, Isolation, KvEventsSettings, Secret};
use maitred_gateway::kv::{Belief, KvSink, Source};
use maitred_tests::{Script, Worker, json_answer};
use maitred_wire::kv::decode;
use maitred_zmtp::Endpoint;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The MessagePack of a JSON value.
fn pack(value: &Value, out: &mut Vec<u8>) {
    let text = |text: &str, out: &mut Vec<u8>| {
        out.push(0xd9);
        out.push(u8::try_from(text.len()).unwrap());
        out.extend(text.as_bytes());
    };
    let length = |len: usize| u16::try_from(len).unwrap().to_be_bytes();
    match value {
        Value::Null => out.push(0xc0),
        Value::Bool(flag) => out.push(0xc2 + u8::from(*flag)),
        Value::String(string) => text(string, out),
        Value::Array(items) => {
            out.push(0xdc);
            out.extend(length(items.len()));
            items.iter().for_each(|item| pack(item, out));
        }
        Value::Object(members) => {
            out.push(0xde);
            out.extend(length(members.len()));
            for (name, member) in members {
                text(name, out);
                pack(member, out);
            }
        }
        Value::Number(number) => {
            if let Some(number) = number.as_u64() {
                out.push(0xcf);
                out.extend(number.to_be_bytes());
            } else if let Some(number) = number.as_i64() {
                out.push(0xd3);
                out.extend(number.to_be_bytes());
            } else {
                out.push(0xcb);
                out.extend(number.as_f64().unwrap().to_be_bytes());
            }
        }
    }
}

/// Token ids of the one prompt here.
fn tokens(from: u32, to: u32) -> Vec<u32> {
    (from..to).map(|n| n * 31 + 7).collect()
}

/// Blocks of it in an engine's words: `names` from block `from` on, each of `size` tokens.
fn stored(names: &[i64], from: u32, size: u32, parent: Option<i64>) -> Value {
    let to = from + u32::try_from(names.len()).unwrap();
    json!({"type": "BlockStored", "block_hashes": names, "parent_block_hash": parent,
        "token_ids": tokens(from * size, to * size), "block_size": size, "medium": "GPU"})
}

fn removed(names: &[i64]) -> Value {
    json!({"type": "BlockRemoved", "block_hashes": names, "medium": "GPU"})
}

fn with(mut event: Value, fields: Value) -> Value {
    for (name, value) in fields.as_object().unwrap() {
        event[name] = value.clone();
    }
    event
}

/// A gateway that was told of its workers' caches.
struct Told {
    running: Running,
    belief: Belief,
    asked: u32,
    workers: Vec<Worker>,
}

impl Told {
    async fn new(count: usize) -> Self {
        Self::with(count, |_| {}).await
    }

    async fn with(count: usize, set: impl FnOnce(&mut Config)) -> Self {
        let mut workers = Vec::new();
        for _ in 0..count {
            workers.push(Worker::start(json_answer(400, "{}")).await);
        }
        let all: Vec<&Worker> = workers.iter().collect();
        let running = room(&all, |config| {
            config.pools[0].core.policy = PolicyConfig::named("least_load").unwrap();
            set(config);
        })
        .await;
        let pool = Arc::clone(&running.gateway.pools[0]);
        let driver = Arc::clone(&pool.driver);
        let seeds =
            move |adapter: Option<&str>, salt: Option<&str>| pool.reported_seed(adapter, salt);
        Self {
            running,
            belief: Belief::new(driver, Box::new(seeds)),
            asked: 0,
            workers,
        }
    }

    /// The worker's next message, of this rank.
    fn tell(&self, worker: usize, rank: Option<u32>, events: &[Value]) {
        let mut payload = Vec::new();
        pack(&json!([1.5, events, rank]), &mut payload);
        let batch = decode(&payload).unwrap();
        let source = Source {
            worker: self.running.gateway.pools[0].upstreams()[worker].id,
            rank: batch.rank,
        };
        self.belief.batch(source, batch);
        let driver = &self.running.gateway.pools[0].driver;
        driver.read(|scheduler| scheduler.check()).unwrap();
    }

    /// Tokens of the first `count` of the prompt that each worker holds by its own word, by name.
    async fn finds(&mut self, count: u32) -> BTreeMap<String, u32> {
        self.asked += 1;
        let id = format!("r{}", self.asked);
        let headers = [
            ("content-type", "application/json"),
            ("x-request-id", id.as_str()),
        ];
        // Workers refuse it, so that nothing is predicted of it.
        let body = json!({"model": "m", "prompt": tokens(0, count)});
        let request = maitred_tests::request("POST", "/v1/completions", &headers, body.to_string());
        assert_eq!(
            soon(client(&self.running).await.exchange(&request))
                .await
                .status(),
            400
        );
        let record = attempts(&self.running, &id, 1).await.remove(0);
        let held = record.candidates.iter();
        held.map(|c| (c.worker.to_string(), c.matched_tokens))
            .collect()
    }

    /// The same where there is one worker.
    async fn held(&mut self, count: u32) -> u32 {
        self.finds(count).await["w1"]
    }
}

/// Deep blocks came before their roots, whose words were said before anybody listened.
#[tokio::test]
async fn a_child_counts_once_its_parent_is_known() {
    let mut told = Told::new(1).await;
    told.tell(0, None, &[stored(&[12], 1, 16, Some(11))]);
    assert_eq!(told.held(40).await, 0);
    told.tell(0, None, &[stored(&[11], 0, 16, None)]);
    assert_eq!(told.held(40).await, 32);
    // Names with a sign are the same 64 bits.
    told.tell(0, None, &[stored(&[-5], 2, 16, Some(12))]);
    assert_eq!(told.held(60).await, 48);
    told.tell(0, None, &[removed(&[-5])]);
    assert_eq!(told.held(60).await, 32);
}

/// A block that was not known ended the removal of those behind it.
#[tokio::test]
async fn all_that_is_removed_is_gone_whatever_stands_between() {
    let mut told = Told::new(2).await;
    for worker in [0, 1] {
        told.tell(worker, None, &[stored(&[11, 12], 0, 16, None)]);
    }
    told.tell(0, None, &[removed(&[11, 999, 12])]);
    let found = told.finds(40).await;
    assert_eq!((found["w1"], found["w2"]), (0, 32));
    // Both are gone, not only the first.
    told.tell(0, None, &[stored(&[11], 0, 16, None)]);
    assert_eq!(told.finds(40).await["w1"], 16);
}

/// One of several copies was evicted, and the prefix was taken for gone; or the other way round.
#[tokio::test]
async fn copies_count_where_they_are_counted() {
    let mut told = Told::new(1).await;
    let gone = |left: u32| with(removed(&[11]), json!({"remaining_copy_counts": [left]}));
    told.tell(0, None, &[stored(&[11], 0, 16, None)]);
    told.tell(0, None, &[gone(1)]);
    assert_eq!(told.held(20).await, 16);
    told.tell(0, None, &[gone(0)]);
    assert_eq!(told.held(20).await, 0);
    told.tell(
        0,
        None,
        &[stored(&[11], 0, 16, None), stored(&[11], 0, 16, None)],
    );
    told.tell(0, None, &[removed(&[11])]);
    assert_eq!(told.held(20).await, 0, "under-counted, never over-counted");
}

/// The length of a match was wrong wherever blocks had not 16 tokens.
#[tokio::test]
async fn every_engine_has_its_own_size_of_blocks() {
    let mut told = Told::new(2).await;
    told.tell(0, None, &[stored(&[11, 12, 13, 14, 15, 16], 0, 16, None)]);
    told.tell(1, None, &[stored(&[21], 0, 64, None)]);
    let found = told.finds(100).await;
    assert_eq!((found["w1"], found["w2"]), (96, 64));
}

/// A sliding window dropped its block, and the prefix was taken for gone.
#[tokio::test]
async fn only_full_attention_decides() {
    let mut told = Told::new(1).await;
    let group = |event: Value, number: u32, kind: &str| {
        with(
            event,
            json!({"group_idx": number, "kv_cache_spec_kind": kind}),
        )
    };
    let block = || stored(&[11, 12], 0, 16, None);
    told.tell(
        0,
        None,
        &[
            group(block(), 0, "full_attention"),
            group(block(), 1, "sliding_window"),
            group(stored(&[13], 2, 16, Some(12)), 2, "some_later_kind"),
        ],
    );
    assert_eq!(
        told.held(60).await,
        32,
        "what is not known counts for nothing"
    );
    let dropped = |number: u32| with(removed(&[12]), json!({"group_idx": number}));
    told.tell(0, None, &[dropped(1), dropped(2)]);
    assert_eq!(told.held(60).await, 32);
    told.tell(0, None, &[dropped(0)]);
    assert_eq!(told.held(60).await, 16);
    // Where the full attention is not the first group.
    let mut told = Told::new(1).await;
    told.tell(
        0,
        None,
        &[
            group(block(), 0, "sliding_window"),
            group(block(), 1, "full_attention"),
        ],
    );
    told.tell(0, None, &[dropped(0)]);
    assert_eq!(told.held(60).await, 32);
    told.tell(0, None, &[dropped(1)]);
    assert_eq!(told.held(60).await, 16);
}

/// Pictures, adapters and salts are in a block's name and not in its tokens: equal tokens looked like a hit.
#[tokio::test]
async fn equal_tokens_under_other_keys_are_other_blocks() {
    let chain = || stored(&[11, 12, 13], 0, 16, None);
    // A picture from the second block on, in the three ways that engines write it.
    for picture in [
        json!([null, ["pic", 3], ["pic", -13]]),
        json!([null, [["pic", 3]], ["pic"]]),
        json!([null, [["mm", "pic", 3]], [["mm", "pic", -13]]]),
    ] {
        let mut told = Told::new(1).await;
        told.tell(0, None, &[with(chain(), json!({"extra_keys": picture}))]);
        assert_eq!(told.held(50).await, 16, "{picture}");
        // The same words without a picture.
        told.tell(0, None, &[stored(&[22, 23], 1, 16, Some(11))]);
        assert_eq!(told.held(50).await, 48, "{picture}");
    }
    for fields in [
        json!({"lora_id": 1, "lora_name": "a", "extra_keys": [["a"], ["a"], ["a"]]}),
        json!({"lora_id": 1}),
        json!({"extra_keys": [["salt"], null, null]}),
        json!({"extra_keys": [[{"unknown": 1}], null, null]}),
    ] {
        let mut told = Told::new(1).await;
        told.tell(0, None, &[with(chain(), fields.clone())]);
        assert_eq!(told.held(50).await, 0, "{fields}");
        told.tell(
            0,
            None,
            &[with(
                stored(&[21, 22, 23], 0, 16, None),
                json!({"extra_keys": [null, null, null]}),
            )],
        );
        assert_eq!(told.held(50).await, 48, "{fields}");
    }
}

/// An engine that does not say salts stored one tenant's blocks as anybody's; and what was sent there was
/// forgotten soon after, because its events never seemed to confirm it.
#[tokio::test]
async fn engines_that_do_not_say_salts_are_not_believed_where_all_have_some() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |config| {
        config.salt_secret = Some(Secret::new("a secret of the house"));
        let pool = &mut config.pools[0];
        pool.isolation.mode = Isolation::Tenant;
        pool.isolation.inject_cache_salt = true;
        // Over at once.
        pool.core.predicted_life = Duration::ZERO;
    })
    .await;
    let pool = Arc::clone(&running.gateway.pools[0]);
    let driver = Arc::clone(&pool.driver);
    let source = Source {
        worker: pool.upstreams()[0].id,
        rank: None,
    };
    let asked = Arc::clone(&pool);
    let seeds = move |adapter: Option<&str>, salt: Option<&str>| asked.reported_seed(adapter, salt);
    let belief = Belief::new(driver, Box::new(seeds)).salted(true);
    let tell = |event: Value| {
        let mut payload = Vec::new();
        pack(&json!([1.5, [event], null]), &mut payload);
        belief.batch(source, decode(&payload).unwrap());
    };
    let uncertain = || pool.views()[0].view.events.uncertain;
    belief.certain(source);
    assert_eq!(uncertain(), 0);
    tell(stored(&[11, 12, 13], 0, 16, None));
    assert_eq!((uncertain(), pool.views()[0].view.observed_blocks), (1, 0));
    // Whatever its follower says of whole streams and new lives.
    belief.certain(source);
    assert_eq!(uncertain(), 1);
    belief.restarted(source);
    assert_eq!(uncertain(), 1);
    let mut found = Vec::new();
    for (id, key) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("a3", "a")] {
        let bearer = format!("Bearer {key}");
        let headers = [
            ("authorization", bearer.as_str()),
            ("content-type", "application/json"),
            ("x-request-id", id),
        ];
        let body = json!({"model": "m", "prompt": tokens(0, 50)}).to_string();
        let request = maitred_tests::request("POST", "/v1/completions", &headers, body);
        soon(client(&running).await.exchange(&request)).await;
        let record = attempts(&running, id, 1).await.remove(0);
        at_rest(&running).await;
        found.push(record.predicted_cached_tokens.unwrap());
    }
    assert_eq!(found, [0, 48, 0, 48]);
}

/// Blocks in slower memory, and which rank holds them, are told apart in the record.
#[tokio::test]
async fn records_tell_tiers_and_ranks() {
    let mut told = Told::new(1).await;
    let tier = |event: Value, medium: &str| with(event, json!({"medium": medium}));
    let gone = |names: &[i64], medium: &str| tier(removed(names), medium);
    let chain = || stored(&[11, 12, 13], 0, 16, None);
    told.tell(0, Some(1), &[chain(), tier(chain(), "CPU")]);
    told.tell(0, Some(1), &[gone(&[13, 12], "GPU"), gone(&[13], "CPU")]);
    told.held(60).await;
    let record = attempts(&told.running, "r1", 1).await.remove(0);
    let belief = record.belief.as_ref().unwrap();
    assert_eq!(
        (belief.observed, belief.device, belief.host),
        (2, Some(1), Some(2))
    );
    assert_eq!(belief.rank, Some(1));
    told.tell(0, Some(1), &[json!({"type": "AllBlocksCleared"})]);
    told.held(60).await;
    let record = attempts(&told.running, "r2", 1).await.remove(0);
    let belief = record.belief.as_ref().unwrap();
    assert_eq!(
        (belief.observed, belief.device, belief.rank),
        (0, None, None)
    );
}

/// Ranks of one engine were taken for one cache.
#[tokio::test]
async fn each_rank_holds_its_own() {
    let mut told = Told::new(1).await;
    told.tell(0, None, &[stored(&[11], 0, 16, None)]);
    told.tell(0, Some(0), &[stored(&[11, 12], 0, 16, None)]);
    told.tell(0, Some(1), &[stored(&[11, 12, 13], 0, 16, None)]);
    assert_eq!(told.held(60).await, 48);
    let cleared = [json!({"type": "AllBlocksCleared"})];
    told.tell(0, Some(1), &cleared);
    assert_eq!(told.held(60).await, 32);
    told.tell(0, Some(0), &[removed(&[11])]);
    assert_eq!(told.held(60).await, 16, "that of no rank");
    told.tell(0, None, &cleared);
    assert_eq!(told.held(60).await, 0);
}

/// One rank held the beginning, and the engine computed it again on another.
#[tokio::test]
async fn a_request_names_the_rank_that_holds_its_beginning_where_the_engine_takes_that() {
    for asks in [true, false] {
        let mut told = Told::with(1, |config| {
            // Nobody publishes there: what is told here is all.
            let mut events = KvEventsSettings::at(Endpoint::parse("tcp://127.0.0.1:1").unwrap());
            (events.ranks, events.rank_header) = (2, asks);
            config.pools[0].workers[0].kv_events = Some(events);
        })
        .await;
        let named = |told: &Told| {
            let head = told.workers[0].last().head;
            head.header("x-data-parallel-rank").map(str::to_owned)
        };
        told.held(60).await;
        assert_eq!(named(&told), None, "nobody holds it");
        told.tell(0, Some(0), &[stored(&[11], 0, 16, None)]);
        told.tell(0, Some(1), &[stored(&[11, 12], 0, 16, None)]);
        told.held(60).await;
        assert_eq!(named(&told), asks.then(|| "1".to_owned()));
        let cleared = [json!({"type": "AllBlocksCleared"})];
        told.tell(0, Some(1), &cleared);
        told.held(60).await;
        assert_eq!(named(&told), asks.then(|| "0".to_owned()));
        // No rank, and one that is not this engine's.
        told.tell(0, Some(0), &cleared);
        told.tell(0, None, &[stored(&[11], 0, 16, None)]);
        told.held(60).await;
        assert_eq!(named(&told), None);
        told.tell(0, Some(2), &[stored(&[11, 12], 0, 16, None)]);
        told.held(60).await;
        assert_eq!(named(&told), None);
    }
}
