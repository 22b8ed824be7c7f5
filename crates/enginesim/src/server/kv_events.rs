//! Publishing KV events and replaying them, as vLLM's ZMQ publisher does, with faults on demand.

use super::kv_format::{KvFormat, payload};
use crate::model::KvEvent;
use bytes::Bytes;
use maitred_zmtp::{Endpoint, Incoming, Kind, Listener, Peer, Subscription, ZmtpError};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;

/// Messages that wait for a slow subscriber; more are dropped, as at ZeroMQ's high-water mark.
const WAITING_MAX: usize = 4_096;
/// Topics that one subscriber may name.
const TOPICS_MAX: usize = 64;

/// How KV events are published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvConfig {
    /// First port; replica `i` publishes at `port + i` and replays at `port + replicas + i`. 0: the
    /// system chooses each.
    pub port: u16,
    /// How events are written.
    pub format: KvFormat,
    /// What they are named; none: `kv@HOST:PORT@MODEL`, with the replica's HTTP address.
    pub topic: Option<String>,
    /// Messages kept for replays.
    pub buffer: usize,
    /// Each so many-th message reaches no subscriber, but can be replayed; 0: none.
    pub drop_every: u64,
    /// Each so many-th message is lost altogether; 0: none.
    pub lose_every: u64,
}

impl Default for KvConfig {
    fn default() -> Self {
        Self {
            port: 0,
            format: KvFormat::Map,
            topic: None,
            buffer: 10_000,
            drop_every: 0,
            lose_every: 0,
        }
    }
}

/// Where one replica's events are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvEndpoints {
    /// For subscribers.
    pub events: Endpoint,
    /// For those who ask for what they missed.
    pub replay: Endpoint,
}

#[derive(Debug, Default)]
struct Stream {
    next: u64,
    kept: VecDeque<(u64, Bytes)>,
}

/// One replica's events.
#[derive(Debug)]
pub(super) struct KvPublisher {
    config: KvConfig,
    topic: Bytes,
    block_tokens: usize,
    stream: Mutex<Stream>,
    live: broadcast::Sender<(u64, Bytes)>,
    /// Counts how often all connections were to be closed.
    cut: watch::Sender<u64>,
}

impl KvPublisher {
    pub(super) fn new(config: &KvConfig, topic: String, block_tokens: usize) -> Self {
        Self {
            config: config.clone(),
            topic: Bytes::from(topic),
            block_tokens,
            stream: Mutex::default(),
            live: broadcast::channel(WAITING_MAX).0,
            cut: watch::channel(0).0,
        }
    }

    /// Sends what happened as one message.
    pub(super) fn publish(&self, events: &[KvEvent]) {
        if events.is_empty() {
            return;
        }
        let ts = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64();
        let message = Bytes::from(payload(ts, events, self.block_tokens, self.config.format));
        let mut stream = self.stream.lock();
        let seq = stream.next;
        stream.next += 1;
        let nth = |every: u64| every > 0 && stream.next.is_multiple_of(every);
        if nth(self.config.lose_every) {
            return;
        }
        let dropped = nth(self.config.drop_every);
        stream.kept.push_back((seq, message.clone()));
        while stream.kept.len() > self.config.buffer {
            stream.kept.pop_front();
        }
        if !dropped {
            // Nobody may be there.
            let _ = self.live.send((seq, message));
        }
    }

    /// Begins anew, as a restarted engine does: numbers from 0, nothing kept, nobody connected.
    pub(super) fn restart(&self) {
        *self.stream.lock() = Stream::default();
        self.disconnect();
    }

    /// Closes every connection.
    pub(super) fn disconnect(&self) {
        self.cut.send_modify(|count| *count += 1);
    }

    fn kept_from(&self, start: u64) -> Vec<(u64, Bytes)> {
        let stream = self.stream.lock();
        let from = stream.kept.iter().filter(|(seq, _)| *seq >= start);
        from.cloned().collect()
    }

