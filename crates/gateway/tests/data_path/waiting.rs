//! Those who wait: whoever leaves is out of the line at once, in whatever way it waited, and what is
//! measured leaves nobody out.

use crate::tenants::tenant;
use crate::{CHAT, PATH, at_rest, attempts, client, pool, room};
use maitred_core::line::LineLimits;
use maitred_core::place::PolicyConfig;
use maitred_gateway::Running;
use maitred_gateway::config::Config;
use maitred_tests::{Client, Gate, Script, Step, Worker, eventually, json_answer, request};
use serde_json::Value;
use std::time::Duration;

const FOLLOW_UP: &str = r#"{"model":"m","messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]}"#;

fn held(gate: &Gate) -> Vec<Step> {
    let mut steps = vec![Step::Wait(gate.clone())];
    steps.extend(json_answer(200, "{}"));
    steps
}

fn line_len(running: &Running) -> usize {
    running.gateway.pools[0].driver.read(|s| s.line_len())
}

async fn send(running: &Running, id: &str, body: &str) -> Client {
    let mut client = client(running).await;
    let headers = [
        ("authorization", "Bearer key"),
        ("x-request-id", id),
        ("x-session-id", "s"),
    ];
    client.send(request("POST", PATH, &headers, body)).await;
    client
}

/// Only one may wait of each tenant: who is refused for it and who is not shows whether a place
/// was given back.
fn one_place(config: &mut Config) {
    let mut tenant = tenant("a", "key");
    tenant.terms.limits = LineLimits {
        requests_max: Some(1),
        bytes_max: Some(1_000),
    };
    config.tenants = vec![tenant];
}

/// The one that waits leaves, and no sum has a trace of it.
async fn leaves(running: &Running, waits: Client) {
    drop(waits);
    eventually("it left the line", || line_len(running) == 0).await;
    let driver = &running.gateway.pools[0].driver;
    let view = driver.read(|s| s.lines(driver.now()));
    for line in &view.lines {
        assert_eq!((line.waiting, line.bytes, line.charge), (0, 0, 0));
        assert_eq!((line.oldest, line.waited), (None, Duration::ZERO));
    }
    assert_eq!((view.tenants_waiting, view.classes.len()), (0, 0));
    let record = &attempts(running, "leaves", 1).await[0];
    assert_eq!(record.failure.as_deref(), Some("queued"));
    assert!(record.queue_ms > 0.0);
    driver.read(|s| s.check()).unwrap();
}

/// Its place is taken as long as it waits, and free as soon as it has left.
async fn leaves_its_place(running: &Running, waits: Client) {
    let refused = send(running, "refused", CHAT).await.read_response().await;
    let reason = refused.head.header("x-maitred-reason");
    assert_eq!((refused.status(), reason), (429, Some("tenant-full")));
    leaves(running, waits).await;
    let next = send(running, "next", CHAT).await;
    eventually("the next one waits", || line_len(running) == 1).await;
    drop(next);
    eventually("it is empty", || line_len(running) == 0).await;
}

#[tokio::test]
async fn who_waits_for_any_seat() {
    let gate = Gate::new();
    let worker = Worker::start(Script::each(held(&gate))).await;
    let running = room(&[&worker], |config| {
        one_place(config);
        config.pools[0].workers[0].seats.slots = Some(1);
    })
    .await;
    let mut holder = send(&running, "holder", CHAT).await;
    worker.wait_for_requests(1).await;
    let waits = send(&running, "leaves", CHAT).await;
    eventually("it waits", || line_len(&running) == 1).await;
    leaves_its_place(&running, waits).await;
    gate.open();
    assert_eq!(holder.read_response().await.status(), 200);
    assert_eq!(worker.count(), 1);
    at_rest(&running).await;
}

#[tokio::test]
async fn who_holds_for_its_home() {
    let gate = Gate::new();
    let mut workers = Vec::new();
    for _ in 0..2 {
        workers.push(Worker::start(Script::each(held(&gate))).await);
    }
    let running = room(&[&workers[0], &workers[1]], |config| {
        let pool = &mut config.pools[0];
        pool.core.policy = PolicyConfig::named("pin").unwrap();
        pool.core.hold_max = Duration::from_secs(3_600);
        for worker in &mut pool.workers {
            worker.seats.slots = Some(1);
        }
    })
    .await;
    let both = || workers[0].in_flight() + workers[1].in_flight();
    let mut first = send(&running, "first", CHAT).await;
    eventually("its home is found", || both() == 1).await;
    gate.admit(1);
    assert_eq!(first.read_response().await.status(), 200);
    let mut at_home = send(&running, "second", FOLLOW_UP).await;
    eventually("its home is taken", || both() == 1).await;
    // The other worker has a seat, and the conversation waits for its own.
    let waits = send(&running, "leaves", FOLLOW_UP).await;
    eventually("it holds", || line_len(&running) == 1).await;
    assert_eq!(both(), 1);
    leaves(&running, waits).await;
    gate.open();
    assert_eq!(at_home.read_response().await.status(), 200);
    at_rest(&running).await;
}

