//! One run: all clients against one gateway for a fixed time.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use maitred_enginesim::server::Running as Engines;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::client::Client;
use super::score::{Loads, Sample, Score};
use super::traffic::{Kind, Mix, Script};
use super::view::View;

/// Between two looks at the engines.
const TICK: Duration = Duration::from_millis(200);
/// How long the engines may take to become empty after a run.
const SETTLE: Duration = Duration::from_secs(3);
/// Pause of a client whose request failed.
const AFTER_ERROR: Duration = Duration::from_millis(500);

/// What a run is about.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// The policy's name.
    pub(crate) policy: String,
    /// The model to ask for.
    pub(crate) model: String,
    /// Clients.
    pub(crate) mix: Mix,
    /// Of the scripts.
    pub(crate) seed: u64,
    /// How long.
    pub(crate) length: Duration,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The policy's name.
    pub(crate) policy: String,
    /// What clients saw.
    pub(crate) score: Score,
    /// What engines bore.
    pub(crate) loads: Loads,
}

type Shared = Arc<Mutex<Score>>;

fn with<T>(score: &Shared, change: impl FnOnce(&mut Score) -> T) -> T {
    change(&mut score.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Plays `plan` against `gateway`, showing it in `view`; what is under way at the end is cut off.
pub(crate) async fn play(
    plan: Plan,
    gateway: SocketAddr,
    engines: &Engines,
    view: &mut View,
) -> Outcome {
    let score = Shared::default();
    let mut loads = Loads::default();
    let mut clients = JoinSet::new();
    let served_before: Vec<u64> = engines
        .replicas
        .iter()
        .map(|r| r.metrics().finished)
        .collect();
    for (client, kind) in plan.mix.kinds().enumerate() {
        let script = Script::new(plan.seed, client, kind);
        clients.spawn(live(
            client,
            script,
            plan.model.clone(),
            gateway,
            Arc::clone(&score),
        ));
    }
    let start = Instant::now();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    view.begin();
    loop {
        ticks.tick().await;
        let metrics: Vec<_> = engines.replicas.iter().map(|r| r.metrics()).collect();
        loads.note(metrics.iter().map(|m| m.running + m.waiting));
        let elapsed = start.elapsed().min(plan.length);
        let (summary, errors) = with(&score, |s| (s.summary(), s.errors));
        view.show(&plan, elapsed, &summary, errors, &metrics, &served_before);
        if elapsed >= plan.length {
            break;
        }
    }
    let score = with(&score, |s| s.clone());
    clients.shutdown().await;
    let settled = Instant::now() + SETTLE;
    let busy = || {
        engines
            .replicas
            .iter()
            .any(|r| r.metrics().running + r.metrics().waiting > 0)
    };
    while busy() && Instant::now() < settled {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Outcome {
        policy: plan.policy,
        score,
        loads,
    }
}

/// One client, for ever.
async fn live(
    client: usize,
    mut script: Script,
    model: String,
    gateway: SocketAddr,
    score: Shared,
) {
    let mut connection = Client::new(gateway);
    let mut conversations = 0;
    loop {
        let conversation = script.next_conversation();
        let mut messages = vec![json!({"role": "system", "content": conversation.system})];
        let mut earlier_tokens = 0;
        for (turn, next) in conversation.turns.into_iter().enumerate() {
            tokio::time::sleep(next.pause).await;
            messages.push(json!({"role": "user", "content": next.text}));
            let mut body = json!({"model": model, "messages": messages, "max_tokens": next.reply_tokens,
                "stream": true, "stream_options": {"include_usage": true}});
            // Agents name their conversation in the body, as coding agents do; chats in a header; callers not at all.
            let mut header = None;
            if let Some(key) = &conversation.key {
                match script.kind() {
                    Kind::Agent => body["prompt_cache_key"] = Value::String(key.clone()),
                    Kind::Chat | Kind::Caller => header = Some(key.as_str()),
                }
            }
            with(&score, |s| s.open += 1);
            let asked = connection.ask(header, body.to_string().into_bytes()).await;
            with(&score, |s| s.open -= 1);
            match asked {
                Ok(answer) => {
                    let sample = Sample {
                        ttft: answer.ttft,
                        prompt_tokens: answer.prompt_tokens,
                        cached_tokens: answer.cached_tokens,
                        earlier_tokens,
                    };
                    earlier_tokens = answer.prompt_tokens + answer.completion_tokens;
                    with(&score, |s| {
                        s.samples.insert((client, conversations, turn), sample)
                    });
                    messages.push(json!({"role": "assistant", "content": answer.text}));
                }
                Err(error) => {
                    with(&score, |s| {
                        s.errors += 1;
                        s.first_error.get_or_insert(error);
                    });
                    tokio::time::sleep(AFTER_ERROR).await;
                    // The conversation cannot go on without its answer.
                    break;
                }
            }
        }
        conversations += 1;
    }
}
