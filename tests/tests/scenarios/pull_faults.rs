//! Workers that pull, and everything that may go wrong with them.

use crate::pull::agent;
use crate::{Served, chat, serve_file};
use maitred_tests::{Client, Gate, Response, Script, Step, Worker, json_answer, request};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";
const TOKEN: &str = "worker-token";

/// A gateway without workers of its own, to which no worker is silent soon.
async fn calm(lines: &[&str]) -> Served {
    let mut text = String::from(
        "pull:\n  listen: 127.0.0.1:0\n  silence: 1m\n  \
         tokens: [{ owner: lab, token: worker-token }]\npools:\n  - name: p\n",
    );
    for line in lines {
        text.push_str(&format!("    {line}\n"));
    }
    serve_file(&text, 0).await
}

async fn send(addr: SocketAddr, path: &str, token: &str, body: impl AsRef<[u8]>) -> Response {
    let bearer = format!("Bearer {token}");
    let bytes = request("POST", path, &[("authorization", &bearer)], body);
    Client::connect(addr).await.exchange(&bytes).await
}

async fn pop(addr: SocketAddr, token: &str, ask: Value) -> Response {
    send(addr, "/pull/v1/pop", token, ask.to_string()).await
}

fn code(answer: &Response) -> (u16, Value) {
    (answer.status(), answer.json()["error"]["code"].clone())
}

/// The id of the job that a pop was answered with.
fn job(answer: &Response) -> String {
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let head: Value = serde_json::from_str(answer.text().lines().next().unwrap()).unwrap();
    head["id"].as_str().unwrap().to_owned()
}

async fn answered(addr: SocketAddr, job: &str) -> Response {
    let path = format!("/pull/v1/jobs/{job}/answer");
    send(addr, &path, TOKEN, "{\"status\":200}\n{}").await
}

async fn asking(served: &Served, text: &str) -> Client {
    let mut client = served.client().await;
    client.send(request("POST", CHAT, &[], chat(text))).await;
    client
}

