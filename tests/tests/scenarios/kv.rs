//! What engines say of their caches by events, against what they then find in them.
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::{Served, serve_file};

/// Tokens in a block of the engines, and of our chains.
const BLOCK: u64 = 16;

/// Where one simulated engine listens, life after life.
pub(crate) struct Place {
    http: u16,
    events: u16,
}

impl Place {
    pub(crate) fn any() -> Self {
        let free = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port));
        let http = free(0).unwrap().local_addr().unwrap().port();
        loop {
            let events = free(0).unwrap().local_addr().unwrap().port();
            if events < u16::MAX && events.abs_diff(http) > 1 && free(events + 1).is_ok() {
                return Self { http, events };
            }
        }
    }

    /// A life of the engine, ended when dropped.
    pub(crate) async fn engine(&self, further: &[&str]) -> Child {
        let (port, events) = (self.http.to_string(), self.events.to_string());
        let mut command = Command::new(maitred_tests::maitred_path());
        command
            .args(["engine", "--model", "m", "--speed", "50", "--port", &port])
            .args(["--kv-events-port", &events, "--kv-tokens", "1024"])
            .args(further)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let mut engine = command.spawn().unwrap();
        let mut said = BufReader::new(engine.stdout.take().unwrap()).lines();
        let url = maitred_tests::within("the engine to listen", said.next_line()).await;
        assert!(url.unwrap().is_some());
        engine
    }

    pub(crate) fn worker(&self, replay: bool) -> String {
        let (http, events) = (self.http, self.events);
        let replay = if replay {
            format!(", replay: 'tcp://127.0.0.1:{}'", events + 1)
        } else {
            String::new()
        };
        format!(
            "      - url: http://127.0.0.1:{http}\n        kv_events: {{ endpoint: 'tcp://127.0.0.1:{events}'{replay} }}\n"
        )
    }
}

async fn served(places: &[&Place], replay: bool) -> Served {
    served_as("", "", places, replay).await
}

async fn served_as(head: &str, pool: &str, places: &[&Place], replay: bool) -> Served {
    served_named("model: m\n    ", head, pool, places, replay).await
}

