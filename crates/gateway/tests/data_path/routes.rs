//! Which requests go where, and which are answered here.

use crate::{CHAT, PATH, at_rest, client, empty, pool, room};
use maitred_gateway::start;
use maitred_tests::{Script, Worker, eventually, json_answer, request};

#[tokio::test]
async fn the_root_and_queries_are_understood() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |_| {}).await;
    let mut client = client(&running).await;
    client.send("HEAD / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert_eq!(client.read_head().await.status(), 200);
    let body = r#"{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}"#;
    assert_eq!(
        client.post("/v1/messages?beta=true", body).await.status(),
        200
    );
    assert_eq!(worker.last().target(), "/v1/messages?beta=true");
}

#[tokio::test]
async fn models_are_the_union_of_the_pools() {
    let one = Worker::start(Script::ok()).await;
    let two = Worker::start(Script::ok()).await;
    let mut config = empty();
    config.pools = vec![
        pool("a", Some("m1"), &[&one]),
        pool("b", Some("m2"), &[&two]),
    ];
    config.pools[1].aliases = vec!["alias".to_owned()];
    let running = start(config).await.unwrap();
    let mut client = client(&running).await;
    let listed = client.get("/v1/models").await.json();
    let ids: Vec<&str> = listed["data"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|m| m["id"].as_str())
        .collect();
    assert!(
        ids.contains(&"m1") && ids.contains(&"m2") && ids.contains(&"alias"),
        "{ids:?}"
    );
    assert_eq!(client.get("/v1/models/m2").await.json()["id"], "m2");
    assert_eq!(client.get("/v1/models/none").await.status(), 404);
    // Each model's requests go to its own pool; an alias is sent under the model's name.
    let body = r#"{"model":"alias","messages":[]}"#;
    assert_eq!(client.post(PATH, body).await.status(), 200);
    assert_eq!(two.last().json()["model"], "m2");
    assert_eq!(one.count(), 0);
    let unknown = client.post(PATH, r#"{"model":"none","messages":[]}"#).await;
    assert_eq!(unknown.status(), 404);
    let error = unknown.json();
    assert_eq!(error["error"]["code"], "model_not_found");
    assert!(
        error["error"]["message"].as_str().unwrap().contains("`m1`"),
        "{error}"
    );
    let missing = client.post(PATH, r#"{"messages":[]}"#).await;
    assert_eq!(missing.status(), 400);
    assert_eq!(missing.json()["error"]["param"], "model");
    let messages = client
        .post("/v1/messages", r#"{"model":"none","messages":[]}"#)
        .await;
    assert_eq!(messages.json()["type"], "error");
}

#[tokio::test]
async fn unknown_paths_are_relayed_and_counted() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |_| {}).await;
    let mut client = client(&running).await;
    for (method, path, body) in [
        ("POST", "/v1/unknown?x=1", "{}"),
        ("POST", "/inference/x/generate", "not json"),
        ("POST", "/v1/unknown", r#"{"model":"nobody-lists-it"}"#),
        ("PUT", "/v1/files/7", "\u{0}\u{1}"),
        ("DELETE", "/v1/files/7", ""),
    ] {
        let response = client
            .exchange(&request(method, path, &[("x-request-id", path)], body))
            .await;
        assert_eq!(response.status(), 200, "{path}");
        let got = worker.last();
        assert_eq!((got.method(), got.target()), (method, path));
        assert_eq!(got.body, body.as_bytes());
        let record = &crate::attempts(&running, path, 1).await[0];
        assert_eq!(record.route, "unmatched");
    }
    at_rest(&running).await;
}

#[tokio::test]
async fn strict_names_the_field_and_the_default_passes_it() {
    let worker = Worker::start(Script::ok()).await;
    let body = r#"{"model":"m","messages":[],"no_such_field":1}"#;
    let running = room(&[&worker], |_| {}).await;
    assert_eq!(client(&running).await.post(PATH, body).await.status(), 200);
    let running = room(&[&worker], |c| c.strict = true).await;
    let response = client(&running).await.post(PATH, body).await;
    assert_eq!(response.status(), 400);
    assert_eq!(response.json()["error"]["param"], "no_such_field");
    assert_eq!(client(&running).await.post(PATH, CHAT).await.status(), 200);
    assert_eq!(worker.count(), 2);
}

#[tokio::test]
async fn browsers_are_let_in_where_origins_are_configured() {
    let worker = Worker::start(Script::each(json_answer(401, "{}"))).await;
    let running = room(&[&worker], |c| {
        c.cors_origins = vec!["https://app".to_owned()];
    })
    .await;
    let mut client = client(&running).await;
    let asked = [
        ("origin", "https://app"),
        ("access-control-request-headers", "authorization"),
    ];
    let response = client.exchange(&request("OPTIONS", PATH, &asked, "")).await;
    assert_eq!(response.status(), 204);
    assert_eq!(
        response.head.header("access-control-allow-headers"),
        Some("authorization")
    );
    assert_eq!(
        response.head.header("access-control-allow-origin"),
        Some("https://app")
    );
    let response = client
        .exchange(&request("POST", PATH, &[("origin", "https://app")], CHAT))
        .await;
    assert_eq!(response.status(), 401);
    assert_eq!(
        response.head.header("access-control-allow-origin"),
        Some("https://app")
    );
    let response = client
        .exchange(&request("POST", PATH, &[("origin", "https://else")], CHAT))
        .await;
    assert_eq!(response.head.header("access-control-allow-origin"), None);
}

#[tokio::test]
async fn a_response_is_continued_where_it_was_made() {
    let answer = |id: &str| {
        format!(
            "{{\"id\":\"{id}\",\"object\":\"response\",\"status\":\"completed\",\"output\":[]}}"
        )
    };
    let numbered = |w: usize| {
        Script::by(move |r| json_answer(200, &answer(&format!("resp_{w}_{}", r.number))))
    };
    let (one, two) = (
        Worker::start(numbered(1)).await,
        Worker::start(numbered(2)).await,
    );
    let running = room(&[&one, &two], |_| {}).await;
    let mut client = client(&running).await;
    let mut previous: Option<(String, String)> = None;
    for turn in 0..10 {
        let body = match &previous {
            None => r#"{"model":"m","input":"hi"}"#.to_owned(),
            Some((id, _)) => format!(
                "{{\"model\":\"m\",\"input\":\"turn {turn}\",\"previous_response_id\":\"{id}\"}}"
            ),
        };
        let response = client.post("/v1/responses", &body).await;
        let id = response.json()["id"].as_str().unwrap().to_owned();
        let worker = response.head.header("x-maitred-worker").unwrap().to_owned();
        if let Some((_, home)) = &previous {
            assert_eq!(*home, worker);
        }
        previous = Some((id, worker));
    }
}

#[tokio::test]
async fn a_streamed_response_can_be_continued_too() {
    let streamed = |w: usize| {
        Script::by(move |r| {
            let id = format!("resp_{w}_{}", r.number);
            let event = |kind: &str| {
                format!(
                    "event: {kind}\ndata: {{\"type\":\"{kind}\",\"response\":{{\"id\":\"{id}\"}}}}\n\n"
                )
            };
            vec![
                maitred_tests::Step::head(
                    200,
                    &[
                        ("content-type", "text/event-stream"),
                        ("transfer-encoding", "chunked"),
                    ],
                ),
                maitred_tests::Step::chunk(event("response.created")),
                maitred_tests::Step::chunk(event("response.completed")),
                maitred_tests::Step::End,
            ]
        })
    };
    let one = Worker::start(streamed(1)).await;
    let two = Worker::start(streamed(2)).await;
    let running = room(&[&one, &two], |_| {}).await;
    let mut client = client(&running).await;
    let first = r#"{"model":"m","stream":true,"input":"hi"}"#;
    let mut answer = client.post("/v1/responses", first).await;
    let home = answer.head.header("x-maitred-worker").map(str::to_owned);
    for _ in 0..5 {
        let text = answer.text();
        let (_, rest) = text.split_once("\"id\":\"").unwrap();
        let (id, _) = rest.split_once('"').unwrap();
        let next = format!(
            "{{\"model\":\"m\",\"stream\":true,\"input\":\"on\",\"previous_response_id\":\"{id}\"}}"
        );
        answer = client.post("/v1/responses", &next).await;
        assert_eq!(
            answer.head.header("x-maitred-worker").map(str::to_owned),
            home
        );
    }
}

#[tokio::test]
async fn http2_without_negotiation_is_served() {
    use http_body_util::{BodyExt, Full};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |_| {}).await;
    let socket = tokio::net::TcpStream::connect(running.data).await.unwrap();
    let (mut send, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket))
            .await
            .unwrap();
    let task = tokio::spawn(connection);
    for _ in 0..3 {
        let sent = http::Request::post(format!("http://{}{PATH}", running.data))
            .header("x-own", "1")
            .body(Full::new(bytes::Bytes::from_static(CHAT.as_bytes())))
            .unwrap();
        let response = send.send_request(sent).await.unwrap();
        assert_eq!(response.status(), 200);
        assert!(
            !response
                .into_body()
                .collect()
                .await
                .unwrap()
                .to_bytes()
                .is_empty()
        );
        assert_eq!(worker.last().body, CHAT.as_bytes());
    }
    // Nobody but us leaves the body of an answer to HEAD out, and one that comes breaks the stream.
    let ask = http::Request::head(format!("http://{}/", running.data));
    let ask = ask.body(Full::default()).unwrap();
    let response = send.send_request(ask).await.unwrap();
    assert_eq!(response.headers()["content-length"], "8");
    let body = response.into_body().collect().await.unwrap();
    assert!(body.to_bytes().is_empty());
    drop(send);
    task.await.unwrap().unwrap();
    at_rest(&running).await;
}

#[tokio::test]
async fn health_follows_the_workers() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |_| {}).await;
    assert_eq!(client(&running).await.get("/health").await.status(), 200);
    let running = start({
        let mut config = empty();
        config.pools = vec![pool("p", Some("m"), &[])];
        config
    })
    .await
    .unwrap();
    assert_eq!(client(&running).await.get("/health").await.status(), 503);
    eventually("nothing waits", || {
        running.gateway.pools[0].driver.live() == 0
    })
    .await;
}
