//! Workers that speak the AI Horde's API: one plain prompt, one text back.

use crate::pull::agent;
use crate::{Served, serve_file};
use maitred_tests::{Client, Response, Script, Worker, json_answer, request};
use serde_json::{Value, json};
use std::net::SocketAddr;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const POP: &str = "/api/v2/generate/text/pop";
const SUBMIT: &str = "/api/v2/generate/text/submit";
const KEY: &str = "EXAMPLE-WORKER-KEY";
const OTHER: &str = "ANOTHER-WORKER-KEY";

/// A gateway without workers of its own. `horde`: that section of `pull`.
pub(crate) async fn serve_horde(horde: &str, lines: &[&str]) -> Served {
    let mut text = format!(
        "pull:\n  listen: 127.0.0.1:0\n  silence: 2s\n  horde: {{ {horde} }}\n  tokens:\n    \
         - {{ owner: example, token: {KEY} }}\n    - {{ owner: other, token: {OTHER} }}\n    \
         - {{ owner: lab, token: worker-token }}\n    \
         - {{ owner: few, token: few-key, workers: [gpu-*] }}\n\
         pools:\n  - name: p\n    no_worker_wait: 30s\n"
    );
    for line in lines {
        text.push_str(&format!("    {line}\n"));
    }
    serve_file(&text, 0).await
}

/// One call of a worker, on a connection of its own, as most of them make theirs.
pub(crate) async fn call(
    addr: SocketAddr,
    method: &str,
    path: &str,
    key: &str,
    body: &Value,
) -> Response {
    let headers = [("apikey", key), ("content-type", "application/json")];
    let body = match method {
        "GET" => String::new(),
        _ => body.to_string(),
    };
    let bytes = request(method, path, &headers, body);
    let answer = Client::connect(addr).await.exchange(&bytes).await;
    if answer.status() != 200 {
        // Some workers end at anything else.
        assert!(answer.json()["message"].is_string(), "{}", answer.text());
    }
    answer
}

pub(crate) fn worker(name: &str) -> Value {
    json!({
        "name": name, "models": ["example/little-writer-7b"], "max_length": 512,
        "max_context_length": 4096, "priority_usernames": [], "softprompts": [],
        "bridge_agent": "AI Horde Worker~aphrodite~kai:24:https://example.org/worker", "threads": 1,
    })
}

/// Asks until there is a job.
pub(crate) async fn job(addr: SocketAddr, ask: &Value) -> Value {
    maitred_tests::within("a job", async {
        loop {
            let answer = call(addr, "POST", POP, KEY, ask).await;
            assert_eq!(answer.status(), 200, "{}", answer.text());
            if !answer.json()["id"].is_null() {
                return answer.json();
            }
        }
    })
    .await
}

pub(crate) async fn submit(addr: SocketAddr, job: &Value, text: &str) -> Response {
    let body = json!({"id": job["id"], "generation": text, "seed": 0});
    call(addr, "POST", SUBMIT, KEY, &body).await
}

fn prompt(text: &str) -> Value {
    json!({"prompt": text, "max_tokens": 64})
}

/// Sends it and does not wait for the answer.
async fn asking(served: &Served, path: &str, body: &Value) -> Client {
    let mut client = served.client().await;
    let headers = [("content-type", "application/json")];
    client
        .send(request("POST", path, &headers, body.to_string()))
        .await;
    client
}

