//! Deep conversations that never end and newcomers who want to begin, over the real gateway: the
//! laboratory's scenario with all times divided by twenty.
//!
//! 16 slots on four workers, 1 s of service, 60 deep conversations with 0.1 s of think time, and 4
//! newcomers a second with five turns each: about 4.7 times what the slots can take.

use crate::{Served, serve_file};
use maitred_tests::{Client, Recorded, Script, Step, Worker, json_answer, request};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

const SERVICE: Duration = Duration::from_secs(1);
const THINK: Duration = Duration::from_millis(100);
const DEEP: usize = 60;
const DEEP_TURNS: usize = 30;
const NEWCOMERS: u32 = 60;
const BETWEEN: Duration = Duration::from_millis(250);
const TURNS: usize = 5;
/// Before the first newcomer.
const ALONE: Duration = Duration::from_secs(3);
/// A twentieth of the default.
const START_WITHIN_MS: f64 = 500.0;
/// A twentieth of the minute that the rivals' requests wait.
const WAIT_MS: f64 = 3_000.0;

/// A slot is taken for the time of service; all but the last turn is said to be cached.
async fn worker() -> Worker {
    Worker::start(Script::by(|request: &Recorded| {
        let tokens = request.body_raw.len() / 4;
        let answer = json!({
            "choices": [{ "index": 0, "finish_reason": "stop", "message": { "role": "assistant", "content": "so it is" } }],
            "usage": {
                "prompt_tokens": tokens,
                "completion_tokens": 64,
                "prompt_tokens_details": { "cached_tokens": tokens.saturating_sub(64) },
            },
        });
        let mut steps = vec![Step::Delay(SERVICE)];
        steps.extend(json_answer(200, &answer.to_string()));
        steps
    }))
    .await
}

/// Speaks until it is over, or for that many turns; a refusal ends it if `once`.
async fn converse(
    served: Arc<Served>,
    over: Arc<AtomicBool>,
    name: String,
    known: usize,
    turns: usize,
    once: bool,
) {
    let mut client = served.client().await;
    let said = |role: &str, turn: usize| {
        let content = format!("{name}, {turn}: {}", "and then this happened ".repeat(8));
        json!({ "role": role, "content": content })
    };
    let mut messages: Vec<Value> = (0..known)
        .flat_map(|turn| [said("user", turn), said("assistant", turn)])
        .collect();
    for turn in known..known + turns {
        if over.load(Ordering::Relaxed) {
            return;
        }
        messages.push(said("user", turn));
        let body = json!({ "model": "m", "messages": messages, "max_tokens": 64 }).to_string();
        let headers = [
            ("authorization", "Bearer key"),
            ("x-session-id", name.as_str()),
        ];
        let served = ask(&mut client, &headers, &body, once).await;
        if !served {
            return;
        }
        messages.push(said("assistant", turn));
        sleep(THINK).await;
    }
}

/// Whether it was served in the end.
async fn ask(client: &mut Client, headers: &[(&str, &str)], body: &str, once: bool) -> bool {
    loop {
        let request = request("POST", "/v1/chat/completions", headers, body);
        let status = client.exchange(&request).await.status();
        assert!(matches!(status, 200 | 429), "{status}");
        if status == 200 || once {
            return status == 200;
        }
        sleep(THINK).await;
    }
}

/// What became of them, by the gateway's own records.
#[derive(Debug, Default)]
struct Sums {
    served: usize,
    /// Waits of newcomers' first turns, in milliseconds.
    started: Vec<f64>,
    refused: Vec<f64>,
    /// Waits of all later turns.
    continued: Vec<f64>,
    continued_refused: usize,
}

impl Sums {
    fn of(records: &[Value]) -> Self {
        let mut sums = Self::default();
        for record in records {
            let first = record["turn"] == 1;
            let wait = record["queue_ms"].as_f64().unwrap();
            match (record["outcome"].as_str().unwrap(), first) {
                ("served", true) => sums.started.push(wait),
                ("served", false) => sums.continued.push(wait),
                ("refused", true) => sums.refused.push(wait),
                ("refused", false) => sums.continued_refused += 1,
                _ => continue,
            }
            sums.served += usize::from(record["outcome"] == "served");
        }
        for waits in [&mut sums.started, &mut sums.refused, &mut sums.continued] {
            waits.sort_by(f64::total_cmp);
        }
        sums
    }

