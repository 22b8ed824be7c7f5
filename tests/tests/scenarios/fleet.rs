//! Workers come, go, die and return while requests run.
use std::collections::BTreeMap;

use maitred_tests::{Client, Script, Step, Worker, json_answer};
use serde_json::{Value, json};

use crate::{Served, chat, serve, serve_file};

const CHAT: &str = "/v1/chat/completions";

/// Adds a worker to the pool `p` and waits until it takes requests.
pub(crate) async fn add(served: &Served, worker: &Worker) {
    let body = json!({"url": worker.url()}).to_string();
    let answer = served.admin_send("POST", "/workers", &body).await;
    assert!((200..300).contains(&answer.status()), "{}", answer.text());
}

/// Removes a worker from the pool `p`.
pub(crate) async fn remove(served: &Served, worker: &Worker) {
    let path = format!("/workers/{}", worker.addr());
    let answer = served.admin_send("DELETE", &path, "").await;
    assert!((200..300).contains(&answer.status()), "{}", answer.text());
}

/// Waits until this many requests wait in the line of the pool `p`.
pub(crate) async fn wait_for_line(served: &Served, count: usize) {
    maitred_tests::within(&format!("{count} requests in the line"), async {
        while served.metric("maitred_line_requests").await < count as f64 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// Answers with the text of the request, so that an answer to somebody else is seen.
fn echo() -> Script {
    Script::by(|request| {
        let asked = request.json()["messages"][0]["content"].clone();
        json_answer(200, &json!({"echo": asked}).to_string())
    })
}

/// Each session's worker, by its place in `workers`.
async fn homes(served: &Served, workers: &[Worker], sessions: usize) -> Vec<usize> {
    let mut client = served.client().await;
    let mut homes = Vec::new();
    for session in 0..sessions {
        let before: Vec<usize> = workers.iter().map(Worker::count).collect();
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}],
            "session_params": {"session_id": format!("s{session}")}})
        .to_string();
        let answer = client.post(CHAT, body).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let grown = workers
            .iter()
            .zip(before)
            .position(|(worker, before)| worker.count() > before);
        homes.push(grown.expect("one of the workers got it"));
    }
    homes
}

/// Clients on keep-alive connections while workers are killed, restarted, added and removed: each
/// request is answered once, with its own answer, and none is lost.
#[tokio::test]
async fn no_request_is_lost_or_swapped_while_workers_churn() {
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(Worker::start(echo()).await);
    }
    let all: Vec<&Worker> = workers.iter().collect();
    let served = serve(&all, &["policy: cache_aware", "attempts: 4"]).await;
    let addr = served.addr;
    let clients: Vec<_> = (0..8)
        .map(|client| {
            tokio::spawn(async move {
                let mut connection = Client::connect(addr).await;
                for n in 0..120 {
                    let text = format!("client {client} question {n}");
                    let answer = connection.post(CHAT, chat(&text)).await;
                    assert_eq!(answer.status(), 200, "{text}: {}", answer.text());
                    assert_eq!(answer.json()["echo"], text);
                }
            })
        })
        .collect();
    for round in 0..6 {
        // The first two die and return under their address; a guest comes and goes.
        let victim = workers.remove(round % 2);
        let address = victim.addr();
        victim.kill().await;
        let guest = Worker::start(echo()).await;
        add(&served, &guest).await;
        workers.insert(round % 2, Worker::start_on(address, echo()).await);
        remove(&served, &guest).await;
    }
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(
        served.metric("maitred_worker_running").await,
        0.0,
        "no lease is left"
    );
}

