//! A client's socket, watched: what was really sent is seen here before the HTTP library reads it.

use crate::upstream::gather;
use bytes::Bytes;
use memchr::memmem::Finder;
use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// Bytes of a head that are kept to see how it frames its body.
const HEAD_KEPT_MAX: usize = 64 << 10;
/// How long a refused client may go on sending before its connection is cut.
const LINGER: Duration = Duration::from_secs(2);
/// The end of a head.
static HEAD_END: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\r\n\r\n"));

/// The raw head of the request that is being read: the HTTP library joins fields that must not be
/// joined, so what was really sent is looked at here.
#[derive(Debug, Default)]
pub(crate) struct HeadWatch {
    /// It is asked for on the connection's own thread only; the lock is never waited for.
    heads: Mutex<Heads>,
}

#[derive(Debug, Default)]
struct Heads {
    kept: Vec<u8>,
    complete: bool,
    /// The connection ends while the client may still be sending.
    lingers: bool,
}

impl HeadWatch {
    /// Bytes came from the client.
    fn read(&self, bytes: &[u8]) {
        let mut heads = self.heads.lock();
        if heads.complete {
            return;
        }
        // Nearly always the whole head comes at once, with a body behind it that is not wanted.
        if heads.kept.is_empty()
            && let Some(end) = HEAD_END.find(bytes)
        {
            heads.kept.extend_from_slice(&bytes[..end + 2]);
            heads.complete = true;
            return;
        }
        let from = heads.kept.len().saturating_sub(3);
        let room = HEAD_KEPT_MAX.saturating_sub(heads.kept.len());
        heads
            .kept
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
        if let Some(end) = HEAD_END.find(&heads.kept[from..]) {
            heads.kept.truncate(from + end + 2);
            heads.complete = true;
        } else if bytes.len() > room {
            heads.complete = true;
        }
    }

    /// The request was read; the next bytes are the next one's.
    pub(crate) fn next(&self) {
        let mut heads = self.heads.lock();
        heads.kept.clear();
        heads.complete = false;
    }

    /// The request is refused before it was read whole: the answer must outlive what is on its way.
    pub(crate) fn linger(&self) {
        self.heads.lock().lingers = true;
    }

    fn lingers(&self) -> bool {
        self.heads.lock().lingers
    }

    /// Whether a request with a transfer coding came with a length too, or was sent in a way in
    /// which that can not be told (behind another one, unasked).
    pub(crate) fn ambiguous(&self, method: &str) -> bool {
        let heads = self.heads.lock();
        if !heads.complete || !heads.kept.starts_with(method.as_bytes()) {
            return true;
        }
        heads
            .kept
            .split(|b| *b == b'\n')
            .filter_map(|line| line.split(|b| *b == b':').next())
            .any(|name| name.trim_ascii().eq_ignore_ascii_case(b"content-length"))
    }
}

/// A client's socket, with what was read of it before its protocol was known.
pub(super) struct ClientStream {
    inner: TcpStream,
    begun: Bytes,
    heads: Option<Arc<HeadWatch>>,
    gathered: Vec<u8>,
    /// Set once our side is closed and the client's is waited for.
    linger: Option<Pin<Box<Sleep>>>,
}

impl ClientStream {
    pub(super) fn new(inner: TcpStream, begun: Bytes, heads: Option<Arc<HeadWatch>>) -> Self {
        if let Some(heads) = &heads {
            heads.read(&begun);
        }
        Self {
            inner,
            begun,
            heads,
            gathered: Vec::new(),
            linger: None,
        }
    }

    /// Reads on, into nothing, until the client has closed or its time is over: closing a socket
    /// with unread bytes resets it, and a reset destroys the answer that the client has not read.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let linger = self
            .linger
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        let mut nothing = [0_u8; 8 << 10];
        while linger.as_mut().poll(cx).is_pending() {
            let mut buf = ReadBuf::new(&mut nothing);
            let polled = ready!(Pin::new(&mut self.inner).poll_read(cx, &mut buf));
            if polled.is_err() || buf.filled().is_empty() {
                break;
            }
        }
        Poll::Ready(())
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.begun.is_empty() {
            let n = this.begun.len().min(buf.remaining());
            buf.put_slice(&this.begun.split_to(n));
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.inner).poll_read(cx, buf);
        if let Some(heads) = &this.heads
            && let Some(new) = buf.filled().get(before..)
            && !new.is_empty()
        {
            heads.read(new);
        }
        polled
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let stream = Pin::new(&mut this.inner);
        if gather(bufs, &mut this.gathered) {
            stream.poll_write(cx, &this.gathered)
        } else {
            stream.poll_write_vectored(cx, bufs)
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut self.inner).poll_shutdown(cx))?;
            if !self.heads.as_ref().is_some_and(|heads| heads.lingers()) {
                return Poll::Ready(Ok(()));
            }
        }
        self.poll_linger(cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::HeadWatch;

    fn watched(pieces: &[&str]) -> HeadWatch {
        let heads = HeadWatch::default();
        for piece in pieces {
            heads.read(piece.as_bytes());
        }
        heads
    }

    #[test]
    fn a_length_beside_a_coding_is_seen_wherever_the_head_is_cut() {
        let head = "POST / HTTP/1.1\r\nContent-length : 5\r\nTransfer-Encoding: chunked\r\n\r\n5";
        for cut in 0..head.len() {
            let (a, b) = head.split_at(cut);
            assert!(watched(&[a, b]).ambiguous("POST"), "cut {cut}");
        }
    }

    #[test]
    fn a_coding_alone_is_clear_also_where_the_body_speaks_of_lengths() {
        let head = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\r\ncontent-length: 5\r\n";
        assert!(!watched(&[head]).ambiguous("POST"));
        let single: Vec<String> = head.chars().map(String::from).collect();
        let single: Vec<&str> = single.iter().map(String::as_str).collect();
        assert!(!watched(&single).ambiguous("POST"));
    }

    #[test]
    fn what_was_not_seen_is_ambiguous() {
        assert!(watched(&[]).ambiguous("POST"));
        assert!(watched(&["POST / HTTP/1.1\r\n"]).ambiguous("POST"));
        assert!(watched(&["x: POST\r\n\r\n"]).ambiguous("POST"));
    }
}
