//! One connection.

use crate::frame::{self, GREETING_BYTES};
use crate::{Endpoint, FRAMES_MAX, MESSAGE_BYTES_MAX};
use bytes::{Bytes, BytesMut};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

/// A silent connection is asked for life this often; a dead one must not look like an idle engine.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// Why a connection cannot be used, or not any more.
#[derive(Debug, thiserror::Error)]
pub enum ZmtpError {
    /// It could not be made, or broke.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer ended it.
    #[error("closed by the peer")]
    Closed,
    /// It was not made in time.
    #[error("no connection within {0:?}")]
    Timeout(Duration),
    /// The peer speaks something else.
    #[error("the peer {0}")]
    Protocol(&'static str),
    /// The peer sent too much at once.
    #[error("message of more than {MESSAGE_BYTES_MAX} bytes or {FRAMES_MAX} frames")]
    TooLong,
}

/// What a side of a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Publishes.
    Pub,
    /// Subscribes.
    Sub,
    /// Asks.
    Dealer,
    /// Answers those who ask.
    Router,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Pub => "PUB",
            Self::Sub => "SUB",
            Self::Dealer => "DEALER",
            Self::Router => "ROUTER",
        }
    }

    fn talks_to(self, other: &[u8]) -> bool {
        match self {
            Self::Pub => matches!(other, b"SUB" | b"XSUB"),
            Self::Sub => matches!(other, b"PUB" | b"XPUB"),
            Self::Dealer => matches!(other, b"ROUTER" | b"DEALER" | b"REP"),
            Self::Router => matches!(other, b"DEALER" | b"ROUTER" | b"REQ"),
        }
    }
}

/// What a subscriber tells a publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subscription {
    /// Send topics that begin so.
    Add(Bytes),
    /// Do not any more.
    Drop(Bytes),
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection whose handshake is done.
///
/// Every method may be dropped before it is done without losing or doubling bytes.
pub struct Peer {
    stream: Box<dyn Stream>,
    input: BytesMut,
    output: BytesMut,
    /// Frames of a message that is not whole yet.
    frames: Vec<Bytes>,
    frames_bytes: usize,
    publishes: bool,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer")
            .field("input", &self.input.len())
            .field("output", &self.output.len())
            .finish_non_exhaustive()
    }
}

/// What came.
enum Arrived {
    Message(Vec<Bytes>),
    Command(Bytes, Bytes),
}

impl Peer {
    /// Connects to `endpoint` as `kind` and shakes hands, within `timeout`.
    ///
    /// # Errors
    /// Nobody is there, or somebody else.
    pub async fn connect(
        endpoint: &Endpoint,
        kind: Kind,
        timeout: Duration,
    ) -> Result<Self, ZmtpError> {
        let connecting = async {
            match endpoint {
                Endpoint::Tcp { host, port } => {
                    let stream = TcpStream::connect((host.as_str(), *port)).await?;
                    Self::over_tcp(stream, kind).await
                }
                Endpoint::Ipc(path) => {
                    let stream = UnixStream::connect(path).await?;
                    Self::over(Box::new(stream), kind).await
                }
            }
        };
        match tokio::time::timeout(timeout, connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(ZmtpError::Timeout(timeout)),
        }
    }

    pub(crate) async fn over_tcp(stream: TcpStream, kind: Kind) -> Result<Self, ZmtpError> {
        stream.set_nodelay(true)?;
        let alive = socket2::TcpKeepalive::new()
            .with_time(KEEPALIVE)
            .with_interval(KEEPALIVE);
        socket2::SockRef::from(&stream).set_tcp_keepalive(&alive)?;
        Self::over(Box::new(stream), kind).await
    }

    pub(crate) async fn over_ipc(stream: UnixStream, kind: Kind) -> Result<Self, ZmtpError> {
        Self::over(Box::new(stream), kind).await
    }

