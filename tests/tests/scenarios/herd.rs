//! Many conversations that begin alike, over four simulated engines: they share the engines evenly and
//! find their beginnings again, by the engines' own word.

use crate::{Served, chat, serve_file};
use maitred_enginesim::server::{Running, ServerConfig, start};
use maitred_tests::{Client, request, within};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Clients that talk at the same time.
const CLIENTS: usize = 8;

/// Four engines, far faster than real ones: what is compared are tokens, not times.
async fn engines() -> Running {
    let config = ServerConfig {
        replicas: 4,
        served_model: "m".to_owned(),
        speed: 50.0,
        ..ServerConfig::default()
    };
    start(config).await.unwrap()
}

async fn gateway(engines: &Running, policy: &str) -> Served {
    let text = format!(
        "expose: true\npools:\n  - {{ name: p, model: m, policy: {policy}, workers: {} }}\n",
        json!(engines.urls)
    );
    serve_file(&text, 4).await
}

/// What one conversation got.
#[derive(Default)]
struct Tally {
    prompt: u64,
    cached: u64,
    /// Prompt tokens by worker.
    load: BTreeMap<String, u64>,
}

impl Tally {
    fn add(&mut self, worker: &str, usage: &Value) {
        let prompt = usage["prompt_tokens"].as_u64().unwrap();
        self.prompt += prompt;
        self.cached += usage["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap();
        *self.load.entry(worker.to_owned()).or_default() += prompt;
    }

    fn join(&mut self, other: Self) {
        self.prompt += other.prompt;
        self.cached += other.cached;
        for (worker, tokens) in other.load {
            *self.load.entry(worker).or_default() += tokens;
        }
    }

    /// The busiest worker's tokens over the mean of all four.
    fn skew(&self) -> f64 {
        let most = self.load.values().max().copied().unwrap_or(0);
        most as f64 * 4.0 / self.prompt as f64
    }
}

/// An agent: a common opening of about 4,000 tokens, then `turns` turns that only append.
async fn converse(client: &mut Client, agent: usize, turns: usize, named: bool) -> Tally {
    let opening = "You use the tools, you read the results, you answer. ".repeat(310);
    let mut messages = vec![json!({"role": "system", "content": opening})];
    let mut tally = Tally::default();
    for turn in 0..turns {
        let ask = format!("agent {agent} turn {turn}: {}", "look here ".repeat(60));
        messages.push(json!({"role": "user", "content": ask}));
        let body = json!({"model": "m", "messages": messages, "max_tokens": 24}).to_string();
        let key = format!("agent-{agent}");
        let mut headers = vec![("content-type", "application/json")];
        if named {
            headers.push(("x-session-id", &key));
        }
        let answer = client
            .exchange(&request("POST", "/v1/chat/completions", &headers, body))
            .await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let worker = answer.header("x-maitred-worker").unwrap().to_owned();
        let answer = answer.json();
        tally.add(&worker, &answer["usage"]);
        messages.push(answer["choices"][0]["message"].clone());
    }
    tally
}

/// 24 agents of 16 turns, `CLIENTS` at a time.
async fn agents(policy: &str, named: bool) -> Tally {
    let engines = engines().await;
    let served = gateway(&engines, policy).await;
    let mut tasks = tokio::task::JoinSet::new();
    for first in 0..CLIENTS {
        let mut client = served.client().await;
        tasks.spawn(async move {
            let mut tally = Tally::default();
            for agent in (first..24).step_by(CLIENTS) {
                tally.join(converse(&mut client, agent, 16, named).await);
            }
            tally
        });
    }
    let mut total = Tally::default();
    while let Some(tally) = within("the agents", tasks.join_next()).await {
        total.join(tally.unwrap());
    }
    engines.shutdown().await;
    total
}

#[allow(clippy::print_stdout)]
fn no_herd(total: &Tally) {
    let share = total.cached as f64 / total.prompt as f64;
    println!("max/mean {:.3}, cached share {share:.3}", total.skew());
    assert!(total.skew() <= 1.3, "{:.2}: {:?}", total.skew(), total.load);
    assert!(share >= 0.94, "cached {share:.3} of {}", total.prompt);
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_that_name_themselves_make_no_herd() {
    no_herd(&agents("session", true).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_known_by_their_content_make_no_herd() {
    no_herd(&agents("session", false).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_shots_without_a_key_use_every_engine() {
    let engines = engines().await;
    let served = gateway(&engines, "session").await;
    let mut load: BTreeMap<String, u32> = BTreeMap::new();
    for number in 0..60 {
        let answer = served
            .post("/v1/chat/completions", chat(&format!("question {number}")))
            .await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let worker = answer.header("x-maitred-worker").unwrap().to_owned();
        *load.entry(worker).or_default() += 1;
    }
    assert_eq!(load.len(), 4, "{load:?}");
    assert!(load.values().all(|n| *n >= 5), "{load:?}");
    engines.shutdown().await;
}
