//! What one side says, the other side hears, byte for byte.

use crate::{CHAT, PATH, at_rest, attempts, client, room};
use maitred_gateway::config::{Secret, check};
use maitred_records::Outcome;
use maitred_tests::{Script, Step, Worker, json_answer, request};

#[tokio::test]
async fn bytes_query_and_headers_arrive_as_they_were_sent() {
    let answer = "{\"id\" :  \"x\",\n\t\"choices\":[{\"index\":0}], \"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2}}";
    let worker = Worker::start(Script::each(vec![
        Step::head(
            200,
            &[
                ("content-type", "application/json"),
                ("x-engine", "kept"),
                ("content-length", &answer.len().to_string()),
            ],
        ),
        Step::raw(answer),
    ]))
    .await;
    let running = room(&[&worker], |_| {}).await;
    let mut client = client(&running).await;
    let body = "{ \"messages\" : [ {\"role\":\"user\", \"content\":\"h\\u00e9llo\"} ],\r\n \"model\":\"m\", \"return_token_ids\":true, \"chat_template_kwargs\":{\"a\":1}, \"vendor_x\":[1] }\n";
    let sent = request(
        "POST",
        "/v1/chat/completions?a=b%20c&d",
        &[("content-type", "application/json"), ("x-own", "1")],
        body,
    );
    let response = client.exchange(&sent).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.text(), answer);
    assert_eq!(response.head.header("x-engine"), Some("kept"));
    let got = worker.last();
    assert_eq!(got.target(), "/v1/chat/completions?a=b%20c&d");
    assert_eq!(String::from_utf8_lossy(&got.body), body);
    assert_eq!(got.header("x-own"), Some("1"));
    assert_eq!(got.header("content-type"), Some("application/json"));
    assert_eq!(got.header("host"), Some(worker.addr().to_string().as_str()));
    at_rest(&running).await;
}

#[tokio::test]
async fn developers_speak_as_the_system_only_where_the_pool_says_so() {
    let sent = r#"{"model":"m", "messages":[{"role":"user","content":"a"}, {"role":"developer", "content":"developer"}],"x":[1]}"#;
    let renamed = r#"{"model":"m", "messages":[{"role":"user","content":"a"}, {"role":"system", "content":"developer"}],"x":[1]}"#;
    for (enabled, expected) in [(false, sent), (true, renamed)] {
        let worker = Worker::start(Script::ok()).await;
        let running = room(&[&worker], |config| {
            config.pools[0].developer_as_system = enabled;
        })
        .await;
        let id = "d1";
        let headers = [("content-type", "application/json"), ("x-request-id", id)];
        let mut client = client(&running).await;
        let response = client
            .exchange(&request("POST", PATH, &headers, sent))
            .await;
        assert_eq!(response.status(), 200);
        let got = worker.last();
        assert_eq!(String::from_utf8_lossy(&got.body), expected);
        let length = expected.len().to_string();
        assert_eq!(got.header("content-length"), Some(length.as_str()));
        let record = attempts(&running, id, 1).await.remove(0);
        assert_eq!(record.roles_renamed, u32::from(enabled));
        at_rest(&running).await;
    }
}

#[tokio::test]
async fn every_prompt_shape_is_forwarded() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |_| {}).await;
    let mut client = client(&running).await;
    for prompt in ["[1,2,3]", "[[1,2],[3]]", "[\"a\",\"b\"]", "\"\""] {
        let body = format!("{{\"model\":\"m\",\"prompt\":{prompt}}}");
        let response = client.post("/v1/completions", &body).await;
        assert_eq!(response.status(), 200, "{prompt}");
        assert_eq!(worker.last().body, body.as_bytes());
    }
    let tools = r#"{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":[{"type":"text","text":"ok"}]},{"role":"assistant","content":[]}]}"#;
    assert_eq!(client.post(PATH, tools).await.status(), 200);
    assert_eq!(worker.last().body, tools.as_bytes());
}

