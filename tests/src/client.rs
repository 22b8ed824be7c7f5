use std::io;
use std::net::SocketAddr;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::http1::{Framing, Head, Piece, Response, Wire};
use crate::within;

/// A client that writes bytes as given and reads the answer piece by piece.
#[derive(Debug)]
pub struct Client {
    wire: Wire<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    left: Left,
}

/// What remains of the body being read.
#[derive(Debug, Clone, Copy)]
enum Left {
    Nothing,
    Bytes(usize),
    Chunks,
    UntilClose,
}

impl Client {
    /// Connects, with TCP_NODELAY.
    pub async fn connect(addr: SocketAddr) -> Self {
        let stream = within("connect", TcpStream::connect(addr))
            .await
            .expect("connect");
        stream.set_nodelay(true).expect("nodelay");
        let (reader, writer) = stream.into_split();
        Self {
            wire: Wire::new(reader),
            writer,
            left: Left::Nothing,
        }
    }

    /// The client's own address.
    pub fn local_addr(&self) -> SocketAddr {
        self.writer.local_addr().expect("local address")
    }

    /// Sends bytes as they are.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        within("send", self.writer.write_all(bytes.as_ref()))
            .await
            .expect("send");
    }

    /// Sends bytes as they are; a peer that closed is not a failure of the test.
    pub async fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        within("send", self.writer.write_all(bytes.as_ref())).await
    }

    /// Sends a JSON POST with a content-length and reads the whole answer.
    pub async fn post(&mut self, path: &str, body: impl AsRef<[u8]>) -> Response {
        self.exchange(&request(
            "POST",
            path,
            &[("content-type", "application/json")],
            body,
        ))
        .await
    }

    /// Sends a GET and reads the whole answer.
    pub async fn get(&mut self, path: &str) -> Response {
        self.exchange(&request("GET", path, &[], "")).await
    }

    /// Sends these bytes and reads the whole answer.
    pub async fn exchange(&mut self, bytes: &[u8]) -> Response {
        self.send(bytes).await;
        self.read_response().await
    }

    /// Reads a head, skipping interim (1xx) ones; fails the test when the stream ends before it.
    pub async fn read_head(&mut self) -> Head {
        match self.try_read_head().await {
            Ok(Some(head)) => head,
            Ok(None) => panic!("connection closed before a response"),
            Err(error) => panic!("connection failed before a response: {error}"),
        }
    }

    /// Reads a head, skipping interim (1xx) ones; `None` when the stream ended before it.
    pub async fn try_read_head(&mut self) -> io::Result<Option<Head>> {
        loop {
            self.wire.begin();
            let Some(head) = within("response head", self.wire.head()).await? else {
                return Ok(None);
            };
            if (100..200).contains(&head.status()) {
                continue;
            }
            self.left = match head.response_framing(false) {
                Framing::Empty => Left::Nothing,
                Framing::Length(length) => Left::Bytes(length),
                Framing::Chunked => Left::Chunks,
                Framing::UntilClose => Left::UntilClose,
            };
            return Ok(Some(head));
        }
    }

    /// Reads the next piece of the body: one chunk exactly as it was framed, or what arrived.
    ///
    /// `Ok(None)` is the end of the body by its framing; an `UnexpectedEof` error is a body that
    /// was cut short by an orderly close; other errors are the socket's.
    pub async fn read_piece(&mut self) -> io::Result<Option<Vec<u8>>> {
        let cut = || io::Error::from(io::ErrorKind::UnexpectedEof);
        match self.left {
            Left::Nothing => Ok(None),
            Left::Bytes(count) => {
                let piece = within("body", self.wire.some(count))
                    .await?
                    .ok_or_else(cut)?;
                let rest = count - piece.len();
                self.left = if rest == 0 {
                    Left::Nothing
                } else {
                    Left::Bytes(rest)
                };
                Ok(Some(piece))
            }
            Left::Chunks => match within("chunk", self.wire.chunk()).await?.ok_or_else(cut)? {
                Piece::Data(data) => Ok(Some(data)),
                Piece::End => {
                    self.left = Left::Nothing;
                    Ok(None)
                }
            },
            Left::UntilClose => {
                let piece = within("body", self.wire.some(usize::MAX)).await?;
                if piece.is_none() {
                    self.left = Left::Nothing;
                }
                Ok(piece)
            }
        }
    }

    /// Reads pieces until at least `count` bytes of the body have come; fails when it ends first.
    pub async fn read_at_least(&mut self, count: usize) -> Vec<u8> {
        let mut body = Vec::new();
        while body.len() < count {
            match self.read_piece().await {
                Ok(Some(piece)) => body.extend(piece),
                end => panic!("body ended at {} of {count} bytes: {end:?}", body.len()),
            }
        }
        body
    }

    /// Reads a head and the body to its end, however it ends.
    pub async fn read_response(&mut self) -> Response {
        let head = self.read_head().await;
        self.finish(head).await
    }

    /// Reads the rest of the body whose head was read, to its end, however it ends.
    pub async fn finish(&mut self, head: Head) -> Response {
        let framing = head.response_framing(false);
        let mut response = Response {
            head,
            body: Vec::new(),
            chunks: Vec::new(),
            framing,
            complete: false,
            error: None,
        };
        loop {
            match self.read_piece().await {
                Ok(Some(piece)) => {
                    response.body.extend_from_slice(&piece);
                    if framing == Framing::Chunked {
                        response.chunks.push(piece);
                    }
                }
                Ok(None) => {
                    response.complete = true;
                    return response;
                }
                Err(error) => {
                    response.error = Some(error.kind());
                    return response;
                }
            }
        }
    }

    /// Waits until the peer has closed; whatever else it sends is returned.
    pub async fn closed(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        while let Ok(Some(bytes)) = within("close", self.wire.some(usize::MAX)).await {
            rest.extend(bytes);
        }
        rest
    }

    /// Closes the sending side only.
    pub async fn half_close(&mut self) {
        self.writer.shutdown().await.expect("half close");
    }

    /// Closes with a TCP reset, as a client that crashed.
    pub fn abort(self) {
        reset_on_close(self.writer);
    }
}

/// Makes the close of this connection a reset: no lingering, and no FIN when the half is dropped.
pub(crate) fn reset_on_close(writer: OwnedWriteHalf) {
    let _ = socket2::SockRef::from(writer.as_ref()).set_linger(Some(std::time::Duration::ZERO));
    writer.forget();
}

/// The bytes of a request with a `host` (its own, unless the headers have one), a content-length (unless GET) and these headers.
pub fn request(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl AsRef<[u8]>,
) -> Vec<u8> {
    let body = body.as_ref();
    let mut bytes = format!("{method} {path} HTTP/1.1\r\n").into_bytes();
    if !headers
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("host"))
    {
        bytes.extend_from_slice(b"host: maitred.test\r\n");
    }
    for (name, value) in headers {
        bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    if method != "GET" {
        bytes.extend_from_slice(format!("content-length: {}\r\n", body.len()).as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body);
    bytes
}

/// Bytes as text, for messages and comparisons.
pub fn text(bytes: impl AsRef<[u8]>) -> String {
    String::from_utf8_lossy(bytes.as_ref()).into_owned()
}
