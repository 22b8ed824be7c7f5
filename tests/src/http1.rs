//! A small HTTP/1.1 reader that keeps the bytes as they were.
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// How a message's body was framed on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// No body by rule or by absence of framing.
    Empty,
    /// `content-length`.
    Length(usize),
    /// `transfer-encoding: chunked`.
    Chunked,
    /// Until the connection closes (responses only).
    UntilClose,
}

/// A start line and headers, with the raw bytes.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// Everything up to and with the blank line.
    pub raw: Vec<u8>,
    /// The start line.
    pub start: String,
    /// Header fields in wire order, names as they were written.
    pub headers: Vec<(String, String)>,
}

impl Head {
    fn parse(raw: Vec<u8>) -> Self {
        let text = String::from_utf8_lossy(&raw).into_owned();
        let mut lines = text.split("\r\n").filter(|line| !line.is_empty());
        let start = lines.next().unwrap_or_default().to_owned();
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect();
        Self {
            raw,
            start,
            headers,
        }
    }

    /// The first value of a header, whatever the case of its name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let matching = |(given, _): &&(String, String)| given.eq_ignore_ascii_case(name);
        self.headers
            .iter()
            .find(matching)
            .map(|(_, value)| value.as_str())
    }

    /// All values of a header, in wire order.
    pub fn headers_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let matching = move |(given, _): &&(String, String)| given.eq_ignore_ascii_case(name);
        self.headers
            .iter()
            .filter(matching)
            .map(|(_, value)| value.as_str())
    }

    /// The status code of a response's start line; 0 for a request.
    pub fn status(&self) -> u16 {
        let mut words = self.start.split(' ');
        match words.next() {
            Some(version) if version.starts_with("HTTP/") => {
                words.next().and_then(|code| code.parse().ok()).unwrap_or(0)
            }
            _ => 0,
        }
    }

    pub(crate) fn request_framing(&self) -> Framing {
        self.explicit_framing().unwrap_or(Framing::Empty)
    }

    pub(crate) fn response_framing(&self, to_head: bool) -> Framing {
        let status = self.status();
        if to_head || status == 204 || status == 304 || status < 200 {
            return Framing::Empty;
        }
        self.explicit_framing().unwrap_or(Framing::UntilClose)
    }

    fn explicit_framing(&self) -> Option<Framing> {
        let chunked = self
            .headers_named("transfer-encoding")
            .any(|value| value.to_ascii_lowercase().contains("chunked"));
        if chunked {
            return Some(Framing::Chunked);
        }
        let length = self.header("content-length")?.parse().ok()?;
        Some(if length == 0 {
            Framing::Empty
        } else {
            Framing::Length(length)
        })
    }
}

/// A response as it was read from the wire.
#[derive(Clone, Debug)]
pub struct Response {
    /// Status line and headers.
    pub head: Head,
    /// The decoded body.
    pub body: Vec<u8>,
    /// The chunks of a chunked body, one by one, without the last empty one.
    pub chunks: Vec<Vec<u8>>,
    /// How the body was framed.
    pub framing: Framing,
    /// Whether the framing's end was seen: all of content-length, or the last chunk with its
    /// blank line. A body that ends with the connection counts as complete on an orderly close.
    pub complete: bool,
    /// The error the connection ended with, when it did (a reset).
    pub error: Option<io::ErrorKind>,
}

impl Response {
    /// The status code.
    pub fn status(&self) -> u16 {
        self.head.status()
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; fails the test when it is none.
    pub fn json(&self) -> serde_json::Value {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(error) => panic!("no JSON ({error}): {} {}", self.head.start, self.text()),
        }
    }

    /// A response header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }
}

/// A reader with what was read ahead.
#[derive(Debug)]
pub(crate) struct Wire<R> {
    pub(crate) reader: R,
    pub(crate) ahead: Vec<u8>,
    /// All bytes consumed since the last [`Wire::begin`].
    pub(crate) consumed: Vec<u8>,
}

/// One piece of a body.
pub(crate) enum Piece {
    Data(Vec<u8>),
    End,
}

impl<R: AsyncRead + Unpin> Wire<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self {
            reader,
            ahead: Vec::new(),
            consumed: Vec::new(),
        }
    }

    pub(crate) fn begin(&mut self) {
        self.consumed.clear();
    }

    /// Reads more; `Ok(0)` is the end of the stream.
    pub(crate) async fn fill(&mut self) -> io::Result<usize> {
        self.ahead.reserve(16 * 1024);
        self.reader.read_buf(&mut self.ahead).await
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        let taken: Vec<u8> = self.ahead.drain(..count).collect();
        self.consumed.extend_from_slice(&taken);
        taken
    }

    async fn through(&mut self, mark: &[u8]) -> io::Result<Option<Vec<u8>>> {
        loop {
            let found = self
                .ahead
                .windows(mark.len())
                .position(|window| window == mark);
            if let Some(at) = found {
                return Ok(Some(self.take(at + mark.len())));
            }
            if self.fill().await? == 0 {
                return Ok(None);
            }
        }
    }

    /// Reads a head; `None` when the stream ended first.
    pub(crate) async fn head(&mut self) -> io::Result<Option<Head>> {
        Ok(self.through(b"\r\n\r\n").await?.map(Head::parse))
    }

    /// Reads one chunk of a chunked body; `None` when the stream ended inside it.
    pub(crate) async fn chunk(&mut self) -> io::Result<Option<Piece>> {
        let Some(line) = self.through(b"\r\n").await? else {
            return Ok(None);
        };
        let text = String::from_utf8_lossy(&line).into_owned();
        let digits = text.split([';', '\r']).next().unwrap_or_default().trim();
        let Ok(size) = usize::from_str_radix(digits, 16) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("chunk size {text:?}"),
            ));
        };
        if size == 0 {
            // Trailers, if any, and the blank line.
            while let Some(line) = self.through(b"\r\n").await? {
                if line == b"\r\n" {
                    return Ok(Some(Piece::End));
                }
            }
            return Ok(None);
        }
        let Some(mut data) = self.exactly(size + 2).await? else {
            return Ok(None);
        };
        data.truncate(size);
        Ok(Some(Piece::Data(data)))
    }

    /// Reads `count` bytes; `None` when the stream ended first.
    pub(crate) async fn exactly(&mut self, count: usize) -> io::Result<Option<Vec<u8>>> {
        while self.ahead.len() < count {
            if self.fill().await? == 0 {
                return Ok(None);
            }
        }
        Ok(Some(self.take(count)))
    }

    /// Whatever is there next, at most `most` bytes; `None` at the end of the stream.
    pub(crate) async fn some(&mut self, most: usize) -> io::Result<Option<Vec<u8>>> {
        if self.ahead.is_empty() && self.fill().await? == 0 {
            return Ok(None);
        }
        let count = self.ahead.len().min(most);
        Ok(Some(self.take(count)))
    }
}
