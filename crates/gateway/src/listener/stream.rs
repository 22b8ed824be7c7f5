//! A client's socket, watched: what was really sent is seen here before the HTTP library reads it, a
//! client that leaves is seen although the library does not read, and the library's own refusals
//! get a body.

use super::unread;
use crate::service::Client;
use crate::upstream::gather;
use bytes::Bytes;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::Sleep;

/// How long a refused client may go on sending before its connection is cut.
const LINGER: Duration = Duration::from_secs(2);

/// A client's socket, with what was read of it before its protocol was known.
pub(super) struct ClientStream {
    read: OwnedReadHalf,
    /// None once our side is closed: dropping it closes it.
    write: Option<Arc<OwnedWriteHalf>>,
    begun: Bytes,
    /// Whose it is, where it speaks HTTP/1.
    client: Option<Arc<Client>>,
    /// Ready once the client has left.
    gone: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    gathered: Vec<u8>,
    /// Our text in place of a refusal of the HTTP library's; what of it is not written yet.
    instead: Option<Bytes>,
    /// Set once our side is closed and the client's is waited for.
    linger: Option<Pin<Box<Sleep>>>,
}

/// Ready once the client has left. The HTTP library looks for the end of what is sent by reading,
/// and it does not read on while bytes of a next request wait with it: so the system is asked.
async fn gone(socket: Arc<OwnedWriteHalf>, tolerate_half_close: bool) {
    let reset = Interest::ERROR;
    // "Priority" comes with "the other side is closed" and, unlike "readable", not with data.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let closed = reset.add(Interest::PRIORITY);
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let closed = reset;
    let interest = if tolerate_half_close { reset } else { closed };
    // An error means that the runtime ends: everybody has left.
    let _ = socket.ready(interest).await;
}

/// Writes once the socket takes something.
fn poll_write_with(
    half: Option<&Arc<OwnedWriteHalf>>,
    cx: &mut Context<'_>,
    write: impl Fn(&OwnedWriteHalf) -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    let Some(half) = half else {
        return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
    };
    let socket: &TcpStream = half.as_ref().as_ref();
    loop {
        ready!(socket.poll_write_ready(cx))?;
        match write(half) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            written => return Poll::Ready(written),
        }
    }
}

impl ClientStream {
    /// `client`: whose it is, where HTTP/1 is spoken.
    pub(super) fn new(inner: TcpStream, begun: Bytes, client: Option<Arc<Client>>) -> Self {
        if let Some(heads) = client.as_ref().and_then(|c| c.heads.as_ref()) {
            heads.read(&begun);
        }
        let (read, write) = inner.into_split();
        Self {
            read,
            write: Some(Arc::new(write)),
            begun,
            client,
            gone: None,
            gathered: Vec::new(),
            instead: None,
            linger: None,
        }
    }

    /// An error once the client has left while somebody works for it. The HTTP library flushes
    /// whenever it looks at the connection, so this is asked often enough to be woken.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let (Some(client), Some(write)) = (&self.client, &self.write) else {
            return Poll::Pending;
        };
        if !client.heads.as_ref().is_some_and(|h| h.is_attended()) {
            return Poll::Pending;
        }
        let tolerates = client.shard.gateway.config.tolerate_half_close;
        let gone = self
            .gone
            .get_or_insert_with(|| Box::pin(gone(Arc::clone(write), tolerates)));
        ready!(gone.as_mut().poll(cx));
        self.gone = None;
        Poll::Ready(io::ErrorKind::ConnectionAborted.into())
    }

    /// What a write came to; where it waits, the client may be gone.
    fn or_gone(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Pending => self.poll_gone(cx).map(Err),
            written => written,
        }
    }

    /// Writes our own refusal in place of the library's, which was `length` bytes long.
    fn poll_instead(&mut self, cx: &mut Context<'_>, length: usize) -> Poll<io::Result<usize>> {
        while let Some(rest) = self.instead.clone().filter(|rest| !rest.is_empty()) {
            let written = poll_write_with(self.write.as_ref(), cx, |half| half.try_write(&rest));
            let n = ready!(self.or_gone(cx, written))?;
            self.instead = Some(rest.slice(n..));
        }
        self.instead = None;
        Poll::Ready(Ok(length))
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
            let polled = ready!(Pin::new(&mut self.read).poll_read(cx, &mut buf));
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
        let polled = Pin::new(&mut this.read).poll_read(cx, buf);
        if let Some(heads) = this.client.as_ref().and_then(|c| c.heads.as_ref())
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
        let written = poll_write_with(self.write.as_ref(), cx, |half| half.try_write(buf));
        self.or_gone(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if !gather(bufs, &mut this.gathered) {
            let write = |half: &OwnedWriteHalf| half.try_write_vectored(bufs);
            let written = poll_write_with(this.write.as_ref(), cx, write);
            return this.or_gone(cx, written);
        }
        if this.instead.is_none()
            && let Some(client) = &this.client
            && let Some(status) = unread::refusal(&this.gathered)
        {
            this.instead = Some(unread::answer(client, status, &this.gathered));
        }
        if this.instead.is_some() {
            let length = this.gathered.len();
            return this.poll_instead(cx, length);
        }
        let write = |half: &OwnedWriteHalf| half.try_write(&this.gathered);
        let written = poll_write_with(this.write.as_ref(), cx, write);
        this.or_gone(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.poll_gone(cx) {
            Poll::Ready(error) => Poll::Ready(Err(error)),
            // A socket has nothing to flush.
            Poll::Pending => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.gone = None;
        self.write = None;
        let heads = self.client.as_ref().and_then(|c| c.heads.as_ref());
        if !heads.is_some_and(|heads| heads.lingers()) {
            return Poll::Ready(Ok(()));
        }
        self.poll_linger(cx).map(Ok)
    }
}
