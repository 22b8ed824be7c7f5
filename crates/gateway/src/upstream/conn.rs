//! One HTTP/1.1 connection to a worker, held whole by whoever uses it: the request's own task writes,
//! reads and decodes, so that no other task is woken for a chunk, and dropping it closes the socket
//! at once, which is how an engine learns that its answer is not wanted any more.

use super::framing::Framing;
use super::{FramingError, Step};
use crate::config::WorkerUrl;
use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{HeaderMap, StatusCode};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;

/// Bytes of a response head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Fields of a response head.
const HEAD_FIELDS_MAX: usize = 128;
/// Room for one read.
const READ_BYTES: usize = 16 << 10;

/// Pieces that are no longer than this in all are written as one: copying them costs less than
/// handing the kernel a list.
const GATHER_BYTES: usize = 8 << 10;

/// Puts small pieces together in `whole`; false: they are better written as they are.
pub(crate) fn gather(pieces: &[IoSlice<'_>], whole: &mut Vec<u8>) -> bool {
    let length: usize = pieces.iter().map(|piece| piece.len()).sum();
    if length > GATHER_BYTES {
        return false;
    }
    whole.clear();
    for piece in pieces {
        whole.extend_from_slice(piece);
    }
    true
}

/// A response head.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) framing: Framing,
    /// The connection may be used again once the body was read.
    pub(crate) reusable: bool,
}

/// Why no response head came.
#[derive(Debug)]
pub(crate) enum ExchangeError {
    /// The connection broke; `silent`: not one byte of an answer had come.
    Broken { silent: bool },
    /// What came is no HTTP/1.1 response.
    Protocol,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Conn {
    stream: TcpStream,
    buf: BytesMut,
    /// It served a request before.
    pub(crate) reused: bool,
    since: Instant,
}

impl Conn {
    /// Connects; the caller bounds the time.
    pub(crate) async fn open(base: &WorkerUrl) -> io::Result<Self> {
        let stream = match base.host.parse::<std::net::IpAddr>() {
            Ok(address) => TcpStream::connect((address, base.port)).await?,
            Err(_) => TcpStream::connect((base.host.as_str(), base.port)).await?,
        };
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            buf: BytesMut::with_capacity(READ_BYTES),
            reused: false,
            since: Instant::now(),
        })
    }

    /// Whether the worker has neither closed it nor said anything unasked.
    pub(crate) fn is_open(&mut self) -> bool {
        let mut byte = [0_u8; 1];
        self.buf.is_empty()
            && matches!(self.stream.try_read(&mut byte), Err(e) if e.kind() == io::ErrorKind::WouldBlock)
    }

    /// Its answer was read to its end; it rests from now.
    pub(crate) fn rest(&mut self) {
        self.reused = true;
        self.since = Instant::now();
        if self.buf.capacity() > 4 * READ_BYTES {
            self.buf = BytesMut::new();
        }
    }

    /// How long it has rested.
    pub(crate) fn idle_for(&self) -> Duration {
        self.since.elapsed()
    }

    /// Sends a request and reads the head of its answer. An answer that comes before the request
    /// was sent whole (a refusal) is taken; the connection is then not used again.
    pub(crate) async fn exchange(
        &mut self,
        mut head: Vec<u8>,
        mut body: &[u8],
        no_body_expected: bool,
    ) -> Result<Head, ExchangeError> {
        if head.len() + body.len() <= GATHER_BYTES {
            head.extend_from_slice(body);
            body = &[];
        }
        let mut written = 0;
        let mut broken = false;
        let mut heard = false;
        let total = head.len() + body.len();
        poll_fn(|cx| {
            while written < total && !broken {
                let head_left = head.get(written..).unwrap_or_default();
                let body_left = &body[written.saturating_sub(head.len())..];
                let stream = Pin::new(&mut self.stream);
                let polled = if head_left.is_empty() {
                    stream.poll_write(cx, body_left)
                } else if body_left.is_empty() {
                    stream.poll_write(cx, head_left)
                } else {
                    let pieces = [IoSlice::new(head_left), IoSlice::new(body_left)];
                    stream.poll_write_vectored(cx, &pieces)
                };
                match polled {
                    Poll::Ready(Ok(n)) if n > 0 => written += n,
                    // It may have answered before it closed: read on.
                    Poll::Ready(_) => broken = true,
                    Poll::Pending => break,
                }
            }
            loop {
                if heard {
                    match self.parse_head(no_body_expected) {
                        Ok(Some(mut found)) => {
                            found.reusable &= written == total;
                            return Poll::Ready(Ok(found));
                        }
                        Ok(None) => {}
                        Err(e) => return Poll::Ready(Err(e)),
                    }
                }
                match ready!(self.poll_fill(cx)) {
                    Ok(n) if n > 0 => heard = true,
                    _ => return Poll::Ready(Err(ExchangeError::Broken { silent: !heard })),
                }
            }
        })
        .await
    }

    /// The next piece of the body.
    pub(crate) fn poll_body(
        &mut self,
        framing: &mut Framing,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, BodyBroken>> {
        loop {
            match framing.next(&mut self.buf) {
                Ok(Step::Data(data)) => return Poll::Ready(Ok(Some(data))),
                Ok(Step::End) => return Poll::Ready(Ok(None)),
                Ok(Step::More) => {}
                Err(FramingError) => return Poll::Ready(Err(BodyBroken)),
            }
            match ready!(self.poll_fill(cx)) {
                Ok(0) if *framing == Framing::Close => {
                    *framing = Framing::Empty;
                    return Poll::Ready(Ok(None));
                }
                Ok(0) | Err(_) => return Poll::Ready(Err(BodyBroken)),
                Ok(_) => {}
            }
        }
    }

    /// Reads what is there.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.buf.capacity() - self.buf.len() < READ_BYTES / 4 {
            self.buf.reserve(READ_BYTES);
        }
        // Cancel safe and without state: a new one for each poll loses nothing.
        pin!(self.stream.read_buf(&mut self.buf)).poll(cx)
    }

    fn parse_head(&mut self, no_body_expected: bool) -> Result<Option<Head>, ExchangeError> {
        loop {
            let Some(parsed) = parse(&self.buf)? else {
                return if self.buf.len() > HEAD_BYTES_MAX {
                    Err(ExchangeError::Protocol)
                } else {
                    Ok(None)
                };
            };
            let raw = self.buf.split_to(parsed.length).freeze();
            if parsed.status.is_informational() {
                if parsed.status == StatusCode::SWITCHING_PROTOCOLS {
                    return Err(ExchangeError::Protocol);
                }
                continue;
            }
            return finish_head(&raw, &parsed, no_body_expected).map(Some);
        }
    }
}

