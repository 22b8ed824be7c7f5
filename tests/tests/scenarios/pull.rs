//! Workers that pull: agents beside engines that the gateway can not reach.

use crate::{Served, chat, serve_file};
use maitred_tests::{
    Agent, Client, Gate, Script, Step, Worker, json_answer, request, sse_event, stream_answer,
};
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";
const TOKEN: &str = "worker-token";

/// A gateway that has no worker of its own.
pub(crate) async fn serve_pull(lines: &[&str]) -> Served {
    let mut text = String::from(
        "pull:\n  listen: 127.0.0.1:0\n  tokens:\n    - { owner: lab, token: worker-token }\n    \
         - { owner: other, token: other-token }\n  silence: 2s\npools:\n  - name: p\n    no_worker_wait: 20s\n",
    );
    for line in lines {
        text.push_str(&format!("    {line}\n"));
    }
    serve_file(&text, 0).await
}

/// An agent beside that engine.
pub(crate) fn agent(
    served: &Served,
    dir: &tempfile::TempDir,
    name: &str,
    engine: &Worker,
) -> Agent {
    let token = dir.path().join("token");
    // Not again: another agent may be reading it.
    if !token.exists() {
        std::fs::write(&token, TOKEN).unwrap();
    }
    let broker = format!("http://{}", served.pull.unwrap());
    Agent::start(&[
        "--broker",
        &broker,
        "--token-file",
        token.to_str().unwrap(),
        "--engine",
        &engine.url(),
        "--name",
        name,
        "--slots",
        "2",
    ])
}

fn streamed() -> String {
    json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "x"}]})
        .to_string()
}

fn stream_head() -> Step {
    Step::head(
        200,
        &[
            ("content-type", "text/event-stream"),
            ("transfer-encoding", "chunked"),
        ],
    )
}