#[tokio::test]
async fn who_waits_for_a_worker_to_be_there() {
    let running = room(&[], one_place).await;
    let waits = send(&running, "leaves", CHAT).await;
    eventually("it waits", || line_len(&running) == 1).await;
    leaves_its_place(&running, waits).await;
    at_rest(&running).await;
}

#[tokio::test]
async fn who_waits_for_another_attempt() {
    let gate = Gate::new();
    let broken = Gate::new();
    let breaks = vec![Step::Wait(broken.clone()), Step::Reset];
    let first = Worker::start(Script::each(breaks)).await;
    let second = Worker::start(Script::each(held(&gate))).await;
    let running = room(&[&first, &second], |config| {
        for worker in &mut config.pools[0].workers {
            worker.seats.slots = Some(1);
        }
    })
    .await;
    // One sits on each; the one whose worker breaks goes back into the line, before all others.
    let mut clients = Vec::new();
    for id in ["a", "b"] {
        clients.push(send(&running, id, CHAT).await);
    }
    first.wait_for_requests(1).await;
    second.wait_for_requests(1).await;
    let returns = first.requests()[0].header("x-request-id") == Some("b");
    broken.open();
    eventually("it waits again", || line_len(&running) == 1).await;
    let leaves = clients.remove(usize::from(returns));
    drop(leaves);
    eventually("it left the line", || line_len(&running) == 0).await;
    gate.open();
    assert_eq!(clients[0].read_response().await.status(), 200);
    assert_eq!(second.count(), 1);
    at_rest(&running).await;
}

#[tokio::test]
async fn who_waits_on_a_stream_of_a_shared_connection() {
    use http_body_util::Full;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let gate = Gate::new();
    let worker = Worker::start(Script::each(held(&gate))).await;
    let running = room(&[&worker], |config| {
        config.pools[0].workers[0].seats.slots = Some(1);
    })
    .await;
    let mut holder = send(&running, "holder", CHAT).await;
    worker.wait_for_requests(1).await;
    let socket = tokio::net::TcpStream::connect(running.data).await.unwrap();
    let (mut send, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket))
            .await
            .unwrap();
    let task = tokio::spawn(connection);
    let mut ask = || {
        let request = http::Request::post(format!("http://{}{PATH}", running.data))
            .body(Full::new(bytes::Bytes::from_static(CHAT.as_bytes())))
            .unwrap();
        tokio::spawn(send.send_request(request))
    };
    let (waits, stays) = (ask(), ask());
    eventually("both wait", || line_len(&running) == 2).await;
    waits.abort();
    eventually("one left", || line_len(&running) == 1).await;
    gate.open();
    assert_eq!(stays.await.unwrap().unwrap().status(), 200);
    assert_eq!(holder.read_response().await.status(), 200);
    assert_eq!(worker.count(), 2);
    at_rest(&running).await;
    drop(send);
    task.await.unwrap().unwrap();
}

async fn admin(running: &Running, path: &str) -> maitred_tests::Response {
    let host = running.admin.to_string();
    let ask = request("GET", path, &[("host", host.as_str())], "");
    Client::connect(running.admin).await.exchange(&ask).await
}

