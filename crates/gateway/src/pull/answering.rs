//! A worker's answer as it comes: one line of JSON with status and headers, then the bytes of the body.

use super::broker::Member;
use super::desk::{Answer, NoJob};
use super::work::Loss;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Deserialize;
use tokio::sync::oneshot;

/// Bytes of the first line.
const HEAD_MAX: usize = 64 << 10;

#[derive(Deserialize)]
struct Head {
    status: u16,
    #[serde(default)]
    headers: Vec<(String, String)>,
}

/// How an upload ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The client has it all.
    Read,
    /// Nobody waits for it (any more).
    Gone,
    /// It is being answered already.
    Taken,
    /// The first line can not be read.
    Unreadable(String),
}

/// Relays the body to whoever waits for the job.
pub(super) async fn take(member: &Member, job: &str, mut body: Incoming) -> Ended {
    let mut answer = match member.desk.answering(job) {
        Ok(answer) => answer,
        Err(NoJob::Unknown) => return Ended::Gone,
        Err(NoJob::Taken) => return Ended::Taken,
    };
    let head = tokio::select! {
        head = read_head(member, &mut body) => head,
        () = answer.closed() => return Ended::Gone,
    };
    let (head, begun) = match head {
        Ok(head) => head,
        Err(message) => {
            member.desk.lose(job, Loss::Broken);
            return Ended::Unreadable(message);
        }
    };
    let (done, read) = oneshot::channel();
    let whole = Answer {
        status: head.0,
        headers: head.1,
        begun,
        rest: Some(body),
        filtered: false,
        done,
    };
    if answer.send(whole).is_err() {
        return Ended::Gone;
    }
    match read.await {
        Ok(()) => Ended::Read,
        Err(_) => Ended::Gone,
    }
}

type Line = (StatusCode, HeaderMap);

async fn read_head(member: &Member, body: &mut Incoming) -> Result<(Line, Bytes), String> {
    let mut bytes = BytesMut::new();
    loop {
        if let Some(end) = memchr::memchr(b'\n', &bytes) {
            let line = bytes.split_to(end + 1);
            return parse(line.trim_ascii()).map(|head| (head, bytes.freeze()));
        }
        if bytes.len() > HEAD_MAX {
            return Err("the first line is too long".to_owned());
        }
        match body.frame().await {
            Some(Ok(frame)) => {
                member.heard();
                if let Ok(data) = frame.into_data() {
                    bytes.extend_from_slice(&data);
                }
            }
            _ => return Err("it ended within its first line".to_owned()),
        }
    }
}

fn parse(line: &[u8]) -> Result<Line, String> {
    let head: Head = serde_json::from_slice(line).map_err(|error| {
        format!("the first line must be {{\"status\":..,\"headers\":[..]}}: {error}")
    })?;
    let status = StatusCode::from_u16(head.status)
        .ok()
        .filter(|status| !status.is_informational())
        .ok_or("`status` is no status of an answer")?;
    let mut headers = HeaderMap::new();
    for (name, value) in head.headers {
        let name = HeaderName::try_from(name).map_err(|_| "`headers` has a bad name")?;
        let value = HeaderValue::try_from(value).map_err(|_| "`headers` has a bad value")?;
        // The transfer to the client is framed anew.
        if name != http::header::CONTENT_LENGTH && name != http::header::TRANSFER_ENCODING {
            headers.append(name, value);
        }
    }
    Ok((status, headers))
}