#[tokio::test]
async fn a_request_keeps_its_id_and_its_trace_or_gets_good_ones() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |_| {}).await;
    let mut client = client(&running).await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let sent = request(
        "POST",
        PATH,
        &[("x-request-id", "job-17"), ("traceparent", trace)],
        CHAT,
    );
    let response = client.exchange(&sent).await;
    assert_eq!(response.head.header("x-request-id"), Some("job-17"));
    assert_eq!(worker.last().header("x-request-id"), Some("job-17"));
    assert_eq!(worker.last().header("traceparent"), Some(trace));
    let huge = "x".repeat(4_096);
    let sent = request("POST", PATH, &[("x-request-id", &huge)], CHAT);
    let response = client.exchange(&sent).await;
    let minted = response.head.header("x-request-id").unwrap().to_owned();
    assert!(minted.len() < 64);
    assert_eq!(worker.last().header("x-request-id"), Some(minted.as_str()));
    assert_eq!(worker.last().header("traceparent").unwrap().len(), 55);
    // Errors of our own have one too.
    let sent = request("POST", PATH, &[("x-request-id", "job-18")], "{");
    let response = client.exchange(&sent).await;
    assert_eq!(response.status(), 400);
    assert_eq!(response.head.header("x-request-id"), Some("job-18"));
}

#[tokio::test]
async fn connection_matters_credentials_and_cookies_stay_here() {
    let worker = Worker::start(Script::each(vec![
        Step::head(
            200,
            &[
                ("content-type", "application/json"),
                ("server", "uvicorn"),
                ("set-cookie", "a=1"),
                ("keep-alive", "timeout=5"),
                ("connection", "x-hop"),
                ("x-hop", "1"),
                ("content-length", "2"),
            ],
        ),
        Step::raw("{}"),
    ]))
    .await;
    let running = room(&[&worker], |_| {}).await;
    let mut client = client(&running).await;
    let sent = request(
        "POST",
        PATH,
        &[
            ("connection", "x-a"),
            ("x-a", "1"),
            ("authorization", "Bearer gw-1"),
            ("x-api-key", "gw-1"),
            ("cookie", "c=1"),
            ("te", "trailers"),
        ],
        CHAT,
    );
    let response = client.exchange(&sent).await;
    assert_eq!(response.status(), 200);
    let raw = String::from_utf8_lossy(&worker.last().head.raw).to_lowercase();
    for gone in ["connection", "x-a:", "gw-1", "cookie", "\r\nte:"] {
        assert!(!raw.contains(gone), "{gone} in {raw}");
    }
    for gone in ["server", "set-cookie", "keep-alive", "x-hop"] {
        assert_eq!(response.head.header(gone), None, "{gone}");
    }
}

/// The gateway's own credential reached workers, or an empty one did.
#[tokio::test]
async fn a_worker_gets_its_own_credential_and_no_other() {
    let [plain, own] = [
        Worker::start(Script::ok()).await,
        Worker::start(Script::ok()).await,
    ];
    for pass in [false, true] {
        let running = room(&[&plain, &own], |config| {
            config.pools[0].pass_credentials = pass;
            config.pools[0].workers[1].api_key = Some(Secret::new("w-1"));
        })
        .await;
        let sent = [("authorization", "Bearer gw-1"), ("x-api-key", "gw-1")];
        for _ in 0..2 {
            let sent = request("POST", PATH, &sent, CHAT);
            assert_eq!(client(&running).await.exchange(&sent).await.status(), 200);
        }
        let got = |worker: &Worker| {
            let head = worker.last().head;
            let all = head
                .headers
                .iter()
                .filter(|(name, _)| name == "authorization");
            let values: Vec<String> = all.map(|(_, value)| value.clone()).collect();
            (values, head.header("x-api-key").map(str::to_owned))
        };
        let passed = |value: &str| pass.then(|| value.to_owned());
        let theirs = passed("Bearer gw-1").into_iter().collect();
        assert_eq!(got(&plain), (theirs, passed("gw-1")));
        assert_eq!(got(&own), (vec!["Bearer w-1".to_owned()], passed("gw-1")));
    }
    let pool = "pools: [{ workers: [{ url: 'http://h:1', api_key: '";
    assert!(check(&format!("{pool}w-1' }}] }}]")).is_ok());
    for empty in ["", "  "] {
        let problems = check(&format!("{pool}{empty}' }}] }}]")).unwrap_err();
        assert!(
            problems[0].message.contains("must not be empty"),
            "{problems:?}"
        );
    }
}

