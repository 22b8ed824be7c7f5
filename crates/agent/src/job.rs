//! One job: the request goes to the engine, and the engine's answer to the broker, piece by piece, only
//! as fast as it is taken there.

use crate::Settings;
use crate::call::CallError;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, Method, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::json;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Pieces of an answer that may be on their way.
const PIECES: usize = 4;

/// A request, as a pop answers it.
#[derive(Debug, Deserialize)]
pub(crate) struct Job {
    pub(crate) id: String,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    #[serde(skip)]
    body: Bytes,
}

impl Job {
    /// A line of JSON, then the body.
    pub(crate) fn read(bytes: &Bytes) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let mut job: Self = serde_json::from_slice(bytes.get(..end)?).ok()?;
        job.body = bytes.slice(end + 1..);
        Some(job)
    }
}

/// The engine's answer broke off: the upload must not look complete.
#[derive(Debug, thiserror::Error)]
#[error("the engine's answer broke off")]
struct BrokeOff;

/// The body of an upload.
struct Upload(mpsc::Receiver<Result<Bytes, BrokeOff>>);

impl Body for Upload {
    type Data = Bytes;
    type Error = BrokeOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokeOff>>> {
        let piece = std::task::ready!(self.0.poll_recv(cx));
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }
}

/// Runs a job to its end. The broker's word ends it early: then nobody wants the answer, and the
/// engine is told by closing its connection.
pub(crate) async fn run(settings: &Settings, job: Job) -> Result<(), CallError> {
    let (pieces, upload) = mpsc::channel(PIECES);
    let path = format!("/pull/v1/jobs/{}/answer", job.id);
    let broker = &settings.broker;
    let request = broker.request(Method::POST, &path, Some(&settings.token), Upload(upload))?;
    let mut answered = std::pin::pin!(broker.send(request));
    let mut serving = std::pin::pin!(serve(settings, job, pieces));
    let word = tokio::select! {
        word = &mut answered => word,
        () = &mut serving => answered.await,
    }?;
    let status = word.status();
    if !status.is_success() {
        tracing::info!(%status, "the answer was not wanted");
    }
    Ok(())
}

async fn serve(settings: &Settings, job: Job, pieces: mpsc::Sender<Result<Bytes, BrokeOff>>) {
    let answer = match ask(settings, job).await {
        Ok(answer) => answer,
        Err(error) => {
            tracing::warn!(%error, "the engine did not answer");
            let head = json!({"status": 502, "headers": [["content-type", "application/json"]]});
            let body =
                json!({"error": {"message": error.to_string(), "type": "engine_unreachable"}});
            let _ = pieces
                .send(Ok(Bytes::from(format!("{head}\n{body}"))))
                .await;
            return;
        }
    };
    let (head, mut body) = answer.into_parts();
    let text = |(name, value): (&HeaderName, &HeaderValue)| {
        Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
    };
    let headers: Vec<(String, String)> = head.headers.iter().filter_map(text).collect();
    let line = json!({"status": head.status.as_u16(), "headers": headers});
    if pieces
        .send(Ok(Bytes::from(format!("{line}\n"))))
        .await
        .is_err()
    {
        return;
    }
    while let Some(frame) = body.frame().await {
        let piece = match frame {
            Ok(frame) => match frame.into_data() {
                Ok(data) => Ok(data),
                Err(_) => continue,
            },
            Err(_) => Err(BrokeOff),
        };
        let broke = piece.is_err();
        if pieces.send(piece).await.is_err() || broke {
            return;
        }
    }
}

/// Sends the client's bytes to the engine.
async fn ask(settings: &Settings, job: Job) -> Result<Response<Incoming>, CallError> {
    let broken = |what: &str| CallError::Broken(format!("the job's {what} can not be sent"));
    let method = Method::from_bytes(job.method.as_bytes()).map_err(|_| broken("method"))?;
    let key = settings.engine_key.as_deref();
    let engine = &settings.engine;
    let mut request = engine.request(method, &job.path, key, Full::new(job.body))?;
    let out = request.headers_mut();
    for (name, value) in &job.headers {
        let name = HeaderName::try_from(name).map_err(|_| broken("headers"))?;
        let ours = name == AUTHORIZATION && key.is_some();
        if ours || [HOST, CONTENT_LENGTH, TRANSFER_ENCODING].contains(&name) {
            continue;
        }
        let value = HeaderValue::try_from(value).map_err(|_| broken("headers"))?;
        out.append(name, value);
    }
    if !out.contains_key(CONTENT_TYPE) {
        out.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    engine.send(request).await
}