/// Adding a worker moves no conversation that has a home; removing one moves only its own.
#[tokio::test]
async fn conversations_stay_when_the_fleet_changes() {
    let (mut workers, added) = five().await;
    let all: Vec<&Worker> = workers.iter().collect();
    let served = serve(&all, &["policy: session"]).await;
    let before = homes(&served, &workers, 100).await;
    add(&served, &added).await;
    served.wait_for_ready(5).await;
    drop(all);
    workers.push(added);
    let grown = homes(&served, &workers, 100).await;
    let moved = before
        .iter()
        .zip(&grown)
        .filter(|(old, new)| old != new)
        .count();
    assert!(moved <= 20, "at most 1/(n+1), not {moved} of 100");
    remove(&served, &workers[0]).await;
    served.wait_for_ready(4).await;
    let shrunk = homes(&served, &workers, 100).await;
    let strayed = grown
        .iter()
        .zip(&shrunk)
        .filter(|(old, new)| **old != 0 && old != new)
        .count();
    assert_eq!(strayed, 0, "only those of the removed worker move");
}

/// Without any memory of homes, the hash alone moves about 1/(n+1) of the conversations when a
/// worker is added: two routers of which one knows the new worker agree on the others.
#[tokio::test]
async fn the_hash_moves_few_conversations() {
    let (mut workers, added) = five().await;
    let four = named(&workers).await;
    let before = homes(&four, &workers, 100).await;
    drop(four);
    workers.push(added);
    let grown = homes(&named(&workers).await, &workers, 100).await;
    let to_new = grown.iter().filter(|home| **home == 4).count();
    let moved = before
        .iter()
        .zip(&grown)
        .filter(|(old, new)| old != new)
        .count();
    assert!((10..=32).contains(&to_new), "about 20 of 100, not {to_new}");
    // Bounds on conversations per worker move a few between the old ones.
    assert!(
        moved <= to_new + 15,
        "{moved} moved, {to_new} of them to the new worker"
    );
}

/// A gateway under `session` whose workers have names, so that the hash does not go by ports, which
/// differ from run to run.
async fn named(workers: &[Worker]) -> Served {
    let list: Vec<Value> = workers
        .iter()
        .enumerate()
        .map(|(n, worker)| json!({"url": worker.url(), "name": format!("w{n}")}))
        .collect();
    let pool = json!({"name": "p", "policy": "session", "workers": list});
    serve_file(&json!({"pools": [pool]}).to_string(), workers.len()).await
}

async fn five() -> (Vec<Worker>, Worker) {
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(Worker::start(Script::ok()).await);
    }
    (workers, Worker::start(Script::ok()).await)
}

/// After a rolling update all conversations moved: their homes were only in the old process.
#[tokio::test]
async fn a_fresh_gateway_sends_conversations_to_the_same_workers() {
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(Worker::start(Script::ok()).await);
    }
    let all: Vec<&Worker> = workers.iter().collect();
    let first = serve(&all, &["policy: session"]).await;
    let before = homes(&first, &workers, 40).await;
    drop(first);
    let second = serve(&all, &["policy: session"]).await;
    let after = homes(&second, &workers, 40).await;
    let same = before
        .iter()
        .zip(&after)
        .filter(|(old, new)| old == new)
        .count();
    assert!(same >= 36, "{same} of 40 stayed");
}

/// A restarted worker was taken for warm: what it held before is not believed any more.
#[tokio::test]
async fn a_restarted_worker_is_known_to_be_cold() {
    let worker = Worker::start(Script::ok()).await;
    let served = serve(&[&worker], &["policy: cache_aware"]).await;
    let body = chat(&"a long shared beginning ".repeat(200));
    let predicted = |served: &Served| {
        let records = served.records();
        records
            .last()
            .map(|record| record["predicted_cached_tokens"].as_u64())
    };
    for _ in 0..2 {
        assert_eq!(served.post(CHAT, &body).await.status(), 200);
    }
    maitred_tests::eventually("two records", || served.records().len() == 2).await;
    assert!(
        predicted(&served).unwrap().unwrap() > 500,
        "{:?}",
        served.records()
    );

    let address = worker.addr();
    worker.kill().await;
    served.wait_for_ready(0).await;
    let again = Worker::start_on(address, Script::ok()).await;
    served.wait_for_ready(1).await;
    assert_eq!(served.post(CHAT, &body).await.status(), 200);
    assert_eq!(again.count(), 1);
    maitred_tests::eventually("three records", || served.records().len() == 3).await;
    assert_eq!(predicted(&served).unwrap(), Some(0));
}

