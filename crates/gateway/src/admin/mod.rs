//! The operators' own listener: workers, pools, policies, explanations, metrics.
//!
//! It listens on loopback unless a token is set; with a token every request but `/health` and
//! `/ready` must carry it. Errors are JSON and name the field.

mod allow;
mod answer;
mod evidence;
mod explain;
mod guard;
mod lines;
mod pools;
mod routes;
mod workers;

#[cfg(test)]
mod tests;

pub use explain::explain;
pub use pools::rows;

use crate::gateway::Gateway;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Connections of operators at once.
const CONNECTIONS_MAX: usize = 256;
/// A connection that sends no request head is closed after this long.
const HEAD_WAIT: Duration = Duration::from_secs(30);

/// Serves the admin API until it is dropped.
pub async fn serve(gateway: Arc<Gateway>, listener: TcpListener) {
    let seats = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(seat) = Arc::clone(&seats).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let gateway = Arc::clone(&gateway);
                connections.spawn(async move {
                    serve_connection(gateway, stream).await;
                    drop(seat);
                });
            }
            Err(error) => {
                // Out of file descriptors, most likely: give it time.
                tracing::warn!(%error, "admin: cannot accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve_connection(gateway: Arc<Gateway>, stream: TcpStream) {
    // Best effort: without it answers are a little later.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request: Request<Incoming>| {
        let gateway = Arc::clone(&gateway);
        async move { Ok::<Response<Full<Bytes>>, Infallible>(routes::answer(&gateway, request).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WAIT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "admin: connection ended");
    }
}
