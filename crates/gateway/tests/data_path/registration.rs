//! Where this process lets itself be sent to.

use super::soon;
use maitred_gateway::config::check;
use maitred_gateway::{Running, start};
use maitred_tests::{Client, Response, Script, Step, Worker, eventually};
use serde_json::json;
use std::net::TcpListener;

async fn gateway(lines: &str) -> Running {
    let mut config = check(&format!("{lines}\npools: [{{ name: p }}]")).unwrap();
    config.listen.set_port(0);
    config.admin.set_port(0);
    config.threads = 1;
    start(config).await.unwrap()
}

async fn add(running: &Running, token: Option<&str>, url: &str) -> Response {
    let (host, bearer) = (
        running.admin.to_string(),
        token.map(|t| format!("Bearer {t}")),
    );
    let mut headers = vec![
        ("host", host.as_str()),
        ("content-type", "application/json"),
    ];
    if let Some(bearer) = &bearer {
        headers.push(("authorization", bearer));
    }
    let body = json!({"url": url, "pool": "p"}).to_string();
    let request = maitred_tests::request("POST", "/workers", &headers, body);
    soon(Client::connect(running.admin).await.exchange(&request)).await
}

/// A place that nobody may be sent to.
fn elsewhere() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url)
}

/// Anybody could register a worker anywhere, and it was visited at once.
#[tokio::test]
async fn workers_are_added_by_who_may_and_where_they_may_be() {
    let (silent, url) = elsewhere();
    let running = gateway("admin_token: s3cret\nworker_allow: [127.0.0.1]").await;
    let metadata = "http://169.254.169.254/";
    for url in [metadata, url.as_str()] {
        assert_eq!(add(&running, None, url).await.status(), 401, "{url}");
        assert_eq!(
            add(&running, Some("guess"), url).await.status(),
            401,
            "{url}"
        );
        let refused = add(&running, Some("s3cret"), url).await;
        assert_eq!(refused.status(), 403, "{url}");
        assert_eq!(refused.json()["error"]["code"], "not-allowed");
    }
    assert!(running.gateway.pools[0].upstreams().is_empty());
    assert!(silent.accept().is_err(), "nobody came");
    // Without a list any host may be one, but never the platform's own.
    let open = gateway("admin_token: s3cret").await;
    for url in [
        metadata,
        "http://[fe80::1]:80",
        "http://[::ffff:169.254.169.254]",
    ] {
        let refused = add(&open, Some("s3cret"), url).await;
        assert_eq!(refused.status(), 403, "{url}: {}", refused.text());
    }
}

/// A registered worker sent its prober on to another host.
#[tokio::test]
async fn probes_follow_no_redirect() {
    let (silent, url) = elsewhere();
    let worker = Worker::start(Script::ok()).await;
    for path in ["/health", "/metrics", "/v1/models", "/version", "/"] {
        let headers = [("location", url.as_str()), ("content-length", "0")];
        worker.answer(path, vec![Step::head(302, &headers)]);
    }
    let running = gateway("admin_token: s3cret\nworker_allow: [127.0.0.1]").await;
    assert_eq!(
        add(&running, Some("s3cret"), &worker.url()).await.status(),
        201
    );
    eventually("it is probed twice", || worker.probes("/health") >= 2).await;
    assert!(silent.accept().is_err(), "nobody came");
}