#[tokio::test]
async fn a_workers_own_answer_passes_unchanged() {
    let refusal = r#"{"error":{"message":"too long"}}"#;
    let worker = Worker::start(Script::each(json_answer(400, refusal))).await;
    let running = room(&[&worker], |_| {}).await;
    let mut client = client(&running).await;
    for turn in 0..20 {
        let id = format!("bad-{turn}");
        let response = client
            .exchange(&request("POST", PATH, &[("x-request-id", &id)], CHAT))
            .await;
        assert_eq!(
            (response.status(), response.text().as_str()),
            (400, refusal)
        );
        assert_eq!(response.head.header("x-maitred-reason"), None);
    }
    let record = attempts(&running, "bad-3", 1).await;
    assert_eq!(record[0].outcome, Outcome::ClientError);
    // Twenty refusals say nothing against the worker.
    worker.set_script(Script::ok());
    assert_eq!(client.post(PATH, CHAT).await.status(), 200);
    // An error under status 200 passes as well, and is not taken for a success.
    let hidden = r#"{"choices":null,"error":{"code":429}}"#;
    worker.set_script(Script::each(json_answer(200, hidden)));
    let response = client
        .exchange(&request("POST", PATH, &[("x-request-id", "hidden")], CHAT))
        .await;
    assert_eq!((response.status(), response.text().as_str()), (200, hidden));
    let record = attempts(&running, "hidden", 1).await;
    assert_eq!(record[0].outcome, Outcome::Failed);
    at_rest(&running).await;
}

#[tokio::test]
async fn internal_addresses_do_not_reach_the_client() {
    let worker = Worker::start(Script::each(vec![Step::head(
        302,
        &[
            ("location", "http://10.0.0.5:8000/x"),
            ("content-length", "0"),
        ],
    )]))
    .await;
    let address = worker.addr();
    let running = room(&[&worker], |_| {}).await;
    let mut client = client(&running).await;
    let response = client.post("/v1/unknown", "{}").await;
    assert_eq!(response.status(), 302);
    assert!(!String::from_utf8_lossy(&response.head.raw).contains("10.0.0.5"));
    worker.kill().await;
    let response = client.post(PATH, CHAT).await;
    assert_eq!(response.status(), 502);
    assert_eq!(
        response.head.header("x-maitred-reason"),
        Some("upstream-connect")
    );
    assert!(response.text().contains("`w1`"));
    assert!(!response.text().contains(&address.ip().to_string()));
}

#[tokio::test]
async fn compressed_bodies_arrive_plain() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |_| {}).await;
    let mut client = client(&running).await;
    let text = "long ".repeat(200_000);
    let body = format!("{{\"model\":\"m\",\"input\":\"{text}\"}}");
    let packed = zstd::stream::encode_all(body.as_bytes(), 3).unwrap();
    let sent = request(
        "POST",
        "/v1/responses",
        &[("content-encoding", "zstd")],
        &packed,
    );
    assert_eq!(client.exchange(&sent).await.status(), 200);
    let got = worker.last();
    assert_eq!(got.header("content-encoding"), None);
    let length = body.len().to_string();
    assert_eq!(got.header("content-length"), Some(length.as_str()));
    assert!(got.body == body.as_bytes());
    let sent = request(
        "POST",
        "/v1/responses",
        &[("content-encoding", "zstd")],
        &packed[..packed.len() - 8],
    );
    assert_eq!(client.exchange(&sent).await.status(), 400);
    let sent = request("POST", "/v1/responses", &[("content-encoding", "br")], "x");
    assert_eq!(client.exchange(&sent).await.status(), 415);
    assert_eq!(worker.count(), 1);
}
