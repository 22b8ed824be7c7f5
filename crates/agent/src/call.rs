//! One HTTP/1.1 request on a connection of its own.

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, Uri};
use http_body::Body;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::net::TcpStream;

/// Connecting takes no longer.
const CONNECT: Duration = Duration::from_secs(5);
/// Bytes of an answer that is read whole, beside a job's.
const ANSWER_MAX: usize = 8 << 20;

/// `http://host:port/path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    host: String,
    port: u16,
    path: String,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The address can not be used.
    #[error("{0}: must be a URL of the form http://host:port")]
    Address(String),
    /// No connection.
    #[error("can not connect: {0}")]
    Connect(std::io::Error),
    /// The connection broke.
    #[error("{0}")]
    Broken(String),
    /// It took too long.
    #[error("no answer in time")]
    Late,
}

impl Base {
    /// Reads a URL.
    ///
    /// # Errors
    /// It is none of that form.
    pub fn parse(text: &str) -> Result<Self, CallError> {
        let bad = || CallError::Address(text.to_owned());
        let uri: Uri = text.trim().parse().map_err(|_| bad())?;
        let authority = uri.authority().ok_or_else(bad)?;
        if uri.scheme_str() != Some("http") || uri.query().is_some() {
            return Err(bad());
        }
        let host = authority.host();
        Ok(Self {
            host: host
                .trim_start_matches('[')
                .trim_end_matches(']')
                .to_owned(),
            port: authority.port_u16().unwrap_or(80),
            path: uri.path().trim_end_matches('/').to_owned(),
        })
    }

    fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// A request to a path below it.
    pub(crate) fn request<B>(
        &self,
        method: Method,
        path: &str,
        token: Option<&str>,
        body: B,
    ) -> Result<Request<B>, CallError> {
        let broken = |error: http::Error| CallError::Broken(error.to_string());
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.path))
            .header(http::header::HOST, self.authority());
        if let Some(token) = token {
            let value = HeaderValue::try_from(format!("Bearer {token}"));
            let value = value.map_err(|error| broken(error.into()))?;
            request = request.header(http::header::AUTHORIZATION, value);
        }
        request.body(body).map_err(broken)
    }

    /// Sends it. The connection lives as long as the answer's body, or this future.
    pub(crate) async fn send<B>(&self, request: Request<B>) -> Result<Response<Incoming>, CallError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let open = TcpStream::connect((self.host.as_str(), self.port));
        let stream = match tokio::time::timeout(CONNECT, open).await {
            Ok(stream) => stream.map_err(CallError::Connect)?,
            Err(_) => return Err(CallError::Late),
        };
        // Best effort: without it pieces are a little later.
        let _ = stream.set_nodelay(true);
        let broken = |error: hyper::Error| CallError::Broken(error.to_string());
        let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = shaken.map_err(broken)?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended");
            }
        });
        sender.send_request(request).await.map_err(broken)
    }

    /// Sends a small request and reads the whole answer within `limit`.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        token: Option<&str>,
        body: Vec<u8>,
        limit: Duration,
    ) -> Result<(u16, Bytes), CallError> {
        let mut request = self.request(method, path, token, Full::new(Bytes::from(body)))?;
        let json = HeaderValue::from_static("application/json");
        request
            .headers_mut()
            .insert(http::header::CONTENT_TYPE, json);
        let all = async {
            let (head, body) = self.send(request).await?.into_parts();
            let whole = Limited::new(body, max_of(path)).collect().await;
            let whole = whole.map_err(|error| CallError::Broken(error.to_string()))?;
            Ok((head.status.as_u16(), whole.to_bytes()))
        };
        tokio::time::timeout(limit, all)
            .await
            .unwrap_or(Err(CallError::Late))
    }
}

/// A job may carry a body of any size that the broker lets in.
fn max_of(path: &str) -> usize {
    if path.ends_with("/pop") {
        usize::MAX
    } else {
        ANSWER_MAX
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::Base;

    #[test]
    fn urls() {
        let base = Base::parse("http://10.0.0.1:8000/pre/").unwrap();
        assert_eq!((base.port, base.path.as_str()), (8_000, "/pre"));
        assert_eq!(
            Base::parse("http://[::1]:80").unwrap().authority(),
            "[::1]:80"
        );
        for bad in ["https://h:1", "h:1", "http://h:1/?q=1", ""] {
            assert!(Base::parse(bad).is_err(), "{bad}");
        }
    }
}