/// A body broke off or could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodyBroken;

struct Parsed {
    length: usize,
    status: StatusCode,
    keeps: bool,
    /// Name and value of each field, as ranges of the head.
    fields: Vec<[usize; 4]>,
}

/// Reads a response head at the beginning of `bytes`; None: not all of it is there.
fn parse(bytes: &[u8]) -> Result<Option<Parsed>, ExchangeError> {
    let mut fields = [httparse::EMPTY_HEADER; HEAD_FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    let length = match response.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(ExchangeError::Protocol),
    };
    let status = response.code.unwrap_or(0);
    let status = StatusCode::from_u16(status).map_err(|_| ExchangeError::Protocol)?;
    let start = bytes.as_ptr() as usize;
    let place = |part: &[u8]| (part.as_ptr() as usize).saturating_sub(start);
    let fields = response
        .headers
        .iter()
        .map(|f| {
            let (name, value) = (place(f.name.as_bytes()), place(f.value));
            [name, name + f.name.len(), value, value + f.value.len()]
        })
        .collect();
    Ok(Some(Parsed {
        length,
        status,
        keeps: response.version == Some(1),
        fields,
    }))
}

fn finish_head(
    raw: &Bytes,
    parsed: &Parsed,
    no_body_expected: bool,
) -> Result<Head, ExchangeError> {
    let mut headers = HeaderMap::with_capacity(parsed.fields.len());
    for &[name, name_end, value, value_end] in &parsed.fields {
        let name = HeaderName::from_bytes(&raw[name..name_end]);
        // An empty value may point anywhere; it has no bytes to point at.
        let value = if value < value_end {
            HeaderValue::from_maybe_shared(raw.slice(value..value_end))
        } else {
            Ok(HeaderValue::from_static(""))
        };
        let (Ok(name), Ok(value)) = (name, value) else {
            return Err(ExchangeError::Protocol);
        };
        headers.append(name, value);
    }
    let framing = framing_of(parsed.status, &headers, no_body_expected)?;
    let reusable = keeps_alive(parsed.keeps, &headers) && framing != Framing::Close;
    Ok(Head {
        status: parsed.status,
        headers,
        framing,
        reusable,
    })
}

/// RFC 9112 section 6.3. A response with both a length and a transfer coding is refused.
fn framing_of(
    status: StatusCode,
    headers: &HeaderMap,
    no_body_expected: bool,
) -> Result<Framing, ExchangeError> {
    if no_body_expected || status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED {
        return Ok(Framing::Empty);
    }
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let length = lengths.next();
    if headers.contains_key(TRANSFER_ENCODING) {
        let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
        let only_chunked = codings
            .next()
            .is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"chunked"))
            && codings.next().is_none();
        return if only_chunked && length.is_none() {
            Ok(Framing::CHUNKED)
        } else {
            Err(ExchangeError::Protocol)
        };
    }
    let Some(length) = length else {
        return Ok(Framing::Close);
    };
    if lengths.any(|other| other != length) {
        return Err(ExchangeError::Protocol);
    }
    let text = length.to_str().map_err(|_| ExchangeError::Protocol)?;
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(ExchangeError::Protocol);
    }
    text.parse()
        .map(Framing::Length)
        .map_err(|_| ExchangeError::Protocol)
}

fn keeps_alive(http11: bool, headers: &HeaderMap) -> bool {
    let says = |word: &str| {
        headers.get_all(CONNECTION).iter().any(|v| {
            v.to_str()
                .is_ok_and(|v| v.split(',').any(|t| t.trim().eq_ignore_ascii_case(word)))
        })
    };
    !says("close") && (http11 || says("keep-alive"))
}