async fn idle(served: &Served) {
    maitred_tests::within("every lease to be given back", async {
        for gauge in ["maitred_worker_running", "maitred_pull_jobs"] {
            while served.metric(gauge).await != 0.0 {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_completion_goes_through_a_horde_worker() {
    let served = serve_horde("wait: 10s", &[]).await;
    let addr = served.pull.unwrap();
    let body = json!({"prompt": "Name a tree.\n", "max_tokens": 64, "temperature": 0.7,
        "stop": ["\n###"], "model": "example/little-writer-7b"});
    let mut client = asking(&served, TEXT, &body).await;
    let got = job(addr, &worker("Example Scribe")).await;
    assert_eq!(got["model"], "example/little-writer-7b");
    assert_eq!(
        (&got["ids"], &got["ttl"]),
        (&json!([got["id"]]), &json!(150))
    );
    assert_eq!(
        got["payload"],
        json!({"prompt": "Name a tree.\n", "n": 1, "max_context_length": 4096, "max_length": 64,
            "temperature": 0.7, "stop_sequence": ["\n###"], "min_p": 0.0, "smoothing_factor": 0.0,
            "dynatemp_range": 0.0, "dynatemp_exponent": 1.0})
    );
    let workers = served.workers().await;
    let pull = &workers[0]["pull"];
    assert_eq!(
        (
            &pull["api"],
            &pull["owner"],
            &pull["jobs"],
            &pull["context_max"]
        ),
        (&json!("horde"), &json!("example"), &json!(1), &json!(4096))
    );
    assert!(
        pull["agent"]
            .as_str()
            .unwrap()
            .starts_with("AI Horde Worker")
    );
    // Behind the stop sequence workers may send on.
    let done = submit(addr, &got, " An oak.\n### user\u{0}").await;
    assert_eq!(done.status(), 200, "{}", done.text());
    assert!(done.json()["reward"].is_number());
    let answer = client.read_response().await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let answer = answer.json();
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(
        answer["choices"],
        json!([{"index": 0, "text": " An oak.", "logprobs": null, "finish_reason": "stop"}])
    );
    assert_eq!(answer["usage"], Value::Null, "nobody counted");
    let again = submit(addr, &got, " An oak.").await;
    assert_eq!(
        (again.status(), &again.json()["rc"]),
        (400, &json!("DuplicateGen"))
    );
    idle(&served).await;
    for (what, count) in [
        ("maitred_pull_pops_total{api=\"horde\",result=\"job\"}", 1.0),
        (
            "maitred_pull_answers_total{api=\"horde\",result=\"taken\"}",
            1.0,
        ),
        (
            "maitred_pull_answers_total{api=\"horde\",result=\"duplicate\"}",
            1.0,
        ),
        ("maitred_pull_polls{", 0.0),
    ] {
        assert_eq!(served.metric(what).await, count, "{what}");
    }
}

/// What a plain worker can not do waits for one that can.
#[tokio::test]
async fn only_what_a_plain_worker_can_do_is_given_to_it() {
    let engine = Worker::start(Script::each(json_answer(200, "{\"by\":\"engine\"}"))).await;
    let served = serve_horde("wait: 100ms", &[]).await;
    let addr = served.pull.unwrap();
    let mut narrow = worker("narrow");
    narrow["max_length"] = json!(32);
    narrow["max_context_length"] = json!(100);
    let refused = [
        // No template renders it.
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 8}),
        ),
        (TEXT, json!({"prompt": "x", "max_tokens": 33})),
        (TEXT, json!({"prompt": "x".repeat(4_000), "max_tokens": 8})),
        (TEXT, json!({"prompt": "x", "max_tokens": 8, "logprobs": 1})),
        (TEXT, json!({"prompt": ["x", "y"], "max_tokens": 8})),
        (
            "/v1/messages",
            json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 8}),
        ),
        ("/anything", json!({"prompt": "x"})),
    ];
    let mut clients = Vec::new();
    // The first pop makes the worker known.
    let answer = call(addr, "POST", POP, KEY, &narrow).await;
    assert_eq!(answer.json()["id"], Value::Null);
    for (path, body) in &refused {
        clients.push(asking(&served, path, body).await);
    }
    let waiting = refused.len() as f64;
    maitred_tests::within("all to wait", async {
        while served.metric("maitred_line_requests").await != waiting {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    let mut fits = asking(&served, TEXT, &json!({"prompt": "fits", "max_tokens": 32})).await;
    let got = job(addr, &narrow).await;
    assert_eq!(got["payload"]["prompt"], "fits");
    assert_eq!(submit(addr, &got, "yes").await.status(), 200);
    assert_eq!(
        fits.read_response().await.json()["choices"][0]["text"],
        "yes"
    );
    let answer = call(addr, "POST", POP, KEY, &narrow).await;
    assert_eq!(answer.json()["id"], Value::Null, "{}", answer.text());
    // All of them are served by who can.
    let dir = tempfile::tempdir().unwrap();
    let _agent = agent(&served, &dir, "able", &engine);
    for mut client in clients {
        assert_eq!(client.read_response().await.text(), "{\"by\":\"engine\"}");
    }
    idle(&served).await;
}

#[tokio::test]
async fn what_is_wrong_is_said_as_the_horde_says_it() {
    let served = serve_horde("wait: 50ms", &["model: m"]).await;
    let addr = served.pull.unwrap();
    let mut ours = worker("gpu-1");
    ours["models"] = json!(["the/model", "m"]);
    let said = |answer: Response| (answer.status(), answer.json()["rc"].clone());
    let pop =
        |key: &'static str, ask: Value| async move { call(addr, "POST", POP, key, &ask).await };
    assert_eq!(
        pop(KEY, ours.clone()).await.status(),
        400,
        "a model's name has 3 characters"
    );
    let named = |models: Value| {
        let mut ask = worker("gpu-1");
        ask["models"] = models;
        ask
    };
    // Nothing to do for these models: an error would end some workers.
    let none = pop(KEY, named(json!(["another/model"]))).await;
    assert_eq!(
        (none.status(), none.json()["id"].clone()),
        (200, Value::Null)
    );
    assert_eq!(none.json()["skipped"], json!({"models": 1}));
    assert_eq!(
        said(pop("nobody's", ours.clone()).await),
        (401, json!("InvalidAPIKey"))
    );
    let mut right = worker("gpu-1");
    right.as_object_mut().unwrap().remove("models");
    assert_eq!(
        said(pop("nobody's", right.clone()).await),
        (401, json!("InvalidAPIKey"))
    );
    assert_eq!(
        said(pop("0000000000", right.clone()).await),
        (403, json!("AnonForbiddenWorker"))
    );
    assert_eq!(said(pop(KEY, right.clone()).await), (200, Value::Null));
    assert_eq!(
        said(pop(OTHER, right.clone()).await),
        (403, json!("WrongCredentials"))
    );
    let mut unlike = right.clone();
    unlike["name"] = json!("cpu-1");
    assert_eq!(
        said(pop("few-key", unlike.clone()).await),
        (403, json!("WorkerInviteOnly"))
    );
    unlike["name"] = json!("gpu-2");
    assert_eq!(said(pop("few-key", unlike).await), (200, Value::Null));

    let raw = |headers: Vec<(&'static str, &'static str)>, body: Vec<u8>| async move {
        let bytes = request("POST", POP, &headers, body);
        let answer = Client::connect(addr).await.exchange(&bytes).await;
        assert!(answer.json()["message"].is_string(), "{}", answer.text());
        answer
    };
    let json_type = ("content-type", "application/json");
    let body = right.to_string().into_bytes();
    let missing = raw(vec![json_type], body.clone()).await;
    assert_eq!(missing.status(), 400);
    assert!(missing.json()["errors"]["apikey"].is_string());
    assert_eq!(
        raw(vec![("apikey", KEY)], body).await.status(),
        400,
        "no type"
    );
    for bad in ["{", "[]", "null", ""] {
        let answer = raw(vec![json_type, ("apikey", KEY)], bad.into()).await;
        assert_eq!(answer.status(), 400, "{bad}");
    }
    let huge = json!({"name": "x".repeat(300 << 10)})
        .to_string()
        .into_bytes();
    assert_eq!(
        raw(vec![json_type, ("apikey", KEY)], huge).await.status(),
        413
    );
    let bomb = "[".repeat(100_000).into_bytes();
    assert_eq!(
        raw(vec![json_type, ("apikey", KEY)], bomb).await.status(),
        400
    );
    for path in ["/api/v2/generate/async", "/api/v2", "/api/"] {
        assert_eq!(
            call(addr, "POST", path, KEY, &json!({})).await.status(),
            404
        );
    }
    let user = call(addr, "GET", "/api/v2/find_user", OTHER, &Value::Null).await;
    assert_eq!(user.json()["username"], "other#2");
    let user = call(addr, "GET", "/api/v2/find_user", "x", &Value::Null).await;
    assert_eq!(said(user), (404, json!("UserNotFound")));
    let beat = call(addr, "GET", "/api/v2/status/heartbeat", "x", &Value::Null).await;
    assert_eq!(beat.json()["message"], "OK");
}

/// A worker that gives its job back, in words or by its silence, and one that dies within its poll.
#[tokio::test]
async fn a_job_that_is_given_back_goes_to_another_and_silence_is_forgiven_once() {
    let served = serve_horde("wait: 10s, ttl: 1s", &["attempts: 8"]).await;
    let addr = served.pull.unwrap();
    // A poll that was closed takes nothing with it.
    let headers = [("apikey", KEY), ("content-type", "application/json")];
    let ask = worker("gone").to_string();
    let mut gone = Client::connect(addr).await;
    gone.send(request("POST", POP, &headers, ask)).await;
    maitred_tests::within("the poll", async {
        while served.metric("maitred_pull_polls{").await != 1.0 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    gone.abort();
    let mut client = asking(&served, TEXT, &prompt("one")).await;
    let first = job(addr, &worker("a")).await;
    let back = json!({"id": first["id"], "state": "faulted", "generation": "faulted", "seed": -1});
    let faulted = call(addr, "POST", SUBMIT, KEY, &back).await;
    assert_eq!(
        (faulted.status(), faulted.json()),
        (200, json!({"reward": 0.0}))
    );
    let second = job(addr, &worker("b")).await;
    let null = json!({"id": second["id"], "generation": null, "seed": 0});
    // Of somebody else it means nothing.
    assert_eq!(call(addr, "POST", SUBMIT, OTHER, &null).await.status(), 400);
    assert_eq!(call(addr, "POST", SUBMIT, KEY, &null).await.status(), 400);
    let third = job(addr, &worker("c")).await;
    assert_eq!(third["payload"]["prompt"], "one");
    let late = submit(addr, &first, "late").await;
    assert_eq!(
        (late.status(), &late.json()["rc"]),
        (400, &json!("AbortedGen"))
    );
    // It says nothing any more: another gets it, once.
    let fourth = job(addr, &worker("d")).await;
    let late = submit(addr, &third, "late").await;
    assert_eq!(
        (late.status(), &late.json()["rc"]),
        (400, &json!("AbortedGen"))
    );
    let answer = client.read_response().await;
    assert_eq!(answer.status(), 504, "{}", answer.text());
    assert_eq!(answer.json()["error"]["code"], "first-byte-timeout");
    let late = submit(addr, &fourth, "late").await;
    assert_eq!(
        (late.status(), &late.json()["rc"]),
        (400, &json!("AbortedGen"))
    );
    for (what, count) in [
        (
            "maitred_pull_requeues_total{pool=\"p\",cause=\"faulted\"}",
            2.0,
        ),
        (
            "maitred_pull_requeues_total{pool=\"p\",cause=\"expired\"}",
            1.0,
        ),
        (
            "maitred_pull_abandoned_total{pool=\"p\",cause=\"expired\"}",
            1.0,
        ),
        (
            "maitred_pull_answers_total{api=\"horde\",result=\"late\"}",
            3.0,
        ),
    ] {
        assert_eq!(served.metric(what).await, count, "{what}");
    }
    idle(&served).await;
}

#[tokio::test]
async fn of_two_answers_one_is_taken_and_none_when_the_client_left() {
    let served = serve_horde("wait: 10s", &[]).await;
    let addr = served.pull.unwrap();
    for round in 0..10 {
        let mut client = asking(&served, TEXT, &prompt("race")).await;
        let got = job(addr, &worker("a")).await;
        let (one, two) = tokio::join!(submit(addr, &got, "one"), submit(addr, &got, "two"));
        let mut statuses = [one.status(), two.status()];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 400], "round {round}");
        let text = if one.status() == 200 { "one" } else { "two" };
        assert_eq!(
            client.read_response().await.json()["choices"][0]["text"],
            text
        );
    }
    let client = asking(&served, TEXT, &prompt("bye")).await;
    let got = job(addr, &worker("a")).await;
    client.abort();
    idle(&served).await;
    let late = submit(addr, &got, "one").await;
    assert_eq!(
        (late.status(), &late.json()["rc"]),
        (404, &json!("InvalidJobID"))
    );
    // Its client left: the worker is free for another, and did nothing wrong.
    let mut client = asking(&served, TEXT, &prompt("next")).await;
    let got = job(addr, &worker("a")).await;
    assert_eq!(submit(addr, &got, "one").await.status(), 200);
    assert_eq!(client.read_response().await.status(), 200);
}

#[tokio::test]
async fn an_owner_may_put_a_worker_into_maintenance() {
    let served = serve_horde("wait: 10s", &[]).await;
    let addr = served.pull.unwrap();
    let mut client = asking(&served, TEXT, &prompt("running")).await;
    let got = job(addr, &worker("Example Scribe")).await;
    let shown = call(
        addr,
        "GET",
        "/api/v2/workers/name/Example%20Scribe",
        KEY,
        &Value::Null,
    )
    .await;
    let shown = shown.json();
    assert_eq!(shown["maintenance_mode"], false);
    let path = format!("/api/v2/workers/{}", shown["id"].as_str().unwrap());
    let on = json!({"maintenance": true, "maintenance_msg": "new fans"});
    assert_eq!(call(addr, "PUT", &path, OTHER, &on).await.status(), 403);
    assert_eq!(call(addr, "PUT", &path, KEY, &on).await.status(), 200);
    let pop = call(addr, "POST", POP, KEY, &worker("Example Scribe")).await;
    assert_eq!(
        (pop.status(), pop.json()),
        (
            403,
            json!({"message": "new fans", "rc": "WorkerMaintenance"})
        )
    );
    // What runs may still be answered.
    assert_eq!(submit(addr, &got, "done").await.status(), 200);
    assert_eq!(client.read_response().await.status(), 200);
    let off = json!({"maintenance": false});
    assert_eq!(call(addr, "PUT", &path, KEY, &off).await.status(), 200);
    let _client = asking(&served, TEXT, &prompt("next")).await;
    job(addr, &worker("Example Scribe")).await;
}
