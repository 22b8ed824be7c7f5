//! One connection of a scripted worker: reads requests, plays their steps, watches the peer.
use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::client::reset_on_close;
use crate::http1::{Framing, Piece, Wire};
use crate::script::json_answer;
use crate::worker::Shared;
use crate::{Recorded, Script, Step};

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

/// Accepts connections and has each of them follow the script.
pub(crate) async fn accept(
    listener: TcpListener,
    shared: Arc<Shared>,
    alive: watch::Receiver<bool>,
) {
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
