use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::client::reset_on_close;
use crate::http1::{Framing, Head, Piece, Wire};
use crate::script::json_answer;
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

#[derive(Debug, Default)]
struct State {
    requests: Vec<Recorded>,
    connections: usize,
    open: usize,
    in_flight: usize,
    in_flight_most: usize,
    /// Requests whose connection the peer closed before the script was through.
    cancelled: Vec<usize>,
    /// Uploads that ended before their framing did.
    cut_uploads: usize,
    finished: usize,
    written: BTreeMap<usize, usize>,
    probes: BTreeMap<String, usize>,
}

struct Shared {
    state: Mutex<State>,
    script: Mutex<Script>,
    answers: Mutex<BTreeMap<String, Vec<Step>>>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

/// Paths that engines answer without doing work. A GET on one of them is a probe: it is counted
/// apart from requests and answered by [`Worker::answer`], not by the script.
const PROBE_PATHS: &[&str] = &[
    "/health",
    "/health_generate",
    "/v1/models",
    "/metrics",
    "/version",
    "/props",
    "/slots",
    "/info",
    "/ping",
    "/get_model_info",
    "/get_server_info",
    "/server_info",
];

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

async fn accept(listener: TcpListener, shared: Arc<Shared>, alive: watch::Receiver<bool>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let _ = stream.set_nodelay(true);
        let number = {
            let mut state = shared.state();
            state.connections += 1;
            state.open += 1;
            state.connections - 1
        };
        tokio::spawn(connection(
            stream,
            number,
            Arc::clone(&shared),
            alive.clone(),
        ));
    }
}

async fn connection(
    stream: TcpStream,
    number: usize,
    shared: Arc<Shared>,
    mut alive: watch::Receiver<bool>,
) {
    let open = Open(Arc::clone(&shared));
    let (reader, writer) = stream.into_split();
    let out = Out {
        writer: Some(writer),
        reset: false,
    };
    let mut talk = Talk {
        wire: Wire::new(reader),
        out,
        number,
        shared,
    };
    let killed = tokio::select! {
        () = talk.run() => false,
        _ = alive.wait_for(|alive| !alive) => true,
    };
    talk.out.reset |= killed;
    drop(talk);
    drop(open);
}

struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.state().open -= 1;
    }
}

/// The writing half: closes with a FIN, or with a reset when that is asked for.
struct Out {
    writer: Option<OwnedWriteHalf>,
    reset: bool,
}

impl Out {
    fn writer(&mut self) -> std::io::Result<&mut OwnedWriteHalf> {
        self.writer
            .as_mut()
            .ok_or_else(|| std::io::ErrorKind::NotConnected.into())
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take()
            && self.reset
        {
            reset_on_close(writer);
        }
    }
}

struct Talk {
    wire: Wire<OwnedReadHalf>,
    out: Out,
    number: usize,
    shared: Arc<Shared>,
}

/// Counts a request as in flight until dropped, whichever way it ends.
struct InFlight(Arc<Shared>);

impl InFlight {
    fn enter(shared: &Arc<Shared>) -> Self {
        let mut state = shared.state();
        state.in_flight += 1;
        state.in_flight_most = state.in_flight_most.max(state.in_flight);
        drop(state);
        Self(Arc::clone(shared))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.state().in_flight -= 1;
    }
}

