//! Why a request is not served: one word for each reason, in the shape of the family that was asked.

use crate::tenants::tenant;
use crate::{CHAT, PATH, at_rest, attempts, client, pool, room};
use maitred_core::line::{Band, LineLimits};
use maitred_core::scheduler::LostResponse;
use maitred_gateway::Running;
use maitred_gateway::config::Config;
use maitred_tests::{
    Client, Gate, Response, Script, Step, Worker, eventually, json_answer, request,
};
use std::time::Duration;

/// Of a tenant, where there are any.
const KEY: (&str, &str) = ("authorization", "Bearer key");
const DOCUMENTS: &str = include_str!("../../../../docs/tenants.md");

/// Holds the answer for the words of our own errors.
fn refused(answer: &Response, status: u16, word: &str) {
    assert_eq!(answer.status(), status, "{word}: {}", answer.text());
    assert_eq!(answer.head.header("x-maitred-reason"), Some(word));
    assert_eq!(answer.json()["error"]["code"], word, "{}", answer.text());
    assert!(DOCUMENTS.contains(&format!("`{word}`")), "{word}");
}

async fn post(running: &Running, headers: &[(&str, &str)], body: &str) -> Response {
    let mut client = client(running).await;
    client.exchange(&request("POST", PATH, headers, body)).await
}