async fn served_named(
    model: &str,
    head: &str,
    pool: &str,
    places: &[&Place],
    replay: bool,
) -> Served {
    let workers: String = places.iter().map(|place| place.worker(replay)).collect();
    let probe = "{ interval: 100ms, interval_down: 50ms, timeout: 500ms, failures: 2 }";
    let served = serve_file(
        &format!(
            "{head}pools:\n  - name: p\n    {model}{pool}probe: {probe}\n    workers:\n{workers}"
        ),
        places.len(),
    )
    .await;
    // Nothing is missed of what engines say from now on.
    maitred_tests::within("followers to be connected", async {
        while count(&served, "connections").await < places.len() as u64 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    served
}

/// One of the counts of KV events, over all workers.
async fn count(served: &Served, what: &str) -> u64 {
    let workers = served.workers().await;
    let counts = workers
        .iter()
        .filter_map(|worker| worker["kv_events"]["counts"][what].as_u64());
    counts.sum()
}

/// Waits until what the engines said has arrived: the count stands still.
async fn settle(served: &Served) {
    maitred_tests::within("events to arrive", async {
        let mut before = u64::MAX;
        loop {
            let now = count(served, "batches").await;
            if now == before {
                return;
            }
            before = now;
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    })
    .await;
}

fn ids(seed: u32, count: u32) -> Vec<u32> {
    (0..count)
        .map(|n| (seed * 7919 + n * 31) % 1_900 + 10)
        .collect()
}

async fn ask(served: &Served, prompt: &[u32], salt: Option<&str>) {
    let mut body = json!({"model": "m", "prompt": prompt, "max_tokens": 3});
    if let Some(salt) = salt {
        body["cache_salt"] = salt.into();
    }
    let answer = served.post("/v1/completions", body.to_string()).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    settle(served).await;
}

async fn records(served: &Served, count: usize) -> Vec<Value> {
    maitred_tests::eventually("the records", || served.records().len() == count).await;
    served.records()
}

/// (predicted, actual) cached tokens.
fn cached(record: &Value) -> (u64, u64) {
    let number = |name: &str| record[name].as_u64().unwrap();
    (number("predicted_cached_tokens"), number("cached_tokens"))
}

fn agree(record: &Value) {
    let (predicted, actual) = cached(record);
    assert!(predicted.abs_diff(actual) <= BLOCK, "{record}");
}

/// Turns, shared openings, salts, and a cache that holds a few of them.
#[tokio::test]
async fn belief_by_events_is_what_engines_find() {
    let (one, two) = (Place::any(), Place::any());
    let _engines = [one.engine(&[]).await, two.engine(&[]).await];
    let served = served(&[&one, &two], true).await;
    let mut conversations: Vec<Vec<u32>> = (0..6)
        .map(|n| [ids(n % 2, 130), ids(n + 10, 170)].concat())
        .collect();
    let mut asked = 0;
    for turn in 0..4 {
        for (at, prompt) in conversations.iter_mut().enumerate() {
            let salt = (at % 3 == 2).then_some("s\u{e9}");
            ask(&served, prompt, salt).await;
            asked += 1;
            prompt.extend(ids(100 + 10 * turn + at as u32, 90));
        }
    }
    let records = records(&served, asked).await;
    records.iter().for_each(agree);
    let by = |source: &str| {
        let of = |r: &&Value| r["belief"]["source"] == source;
        records.iter().filter(of).count()
    };
    assert!(by("observed") > 3, "{}", by("observed"));
    assert!(records.iter().any(|r| cached(r).1 > 0));
    // More went through than the caches hold.
    let workers = served.workers().await;
    for worker in &workers {
        let events = &worker["kv_events"];
        assert_eq!(events["state"], "live", "{worker}");
        assert!(events["observed_blocks"].as_u64().unwrap() <= 64);
    }
    assert!(served.metric("maitred_kv_event_blocks").await > 128.0);
}

#[tokio::test]
async fn a_restarted_engine_is_cold_and_known_to_be() {
    let place = Place::any();
    let mut engine = place.engine(&[]).await;
    let served = served(&[&place], true).await;
    let prompt = ids(1, 400);
    ask(&served, &prompt, None).await;
    ask(&served, &prompt, None).await;
    engine.kill().await.unwrap();
    let _engine = place.engine(&[]).await;
    maitred_tests::within("its new life to be seen", async {
        while served.workers().await[0]["epoch"] == 0 || served.ready_workers().await == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    reconnected(&served).await;
    ask(&served, &prompt, None).await;
    ask(&served, &prompt, None).await;
    let records = records(&served, 4).await;
    let told: Vec<(u64, u64)> = records.iter().map(cached).collect();
    assert_eq!(told[2], (0, 0));
    assert!(told[1].1 > 300 && told[3].1 > 300, "{told:?}");
    records.iter().for_each(agree);
    // By whatever it was noticed: one new life.
    assert_eq!(served.workers().await[0]["epoch"], 1);
}

/// Salts that the gateway puts into bodies come back in the engine's events: what they name is the
/// tenant's own, and nobody else's.
#[tokio::test]
async fn an_injected_salt_comes_back_in_events() {
    // What `maitred hash-key` prints for `ZX-MARK-77` and `ZX-MARK-78`.
    const ACME: &str = "94cdb568364c7ff696c8054ccf376d02b3b4cdf36fec03016347738dc656afb1";
    const BOLT: &str = "57eb4a6cf5840df07c6b5b29510e500a86f89e2e68c4203b1a6c9d045b64f6b3";
    let place = Place::any();
    let _engine = place.engine(&[]).await;
    let head = format!(
        "salt_secret: fourteen-geese-in-a-row-today-at-noon\ntenants: [{{ name: acme, key_sha256: '{ACME}' }}, {{ name: bolt, key_sha256: '{BOLT}' }}]\n"
    );
    let pool = "isolation: tenant\n    inject_cache_salt: true\n    ";
    let served = served_as(&head, pool, &[&place], true).await;
    let prompt = ids(5, 200);
    let body = json!({"model": "m", "prompt": prompt, "max_tokens": 3}).to_string();
    let acme = [("authorization", "Bearer ZX-MARK-77")];
    let bolt = [("authorization", "Bearer ZX-MARK-78")];
    for headers in [&acme[..], &acme, &bolt, &bolt] {
        let request = maitred_tests::request("POST", "/v1/completions", headers, body.clone());
        let answer = served.client().await.exchange(&request).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        settle(&served).await;
    }
    let records = records(&served, 4).await;
    let observed = |at: usize| records[at]["belief"]["observed"].as_u64().unwrap();
    let found: Vec<u64> = records.iter().map(|r| cached(r).1).collect();
    assert_eq!(found, [0, 192, 0, 192]);
    assert_eq!([0, 1, 2, 3].map(observed), [0, 12, 0, 12]);
    records.iter().for_each(agree);
}

/// A pool that names no model follows events all the same: they are about what the worker lists.
#[tokio::test]
async fn events_are_followed_in_a_pool_without_a_model() {
    let place = Place::any();
    let _engine = place.engine(&[]).await;
    let served = served_named("", "", "", &[&place], true).await;
    let prompt = ids(6, 200);
    ask(&served, &prompt, None).await;
    ask(&served, &prompt, None).await;
    let records = records(&served, 2).await;
    assert_eq!(records[1]["belief"]["observed"], 12, "{}", records[1]);
    records.iter().for_each(agree);
}

/// Lost events left removed blocks behind, believed for ever.
#[tokio::test]
async fn a_gap_without_replay_is_uncertain_until_a_new_life() {
    let place = Place::any();
    let mut engine = place.engine(&["--kv-events-lose-every", "3"]).await;
    let served = served(&[&place], false).await;
    for seed in 0..24 {
        ask(&served, &ids(seed % 8, 400), None).await;
    }
    let seen = records(&served, 24).await;
    let uncertain = |r: &&Value| r["belief"]["uncertain"] == true;
    assert!(seen.iter().any(|r| uncertain(&r)));
    let worker = &served.workers().await[0];
    assert_eq!(worker["kv_events"]["state"], "uncertain");
    assert!(count(&served, "lost").await > 0);
    // By events alone nothing is warm that is not.
    for record in seen.iter().filter(uncertain) {
        let observed = record["belief"]["observed"].as_u64().unwrap() * BLOCK;
        assert!(observed <= cached(record).1 + BLOCK, "{record}");
    }
    engine.kill().await.unwrap();
    let _engine = place.engine(&[]).await;
    // Heard from its first word on.
    reconnected(&served).await;
    ask(&served, &ids(3, 50), None).await;
    assert_eq!(served.workers().await[0]["kv_events"]["state"], "live");
}

/// Waits until the one engine's second life serves and its events are followed.
async fn reconnected(served: &Served) {
    maitred_tests::within("its new life to be followed", async {
        while count(served, "connections").await < 2 || served.ready_workers().await == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}