impl Talk {
    async fn run(&mut self) {
        loop {
            self.wire.begin();
            let Ok(Some(head)) = self.wire.head().await else {
                return;
            };
            let mut request = Recorded {
                connection: self.number,
                head,
                ..Recorded::default()
            };
            let path = request
                .target()
                .split('?')
                .next()
                .unwrap_or_default()
                .to_owned();
            let probe = request.method() == "GET" && PROBE_PATHS.contains(&path.as_str());
            let script = self.shared.script.lock().expect("script").clone();
            if (probe || script.reads_body) && !self.read_body(&mut request).await {
                self.shared.state().cut_uploads += 1;
                return;
            }
            let goes_on = if probe {
                self.probe(&path).await
            } else {
                self.answer(request, &script).await
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Reads the body; false when it was cut short.
    async fn read_body(&mut self, request: &mut Recorded) -> bool {
        self.wire.begin();
        match request.head.request_framing() {
            Framing::Length(length) => match self.wire.exactly(length).await {
                Ok(Some(body)) => request.body = body,
                _ => return false,
            },
            Framing::Chunked => loop {
                match self.wire.chunk().await {
                    Ok(Some(Piece::Data(data))) => request.body.extend(data),
                    Ok(Some(Piece::End)) => break,
                    _ => return false,
                }
            },
            Framing::Empty | Framing::UntilClose => {}
        }
        request.body_raw.clone_from(&self.wire.consumed);
        request.complete = true;
        true
    }

    async fn probe(&mut self, path: &str) -> bool {
        *self
            .shared
            .state()
            .probes
            .entry(path.to_owned())
            .or_default() += 1;
        let steps = self
            .shared
            .answers
            .lock()
            .expect("answers")
            .get(path)
            .cloned();
        let steps = steps.unwrap_or_else(|| json_answer(404, "{}"));
        matches!(self.perform(steps, None).await, Ended::Through)
    }

    async fn answer(&mut self, mut request: Recorded, script: &Script) -> bool {
        let _in_flight = InFlight::enter(&self.shared);
        let number = {
            let mut state = self.shared.state();
            request.number = state.requests.len();
            state.requests.push(request.clone());
            request.number
        };
        let ended = self.perform(script.steps(&request), Some(number)).await;
        let mut state = self.shared.state();
        match ended {
            Ended::Through => state.finished += 1,
            Ended::Closed => {}
            Ended::PeerGone => state.cancelled.push(number),
        }
        matches!(ended, Ended::Through) && script.reads_body
    }

    /// Runs the steps while watching whether the peer closes.
    async fn perform(&mut self, steps: Vec<Step>, number: Option<usize>) -> Ended {
        let shared = Arc::clone(&self.shared);
        let out = &mut self.out;
        let play = async {
            for step in steps {
                match play_step(out, step, number, &shared).await {
                    Ok(true) => {}
                    Ok(false) => return Ended::Closed,
                    Err(_) => return Ended::PeerGone,
                }
            }
            Ended::Through
        };
        let wire = &mut self.wire;
        let peer = async {
            // Bytes that come early belong to the next request; the end is a close.
            while !matches!(wire.fill().await, Ok(0) | Err(_)) {}
        };
        tokio::select! {
            biased;
            ended = play => ended,
            () = peer => Ended::PeerGone,
        }
    }
}

enum Ended {
    Through,
    Closed,
    PeerGone,
}

/// Plays one step; false when it ended the connection.
async fn play_step(
    out: &mut Out,
    step: Step,
    number: Option<usize>,
    shared: &Shared,
) -> std::io::Result<bool> {
    let bytes = match step {
        Step::Head(status, headers) => {
            let mut head = format!("HTTP/1.1 {status} {}\r\n", reason(status));
            for (name, value) in headers {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
            head.push_str("\r\n");
            head.into_bytes()
        }
        Step::Chunk(data) => {
            let mut bytes = format!("{:x}\r\n", data.len()).into_bytes();
            bytes.extend_from_slice(&data);
            bytes.extend_from_slice(b"\r\n");
            bytes
        }
        Step::End => b"0\r\n\r\n".to_vec(),
        Step::Raw(data) => data.to_vec(),
        Step::Wait(gate) => {
            gate.pass().await;
            return Ok(true);
        }
        Step::Delay(time) => {
            tokio::time::sleep(time).await;
            return Ok(true);
        }
        Step::Reset => {
            out.reset = true;
            return Ok(false);
        }
        Step::Close => {
            out.writer()?.shutdown().await?;
            return Ok(false);
        }
        Step::Hang => {
            std::future::pending::<()>().await;
            return Ok(false);
        }
    };
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let count = out.writer()?.write(rest).await?;
        rest = &rest[count..];
        if let Some(number) = number {
            *shared.state().written.entry(number).or_default() += count;
        }
    }
    Ok(true)
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "Status",
    }
}
