//! The data path over real sockets, with scripted workers: one binary for all of it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr
)]

mod cancel;
mod corrections;
mod divergence;
mod events;
mod framing;
mod heartbeat;
mod horde;
mod identity;
mod recordings;
mod refusals;
mod registration;
mod relay;
mod retry;
mod routes;
mod shutdown;
mod stream;
mod tenants;
mod tokenizers;
mod waiting;

use maitred_core::place::PolicyConfig;
use maitred_gateway::config::{Config, PoolSettings};
use maitred_gateway::{Running, start};
use maitred_records::AttemptRecord;
use maitred_tests::{Client, Worker, eventually, within};
use std::sync::Arc;
use std::time::Duration;

/// A gateway with one pool `p` that serves model `m` on these workers, named `w1`, `w2`, ...
async fn room(workers: &[&Worker], set: impl FnOnce(&mut Config)) -> Running {
    let mut config = empty();
    config.pools = vec![pool("p", Some("m"), workers)];
    set(&mut config);
    start(config).await.expect("the gateway starts")
}

fn empty() -> Config {
    let mut config = Config::default();
    config.listen.set_port(0);
    config.admin.set_port(0);
    config.threads = 1;
    config.seed = Some(7);
    config
}

fn pool(name: &str, model: Option<&str>, workers: &[&Worker]) -> PoolSettings {
    let mut pool = PoolSettings::named(name);
    pool.model = model.map(str::to_owned);
    pool.scrape.interval = Duration::ZERO;
    // Every worker gets its turn.
    pool.core.policy = PolicyConfig::named("round_robin").expect("a policy");
    for (index, worker) in workers.iter().enumerate() {
        let mut settings = pool.worker(&worker.url()).expect("a URL");
        settings.name = format!("w{}", index + 1);
        settings.assume_ready = true;
        pool.workers.push(settings);
    }
    pool
}

async fn client(running: &Running) -> Client {
    Client::connect(running.data).await
}

/// The attempts of a request, once there are `count` of them.
async fn attempts(running: &Running, id: &str, count: usize) -> Vec<Arc<AttemptRecord>> {
    let recent = &running.gateway.recent;
    eventually("the attempts are recorded", || recent.of(id).len() >= count).await;
    recent.of(id)
}

/// Waits until no request is alive and every lease was given back.
async fn at_rest(running: &Running) {
    let gateway = &running.gateway;
    eventually("all leases are given back", || {
        gateway.pools.iter().all(|pool| {
            pool.driver.live() == 0
                && pool.views().iter().all(|w| {
                    w.view.running == 0 && w.view.prefill_tokens == 0 && w.view.resident_tokens == 0
                })
        })
    })
    .await;
    for pool in &gateway.pools {
        pool.driver.read(|s| s.check()).expect("the ledger holds");
    }
}

const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;
const CHAT_STREAM: &str =
    r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}"#;
const PATH: &str = "/v1/chat/completions";

/// A future that must end.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    within("it ends", what).await
}