async fn wait_for_pulling(served: &Served, count: usize) {
    maitred_tests::within("workers to pull", async {
        while served.workers().await.len() != count {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
}

async fn wait_for_idle(served: &Served) {
    maitred_tests::within("every lease to be given back", async {
        for gauge in [
            "maitred_worker_running",
            "maitred_worker_resident_tokens",
            "maitred_line_requests",
        ] {
            while served.metric(gauge).await != 0.0 {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn three_agents_serve_streams_and_bodies_go_through_untouched() {
    let events = ["{\"choices\":[{\"delta\":{\"content\":\"a\"}}]}", "[DONE]"];
    let script = move |r: &maitred_tests::Recorded| {
        if r.target() != CHAT {
            json_answer(404, "{}")
        } else if r.json()["stream"] == true {
            stream_answer(events)
        } else {
            json_answer(200, &r.json().to_string())
        }
    };
    let mut engines = Vec::new();
    for _ in 0..3 {
        engines.push(Worker::start(Script::by(script)).await);
    }
    let served = serve_pull(&["policy: round_robin"]).await;
    let dir = tempfile::tempdir().unwrap();
    let agents: Vec<Agent> = engines
        .iter()
        .enumerate()
        .map(|(n, engine)| agent(&served, &dir, &format!("a{n}"), engine))
        .collect();
    wait_for_pulling(&served, 3).await;
    for answer in crate::burst(&served, CHAT, vec![streamed(); 12]).await {
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert!(answer.complete);
        assert!(
            answer.text().ends_with("data: [DONE]\n\n"),
            "{}",
            answer.text()
        );
    }
    let odd = r#"{ "model":"m", "messages" : [{"role":"user","content":"\u00e9 x"}],"z":1e2 }"#;
    let answer = served.post(CHAT, odd).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let sent = engines.iter().flat_map(|e| e.requests());
    assert!(sent.into_iter().any(|r| r.body_raw == odd.as_bytes()));
    wait_for_idle(&served).await;
    maitred_tests::within("every slot to be asked for again", async {
        while served
            .workers()
            .await
            .iter()
            .any(|worker| worker["polls"] != 2)
        {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    drop(agents);
}

/// One holds its job without a byte and dies: the other gets it.
#[tokio::test]
async fn a_job_of_an_agent_that_dies_is_finished_by_another() {
    let never = Gate::new();
    let stuck = vec![Step::Wait(never.clone())];
    let first = Worker::start(Script::by(move |_| stuck.clone())).await;
    let served = serve_pull(&[]).await;
    let dir = tempfile::tempdir().unwrap();
    let dying = agent(&served, &dir, "dying", &first);
    let mut client = served.client().await;
    client.send(request("POST", CHAT, &[], chat("hello"))).await;
    first.wait_for_requests(1).await;
    let second = Worker::start(json_answer_script()).await;
    let _other = agent(&served, &dir, "other", &second);
    wait_for_pulling(&served, 2).await;
    dying.kill().await;
    let answer = client.read_response().await;
    assert_eq!(
        (answer.status(), answer.text()),
        (200, "{\"ok\":1}".to_owned())
    );
    assert_eq!(second.count(), 1);
    wait_for_idle(&served).await;
}

fn json_answer_script() -> Script {
    Script::each(json_answer(200, "{\"ok\":1}"))
}

#[tokio::test]
async fn a_stream_whose_agent_dies_ends_with_an_error_not_silently() {
    let never = Gate::new();
    let steps = vec![
        stream_head(),
        Step::chunk(sse_event("{\"choices\":[{\"delta\":{\"content\":\"a\"}}]}")),
        Step::Wait(never.clone()),
    ];
    let engine = Worker::start(Script::each(steps)).await;
    let served = serve_pull(&[]).await;
    let dir = tempfile::tempdir().unwrap();
    let dying = agent(&served, &dir, "dying", &engine);
    let mut client = served.client().await;
    client.send(request("POST", CHAT, &[], streamed())).await;
    let head = client.read_head().await;
    assert_eq!(head.status(), 200);
    client.read_at_least(10).await;
    dying.kill().await;
    let rest = client.finish(head).await;
    assert!(rest.text().contains("\"error\""), "{}", rest.text());
    assert!(!rest.complete, "cut, and seen as cut");
    wait_for_idle(&served).await;
}

/// A client that leaves frees the engine behind the agent, before and within the answer.
#[tokio::test]
async fn clients_that_leave_free_the_engine_behind_the_agent() {
    let never = Gate::new();
    let silent = vec![Step::Wait(never.clone())];
    let begun = vec![stream_head(), Step::chunk(sse_event("{}")), Step::Hang];
    let engine = Worker::start(Script::by(move |r| match r.target() {
        "/silent" => silent.clone(),
        "/begun" => begun.clone(),
        _ => json_answer(200, "{}"),
    }))
    .await;
    let served = serve_pull(&[]).await;
    let dir = tempfile::tempdir().unwrap();
    let _agent = agent(&served, &dir, "a", &engine);
    for round in 1..=5 {
        let mut leaving: Vec<Client> = Vec::new();
        for path in ["/silent", "/begun"] {
            let mut client = served.client().await;
            client.send(request("POST", path, &[], chat("bye"))).await;
            leaving.push(client);
        }
        maitred_tests::eventually("both to run", || engine.in_flight() == 2).await;
        for client in leaving {
            client.abort();
        }
        engine.wait_for_cancels(2 * round).await;
        wait_for_idle(&served).await;
    }
}

#[tokio::test]
async fn an_agent_that_is_told_to_end_finishes_its_job_and_leaves() {
    let gate = Gate::new();
    let mut steps = vec![Step::Wait(gate.clone())];
    steps.extend(json_answer(200, "{\"late\":1}"));
    let engine = Worker::start(Script::each(steps)).await;
    let served = serve_pull(&[]).await;
    let dir = tempfile::tempdir().unwrap();
    let leaving = agent(&served, &dir, "a", &engine);
    let mut client = served.client().await;
    client.send(request("POST", CHAT, &[], chat("hello"))).await;
    engine.wait_for_requests(1).await;
    leaving.stop();
    gate.open();
    let answer = client.read_response().await;
    assert_eq!(answer.text(), "{\"late\":1}");
    assert!(leaving.ended().await);
    wait_for_pulling(&served, 0).await;
}

/// The API itself, as a worker of one's own would use it.
#[tokio::test]
async fn the_api_by_hand() {
    let served = serve_pull(&[]).await;
    let addr = served.pull.unwrap();
    let send = |method: &'static str, path: &'static str, token: &'static str, body: String| async move {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str())];
        let bytes = request(method, path, &headers, body);
        Client::connect(addr).await.exchange(&bytes).await
    };
    let pop = |name: &str| json!({"name": name, "wait": 0, "instance": "1"}).to_string();
    assert_eq!(
        send("POST", "/pull/v1/pop", "wrong", pop("a"))
            .await
            .status(),
        401
    );
    assert_eq!(
        send("POST", "/pull/v1/pop", TOKEN, pop("a")).await.status(),
        204
    );
    let stolen = send("POST", "/pull/v1/pop", "other-token", pop("a")).await;
    assert_eq!(stolen.status(), 403, "a name belongs to its owner");
    let bad = send(
        "POST",
        "/pull/v1/pop",
        TOKEN,
        json!({"name": "a b"}).to_string(),
    )
    .await;
    assert_eq!(
        (bad.status(), bad.json()["error"]["field"].clone()),
        (400, json!("name"))
    );
    let gone = send("POST", "/pull/v1/jobs/none/answer", TOKEN, "x".to_owned()).await;
    assert_eq!(gone.status(), 410);

    // A job that a worker was given and never has is somebody else's soon.
    let mut client = served.client().await;
    client.send(request("POST", CHAT, &[], chat("lost"))).await;
    let ask = json!({"name": "a", "instance": "1", "wait": 20}).to_string();
    let job = send("POST", "/pull/v1/pop", TOKEN, ask).await;
    assert_eq!(job.status(), 200);
    let text = job.text();
    let (line, body) = text.split_once('\n').unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(
        (line["path"].as_str(), body),
        (Some(CHAT), chat("lost").as_str())
    );
    let epoch = served.workers().await[0]["epoch"].as_u64().unwrap();
    let ask = json!({"name": "b", "instance": "1", "wait": 20}).to_string();
    let other = tokio::spawn(send("POST", "/pull/v1/pop", TOKEN, ask));
    wait_for_pulling(&served, 2).await;
    // The same name in another life: what the old one had is lost.
    let ask = json!({"name": "a", "instance": "2", "wait": 0}).to_string();
    send("POST", "/pull/v1/pop", TOKEN, ask).await;
    let again = other.await.unwrap().text();
    let line: serde_json::Value = serde_json::from_str(again.lines().next().unwrap()).unwrap();
    let id = line["id"].as_str().unwrap();
    let workers = served.workers().await;
    let reborn = workers.iter().find(|w| w["name"] == "a").unwrap();
    assert_eq!(reborn["epoch"].as_u64().unwrap(), epoch + 1);
    let answer =
        "{\"status\":200,\"headers\":[[\"content-type\",\"application/json\"]]}\n{\"by\":\"b\"}";
    let path: &'static str = Box::leak(format!("/pull/v1/jobs/{id}/answer").into_boxed_str());
    let theirs = send("POST", path, "other-token", answer.to_owned()).await;
    assert_eq!(theirs.status(), 403);
    let done = send("POST", path, TOKEN, answer.to_owned()).await;
    assert_eq!(done.status(), 200, "{}", done.text());
    assert_eq!(client.read_response().await.text(), "{\"by\":\"b\"}");
    assert_eq!(
        send("DELETE", "/pull/v1/workers/b", TOKEN, String::new())
            .await
            .status(),
        200
    );
    wait_for_pulling(&served, 1).await;
    wait_for_idle(&served).await;
}

/// A worker that says nothing for longer than `silence` has lost its job.
#[tokio::test]
async fn a_silent_worker_loses_its_job() {
    let served = serve_pull(&[]).await;
    let addr = served.pull.unwrap();
    let pop = move |name: &str| {
        let ask = json!({"name": name, "wait": 20}).to_string();
        let bearer = format!("Bearer {TOKEN}");
        let bytes = request("POST", "/pull/v1/pop", &[("authorization", &bearer)], ask);
        async move { Client::connect(addr).await.exchange(&bytes).await }
    };
    let mut client = served.client().await;
    client.send(request("POST", CHAT, &[], chat("lost"))).await;
    assert_eq!(pop("silent").await.status(), 200);
    // Nothing more is said.
    let engine = Worker::start(json_answer_script()).await;
    let dir = tempfile::tempdir().unwrap();
    let _agent = agent(&served, &dir, "good", &engine);
    assert_eq!(client.read_response().await.text(), "{\"ok\":1}");
    wait_for_idle(&served).await;
}