async fn until(served: &Served, metric: &str, value: f64) {
    maitred_tests::within(&format!("{metric} to be {value}"), async {
        while served.metric(metric).await != value {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// Names, pools and tenants that a token is bound to.
#[tokio::test]
async fn a_token_lets_in_whom_it_names() {
    let key = "tenant-key-of-acme";
    // SHA-256 of the key, by another program.
    let hash = "f0b4534bc38fa1265be8754ccfa8975e5290034c44a29c9886ccda9b9bacddef";
    let text = format!(
        "tenants: [{{ name: acme, key_sha256: '{hash}' }}]\nanonymous: allow\npull:\n  listen: 127.0.0.1:0\n  tokens:\n    \
         - {{ owner: a, token: token-a, workers: [one, 'gpu-*'], pools: [p], tenants: [acme] }}\n    \
         - {{ owner: b, token: token-b }}\npools:\n  - {{ name: p, model: m }}\n  - {{ name: q, model: n }}\n"
    );
    let served = serve_file(&text, 0).await;
    let addr = served.pull.unwrap();
    let ask = |name: &str, pool: &str| json!({"name": name, "pool": pool, "wait": 0});
    for (token, ask, expected) in [
        ("token-c", ask("one", "p"), (401, json!("unauthorized"))),
        ("token-a", ask("two", "p"), (403, json!("name-not-allowed"))),
        ("token-a", ask("gpu", "p"), (403, json!("name-not-allowed"))),
        ("token-a", ask("one", "q"), (403, json!("pool-not-allowed"))),
        ("token-b", ask("one", "x"), (400, json!("no-pool"))),
    ] {
        assert_eq!(
            code(&pop(addr, token, ask.clone()).await),
            expected,
            "{ask}"
        );
    }
    for name in ["one", "gpu-7"] {
        assert_eq!(pop(addr, "token-a", ask(name, "p")).await.status(), 204);
    }
    assert_eq!(
        code(&pop(addr, "token-b", ask("one", "p")).await),
        (403, json!("not-yours"))
    );
    let unknown = pop(addr, "token-c", ask("one", "p")).await.text();
    assert!(unknown.contains("no entry of `pull.tokens`"), "{unknown}");

    // Requests of others wait, those of the named tenant are seen.
    let _stranger = asking(&served, "of nobody").await;
    let mut guest = served.client().await;
    let bearer = format!("Bearer {key}");
    let bytes = request("POST", CHAT, &[("authorization", &bearer)], chat("of acme"));
    guest.send(bytes).await;
    until(&served, "maitred_line_requests{pool=\"p\"}", 2.0).await;
    let got = pop(
        addr,
        "token-a",
        json!({"name": "one", "pool": "p", "wait": 20}),
    )
    .await;
    assert!(got.text().contains("of acme"), "{}", got.text());
    let none = pop(
        addr,
        "token-a",
        json!({"name": "one", "pool": "p", "wait": 0}),
    )
    .await;
    assert_eq!(none.status(), 204);
}

#[tokio::test]
async fn what_can_not_be_read_is_refused_and_of_strangers_nothing_is_read() {
    let served = calm(&[]).await;
    let addr = served.pull.unwrap();
    for bad in [
        "",
        "{",
        "[]",
        "null",
        "{\"name\":7}",
        "{\"name\":\"a\",\"odd\":1}",
        "\u{0}",
    ] {
        let answer = send(addr, "/pull/v1/pop", TOKEN, bad).await;
        assert_eq!(code(&answer), (400, json!("invalid-body")), "{bad}");
    }
    let deep = "[".repeat(200_000);
    assert_eq!(send(addr, "/pull/v1/pop", TOKEN, deep).await.status(), 400);
    let huge = json!({"name": "a", "models": ["x".repeat(300 << 10)]}).to_string();
    assert_eq!(send(addr, "/pull/v1/pop", TOKEN, huge).await.status(), 400);
    let names: Vec<&str> = vec!["j"; 1_025];
    let beat = json!({"name": "a", "jobs": names}).to_string();
    pop(addr, TOKEN, json!({"name": "a", "wait": 0})).await;
    let answer = send(addr, "/pull/v1/heartbeat", TOKEN, beat).await;
    assert_eq!(answer.json()["error"]["field"], "jobs");
    // The body never comes: the answer does.
    for (path, key) in [
        ("/pull/v1/pop", ("authorization", "Bearer x")),
        ("/pull/v1/jobs/none/answer", ("authorization", "Bearer x")),
        ("/api/v2/generate/text/pop", ("apikey", "x")),
        ("/api/v2/generate/text/submit", ("apikey", "x")),
        ("/api/v2/workers/a", ("apikey", "x")),
    ] {
        let method = if path.contains("workers") {
            "PUT"
        } else {
            "POST"
        };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\n{}: {}\r\ncontent-type: application/json\r\ncontent-length: 8000000\r\n\r\n",
            key.0, key.1
        );
        let answer = Client::connect(addr).await.exchange(head.as_bytes()).await;
        assert_eq!(answer.status(), 401, "{path}");
    }
    // A broken first line loses the job, which another then gets.
    let mut client = asking(&served, "x").await;
    let first = job(&pop(addr, TOKEN, json!({"name": "a", "wait": 20})).await);
    let other = tokio::spawn(pop(addr, TOKEN, json!({"name": "b", "wait": 20})));
    until(&served, "maitred_pull_polls{", 1.0).await;
    let path = format!("/pull/v1/jobs/{first}/answer");
    let answer = send(addr, &path, TOKEN, "no json\n").await;
    assert_eq!(code(&answer), (400, json!("invalid-answer")));
    let second = job(&other.await.unwrap());
    assert_eq!(answered(addr, &second).await.status(), 200);
    assert_eq!(client.read_response().await.status(), 200);
    assert_eq!(
        answered(addr, &second).await.status(),
        410,
        "once is enough"
    );
    assert_eq!(answered(addr, &first).await.status(), 410);
    for (result, count) in [
        ("taken", 1.0),
        ("invalid", 1.0),
        ("duplicate", 1.0),
        ("late", 1.0),
    ] {
        let name = format!("maitred_pull_answers_total{{api=\"maitred\",result=\"{result}\"}}");
        assert_eq!(served.metric(&name).await, count, "{result}");
    }
}

/// A worker that is now for other models is not its pool's any more: its job goes to another.
#[tokio::test]
async fn a_worker_that_changes_its_models_leaves_its_pool() {
    let served = calm(&["model: m"]).await;
    let addr = served.pull.unwrap();
    let ask = |name: &str, model: &str| json!({"name": name, "models": [model], "wait": 20});
    let mut client = asking(&served, "x").await;
    let first = job(&pop(addr, TOKEN, ask("a", "m")).await);
    let other = tokio::spawn(pop(addr, TOKEN, ask("b", "m")));
    until(&served, "maitred_pull_polls{", 1.0).await;
    let wrong = pop(addr, TOKEN, ask("a", "another")).await;
    assert_eq!(code(&wrong), (400, json!("no-pool")));
    let second = job(&other.await.unwrap());
    assert_eq!(answered(addr, &first).await.status(), 410);
    assert_eq!(answered(addr, &second).await.status(), 200);
    assert_eq!(client.read_response().await.status(), 200);
    assert_eq!(served.workers().await.len(), 1);
}

/// Polls that were closed when a request comes, noticed or not: who stays answers it.
#[tokio::test]
async fn polls_that_were_closed_take_no_request_with_them() {
    let served = calm(&["attempts: 8", "policy: round_robin"]).await;
    let addr = served.pull.unwrap();
    let engine = Worker::start(Script::each(json_answer(200, "{\"ok\":1}"))).await;
    let dir = tempfile::tempdir().unwrap();
    let _agent = agent(&served, &dir, "stays", &engine);
    until(&served, "maitred_pull_polls{", 2.0).await;
    let bearer = format!("Bearer {TOKEN}");
    for round in 0..30 {
        let ask = json!({"name": format!("leaves-{}", round % 4), "wait": 20}).to_string();
        let bytes = request("POST", "/pull/v1/pop", &[("authorization", &bearer)], ask);
        let mut leaving = Client::connect(addr).await;
        leaving.send(bytes).await;
        until(&served, "maitred_pull_polls{", 3.0).await;
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(served.client().await);
        }
        if round % 2 == 0 {
            leaving.abort();
        } else {
            drop(leaving);
        }
        for client in &mut clients {
            client.send(request("POST", CHAT, &[], chat("x"))).await;
        }
        for mut client in clients {
            let answer = client.read_response().await;
            assert_eq!(
                (answer.status(), answer.text().as_str()),
                (200, "{\"ok\":1}")
            );
        }
        until(&served, "maitred_pull_polls{", 2.0).await;
    }
    until(&served, "maitred_worker_running", 0.0).await;
    until(&served, "maitred_pull_jobs", 0.0).await;
}

/// A thousand polls that wait cost memory by the connection, and no time.
#[tokio::test]
async fn a_thousand_polls_wait_quietly() {
    let served = calm(&[]).await;
    let addr = served.pull.unwrap();
    let bearer = format!("Bearer {TOKEN}");
    let memory = resident(served.pid());
    let mut polls = Vec::new();
    for n in 0..1_000 {
        let ask = json!({"name": format!("w{}", n % 250), "wait": 30}).to_string();
        let bytes = request("POST", "/pull/v1/pop", &[("authorization", &bearer)], ask);
        let mut poll = Client::connect(addr).await;
        poll.send(bytes).await;
        polls.push(poll);
    }
    until(&served, "maitred_pull_polls{", 1_000.0).await;
    let more = resident(served.pid()).saturating_sub(memory);
    // Of each: a connection, its buffers and its task.
    assert!(more < 64 << 20, "{more} bytes");
    let before = cpu(served.pid());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let spent = cpu(served.pid()) - before;
    // Ticks of 10 ms; a loop that is busy takes all of that second, or as much as it can get.
    assert!(spent <= 25, "{spent} ticks");
    drop(polls);
    until(&served, "maitred_pull_polls{", 0.0).await;
    let mut client = asking(&served, "x").await;
    let got = job(&pop(addr, TOKEN, json!({"name": "w1", "wait": 20})).await);
    assert_eq!(answered(addr, &got).await.status(), 200);
    assert_eq!(client.read_response().await.status(), 200);
}

fn proc(pid: u32, file: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap()
}

fn resident(pid: u32) -> u64 {
    let pages: u64 = proc(pid, "statm")
        .split(' ')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    pages * 4_096
}

/// User and system time.
fn cpu(pid: u32) -> u64 {
    let stat = proc(pid, "stat");
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// A job that takes long is not a silent worker, however little counts as silence.
#[tokio::test]
async fn an_agent_speaks_as_often_as_it_must() {
    let gate = Gate::new();
    let mut steps = vec![Step::Wait(gate.clone())];
    steps.extend(json_answer(200, "{\"late\":1}"));
    let engine = Worker::start(Script::each(steps)).await;
    let text = "pull:\n  listen: 127.0.0.1:0\n  silence: 1500ms\n  \
                tokens: [{ owner: lab, token: worker-token }]\npools: [{ name: p }]\n";
    let served = serve_file(text, 0).await;
    let dir = tempfile::tempdir().unwrap();
    let _agent = agent(&served, &dir, "a", &engine);
    let mut client = asking(&served, "x").await;
    engine.wait_for_requests(1).await;
    // Longer than its own interval of 2 s, and than the silence.
    tokio::time::sleep(Duration::from_secs(4)).await;
    gate.open();
    let answer = client.read_response().await;
    assert_eq!(
        (answer.status(), answer.text().as_str()),
        (200, "{\"late\":1}")
    );
    assert_eq!(served.metric("maitred_pull_requeues_total").await, 0.0);
    assert_eq!(engine.count(), 1);
}

/// At SIGTERM what runs on a worker that pulls is finished, and what waits for one still gets it.
#[tokio::test]
async fn at_the_end_jobs_are_finished_and_the_line_is_served() {
    let gate = Gate::new();
    let mut steps = vec![Step::Wait(gate.clone())];
    steps.extend(json_answer(200, "{\"late\":1}"));
    let engine = Worker::start(Script::each(steps)).await;
    let served = calm(&[]).await;
    let dir = tempfile::tempdir().unwrap();
    let _agent = agent(&served, &dir, "a", &engine);
    let mut clients = Vec::new();
    for text in ["one", "two", "three"] {
        clients.push(asking(&served, text).await);
    }
    engine.wait_for_requests(2).await;
    until(&served, "maitred_line_requests", 1.0).await;
    let pid = served.pid().to_string();
    let sent = std::process::Command::new("kill").arg(&pid).status();
    assert!(sent.unwrap().success());
    maitred_tests::within("it to take nothing new", async {
        loop {
            let Ok(stream) = tokio::net::TcpStream::connect(served.addr).await else {
                return;
            };
            drop(stream);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    gate.open();
    for mut client in clients {
        let answer = client.read_response().await;
        assert_eq!(
            (answer.status(), answer.text().as_str()),
            (200, "{\"late\":1}")
        );
    }
}