    async fn over(mut stream: Box<dyn Stream>, kind: Kind) -> Result<Self, ZmtpError> {
        stream.write_all(&frame::greeting()).await?;
        let mut theirs = [0; GREETING_BYTES];
        stream
            .read_exact(&mut theirs)
            .await
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => ZmtpError::Closed,
                _ => ZmtpError::Io(error),
            })?;
        frame::check_greeting(&theirs).map_err(ZmtpError::Protocol)?;
        let mut peer = Self {
            stream,
            input: BytesMut::new(),
            output: BytesMut::new(),
            frames: Vec::new(),
            frames_bytes: 0,
            publishes: kind == Kind::Pub,
        };
        frame::put_ready(kind.name(), &mut peer.output);
        peer.flush().await?;
        match peer.arrive().await? {
            Arrived::Command(name, data) if &name[..] == b"READY" => {
                let theirs = frame::ready_kind(&data).unwrap_or_default();
                if kind.talks_to(theirs) {
                    Ok(peer)
                } else {
                    Err(ZmtpError::Protocol("is another kind of socket"))
                }
            }
            Arrived::Command(name, _) if &name[..] == b"ERROR" => {
                Err(ZmtpError::Protocol("refused the handshake"))
            }
            _ => Err(ZmtpError::Protocol("did not shake hands")),
        }
    }

    /// Asks for all topics that begin with `topic`.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn subscribe(&mut self, topic: &[u8]) -> Result<(), ZmtpError> {
        let asked = [&[1], topic].concat();
        self.send(&[asked]).await
    }

    /// Sends a message. Dropped before it is done, the rest goes out before whatever comes next.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn send<F: AsRef<[u8]>>(&mut self, frames: &[F]) -> Result<(), ZmtpError> {
        frame::put_message(frames, &mut self.output);
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), ZmtpError> {
        while !self.output.is_empty() {
            if self.stream.write_buf(&mut self.output).await? == 0 {
                return Err(ZmtpError::Closed);
            }
        }
        self.stream.flush().await?;
        Ok(())
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// The connection broke, or what came is not to be taken; it is of no use then.
    pub async fn recv(&mut self) -> Result<Vec<Bytes>, ZmtpError> {
        loop {
            if let Arrived::Message(frames) = self.arrive().await? {
                return Ok(frames);
            }
        }
    }

    /// Waits for the next thing that a subscriber says, of a connection as publisher.
    ///
    /// # Errors
    /// As [`Peer::recv`].
    pub async fn subscription(&mut self) -> Result<Subscription, ZmtpError> {
        loop {
            match self.arrive().await? {
                // ZMTP 3.0: a message that begins with 1 or 0.
                Arrived::Message(mut frames) if frames.len() == 1 => {
                    let topic = frames.swap_remove(0);
                    match topic.first() {
                        Some(1) => return Ok(Subscription::Add(topic.slice(1..))),
                        Some(0) => return Ok(Subscription::Drop(topic.slice(1..))),
                        _ => {}
                    }
                }
                Arrived::Message(_) => {}
                // ZMTP 3.1: a command.
                Arrived::Command(name, topic) => match &name[..] {
                    b"SUBSCRIBE" => return Ok(Subscription::Add(topic)),
                    b"CANCEL" => return Ok(Subscription::Drop(topic)),
                    _ => {}
                },
            }
        }
    }

    async fn arrive(&mut self) -> Result<Arrived, ZmtpError> {
        loop {
            if !self.output.is_empty() {
                self.flush().await?;
            }
            while let Some((head, body)) = self.frame()? {
                if head.command {
                    let Some((name, data)) = frame::command(&body) else {
                        return Err(ZmtpError::Protocol("sent a command without a name"));
                    };
                    if &name[..] == b"PING" {
                        // After a time to live of two bytes comes what is to be sent back.
                        let back = data.get(2..).unwrap_or_default();
                        frame::put_command("PONG", back, &mut self.output);
                        self.flush().await?;
                        continue;
                    }
                    return Ok(Arrived::Command(name, data));
                }
                self.frames_bytes += body.len();
                self.frames.push(body);
                if self.frames_bytes > MESSAGE_BYTES_MAX || self.frames.len() > FRAMES_MAX {
                    return Err(ZmtpError::TooLong);
                }
                if !head.more {
                    self.frames_bytes = 0;
                    return Ok(Arrived::Message(std::mem::take(&mut self.frames)));
                }
            }
            self.fill().await?;
        }
    }

    /// Takes a whole frame from what was read.
    fn frame(&mut self) -> Result<Option<(frame::Head, Bytes)>, ZmtpError> {
        let Some(head) = frame::head(&self.input).map_err(ZmtpError::Protocol)? else {
            return Ok(None);
        };
        // Who only subscribes has nothing long to say.
        let most = if self.publishes {
            4_096
        } else {
            MESSAGE_BYTES_MAX
        };
        let body = usize::try_from(head.body).unwrap_or(usize::MAX);
        if body > most {
            return Err(ZmtpError::TooLong);
        }
        let whole = head.bytes + body;
        if self.input.len() < whole {
            // What is promised is only reserved as it comes, but not in crumbs.
            let missing = whole - self.input.len();
            self.input
                .reserve(missing.min(self.input.len().max(65_536)));
            return Ok(None);
        }
        let mut whole = self.input.split_to(whole);
        let body = whole.split_off(head.bytes);
        Ok(Some((head, body.freeze())))
    }

    async fn fill(&mut self) -> Result<(), ZmtpError> {
        if self.input.capacity() - self.input.len() < 1_024 {
            self.input.reserve(16_384);
        }
        match self.stream.read_buf(&mut self.input).await? {
            0 => Err(ZmtpError::Closed),
            _ => Ok(()),
        }
    }
}