/// Tasks of removed workers survived: threads, sockets and tasks grew for ever.
#[tokio::test]
async fn adding_and_removing_leaves_nothing_behind() {
    let stays = Worker::start(Script::ok()).await;
    let guest = Worker::start(Script::ok()).await;
    let served = serve(&[&stays], &[]).await;
    let pid = served.pid();
    let count = |what: &str| {
        std::fs::read_dir(format!("/proc/{pid}/{what}"))
            .unwrap()
            .count()
    };
    let cycle = || async {
        for _ in 0..50 {
            add(&served, &guest).await;
            remove(&served, &guest).await;
        }
    };
    cycle().await;
    maitred_tests::eventually("the guest's connections to close", || {
        guest.open_connections() == 0
    })
    .await;
    let (threads, sockets) = (count("task"), count("fd"));
    cycle().await;
    maitred_tests::eventually("the guest's connections to close", || {
        guest.open_connections() == 0
    })
    .await;
    maitred_tests::eventually("sockets to close", || count("fd") <= sockets + 2).await;
    assert!(
        count("task") <= threads + 1,
        "{} threads, {threads} before",
        count("task")
    );
    assert_eq!(served.workers().await.len(), 1);
}

/// A drained worker finishes what it has and gets nothing new.
#[tokio::test]
async fn draining_finishes_what_runs() {
    let gate = maitred_tests::Gate::new();
    let mut steps = vec![Step::Wait(gate.clone())];
    steps.extend(json_answer(200, "{}"));
    let leaving = Worker::start(steps).await;
    let staying = Worker::start(Script::ok()).await;
    let served = serve(&[&leaving], &[]).await;
    let addr = served.addr;
    let running =
        tokio::spawn(async move { Client::connect(addr).await.post(CHAT, chat("long")).await });
    leaving.wait_for_requests(1).await;
    add(&served, &staying).await;
    let path = format!("/workers/{}/drain", leaving.addr());
    let answer = served.admin_send("POST", &path, "").await;
    assert!((200..300).contains(&answer.status()), "{}", answer.text());
    for n in 0..10 {
        assert_eq!(served.post(CHAT, chat(&n.to_string())).await.status(), 200);
    }
    assert_eq!((leaving.count(), staying.count()), (1, 10));
    gate.open();
    assert_eq!(running.await.unwrap().status(), 200);
}

/// The policy is switched while requests run, and the answer to "why" names the new one.
#[tokio::test]
async fn a_policy_is_switched_live_and_explained() {
    let first = Worker::start(Script::ok()).await;
    let second = Worker::start(Script::ok()).await;
    let served = serve(&[&first, &second], &["policy: least_load"]).await;
    let explain = |id: String| {
        let served = &served;
        async move { served.admin_get(&format!("/explain/{id}")).await }
    };
    let mut seen = BTreeMap::new();
    for policy in ["least_load", "round_robin"] {
        let body = json!({"name": policy}).to_string();
        let answer = served.admin_send("PUT", "/pools/p/policy", &body).await;
        assert!((200..300).contains(&answer.status()), "{}", answer.text());
        let answer = served.post(CHAT, chat("why")).await;
        let id = answer
            .header("x-request-id")
            .expect("a request id")
            .to_owned();
        let told = explain(id).await;
        assert_eq!(told.status(), 200, "{}", told.text());
        seen.insert(policy, told.text());
    }
    for (policy, told) in seen {
        assert!(told.contains(policy), "{policy} in {told}");
    }
    let wrong = served
        .admin_send("PUT", "/pools/p/policy", r#"{"name":"rond_robin"}"#)
        .await;
    assert_eq!(wrong.status(), 400);
    assert!(wrong.text().contains("round_robin"), "{}", wrong.text());
}
