//! Where clients connect: one acceptor, and one single-threaded runtime per core. A connection stays on
//! its thread with everything it causes (its requests, their connections to workers), so that no lock
//! and no other thread is waited for on the way of a byte.

mod heads;
mod stream;
mod unread;

pub(crate) use heads::{Attended, HeadWatch};

use crate::gateway::Gateway;
use crate::service::{Client, Shard, serve};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use stream::ClientStream;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc, watch};

/// How an HTTP/2 connection without negotiation begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Fields of a head that hyper reads without an allocation.
const HTTP1_HEADERS_PLAIN: usize = 100;
/// Requests at once on one HTTP/2 connection.
const HTTP2_STREAMS_MAX: u32 = 256;
/// Bytes of a request body that may be on their way on one HTTP/2 stream.
const HTTP2_WINDOW: u32 = 1 << 20;
/// How often a silent HTTP/2 client is asked whether it is still there.
const HTTP2_PING_EVERY: Duration = Duration::from_secs(20);
/// How often idle connections to workers are looked through.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// How far the data path is from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    /// No new requests; running ones may finish.
    Draining,
    /// All ends now.
    Ended,
}

/// The running data path.
pub(crate) struct Listener {
    phase: watch::Sender<Phase>,
    open: Arc<AtomicUsize>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

struct Thread {
    send: mpsc::UnboundedSender<(std::net::TcpStream, SocketAddr)>,
    connections: Arc<AtomicUsize>,
}

impl Listener {
    /// Serves the listener (non-blocking, on the caller's runtime) with `shards` threads.
    ///
    /// # Errors
    /// A thread or the listener can not be set up.
    pub(crate) fn start(
        gateway: Arc<Gateway>,
        listener: std::net::TcpListener,
        shards: usize,
    ) -> io::Result<Self> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (phase, watched) = watch::channel(Phase::Serving);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let heavy = Arc::new(Semaphore::new(cores));
        let open = Arc::new(AtomicUsize::new(0));
        let mut threads = Vec::new();
        let mut handles = Vec::new();
        for index in 0..shards.max(1) {
            let shard = Arc::new(Shard {
                index,
                gateway: Arc::clone(&gateway),
                heavy: Arc::clone(&heavy),
            });
            let (send, receive) = mpsc::unbounded_channel();
            let connections = Arc::new(AtomicUsize::new(0));
            let counts = Counts {
                open: Arc::clone(&open),
                here: Arc::clone(&connections),
            };
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let watched = watched.clone();
            let handle = std::thread::Builder::new()
                .name(format!("shard-{index}"))
                .spawn(move || runtime.block_on(run_shard(shard, receive, counts, watched)))?;
            threads.push(Thread { send, connections });
            handles.push(handle);
        }
        tokio::spawn(accept(
            gateway,
            listener,
            threads,
            Arc::clone(&open),
            watched,
        ));
        Ok(Self {
            phase,
            open,
            threads: handles,
        })
    }

    /// Takes no new connections and requests, waits for running ones for at most `grace`, ends.
    pub(crate) async fn shutdown(self, grace: Duration) {
        let _ = self.phase.send(Phase::Draining);
        let until = tokio::time::Instant::now() + grace;
        while self.open.load(Ordering::Relaxed) > 0 && tokio::time::Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let _ = self.phase.send(Phase::Ended);
        let threads = self.threads;
        let _ = tokio::task::spawn_blocking(move || {
            for thread in threads {
                let _ = thread.join();
            }
        })
        .await;
    }
}

#[derive(Clone)]
struct Counts {
    open: Arc<AtomicUsize>,
    here: Arc<AtomicUsize>,
}

/// Hands each new connection to the thread with the fewest.
async fn accept(
    gateway: Arc<Gateway>,
    listener: tokio::net::TcpListener,
    threads: Vec<Thread>,
    open: Arc<AtomicUsize>,
    mut phase: watch::Receiver<Phase>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = phase.wait_for(|p| *p != Phase::Serving) => return,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, most likely: wait for some to come back.
                tracing::warn!(kind = ?error.kind(), "can not accept");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        if open.load(Ordering::Relaxed) >= gateway.config.limits.connections_max {
            gateway.metrics.connection_refused();
            continue;
        }
        let Ok(stream) = stream.into_std() else {
            continue;
        };
        let fewest = threads
            .iter()
            .min_by_key(|t| t.connections.load(Ordering::Relaxed));
        if let Some(thread) = fewest {
            // Counted here already: the next connection must see it.
            thread.connections.fetch_add(1, Ordering::Relaxed);
            open.fetch_add(1, Ordering::Relaxed);
            gateway.metrics.connection_opened();
            let _ = thread.send.send((stream, peer));
        }
    }
}

/// Gives a connection's place back.
struct Place {
    counts: Counts,
    gateway: Arc<Gateway>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.counts.here.fetch_sub(1, Ordering::Relaxed);
        self.counts.open.fetch_sub(1, Ordering::Relaxed);
        self.gateway.metrics.connection_closed();
    }
}