/// Who never started was in no histogram: the longer a line starved, the better its waits looked.
#[tokio::test]
async fn those_who_still_wait_and_those_who_gave_up_are_in_the_metrics() {
    let gate = Gate::new();
    let worker = Worker::start(Script::each(held(&gate))).await;
    let running = room(&[&worker], |config| {
        let core = &mut config.pools[0].core;
        core.line_max = 3;
        core.fairness = maitred_core::line::FairnessConfig::default();
        config.pools[0].workers[0].seats.slots = Some(1);
    })
    .await;
    let mut holder = send(&running, "holder", CHAT).await;
    worker.wait_for_requests(1).await;
    let mut waiting = Vec::new();
    for (number, body) in [FOLLOW_UP, CHAT, CHAT].iter().enumerate() {
        waiting.push(send(&running, "waits", body).await);
        eventually("it waits", || line_len(&running) == number + 1).await;
    }
    let refused = send(&running, "refused", FOLLOW_UP)
        .await
        .read_response()
        .await;
    assert_eq!(refused.status(), 429);
    drop(waiting.pop());
    eventually("it left", || line_len(&running) == 2).await;

    let text = admin(&running, "/metrics").await.text();
    let value = |name: &str, labels: &[&str]| -> f64 {
        let line = text.lines().find(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|r| r.starts_with('{')) && labels.iter().all(|l| line.contains(l))
        });
        let line = line.unwrap_or_else(|| panic!("{name} {labels:?}\n{text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let waits = |turn: &str, end: &str| {
        let labels = [format!("turn=\"{turn}\""), format!("end=\"{end}\"")];
        let labels = [labels[0].as_str(), labels[1].as_str()];
        value("maitred_queue_wait_seconds_count", &labels) as u32
    };
    let counts =
        ["seated", "refused", "left"].map(|end| [waits("first", end), waits("follow_up", end)]);
    assert_eq!(counts, [[1, 0], [0, 1], [1, 0]]);
    for line in ["new", "returning"] {
        let labels = [format!("line=\"{line}\"")];
        let of = |name: &str| value(name, &[labels[0].as_str()]);
        assert_eq!(of("maitred_line_waiting"), 1.0);
        // One waits: the sum is its wait, and it is the oldest.
        assert!(of("maitred_line_waiting_seconds") > 0.0);
        assert_eq!(
            of("maitred_line_waiting_seconds"),
            of("maitred_line_oldest_seconds")
        );
        assert_eq!(of("maitred_line_contested_charge"), 0.0);
    }
    let share = |name: &str, line: &str| value(name, &[&format!("line=\"{line}\"")]);
    assert_eq!(share("maitred_line_share", "new"), 0.2);
    assert_eq!(share("maitred_line_share_floor", "new"), 0.05);
    assert_eq!(share("maitred_line_share_floor", "returning"), 0.8);

    // The next two are dispatched while one of the other line waits, or none.
    gate.open();
    for client in waiting.iter_mut().chain([&mut holder]) {
        assert_eq!(client.read_response().await.status(), 200);
    }
    let lines: Value = admin(&running, "/lines").await.json();
    let lines = &lines["pools"][0];
    assert!(lines["service_seconds"].as_f64().unwrap() > 0.0);
    let contested: Vec<bool> = ["new", "returning"]
        .map(|name| {
            let all = lines["lines"].as_array().unwrap();
            let line = all.iter().find(|line| line["line"] == name).unwrap();
            line["contested_charge"].as_u64().unwrap() > 0
        })
        .into();
    assert_eq!(contested, [false, true], "the follow-up went first");
    at_rest(&running).await;
}

/// The line has a prediction for each set of workers that anybody waits for.
#[tokio::test]
async fn lines_show_a_prediction_for_every_class() {
    let gate = Gate::new();
    let mut workers = Vec::new();
    for _ in 0..2 {
        workers.push(Worker::start(Script::each(held(&gate))).await);
    }
    let running = room(&[], |config| {
        let mut all = pool("p", None, &[&workers[0], &workers[1]]);
        for (worker, model) in all.workers.iter_mut().zip(["m", "n"]) {
            worker.models = vec![model.to_owned()];
            worker.seats.slots = Some(1);
        }
        config.pools = vec![all];
    })
    .await;
    let mut clients = Vec::new();
    for (index, model) in ["m", "n"].iter().enumerate() {
        let body = CHAT.replace("\"m\"", &format!("\"{model}\""));
        clients.push(send(&running, "sits", &body).await);
        workers[index].wait_for_requests(1).await;
        clients.push(send(&running, "waits", &body).await);
        eventually("it waits", || line_len(&running) == index + 1).await;
    }
    let shown: Value = admin(&running, "/lines").await.json();
    let classes = shown["pools"][0]["classes"].as_array().unwrap();
    for name in ["w1", "w2"] {
        let mut own = classes
            .iter()
            .filter(|c| c["workers"] == serde_json::json!([name]));
        let class = own.next().unwrap_or_else(|| panic!("{shown}"));
        assert_eq!(
            (&class["waiting"], &class["holding"]),
            (&1.into(), &0.into())
        );
        let starts = class["starts"].as_array().unwrap();
        // Nothing was measured yet but that nobody went so far: as long again.
        assert!(
            starts
                .iter()
                .all(|s| s["predicted_start_seconds"].as_f64() > Some(0.0))
        );
    }
    gate.open();
    for client in &mut clients {
        assert_eq!(client.read_response().await.status(), 200);
    }
    at_rest(&running).await;
}
