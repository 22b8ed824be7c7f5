//! The real binary in front of scripted workers: faults known from the field, made impossible.
//!
//! Comments name the behaviour that is expected; what each fault looked like elsewhere is in the
//! name of its test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod accounting;
mod cli;
mod clients;
mod engine_queue;
mod fleet;
mod health;
mod herd;
mod horde;
mod isolation;
mod kv;
mod leaks;
mod line;
mod load;
mod observed;
mod pull;
mod pull_faults;
mod recorded_horde;
mod starvation;
mod tenants;

use maitred_tests::{Client, Process, Response, Worker};
use serde_json::{Value, json};

/// A gateway and the directory that holds its file and records.
pub(crate) struct Served {
    process: Process,
    dir: tempfile::TempDir,
}

impl std::ops::Deref for Served {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

/// One pool named `p` without a model of its own, with these workers and further lines of the
/// pool's YAML, each indented by four spaces here. Probes are quick: no test waits for them long.
pub(crate) async fn serve(workers: &[&Worker], lines: &[&str]) -> Served {
    let urls: Vec<String> = workers.iter().map(|worker| worker.url()).collect();
    let mut text = format!("pools:\n  - name: p\n    workers: {}\n", json!(urls));
    let quick = "probe: { interval: 100ms, interval_down: 50ms, timeout: 500ms, failures: 2 }";
    let probe = if lines.iter().any(|line| line.starts_with("probe:")) {
        None
    } else {
        Some(&quick)
    };
    for line in probe.into_iter().chain(lines) {
        text.push_str(&format!("    {line}\n"));
    }
    serve_file(&text, workers.len()).await
}

/// A gateway with this file; waits until `ready` workers take requests.
pub(crate) async fn serve_file(text: &str, ready: usize) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("maitred.yaml");
    std::fs::write(&file, text).unwrap();
    let records = dir.path().join("records");
    let process = Process::serve(&[
        "--config",
        file.to_str().unwrap(),
        "--records",
        records.to_str().unwrap(),
    ])
    .await;
    let served = Served { process, dir };
    served.wait_for_ready(ready).await;
    served
}

impl Served {
    /// Waits until this many workers take requests.
    async fn wait_for_ready(&self, count: usize) {
        maitred_tests::within(&format!("{count} workers to be ready"), async {
            while self.ready_workers().await != count {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        })
        .await;
    }

    async fn ready_workers(&self) -> usize {
        let workers = self.workers().await;
        workers
            .iter()
            .filter(|worker| worker["availability"] == "ready")
            .count()
    }

    /// What the admin API says about each worker.
    async fn workers(&self) -> Vec<Value> {
        let answer = self.admin_get("/workers").await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        answer.json()["workers"].as_array().unwrap().clone()
    }

    /// The sum of a gauge or counter over its series, by the start of their lines.
    async fn metric(&self, start: &str) -> f64 {
        let text = self.admin_get("/metrics").await.text();
        let lines = text.lines().filter(|line| line.starts_with(start));
        lines
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }

    /// Everything written to the record files so far.
    fn records(&self) -> Vec<Value> {
        let Ok(dir) = std::fs::read_dir(self.dir.path().join("records")) else {
            return Vec::new();
        };
        let mut lines = Vec::new();
        for entry in dir {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            lines.extend(
                text.lines()
                    .filter_map(|line| serde_json::from_str(line).ok()),
            );
        }
        lines
    }
}

/// A chat body with one user message.
pub(crate) fn chat(text: &str) -> String {
    json!({"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 8})
        .to_string()
}

/// Sends each body on a connection of its own, all at once; answers come in the same order.
pub(crate) async fn burst(served: &Served, path: &str, bodies: Vec<String>) -> Vec<Response> {
    let (addr, path) = (served.addr, path.to_owned());
    let tasks: Vec<_> = bodies
        .into_iter()
        .map(|body| {
            let path = path.clone();
            tokio::spawn(async move { Client::connect(addr).await.post(&path, body).await })
        })
        .collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.unwrap());
    }
    answers
}

/// Statuses of answers, for comparison.
pub(crate) fn statuses(answers: &[Response]) -> Vec<u16> {
    answers.iter().map(Response::status).collect()
}