async fn run_shard(
    shard: Arc<Shard>,
    mut receive: mpsc::UnboundedReceiver<(std::net::TcpStream, SocketAddr)>,
    counts: Counts,
    mut phase: watch::Receiver<Phase>,
) {
    tokio::spawn(sweep(Arc::clone(&shard)));
    let ended = phase.clone();
    loop {
        let next = tokio::select! {
            next = receive.recv() => next,
            _ = phase.wait_for(|p| *p == Phase::Ended) => return,
        };
        let Some((stream, peer)) = next else {
            // The acceptor is gone; those who are here may finish.
            let _ = phase.wait_for(|p| *p == Phase::Ended).await;
            return;
        };
        let place = Place {
            counts: counts.clone(),
            gateway: Arc::clone(&shard.gateway),
        };
        let shard = Arc::clone(&shard);
        let phase = ended.clone();
        tokio::spawn(async move {
            let _place = place;
            if let Ok(stream) = TcpStream::from_std(stream) {
                serve_connection(shard, stream, peer.ip(), phase).await;
            }
        });
    }
}

/// Closes connections to workers that were idle for too long.
async fn sweep(shard: Arc<Shard>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        for pool in &shard.gateway.pools {
            for upstream in pool.upstreams() {
                upstream.sweep(shard.index);
            }
        }
    }
}

async fn serve_connection(
    shard: Arc<Shard>,
    mut stream: TcpStream,
    peer: IpAddr,
    mut phase: watch::Receiver<Phase>,
) {
    let _ = stream.set_nodelay(true);
    let limit = shard.gateway.config.timeouts.header_read;
    let begun = tokio::select! {
        biased;
        begun = tokio::time::timeout(limit, begin(&mut stream)) => begun,
        // Who has asked for nothing yet is not waited for.
        _ = phase.wait_for(|p| *p != Phase::Serving) => return,
    };
    let Ok(Ok(begun)) = begun else {
        return;
    };
    if begun.starts_with(PREFACE) {
        serve_http2(shard, stream, begun, peer, phase).await;
    } else {
        serve_http1(shard, stream, begun, peer, phase).await;
    }
}

/// Reads until it is clear which protocol is spoken.
async fn begin(stream: &mut TcpStream) -> io::Result<Bytes> {
    let mut begun = bytes::BytesMut::with_capacity(4 << 10);
    loop {
        if stream.read_buf(&mut begun).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let seen = begun.len().min(PREFACE.len());
        if begun[..seen] != PREFACE[..seen] || begun.len() >= PREFACE.len() {
            return Ok(begun.freeze());
        }
    }
}

async fn serve_http1(
    shard: Arc<Shard>,
    stream: TcpStream,
    begun: Bytes,
    peer: IpAddr,
    phase: watch::Receiver<Phase>,
) {
    let config = &shard.gateway.config;
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(config.timeouts.header_read)
        .half_close(config.tolerate_half_close)
        .pipeline_flush(false);
    if config.limits.headers_max >= HTTP1_HEADERS_PLAIN {
        // Room beyond the limit, so that the refusal is ours and says so. Asked for only where it is
        // needed: with a number of its own hyper allocates the fields anew for each request.
        http.max_headers(config.limits.headers_max.saturating_mul(2));
    }
    let client = Arc::new(Client {
        peer,
        heads: Some(Arc::default()),
        shard,
    });
    let stream = ClientStream::new(stream, begun, Some(Arc::clone(&client)));
    let service =
        service_fn(move |request: http::Request<Incoming>| serve(Arc::clone(&client), request));
    let connection = http.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    until_end(connection.as_mut(), |c| c.graceful_shutdown(), phase).await;
}

async fn serve_http2(
    shard: Arc<Shard>,
    stream: TcpStream,
    begun: Bytes,
    peer: IpAddr,
    phase: watch::Receiver<Phase>,
) {
    let config = &shard.gateway.config;
    let mut http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    let header_bytes = u32::try_from(config.limits.header_max_bytes).unwrap_or(u32::MAX);
    http.timer(TokioTimer::new())
        .max_header_list_size(header_bytes)
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .initial_stream_window_size(HTTP2_WINDOW)
        .initial_connection_window_size(4 * HTTP2_WINDOW)
        .keep_alive_interval(Some(HTTP2_PING_EVERY));
    let client = Arc::new(Client {
        peer,
        heads: None,
        shard,
    });
    let service =
        service_fn(move |request: http::Request<Incoming>| serve(Arc::clone(&client), request));
    let connection = http.serve_connection(
        TokioIo::new(ClientStream::new(stream, begun, None)),
        service,
    );
    let mut connection = std::pin::pin!(connection);
    until_end(connection.as_mut(), |c| c.graceful_shutdown(), phase).await;
}

/// Drives a connection to its end, or asks it to end when the gateway drains.
async fn until_end<C: Future<Output = hyper::Result<()>>>(
    mut connection: Pin<&mut C>,
    shut: impl FnOnce(Pin<&mut C>),
    mut phase: watch::Receiver<Phase>,
) {
    let result = {
        let draining = async {
            // A closed channel means that all ends: the same thing.
            let _ = phase.wait_for(|p| *p != Phase::Serving).await;
        };
        tokio::select! {
            biased;
            result = connection.as_mut() => Some(result),
            () = draining => None,
        }
    };
    let result = match result {
        Some(result) => result,
        None => {
            shut(connection.as_mut());
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::trace!(%error, "client connection ended");
    }
}