    async fn serve_subscriber(&self, incoming: Incoming) -> Result<(), ZmtpError> {
        // From before the handshake: what comes after it must not be missed.
        let mut live = self.live.subscribe();
        let mut peer = incoming.shake(Kind::Pub).await?;
        let mut topics: Vec<Bytes> = Vec::new();
        loop {
            tokio::select! {
                said = peer.subscription() => match said? {
                    Subscription::Add(topic) if topics.len() < TOPICS_MAX => topics.push(topic),
                    Subscription::Add(_) => return Err(ZmtpError::TooLong),
                    Subscription::Drop(topic) => topics.retain(|known| *known != topic),
                },
                message = live.recv() => match message {
                    Ok((seq, message)) if topics.iter().any(|topic| self.topic.starts_with(topic)) => {
                        let seq = Bytes::copy_from_slice(&seq.to_be_bytes());
                        peer.send(&[self.topic.clone(), seq, message]).await?;
                    }
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return Ok(()),
                },
            }
        }
    }

    async fn serve_replays(&self, incoming: Incoming) -> Result<(), ZmtpError> {
        let mut peer = incoming.shake(Kind::Router).await?;
        loop {
            let request = peer.recv().await?;
            let start = match request.as_slice() {
                [empty, start] if empty.is_empty() => start[..].try_into().map(u64::from_be_bytes),
                _ => return Err(ZmtpError::Protocol("asked for no replay")),
            };
            let Ok(start) = start else {
                return Err(ZmtpError::Protocol("asked with no number"));
            };
            for (seq, message) in self.kept_from(start) {
                self.answer(&mut peer, &self.topic, seq, message).await?;
            }
            self.answer(&mut peer, &Bytes::new(), u64::MAX, Bytes::new())
                .await?;
        }
    }

    async fn answer(
        &self,
        peer: &mut Peer,
        topic: &Bytes,
        seq: u64,
        message: Bytes,
    ) -> Result<(), ZmtpError> {
        let seq = Bytes::copy_from_slice(&seq.to_be_bytes());
        match self.config.format {
            KvFormat::Map => {
                peer.send(&[Bytes::new(), topic.clone(), seq, message])
                    .await
            }
            KvFormat::Array => peer.send(&[Bytes::new(), seq, message]).await,
        }
    }

    async fn accept(self: Arc<Self>, listener: Listener, kind: Kind) {
        let mut connections = JoinSet::new();
        loop {
            match listener.accept().await {
                Ok(incoming) => {
                    let publisher = Arc::clone(&self);
                    connections.spawn(async move {
                        let mut cut = publisher.cut.subscribe();
                        let served = async {
                            match kind {
                                Kind::Pub => publisher.serve_subscriber(incoming).await,
                                _ => publisher.serve_replays(incoming).await,
                            }
                        };
                        tokio::select! {
                            served = served => if let Err(error) = served {
                                tracing::debug!(%error, "KV event connection ended");
                            },
                            _ = cut.changed() => {}
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
            while connections.try_join_next().is_some() {}
        }
    }
}

/// Both listeners of one replica, bound.
#[derive(Debug)]
pub(super) struct KvListeners {
    events: Listener,
    replay: Listener,
    pub(super) endpoints: KvEndpoints,
}

impl KvListeners {
    /// Binds those of replica `at` of `replicas`.
    pub(super) async fn bind(config: &KvConfig, at: usize, replicas: usize) -> io::Result<Self> {
        let events = bind(config.port, at).await?;
        let replay = bind(config.port, replicas + at).await?;
        Ok(Self {
            endpoints: KvEndpoints {
                events: events.endpoint()?,
                replay: replay.endpoint()?,
            },
            events,
            replay,
        })
    }

    /// Serves both until it is dropped.
    pub(super) async fn serve(self, publisher: Arc<KvPublisher>) {
        tokio::join!(
            Arc::clone(&publisher).accept(self.events, Kind::Pub),
            publisher.accept(self.replay, Kind::Router),
        );
    }
}

async fn bind(base: u16, offset: usize) -> io::Result<Listener> {
    let port = match base {
        0 => 0,
        base => u16::try_from(usize::from(base) + offset).map_err(|_| {
            let message = "kv_events port: the last replica's port is above 65535";
            io::Error::new(io::ErrorKind::InvalidInput, message)
        })?,
    };
    let socket = tokio::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, port))
        .await
        .map_err(|error| {
            io::Error::new(error.kind(), format!("KV events, port {port}: {error}"))
        })?;
    Ok(Listener::of_tcp(socket))
}
