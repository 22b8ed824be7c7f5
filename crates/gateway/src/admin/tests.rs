#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::config::{Config, check};
use crate::scripted::{Worker, ask, until};
use crate::start::{Running, start};
use maitred_core::pool::Availability;
use maitred_records::{AttemptRecord, CandidateRecord, Outcome};
use serde_json::{Value, json};
use std::time::Duration;

fn config(text: &str) -> Config {
    let mut config = check(text).expect("config");
    config.listen.set_port(0);
    config.admin.set_port(0);
    config.threads = 1;
    config
}

async fn gateway(text: &str) -> Running {
    start(config(text)).await.expect("start")
}

async fn call(running: &Running, method: &str, path: &str, body: Value) -> (u16, Value) {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let (status, answer) = ask(running.admin, method, path, &[], &body).await;
    (status, serde_json::from_str(&answer).unwrap())
}

const QUICK: &str = "pools: [{ name: chat, probe: { interval: 10ms, interval_down: 5ms } }]";

#[tokio::test]
async fn workers_come_drain_and_go() {
    let running = gateway(QUICK).await;
    let worker = Worker::ready(&["m"]).await;
    let (status, ready) = call(&running, "GET", "/ready", Value::Null).await;
    assert_eq!((status, &ready["ready"]), (503, &json!(false)));
    let (status, added) = call(
        &running,
        "POST",
        "/workers",
        json!({ "url": worker.url(), "name": "w/1", "slots": 3 }),
    )
    .await;
    assert_eq!(status, 201, "{added}");
    assert_eq!(
        (&added["name"], &added["slots"]),
        (&json!("w/1"), &json!(3))
    );
    let pool = &running.gateway.pools[0];
    until("ready", || {
        (pool.views()[0].view.availability == Availability::Ready).then_some(())
    })
    .await;
    let (status, _) = call(&running, "GET", "/ready", Value::Null).await;
    assert_eq!(status, 200);
    let (_, listed) = call(&running, "GET", "/workers", Value::Null).await;
    assert_eq!(listed["workers"][0]["models"], json!(["m"]));
    assert_eq!(listed["workers"][0]["probe"], json!("ready"));
    let drain = json!({ "deadline": "30s" });
    let (status, drained) = call(&running, "POST", "/workers/w%2F1/drain", drain).await;
    assert_eq!(
        (status, &drained["availability"]),
        (200, &json!("draining"))
    );
    let (_, resumed) = call(&running, "POST", "/workers/w/1/resume", Value::Null).await;
    assert_ne!(resumed["availability"], json!("draining"));
    let (status, _) = call(&running, "DELETE", "/workers/w/1", Value::Null).await;
    assert_eq!(status, 200);
    let (status, gone) = call(&running, "DELETE", "/workers/w/1", Value::Null).await;
    assert_eq!((status, &gone["error"]["code"]), (404, &json!("not-found")));
    assert_eq!(running.gateway.fleet.tasks(), 0);
    running.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn wrong_requests_name_the_field() {
    let running = gateway(
        "pools: [{ name: a, model: m, workers: [{ url: 'http://127.0.0.1:9', name: w }] }, \
         { name: b, model: n }, { name: c, model: o, isolation: tenant }]",
    )
    .await;
    let url = "http://127.0.0.1:9";
    let cases = [
        (json!({ "url": url }), 400, "pool"),
        (json!({ "pool": "d", "url": url }), 400, "pool"),
        (json!({ "pool": "a" }), 400, "url"),
        (json!({ "pool": "a", "url": "ftp://x" }), 400, "url"),
        (json!({ "pool": "a", "url": url, "slots": 0 }), 400, "slots"),
        (
            json!({ "pool": "a", "url": url, "engine": "x" }),
            400,
            "engine",
        ),
        (
            json!({ "pool": "a", "url": url, "name": "a b" }),
            400,
            "name",
        ),
        (json!({ "pool": "a", "url": url, "slot": 1 }), 400, "slot"),
        (json!({ "pool": "b", "url": url, "name": "w" }), 409, "name"),
        (
            json!({ "pool": "a", "url": url, "kv_events": "9" }),
            400,
            "kv_events",
        ),
        (
            json!({ "pool": "a", "url": url, "kv_events": { "endpoint": "tcp://127.0.0.1:9", "rank": 1 } }),
            400,
            "kv_events.rank",
        ),
        (
            json!({ "pool": "c", "url": url, "kv_events": "tcp://127.0.0.1:9" }),
            400,
            "kv_events",
        ),
        (
            json!({ "pool": "a", "url": "http://169.254.169.254/" }),
            403,
            "url",
        ),
    ];
    for (body, status, field) in cases {
        let (got, answer) = call(&running, "POST", "/workers", body.clone()).await;
        assert_eq!(got, status, "{body} {answer}");
        assert_eq!(answer["error"]["field"], json!(field), "{body} {answer}");
    }
    let (status, answer) = ask(running.admin, "POST", "/workers", &[], "{nonsense").await;
    assert_eq!(status, 400, "{answer}");
    let (status, answer) = call(&running, "GET", "/nowhere", Value::Null).await;
    assert_eq!(status, 404, "{answer}");
    running.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn only_allowed_hosts_are_registered() {
    let running = gateway("worker_allow: [127.0.0.0/8, engine-1]\npools: [{ name: chat }]").await;
    let add = |url: &str| call(&running, "POST", "/workers", json!({ "url": url }));
    assert_eq!(add("http://127.0.0.1:9").await.0, 201);
    let (status, answer) = add("http://10.0.0.1:9").await;
    assert_eq!(status, 403, "{answer}");
    assert_eq!(answer["error"]["code"], json!("not-allowed"));
    let elsewhere = json!({ "url": "http://127.0.0.1:8", "kv_events": "tcp://10.0.0.1:9" });
    let (status, answer) = call(&running, "POST", "/workers", elsewhere).await;
    assert_eq!(
        (status, &answer["error"]["field"]),
        (403, &json!("kv_events"))
    );
    running.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_token_guards_everything_but_health() {
    let running = gateway("admin_token: s3cret\npools: [{ name: chat }]").await;
    let ask = |path: &'static str, headers: &'static [(&str, &str)]| {
        ask(running.admin, "GET", path, headers, "")
    };
    assert_eq!(ask("/workers", &[]).await.0, 401);
    let wrong = &[("authorization", "Bearer s3cre")];
    assert_eq!(ask("/metrics", wrong).await.0, 401);
    let right = &[("authorization", "Bearer s3cret")];
    assert_eq!(ask("/workers", right).await.0, 200);
    assert_eq!(ask("/health", &[]).await.0, 200);
    let (_, shown) = ask("/config", right).await;
    assert!(!shown.contains("s3cret"), "{shown}");
    running.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn without_a_token_other_sites_are_turned_away() {
    let running = gateway("pools: [{ name: chat }]").await;
    let ask = |headers: &'static [(&str, &str)]| ask(running.admin, "GET", "/workers", headers, "");
    assert_eq!(ask(&[]).await.0, 200);
    assert_eq!(ask(&[("host", "evil.example")]).await.0, 403);
    assert_eq!(ask(&[("origin", "http://evil.example")]).await.0, 403);
    running.shutdown(Duration::ZERO).await;
    let mut open = config("pools: [{ name: chat }]");
    open.admin.set_ip([0, 0, 0, 0].into());
    let error = start(open).await.err().expect("refused");
    assert!(error.to_string().starts_with("admin: "), "{error}");
}

#[tokio::test]
async fn a_policy_is_switched_live() {
    let running = gateway("pools: [{ name: chat, policy: least_load }]").await;
    let switch = |body| call(&running, "PUT", "/pools/chat/policy", body);
    let (status, answer) = switch(json!({ "name": "round_robin" })).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["policy"], json!("round_robin"));
    let (_, config) = call(&running, "GET", "/config", Value::Null).await;
    assert_eq!(config["pools"][0]["policy"], json!("round_robin"));
    let (status, answer) = switch(json!({ "name": "round_robbin" })).await;
    assert_eq!((status, &answer["error"]["field"]), (400, &json!("name")));
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("did you mean `round_robin`?"), "{message}");
    let wrong = json!({ "name": "round_robin", "options": { "zeal": 1 } });
    let (status, answer) = switch(wrong).await;
    assert_eq!(
        (status, &answer["error"]["field"]),
        (400, &json!("options.zeal"))
    );
    let (status, _) = call(&running, "PUT", "/pools/x/policy", json!({})).await;
    assert_eq!(status, 404);
    running.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn explains_a_request_in_words() {
    let running = gateway("pools: [{ name: chat }]").await;
    let first = AttemptRecord {
        request_id: "req-1".into(),
        attempt: 1,
        pool: "chat".into(),
        model: "m".into(),
        route: "/v1/chat/completions".into(),
        turn: 3,
        session: Some(7),
        session_source: "header".into(),
        policy: Some("session".into()),
        reason: Some("hash".into()),
        worker: Some("w1".into()),
        candidates: vec![CandidateRecord {
            worker: "w1".into(),
            score: Some(0.5),
            running: 2,
            prefill_tokens: 100,
            matched_tokens: 900,
            seat: true,
        }],
        candidates_count: 4,
        outcome: Outcome::Retried,
        failure: Some("reset".into()),
        e2e_ms: 3.0,
        ..AttemptRecord::default()
    };
    let second = AttemptRecord {
        attempt: 2,
        reason: Some("retry".into()),
        worker: Some("w2".into()),
        predicted_cached_tokens: Some(0),
        prompt_tokens: Some(1_000),
        cached_tokens: None,
        ttft_ms: Some(120.0),
        e2e_ms: 900.0,
        outcome: Outcome::Served,
        failure: None,
        status: Some(200),
        ..first.clone()
    };
    running.gateway.keep(second);
    running.gateway.keep(first);
    let (status, told) = call(&running, "GET", "/explain/req-1", Value::Null).await;
    assert_eq!(status, 200);
    assert_eq!(told["attempts"][0]["worker"], json!("w1"));
    assert_eq!(told["attempts"][1]["cached_tokens"], Value::Null);
    let story = told["story"].as_str().unwrap();
    for part in [
        "turn 3 of its conversation, known by its session header",
        "Attempt 1 went to w1 because the key's hash names it",
        "It failed after 3.0 ms and was tried again (reset)",
        "Attempt 2 went to w2 because another attempt had failed",
        "the engine does not say what came from its cache",
        "Served after 900 ms, status 200",
    ] {
        assert!(story.contains(part), "{part}: {story}");
    }
    let (status, _) = call(&running, "GET", "/explain/req-2", Value::Null).await;
    assert_eq!(status, 404);
    running.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn metrics_show_workers_and_unknown_is_not_zero() {
    let running = gateway(QUICK).await;
    let worker = Worker::ready(&["m"]).await;
    call(
        &running,
        "POST",
        "/workers",
        json!({ "url": worker.url(), "name": "w1" }),
    )
    .await;
    let (status, text) = ask(running.admin, "GET", "/metrics", &[], "").await;
    assert_eq!(status, 200);
    for line in [
        "maitred_worker_running{pool=\"chat\",worker=\"w1\"} 0",
        "maitred_line_requests{pool=\"chat\"} 0",
        "maitred_worker_report_stale{pool=\"chat\",worker=\"w1\"} 1",
        "maitred_attempt_records{state=\"lost\"} 0",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("engine_kv_usage{"), "{text}");
    call(&running, "DELETE", "/workers/w1", Value::Null).await;
    let (_, text) = ask(running.admin, "GET", "/metrics", &[], "").await;
    assert!(
        !text.contains("worker=\"w1\""),
        "series go with the worker\n{text}"
    );
    running.shutdown(Duration::ZERO).await;
}

#[tokio::test]

async fn fairness_is_switched_live_and_lines_are_shown() {
    let text = "tenants: [{ name: acme, band: slow }]\npools: [{ name: chat, fairness: fcfs, bands: [{ name: fast }, { name: slow }] }]";
    let running = gateway(text).await;
    let switch = |body| call(&running, "PUT", "/pools/chat/fairness", body);
    let (status, answer) = switch(json!({"name": "promise", "options": {"new_share": 0.3}})).await;
    assert_eq!((status, &answer["fairness"]), (200, &json!("promise")));
    let (status, answer) = switch(json!({"name": "promis"})).await;
    assert_eq!(status, 400);
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("did you mean `promise`?"), "{message}");
    let (_, config) = call(&running, "GET", "/config", Value::Null).await;
    assert_eq!(config["pools"][0]["bands"][1]["name"], "slow");
    let (status, lines) = call(&running, "GET", "/lines", Value::Null).await;
    assert_eq!(status, 200);
    assert_eq!(lines["pools"][0]["pool"], "chat");
    assert_eq!(lines["pools"][0]["tenants_waiting"], 0);
    let (status, evidence) = call(&running, "GET", "/evidence", Value::Null).await;
    assert_eq!(status, 200);
    let pool = &evidence["pools"][0];
    assert_eq!(pool["pool"], "chat");
    assert_eq!(pool["affinity"]["state"], "pays");
    assert_eq!(pool["costs"]["prefill"]["median_error"], Value::Null);
    let pool = &running.gateway.pools[0];
    let terms = pool.driver.read(|s| s.config().tenants.clone());
    assert_eq!(terms.of(crate::tenant_id("acme")).band, 1);
    assert_eq!(pool.band_name(1), "slow");
}

#[tokio::test]
async fn what_is_not_there_is_answered_with_what_is() {
    let running = gateway(QUICK).await;
    let body = json!({ "url": "http://127.0.0.1:9", "name": "here" });
    assert_eq!(call(&running, "POST", "/workers", body).await.0, 201);
    let policy = json!({ "name": "random" });
    for (method, path, body, listed) in [
        ("DELETE", "/workers/there", Value::Null, "there are: `here`"),
        ("PUT", "/pools/x/policy", policy, "there are: `chat`"),
    ] {
        let (status, answer) = call(&running, method, path, body).await;
        assert_eq!(status, 404, "{path}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.ends_with(listed), "{message}");
    }
}
