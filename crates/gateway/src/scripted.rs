//! For tests: a worker that answers each path as it is told to, and a client for the admin API.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use parking_lot::Mutex;
use serde_json::Value;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// How a path is answered.
#[derive(Clone)]
pub(crate) enum Line {
    /// With this status and body.
    Say(u16, String),
    /// Never.
    Hang,
}

type Script = Arc<Mutex<HashMap<String, Line>>>;

pub(crate) struct Worker {
    pub(crate) address: SocketAddr,
    script: Script,
    task: JoinHandle<()>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Worker {
    /// Starts on a free port; paths without a line are 404.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::on(listener)
    }

    pub(crate) fn on(listener: TcpListener) -> Self {
        let script = Script::default();
        let lines = Arc::clone(&script);
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(answer(stream, Arc::clone(&lines)));
            }
        });
        Self {
            address,
            script,
            task,
        }
    }

    /// A worker that is ready and lists `models`.
    pub(crate) async fn ready(models: &[&str]) -> Self {
        let worker = Self::start().await;
        worker.say("/health", 200, "");
        worker.lists(models);
        worker
    }

    pub(crate) fn say(&self, path: &str, status: u16, body: &str) {
        let line = Line::Say(status, body.to_owned());
        self.script.lock().insert(path.to_owned(), line);
    }

    pub(crate) fn hang(&self, path: &str) {
        self.script.lock().insert(path.to_owned(), Line::Hang);
    }

    pub(crate) fn lists(&self, models: &[&str]) {
        let data: Vec<Value> = models
            .iter()
            .map(|id| serde_json::json!({ "id": id }))
            .collect();
        let body = serde_json::json!({ "object": "list", "data": data });
        self.say("/v1/models", 200, &body.to_string());
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

async fn answer(mut stream: TcpStream, lines: Script) {
    let Some(head) = read_head(&mut stream).await else {
        return;
    };
    let path = head.split(' ').nth(1).unwrap_or("/").to_owned();
    let line = lines.lock().get(&path).cloned();
    let (status, body) = match line {
        Some(Line::Say(status, body)) => (status, body),
        Some(Line::Hang) => {
            std::future::pending::<()>().await;
            return;
        }
        None => (404, String::new()),
    };
    let text = format!(
        "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.write_all(text.as_bytes()).await;
}

async fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        let mut chunk = [0; 1024];
        let n = stream.read(&mut chunk).await.ok()?;
        if n == 0 {
            return None;
        }
        head.extend_from_slice(&chunk[..n]);
    }
    String::from_utf8(head).ok()
}

/// One request to the admin API: status and body.
pub(crate) async fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut text = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "host") {
        text.push_str("host: localhost\r\n");
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

/// Looks until `look` finds what it waits for; a minute is for ever.
pub(crate) async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "waited for {what}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
