//! What waits, waits in our line: the engines' own queues stay short, by their own record.

use crate::serve_file;
use maitred_enginesim::model;
use maitred_enginesim::server::{Running, ServerConfig, start};
use maitred_tests::{Client, within};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// More than twice what the engines can run.
const CLIENTS: usize = 40;

/// Two engines of eight slots each, five times as fast as modelled.
async fn engines() -> Running {
    let config = ServerConfig {
        replicas: 2,
        served_model: "m".to_owned(),
        speed: 5.0,
        engine: model::Config {
            slots: 8,
            ..model::Config::default()
        },
        ..ServerConfig::default()
    };
    start(config).await.unwrap()
}

/// Steps of all engines so far that began with none, one, two or more jobs left waiting.
fn steps(engines: &Running) -> [u64; 4] {
    let mut sums = [0; 4];
    for replica in &engines.replicas {
        for (sum, steps) in sums.iter_mut().zip(replica.metrics().steps_waiting) {
            *sum += steps;
        }
    }
    sums
}

/// The queue stood in the engine, where no fairness of ours reaches it: nothing of what an engine can
/// run at once is set here, and the default finds it out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_most_one_request_waits_in_an_engine_under_overload() {
    let engines = engines().await;
    let text = format!(
        "pools:\n  - {{ name: p, model: m, scrape: {{ interval: 200ms }}, workers: {} }}\n",
        json!(engines.urls)
    );
    let served = serve_file(&text, 2).await;
    let done = Arc::new(AtomicUsize::new(0));
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        let (addr, done) = (served.addr, Arc::clone(&done));
        clients.spawn(async move {
            let mut client = Client::connect(addr).await;
            loop {
                let turn = done.fetch_add(1, Ordering::Relaxed);
                // A follow-up: nobody is refused at the door.
                let message = |role: &str, text: String| json!({ "role": role, "content": text });
                let messages = [
                    message("user", format!("{number} asks for the {turn}th time")),
                    message("assistant", "go on".to_owned()),
                    message("user", "what then?".to_owned()),
                ];
                let body = json!({ "model": "m", "messages": messages, "max_tokens": 64 });
                let answer = client.post("/v1/chat/completions", body.to_string()).await;
                assert_eq!(answer.status(), 200, "{}", answer.text());
            }
        });
    }
    let asked = async |count: usize| {
        within(&format!("{count} requests"), async {
            while done.load(Ordering::Relaxed) < count {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        })
        .await;
    };
    // They all came at once, and what was sent before anything was known is worked off.
    within("the slots to be learnt", async {
        while served.metric("maitred_worker_slots_learnt").await < 16.0 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    asked(done.load(Ordering::Relaxed) + 3 * CLIENTS).await;
    let before = steps(&engines);
    asked(done.load(Ordering::Relaxed) + 400).await;
    let after = steps(&engines);
    let waits = served.metric("maitred_line_waiting{").await;
    clients.shutdown().await;
    let [none, one, two, more] = [0, 1, 2, 3].map(|at: usize| after[at] - before[at]);
    let all = none + one + two + more;
    assert!(waits >= 10.0, "the others wait here, and {waits} do");
    assert!(all > 500, "{all} steps");
    // Where a limit is tried that is one too high, two wait until the engine has said so.
    assert!(more == 0 && two * 5 <= all, "{:?}", [none, one, two, more]);
    // And none is short of work for it.
    assert!(one * 2 >= all, "{:?}", [none, one, two, more]);
}