    fn row(&self, fairness: &str) -> String {
        let at = |waits: &[f64], share: f64| {
            let place = (waits.len() as f64 * share) as usize;
            let wait = waits.get(place.min(waits.len().saturating_sub(1)));
            wait.map_or("-".to_owned(), |wait| format!("{wait:.0}"))
        };
        format!(
            "{fairness:14} served {:4}  newcomers: started {:3} (wait p50 {:>4} p95 {:>4} most {:>4} ms)  \
             refused {:3} (after p50 {:>4} p95 {:>4} most {:>4} ms)  follow-ups: {:4} (wait p50 {:>4} ms) refused {}",
            self.served,
            self.started.len(),
            at(&self.started, 0.5),
            at(&self.started, 0.95),
            at(&self.started, 1.0),
            self.refused.len(),
            at(&self.refused, 0.5),
            at(&self.refused, 0.95),
            at(&self.refused, 1.0),
            self.continued.len(),
            at(&self.continued, 0.5),
            self.continued_refused,
        )
    }
}

// The table is what an operator would look at.
#[allow(clippy::print_stdout)]
async fn play(name: &str, fairness: &str, max_wait: &str) -> Sums {
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(worker().await);
    }
    let urls: Vec<String> = workers.iter().map(Worker::url).collect();
    let keys = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(keys.path(), "key").unwrap();
    let text = format!(
        "tenants: [{{ name: all, key_file: '{}' }}]\npools:\n  - name: p\n    slots: 4\n    fairness: {fairness}\n    \
         max_wait: {max_wait}\n    hold_max: 100ms\n    workers: {}\n",
        keys.path().display(),
        json!(urls)
    );
    let served = Arc::new(serve_file(&text, 4).await);
    let over = Arc::new(AtomicBool::new(false));
    let start = Instant::now();
    let mut guests = tokio::task::JoinSet::new();
    let mut come = |name: String, known, turns, once| {
        let (served, over) = (Arc::clone(&served), Arc::clone(&over));
        guests.spawn(converse(served, over, name, known, turns, once));
    };
    for number in 0..DEEP {
        // Over one time of service, so that seats do not become free all at once.
        sleep_until(start + SERVICE * number as u32 / DEEP as u32).await;
        come(
            format!("deep {number}"),
            DEEP_TURNS,
            usize::MAX - DEEP_TURNS,
            false,
        );
    }
    for number in 0..NEWCOMERS {
        sleep_until(start + ALONE + BETWEEN * number).await;
        come(format!("newcomer {number}"), 0, TURNS, true);
    }
    // Who came last may wait as long as the longest wait, and then is served.
    let last = Duration::from_millis(WAIT_MS as u64) + SERVICE * 2;
    sleep_until(start + ALONE + BETWEEN * NEWCOMERS + last).await;
    over.store(true, Ordering::Relaxed);
    guests.shutdown().await;
    let sums = Sums::of(&served.records());
    println!("{}", sums.row(name));
    sums
}

/// Newcomers waited as long as they might and were refused then, because somebody deep always came
/// before them. With `promise` they start soon or know at once that they will not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newcomers_start_soon_or_know_at_once() {
    let by_turns = "{ name: turn_priority, aging_per_second: 1 }";
    let by_promise = "{ name: promise, start_within_seconds: 0.5, continue_within_seconds: 1.5 }";
    let (turns, promise) = tokio::join!(
        play("turn_priority", by_turns, "3s"),
        play("promise", by_promise, "15s")
    );
    // Deep conversations before all: hardly anybody begins, and who is refused has waited for it.
    assert!(turns.refused.len() >= 40, "{turns:?}");
    assert!(turns.refused.iter().all(|wait| *wait >= WAIT_MS * 0.9));
    // Some begin at any load; each of them about when it was promised (margin: a busy machine).
    assert!(promise.started.len() >= 10, "{promise:?}");
    assert!(
        promise.started.len() > 2 * turns.started.len(),
        "{promise:?}"
    );
    let late = promise
        .started
        .iter()
        .filter(|wait| **wait > START_WITHIN_MS * 2.0);
    assert!(late.count() * 10 <= promise.started.len(), "{promise:?}");
    let slow = promise
        .refused
        .iter()
        .filter(|wait| **wait > START_WITHIN_MS / 2.0);
    assert!(slow.count() * 10 <= promise.refused.len(), "{promise:?}");
    assert_eq!(promise.continued_refused, 0, "who was let in goes on");
    assert!(
        promise.served * 10 >= turns.served * 8,
        "nothing is left idle"
    );
}