#[tokio::test]
async fn what_can_not_be_read_or_is_nobodys() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |config| {
        config.strict = true;
        config.timeouts.header_read = Duration::from_millis(200);
        config.pools.push(pool("q", Some("other"), &[]));
    })
    .await;
    let message = r#""messages":[{"role":"user","content":"hello"}]"#;
    let with = |field: &str| format!("{{{field},{message}}}");
    for (headers, body, status, word) in [
        (None, "{".to_owned(), 400, "invalid-body"),
        (
            None,
            with(r#""model":"m","frobnicate":1"#),
            400,
            "unsupported-field",
        ),
        (None, format!("{{{message}}}"), 400, "missing-model"),
        (None, with(r#""model":"x""#), 404, "model_not_found"),
        (Some("br"), CHAT.to_owned(), 415, "body-encoding"),
        (Some("gzip"), CHAT.to_owned(), 400, "body-encoding"),
    ] {
        let headers: Vec<_> = headers
            .map(|c| ("content-encoding", c))
            .into_iter()
            .collect();
        refused(&post(&running, &headers, &body).await, status, word);
    }
    // A body that stops to come.
    let mut slow = client(&running).await;
    let head = format!("POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{{");
    slow.send(head).await;
    refused(&slow.read_response().await, 408, "body-timeout");
    let mut strange = client(&running).await;
    let answer = strange.exchange(&request("TRACE", PATH, &[], "")).await;
    refused(&answer, 405, "method-not-allowed");
    assert_eq!(worker.count(), 0);
    at_rest(&running).await;
}

/// One seat, which the first request has; returns its client.
async fn full(worker: &Worker, set: impl FnOnce(&mut Config)) -> (Running, Client) {
    let running = room(&[worker], |config| {
        config.pools[0].workers[0].seats.slots = Some(1);
        set(config);
    })
    .await;
    let mut holder = client(&running).await;
    holder.send(request("POST", PATH, &[KEY], CHAT)).await;
    worker.wait_for_requests(1).await;
    (running, holder)
}

async fn waiting(running: &Running, headers: &[(&str, &str)]) -> Client {
    let driver = &running.gateway.pools[0].driver;
    let before = driver.read(|s| s.line_len());
    let mut client = client(running).await;
    client.send(request("POST", PATH, headers, CHAT)).await;
    eventually("it waits", || driver.read(|s| s.line_len()) == before + 1).await;
    client
}

fn held(gate: &Gate) -> Script {
    let mut steps = vec![Step::Wait(gate.clone())];
    steps.extend(json_answer(200, "{}"));
    Script::each(steps)
}

/// Sets one limit.
type Limit = fn(&mut Config, LineLimits);

/// What is full is told apart, and nobody waited to hear it: the refusal has the time of the arrival.
#[tokio::test]
async fn what_is_full_is_told_in_the_moment_of_the_arrival() {
    let one = LineLimits {
        requests_max: Some(1),
        bytes_max: None,
    };
    let limits: [(&str, Limit); 4] = [
        ("queue-full", |c, _| c.pools[0].core.line_max = 1),
        ("flow-full", |c, one| c.pools[0].core.flow_limits = one),
        ("tenant-full", |c, one| {
            let mut all = tenant("all", "key");
            all.terms.limits = one;
            c.tenants = vec![all];
        }),
        ("band-full", |c, one| {
            c.pools[0].core.bands = vec![Band {
                name: "all".to_owned(),
                limits: one,
                ..Band::default()
            }];
        }),
    ];
    for (word, limit) in limits {
        let gate = Gate::new();
        let worker = Worker::start(held(&gate)).await;
        let (running, mut holder) = full(&worker, |config| limit(config, one)).await;
        let mut second = waiting(&running, &[KEY]).await;
        let answer = post(&running, &[KEY, ("x-request-id", "third")], CHAT).await;
        refused(&answer, 429, word);
        assert_eq!(answer.head.header("retry-after"), None, "nothing is known");
        let record = &attempts(&running, "third", 1).await[0];
        assert_eq!(record.reason.as_deref(), Some(word));
        assert!(record.queue_ms.abs() < f64::EPSILON, "{}", record.queue_ms);
        gate.open();
        for client in [&mut holder, &mut second] {
            assert_eq!(client.read_response().await.status(), 200);
        }
        at_rest(&running).await;
    }
}

#[tokio::test]
async fn who_is_refused_for_time_is_told_which() {
    let gate = Gate::new();
    let worker = Worker::start(held(&gate)).await;
    let (running, mut holder) = full(&worker, |config| {
        config.pools[0].core.max_wait = Duration::from_millis(50);
    })
    .await;
    refused(&post(&running, &[], CHAT).await, 429, "ttl-expired");
    gate.open();
    assert_eq!(holder.read_response().await.status(), 200);
    at_rest(&running).await;

    // The whole time of a request, its wait not left out.
    let gate = Gate::new();
    let worker = Worker::start(held(&gate)).await;
    let running = room(&[&worker], |config| {
        config.timeouts.total = Duration::from_millis(100);
    })
    .await;
    refused(&post(&running, &[], CHAT).await, 504, "total-timeout");
    worker.wait_for_cancels(1).await;
    at_rest(&running).await;
}

#[tokio::test]
async fn what_a_worker_did_has_a_word_of_its_own() {
    for (steps, status, word) in [
        (vec![Step::Reset], 502, "upstream-reset"),
        (vec![Step::raw("what?\r\n\r\n")], 502, "upstream-protocol"),
        (
            vec![
                Step::head(
                    200,
                    &[
                        ("content-type", "application/json"),
                        ("content-length", "9"),
                    ],
                ),
                Step::raw("{"),
                Step::Close,
            ],
            502,
            "upstream-truncated",
        ),
    ] {
        let worker = Worker::start(Script::each(steps)).await;
        let running = room(&[&worker], |config| config.pools[0].core.attempts = 1).await;
        refused(&post(&running, &[], CHAT).await, status, word);
        at_rest(&running).await;
    }
}

#[tokio::test]
async fn who_continues_what_is_lost_is_told_so() {
    let first = r#"{"id":"resp_1","object":"response","status":"completed","output":[]}"#;
    let worker = Worker::start(Script::each(json_answer(200, first))).await;
    let other = Worker::start(Script::each(json_answer(200, first))).await;
    let running = room(&[&worker], |config| {
        config.pools[0].core.lost_response = LostResponse::Refuse;
    })
    .await;
    let body = r#"{"model":"m","input":"hello"}"#;
    let mut client = client(&running).await;
    assert_eq!(client.post("/v1/responses", body).await.status(), 200);
    let there = &running.gateway.pools[0];
    let settings = pool("x", None, &[&other]).workers.remove(0);
    there.remove("w1").unwrap();
    running.gateway.fleet.add(there, &settings).unwrap();
    let next = r#"{"model":"m","input":"go on","previous_response_id":"resp_1"}"#;
    let answer = client.post("/v1/responses", next).await;
    refused(&answer, 404, "response-lost");
    assert_eq!(answer.json()["error"]["param"], "previous_response_id");
    assert_eq!(other.count(), 0);
}

#[tokio::test]
async fn who_comes_when_the_house_is_closing_is_told_so() {
    let gate = Gate::new();
    let worker = Worker::start(held(&gate)).await;
    let running = room(&[&worker], |_| {}).await;
    let mut running_on = client(&running).await;
    let mut late = client(&running).await;
    // Half of its head is read before the end begins.
    let whole = request("POST", PATH, &[], CHAT);
    late.send(&whole[..10]).await;
    running_on.send(request("POST", PATH, &[], CHAT)).await;
    worker.wait_for_requests(1).await;
    let gateway = std::sync::Arc::clone(&running.gateway);
    let ending = tokio::spawn(running.shutdown(Duration::from_secs(3_600)));
    eventually("it closes", || gateway.is_closing()).await;
    late.send(&whole[10..]).await;
    refused(&late.read_response().await, 503, "closing");
    gate.open();
    assert_eq!(running_on.read_response().await.status(), 200);
    ending.await.unwrap();
}

/// Each family's clients look for the reason at another place, and all at the header.
#[tokio::test]
async fn a_refusal_has_the_shape_of_the_family_that_was_asked() {
    let gate = Gate::new();
    let worker = Worker::start(held(&gate)).await;
    let (running, mut holder) = full(&worker, |config| {
        config.pools[0].core.line_max = 0;
        config.pools.push(pool("q", Some("nobody"), &[]));
        config.pools[1].core.no_worker_wait = Duration::ZERO;
    })
    .await;
    let message = r#"[{"role":"user","content":"hello"}]"#;
    for (model, status, word, kinds) in [
        (
            "m",
            429,
            "queue-full",
            ["rate_limit_error", "rate_limit_error"],
        ),
        (
            "nobody",
            503,
            "no-workers",
            ["overloaded_error", "server_error"],
        ),
    ] {
        let body = format!(r#"{{"model":"{model}","max_tokens":8,"messages":{message}}}"#);
        let mut client = client(&running).await;
        let answer = client.post("/v1/messages", &body).await;
        assert_eq!(answer.status(), status, "{}", answer.text());
        assert_eq!(answer.head.header("x-maitred-reason"), Some(word));
        let told = answer.json();
        assert_eq!(
            (&told["type"], &told["error"]["type"]),
            (&"error".into(), &kinds[0].into())
        );
        let answer = client.post(PATH, &body).await;
        refused(&answer, status, word);
        assert_eq!(
            answer.json()["error"]["type"],
            kinds[1],
            "{}",
            answer.text()
        );
    }
    gate.open();
    assert_eq!(holder.read_response().await.status(), 200);
}
