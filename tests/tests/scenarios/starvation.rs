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
const SLOTS: f64 = 16.0;
const DEEP_TURNS: usize = 30;
/// How long newcomers come.
const COMING: Duration = Duration::from_secs(15);
const TURNS: usize = 5;
/// Before the first newcomer.
const ALONE: Duration = Duration::from_secs(3);
/// A twentieth of the default.
const START_WITHIN_MS: f64 = 500.0;
/// A twentieth of the minute that the rivals' requests wait.
const WAIT_MS: f64 = 3_000.0;

/// Who is there and who comes.
#[derive(Clone, Copy, Debug)]
struct Crowd {
    deep: u32,
    newcomers: u32,
}

impl Crowd {
    const WHOLE: Self = Self {
        deep: 60,
        newcomers: 60,
    };

    /// What they would take if nobody waited, over what there is: 1 is full.
    fn load(self) -> f64 {
        let deep = f64::from(self.deep) / (SERVICE + THINK).as_secs_f64();
        let newcomers = f64::from(self.newcomers) * TURNS as f64 / COMING.as_secs_f64();
        (deep + newcomers) * SERVICE.as_secs_f64() / SLOTS
    }

    /// Fewer or more of both.
    fn at_load(load: f64) -> Self {
        let factor = load / Self::WHOLE.load();
        let scaled = |count: u32| (f64::from(count) * factor).round() as u32;
        Self {
            deep: scaled(Self::WHOLE.deep),
            newcomers: scaled(Self::WHOLE.newcomers),
        }
    }
}

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

/// Speaks until it is over, or for that many turns. A newcomer who is refused comes once more if he
/// is told when, and then no more.
async fn converse(
    served: Arc<Served>,
    over: Arc<AtomicBool>,
    name: String,
    known: usize,
    turns: usize,
) {
    let newcomer = known == 0;
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
        if !ask(&mut client, &name, &body, newcomer).await {
            return;
        }
        messages.push(said("assistant", turn));
        sleep(THINK).await;
    }
}

/// Whether it was served in the end.
async fn ask(client: &mut Client, session: &str, body: &str, newcomer: bool) -> bool {
    for number in 0.. {
        let id = format!("{session}, try {number}").replace(' ', "-");
        let headers = [
            ("authorization", "Bearer key"),
            ("x-session-id", session),
            ("x-request-id", id.as_str()),
        ];
        let request = request("POST", "/v1/chat/completions", &headers, body);
        let answer = client.exchange(&request).await;
        match (answer.status(), newcomer) {
            (200, _) => return true,
            (429, false) => sleep(THINK).await,
            (429, true) => {
                let advice = answer.header("retry-after");
                let wait = advice.and_then(|seconds| seconds.parse().ok());
                let Some(wait) = wait.filter(|_| number == 0) else {
                    return false;
                };
                sleep(Duration::from_secs(wait)).await;
            }
            (other, _) => panic!("{other}: {}", answer.text()),
        }
    }
    false
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
    /// Newcomers who came again when they were told to, and of them those who were let in.
    again: usize,
    again_started: usize,
}

impl Sums {
    fn of(records: &[Value]) -> Self {
        let mut sums = Self::default();
        for record in records {
            let first = record["turn"] == 1;
            let wait = record["queue_ms"].as_f64().unwrap();
            let id = record["request_id"].as_str().unwrap();
            if first && id.ends_with("try-1") {
                sums.again += 1;
                // Who left when it was over had been let in, too.
                sums.again_started += usize::from(record["outcome"] != "refused");
            }
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
             refused {:3} (after p50 {:>4} p95 {:>4} most {:>4} ms)  follow-ups: {:4} (wait p50 {:>4} p95 {:>5} ms) refused {}  \
             came again {}, let in {}",
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
            at(&self.continued, 0.95),
            self.continued_refused,
            self.again,
            self.again_started,
        )
    }
}

// The table is what an operator would look at.
#[allow(clippy::print_stdout)]
async fn play(crowd: Crowd, name: &str, fairness: &str, max_wait: &str) -> Sums {
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
    let mut come = |name: String, known, turns| {
        let (served, over) = (Arc::clone(&served), Arc::clone(&over));
        guests.spawn(converse(served, over, name, known, turns));
    };
    for number in 0..crowd.deep {
        // Over one time of service, so that seats do not become free all at once.
        sleep_until(start + SERVICE * number / crowd.deep).await;
        let turns = usize::MAX - DEEP_TURNS;
        come(format!("deep {number}"), DEEP_TURNS, turns);
    }
    for number in 0..crowd.newcomers {
        sleep_until(start + ALONE + COMING * number / crowd.newcomers).await;
        come(format!("newcomer {number}"), 0, TURNS);
    }
    // Who came last may wait as long as the longest wait, and then is served.
    let last = Duration::from_millis(WAIT_MS as u64) + SERVICE * 2;
    sleep_until(start + ALONE + COMING + last).await;
    over.store(true, Ordering::Relaxed);
    guests.shutdown().await;
    let sums = Sums::of(&served.records());
    println!("{}", sums.row(name));
    sums
}

/// Under that policy, its times divided by twenty.
async fn play_policy(crowd: Crowd, name: &str) -> Sums {
    let (fairness, max_wait) = match name {
        "promise" => (
            "{ name: promise, start_within_seconds: 0.5, continue_within_seconds: 1.5 }",
            "15s",
        ),
        "turn_priority" => ("{ name: turn_priority, aging_per_second: 1 }", "3s"),
        "las" => ("{ name: las, half_life_seconds: 3 }", "3s"),
        other => (other, "3s"),
    };
    play(crowd, name, fairness, max_wait).await
}

/// Newcomers waited as long as they might and were refused then, because somebody deep always came
/// before them. With `promise` they start soon or know at once that they will not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newcomers_start_soon_or_know_at_once() {
    let (turns, promise) = tokio::join!(
        play_policy(Crowd::WHOLE, "turn_priority"),
        play_policy(Crowd::WHOLE, "promise")
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

/// The whole table, as the laboratory has it: for people. Two minutes.
#[allow(clippy::print_stdout)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints a table; asserts nothing that the other test does not"]
async fn the_table_over_loads() {
    for load in [0.5, 1.0, 2.0, 4.0] {
        let crowd = Crowd::at_load(load);
        println!("load {load}: {crowd:?}");
        tokio::join!(
            play_policy(crowd, "promise"),
            play_policy(crowd, "turn_priority"),
            play_policy(crowd, "las"),
            play_policy(crowd, "fcfs"),
        );
    }
}
