//! The engine model behind a socket: an OpenAI-compatible server with vLLM's metric names, in real or scaled time.
//!
//! One listener per replica, HTTP/1.1, loopback only. A client that hangs up takes its job out of the engine.

mod ask;
mod body;
mod http;
mod kv_events;
mod kv_format;
#[cfg(test)]
mod kv_tests;
mod metrics;
mod replica;
mod reply;
#[cfg(test)]
mod tests;
mod tokenize;
mod zero;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

pub use kv_events::{KvConfig, KvEndpoints};
pub use kv_format::KvFormat;
pub use replica::Replica;

use crate::model;
use kv_events::{KvListeners, KvPublisher};

/// Connections one replica holds open at once; more wait in the kernel's accept queue.
const CONNECTIONS_MAX: usize = 8_192;

/// What to serve.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// First port; replica `i` listens on `port + i`. 0: the system chooses each.
    pub port: u16,
    /// Replicas, each with an engine, a cache and a port of its own.
    pub replicas: usize,
    /// The name of the one model served.
    pub served_model: String,
    /// Engine seconds per wall second; 10 is ten times faster than modelled.
    pub speed: f64,
    /// The modelled engine.
    pub engine: model::Config,
    /// Answer at once without the model: the backend of benches.
    pub zero: bool,
    /// With `zero`: pause between the chunks of a stream (whole milliseconds; the timer knows no finer).
    pub zero_gap: Duration,
    /// How KV events are published; none: they are not. Not with `zero`, which has no cache.
    pub kv: Option<KvConfig>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            port: 0,
            replicas: 1,
            served_model: "sim".to_owned(),
            speed: 1.0,
            engine: model::Config::default(),
            zero: false,
            zero_gap: Duration::ZERO,
            kv: None,
        }
    }
}

/// A running server. Dropping it closes every listener and connection.
#[derive(Debug)]
pub struct Running {
    /// Base URL of each replica, `http://127.0.0.1:PORT`.
    pub urls: Vec<String>,
    /// The replicas behind them, in the same order.
    pub replicas: Vec<Arc<Replica>>,
    /// Where their KV events are, in the same order; empty: they are not published.
    pub kv: Vec<KvEndpoints>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Running {
    /// Forgets every prefix cache.
    pub fn reset_caches(&self) {
        for replica in &self.replicas {
            replica.reset_cache();
        }
    }

    /// Runs a task until everything is stopped.
    fn spawn(
        &mut self,
        task: impl Future<Output = ()> + Send + 'static,
        stopped: &watch::Receiver<bool>,
    ) {
        let mut stopped = stopped.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = task => {}
                _ = stopped.wait_for(|stop| *stop) => {}
            }
        });
    }

    /// Closes every listener and connection and waits until they are closed.
    pub async fn shutdown(mut self) {
        // No receiver left means nothing to stop.
        let _ = self.stop.send(true);
        while self.tasks.join_next().await.is_some() {}
    }

    /// Serves until the process ends.
    pub async fn forever(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Binds every port, then serves on the current tokio runtime.
///
/// # Errors
/// When a port cannot be bound, or a number in `config` makes no sense; the message names it.
pub async fn start(config: ServerConfig) -> io::Result<Running> {
    let refuse = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what.to_owned()));
    if !(config.speed.is_finite() && config.speed > 0.0) {
        return refuse("speed: must be a number above 0");
    }
    if config.replicas == 0 {
        return refuse("replicas: must be at least 1");
    }
    if config.engine.blocks() == 0 {
        return refuse("kv_tokens: must hold at least one block");
    }
    let mut listeners = Vec::with_capacity(config.replicas);
    for at in 0..config.replicas {
        let port = match config.port {
            0 => 0,
            base => match u16::try_from(usize::from(base) + at) {
                Ok(port) => port,
                Err(_) => return refuse("port: the last replica's port is above 65535"),
            },
        };
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener = TcpListener::bind(addr)
            .await
            .map_err(|e| io::Error::new(e.kind(), format!("{addr}: {e}")))?;
        listeners.push(listener);
    }
    let mut kv_listeners = Vec::new();
    if let Some(kv) = config.kv.as_ref().filter(|_| !config.zero) {
        for at in 0..config.replicas {
            kv_listeners.push(KvListeners::bind(kv, at, config.replicas).await?);
        }
    }
    let mut kv_listeners = kv_listeners.into_iter();
    let (stop, stopped) = watch::channel(false);
    let mut running = Running {
        urls: Vec::new(),
        replicas: Vec::new(),
        kv: Vec::new(),
        stop,
        tasks: JoinSet::new(),
    };
    for listener in listeners {
        let address = listener.local_addr()?;
        running.urls.push(format!("http://{address}"));
        let publisher = config
            .kv
            .as_ref()
            .zip(kv_listeners.next())
            .map(|(kv, listeners)| {
                let named = || format!("kv@{address}@{}", config.served_model);
                let topic = kv.topic.clone().unwrap_or_else(named);
                let publisher = Arc::new(KvPublisher::new(
                    kv,
                    topic,
                    config.engine.block_tokens.max(1),
                ));
                running.kv.push(listeners.endpoints.clone());
                running.spawn(listeners.serve(Arc::clone(&publisher)), &stopped);
                publisher
            });
        let replica = Arc::new(Replica::new(&config, publisher));
        running.replicas.push(Arc::clone(&replica));
        // Also with `zero`: what has no prepared answer (embeddings) goes through the model.
        let driven = Arc::clone(&replica);
        running.spawn(async move { driven.drive().await }, &stopped);
        running
            .tasks
            .spawn(accept(listener, replica, stopped.clone()));
    }
    Ok(running)
}

async fn accept(listener: TcpListener, replica: Arc<Replica>, mut stopped: watch::Receiver<bool>) {
    let seats = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    // An error means that the server was dropped, which is a stop, too.
    let stop = async move { drop(stopped.wait_for(|stop| *stop).await) };
    tokio::pin!(stop);
    loop {
        let Ok(seat) = Arc::clone(&seats).acquire_owned().await else {
            return;
        };
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => {
                    let replica = Arc::clone(&replica);
                    connections.spawn(async move {
                        converse(socket, replica).await;
                        drop(seat);
                    });
                }
                Err(error) => {
                    // Out of descriptors, mostly: others must close first.
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            },
            () = &mut stop => break,
        }
        while connections.try_join_next().is_some() {}
    }
    connections.shutdown().await;
}

async fn converse(socket: TcpStream, replica: Arc<Replica>) {
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let service =
        hyper::service::service_fn(move |request| http::answer(Arc::clone(&replica), request));
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(socket), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "connection ended");
    }
}
