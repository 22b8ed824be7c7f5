//! A small GET for probes and scrapes: one connection per request, every wait and every size
//! bounded, no redirect followed.

use crate::config::WorkerUrl;
use bytes::Bytes;
use http::{HeaderValue, Request, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;

/// An answer.
#[derive(Debug)]
pub struct Fetched {
    /// Its status.
    pub status: u16,
    /// Its body.
    pub body: Bytes,
}

/// Why there was none.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Nobody listens there: the process is gone.
    #[error("connection refused")]
    Refused,
    /// Not in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// Connecting failed otherwise.
    #[error("connect: {0}")]
    Connect(io::Error),
    /// The answer broke off, or was none.
    #[error("{0}")]
    Http(String),
}

/// Fetches `path` (below the worker's base path); the whole of it takes at most `timeout`, the body
/// at most `bytes_max`.
///
/// # Errors
/// See [`FetchError`].
pub async fn get(
    url: &WorkerUrl,
    path: &str,
    authorization: Option<&HeaderValue>,
    timeout: Duration,
    bytes_max: usize,
) -> Result<Fetched, FetchError> {
    tokio::time::timeout(timeout, fetch(url, path, authorization, bytes_max))
        .await
        .unwrap_or(Err(FetchError::Timeout(timeout)))
}

async fn fetch(
    url: &WorkerUrl,
    path: &str,
    authorization: Option<&HeaderValue>,
    bytes_max: usize,
) -> Result<Fetched, FetchError> {
    let stream = TcpStream::connect((url.host.as_str(), url.port))
        .await
        .map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => FetchError::Refused,
            _ => FetchError::Connect(error),
        })?;
    let http = |error: &dyn std::fmt::Display| FetchError::Http(error.to_string());
    let mut request = Request::get(format!("{}{path}", url.base_path))
        .header(header::HOST, url.authority())
        .header(header::CONNECTION, "close")
        .header(header::ACCEPT, "*/*")
        .header(header::USER_AGENT, "maitred");
    if let Some(value) = authorization {
        request = request.header(header::AUTHORIZATION, value);
    }
    let request = request
        .body(Empty::<Bytes>::new())
        .map_err(|error| http(&error))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| http(&error))?;
    let exchange = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| http(&error))?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), bytes_max)
            .collect()
            .await
            .map_err(|error| http(&error))?
            .to_bytes();
        Ok(Fetched { status, body })
    };
    // The connection is driven here and not in a task of its own, so that it ends with the probe.
    tokio::pin!(connection);
    tokio::pin!(exchange);
    tokio::select! {
        biased;
        fetched = &mut exchange => fetched,
        ended = &mut connection => match ended {
            // Ended after the whole answer was read from the socket: what is buffered is still to come.
            Ok(()) => exchange.await,
            Err(error) => Err(http(&error)),
        },
    }
}
