//! One client's connection: sends a chat request, reads the stream, notes when the first token came.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// Longest SSE event read, bytes.
const EVENT_MAX: usize = 1 << 20;

/// A keep-alive connection to the gateway.
#[derive(Debug)]
pub(crate) struct Client {
    gateway: SocketAddr,
    sender: Option<SendRequest<Full<Bytes>>>,
}

/// An answer, whole.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// From sending to the first token.
    pub(crate) ttft: Duration,
    /// What was said.
    pub(crate) text: String,
    /// Prompt tokens, as the engine counts them.
    pub(crate) prompt_tokens: u64,
    /// Of those from the engine's cache.
    pub(crate) cached_tokens: u64,
    /// Tokens of the answer.
    pub(crate) completion_tokens: u64,
}

impl Client {
    /// Connects on first use.
    pub(crate) fn new(gateway: SocketAddr) -> Self {
        Self {
            gateway,
            sender: None,
        }
    }

    /// Sends one chat request and reads the answer to its end. The error is for people.
    pub(crate) async fn ask(
        &mut self,
        session: Option<&str>,
        body: Vec<u8>,
    ) -> Result<Answer, String> {
        let mut request = Request::post("/v1/chat/completions")
            .header("host", self.gateway.to_string())
            .header("content-type", "application/json");
        if let Some(session) = session {
            request = request.header("x-session-id", session);
        }
        let request = request
            .body(Full::new(Bytes::from(body)))
            .map_err(|e| format!("request: {e}"))?;
        let mut sender = match self.sender.take() {
            Some(sender) if sender.is_ready() => sender,
            _ => self.connect().await?,
        };
        let sent = Instant::now();
        let response = sender
            .send_request(request)
            .await
            .map_err(|e| format!("send: {e}"))?;
        let status = response.status();
        let mut body = response.into_body();
        if !status.is_success() {
            let text = body
                .collect()
                .await
                .map(|b| b.to_bytes())
                .unwrap_or_default();
            let shown: String = String::from_utf8_lossy(&text).chars().take(200).collect();
            return Err(format!("{status}: {shown}"));
        }
        let answer = listen(&mut body, sent).await?;
        self.sender = Some(sender);
        Ok(answer)
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let socket = TcpStream::connect(self.gateway)
            .await
            .map_err(|e| format!("connect: {e}"))?;
        socket
            .set_nodelay(true)
            .map_err(|e| format!("connect: {e}"))?;
        let (mut sender, connection) = handshake(TokioIo::new(socket))
            .await
            .map_err(|e| format!("connect: {e}"))?;
        // Ends when the sender is dropped; its error shows at the request it breaks.
        tokio::spawn(async move { drop(connection.await) });
        sender.ready().await.map_err(|e| format!("connect: {e}"))?;
        Ok(sender)
    }
}

async fn listen(body: &mut Incoming, sent: Instant) -> Result<Answer, String> {
    let mut answer = Answer::default();
    let mut pending = Vec::new();
    let (mut usage_seen, mut done) = (false, false);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| format!("stream: {e}"))?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        pending.extend_from_slice(data);
        while let Some(end) = pending.windows(2).position(|w| w == b"\n\n") {
            let event: Vec<u8> = pending.drain(..end + 2).collect();
            let Some(data) = event.strip_prefix(b"data: ") else {
                continue;
            };
            if data.starts_with(b"[DONE]") {
                done = true;
                continue;
            }
            let event: Value = serde_json::from_slice(data).map_err(|e| format!("event: {e}"))?;
            if let Some(text) = event
                .pointer("/choices/0/delta/content")
                .and_then(Value::as_str)
                && !text.is_empty()
            {
                if answer.text.is_empty() {
                    answer.ttft = sent.elapsed();
                }
                answer.text.push_str(text);
            }
            if let Some(usage) = event.get("usage").filter(|u| u.is_object()) {
                let count = |at: &str| {
                    let known = usage.pointer(at).and_then(Value::as_u64);
                    known.ok_or_else(|| format!("usage: no {at}"))
                };
                answer.prompt_tokens = count("/prompt_tokens")?;
                answer.completion_tokens = count("/completion_tokens")?;
                answer.cached_tokens = count("/prompt_tokens_details/cached_tokens")?;
                usage_seen = true;
            }
        }
        if pending.len() > EVENT_MAX {
            return Err("event: too long".to_owned());
        }
    }
    if done && usage_seen {
        Ok(answer)
    } else {
        Err("stream: ended early".to_owned())
    }
}
