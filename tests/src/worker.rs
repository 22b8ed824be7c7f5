use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::http1::Head;
use crate::script::json_answer;
use crate::talk::accept;
use crate::{Script, Step, eventually};

/// A request as a scripted worker received it.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// Position among this worker's requests (probes not counted), from 0.
    pub number: usize,
    /// Position of its connection among this worker's connections, from 0.
    pub connection: usize,
    /// Start line and headers.
    pub head: Head,
    /// The body's bytes as they were framed on the wire (chunk sizes included).
    pub body_raw: Vec<u8>,
    /// The decoded body.
    pub body: Vec<u8>,
    /// Whether the whole body arrived. False for an upload that was cut, and for scripts that
    /// answer before the body.
    pub complete: bool,
}

impl Recorded {
    /// The request method.
    pub fn method(&self) -> &str {
        self.head.start.split(' ').next().unwrap_or_default()
    }

    /// The request target, path and query.
    pub fn target(&self) -> &str {
        self.head.start.split(' ').nth(1).unwrap_or_default()
    }

    /// A request header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }

    /// The body as JSON; fails the test when it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("a JSON body")
    }
}

/// What a worker has seen.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) requests: Vec<Recorded>,
    pub(crate) connections: usize,
    pub(crate) open: usize,
    pub(crate) in_flight: usize,
    pub(crate) in_flight_most: usize,
    /// Requests whose connection the peer closed before the script was through.
    pub(crate) cancelled: Vec<usize>,
    /// Uploads that ended before their framing did.
    pub(crate) cut_uploads: usize,
    pub(crate) finished: usize,
    pub(crate) written: BTreeMap<usize, usize>,
    pub(crate) probes: BTreeMap<String, usize>,
}

pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
    pub(crate) script: Mutex<Script>,
    pub(crate) answers: Mutex<BTreeMap<String, Vec<Step>>>,
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

/// A worker that follows a script over a real socket and records what reached it.
pub struct Worker {
    addr: SocketAddr,
    shared: Arc<Shared>,
    alive: watch::Sender<bool>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Worker {
    /// Listens on a free loopback port.
    pub async fn start(script: impl Into<Script>) -> Self {
        Self::start_on(SocketAddr::from(([127, 0, 0, 1], 0)), script).await
    }

    /// Listens on this address, as a worker that was restarted does.
    pub async fn start_on(addr: SocketAddr, script: impl Into<Script>) -> Self {
        let listener = crate::within("bind", async {
            loop {
                match TcpListener::bind(addr).await {
                    Ok(listener) => return listener,
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        })
        .await;
        let addr = listener.local_addr().expect("bound address");
        let models = r#"{"object":"list","data":[{"id":"m","object":"model","owned_by":"test"}]}"#;
        let answers = BTreeMap::from([
            (
                "/health".to_owned(),
                json_answer(200, "{\"status\":\"ok\"}"),
            ),
            ("/v1/models".to_owned(), json_answer(200, models)),
            ("/metrics".to_owned(), metrics_answer("")),
        ]);
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            script: Mutex::new(script.into()),
            answers: Mutex::new(answers),
        });
        let alive = watch::Sender::new(true);
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared), alive.subscribe()));
        Self {
            addr,
            shared,
            alive,
            accepting,
        }
    }

    /// The base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The address it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Replaces the script for requests that arrive from now on.
    pub fn set_script(&self, script: impl Into<Script>) {
        *self.shared.script.lock().expect("script") = script.into();
    }

    /// Replaces the answer to GETs of a probe path (`/health`, `/v1/models`, `/metrics`, ...).
    pub fn answer(&self, path: &str, steps: Vec<Step>) {
        self.shared
            .answers
            .lock()
            .expect("answers")
            .insert(path.to_owned(), steps);
    }

    /// `/health` answers 503 "loading" as an engine does while it loads its model.
    pub fn loading(&self) {
        let body = r#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#;
        self.answer("/health", json_answer(503, body));
    }

    /// `/health` answers 200 again.
    pub fn healthy(&self) {
        self.answer("/health", json_answer(200, "{\"status\":\"ok\"}"));
    }

    /// `/metrics` answers with this text.
    pub fn metrics(&self, text: &str) {
        self.answer("/metrics", metrics_answer(text));
    }

    /// `/v1/models` lists these.
    pub fn models(&self, names: &[&str]) {
        let list: Vec<_> = names
            .iter()
            .map(|id| serde_json::json!({"id": id, "object": "model"}))
            .collect();
        let body = serde_json::json!({"object": "list", "data": list}).to_string();
        self.answer("/v1/models", json_answer(200, &body));
    }

    /// Everything received so far, probes not included.
    pub fn requests(&self) -> Vec<Recorded> {
        self.shared.state().requests.clone()
    }

    /// How many requests were received, probes not included.
    pub fn count(&self) -> usize {
        self.shared.state().requests.len()
    }

    /// The last request; fails the test when there is none.
    pub fn last(&self) -> Recorded {
        self.shared
            .state()
            .requests
            .last()
            .cloned()
            .expect("a request reached the worker")
    }

    /// How many probes of this path were received.
    pub fn probes(&self, path: &str) -> usize {
        self.shared.state().probes.get(path).copied().unwrap_or(0)
    }

    /// How many connections were accepted so far.
    pub fn connections(&self) -> usize {
        self.shared.state().connections
    }

    /// How many connections are open.
    pub fn open_connections(&self) -> usize {
        self.shared.state().open
    }

    /// How many requests are being answered.
    pub fn in_flight(&self) -> usize {
        self.shared.state().in_flight
    }

    /// The most requests that were ever being answered at once.
    pub fn in_flight_most(&self) -> usize {
        self.shared.state().in_flight_most
    }

    /// Numbers of the requests whose connection the peer closed before the script was through.
    pub fn cancelled(&self) -> Vec<usize> {
        self.shared.state().cancelled.clone()
    }

    /// How many uploads ended before their framing did.
    pub fn cut_uploads(&self) -> usize {
        self.shared.state().cut_uploads
    }

    /// How many requests were answered to the end of their script.
    pub fn finished(&self) -> usize {
        self.shared.state().finished
    }

    /// How many bytes of response the socket took for this request: shows backpressure.
    pub fn written(&self, number: usize) -> usize {
        self.shared
            .state()
            .written
            .get(&number)
            .copied()
            .unwrap_or(0)
    }

    /// Waits until `count` requests have been received.
    pub async fn wait_for_requests(&self, count: usize) {
        eventually(&format!("{count} requests at a worker"), || {
            self.count() >= count
        })
        .await;
    }

    /// Waits until the peer has closed on `count` requests.
    pub async fn wait_for_cancels(&self, count: usize) {
        let name = format!("{count} requests cancelled at a worker");
        eventually(&name, || self.cancelled().len() >= count).await;
    }

    /// Stops: resets every connection and frees the port, as a process that was killed.
    pub async fn kill(self) {
        self.accepting.abort();
        self.alive.send_replace(false);
        eventually("a killed worker's connections to close", || {
            self.open_connections() == 0
        })
        .await;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.accepting.abort();
        self.alive.send_replace(false);
    }
}

fn metrics_answer(text: &str) -> Vec<Step> {
    let length = text.len().to_string();
    let kind = "text/plain; version=0.0.4";
    vec![
        Step::head(200, &[("content-type", kind), ("content-length", &length)]),
        Step::raw(text.to_owned()),
    ]
}
