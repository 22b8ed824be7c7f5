//! `--zero`: an answer at once, for as little CPU as possible. The model is not asked; the body is not parsed.
//!
//! Prompt tokens are bytes / 4 of the whole body; text and ids are constants. There is no cache, and nothing is
//! said of one: a gateway in front goes on as with an engine that does not report it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use memchr::memmem;
use tokio::time::{Instant, Sleep};

use super::ask::Family;
use super::body::Body;
use super::reply::Reply;
use crate::model::Usage;

/// Reply length when the body names none.
const MAX_TOKENS_DEFAULT: usize = 64;
/// Longest reply: what is written without a model behind it must be bounded by something.
const MAX_TOKENS_MAX: usize = 1 << 20;
/// The text of every token.
const TEXT: &str = "bab ";

/// Prepared answers of one replica.
#[derive(Debug)]
pub(super) struct Zero {
    prepared: Vec<Prepared>,
    gap: Duration,
}

#[derive(Debug)]
struct Prepared {
    reply: Reply,
    open: Bytes,
    delta: Bytes,
    close: String,
}

/// What the byte scan finds in a body.
#[derive(Debug, PartialEq, Eq)]
struct Scan {
    stream: bool,
    include_usage: bool,
    max_tokens: usize,
}

impl Zero {
    pub(super) fn new(model: &str, created: u64, gap: Duration) -> Self {
        let families = [
            (Family::Chat, "chatcmpl-zero"),
            (Family::Completions, "cmpl-zero"),
            (Family::Responses, "resp_zero"),
            (Family::Messages, "msg_zero"),
        ];
        let prepared = families
            .into_iter()
            .map(|(family, id)| {
                let reply = Reply {
                    family,
                    id: id.to_owned(),
                    model: model.to_owned(),
                    created,
                    include_usage: false,
                    finish: "length",
                    tells_cached: false,
                };
                Prepared {
                    open: Bytes::from(reply.greet() + &reply.open(0, Usage::default())),
                    delta: Bytes::from(reply.delta(0, TEXT)),
                    close: reply.close(0),
                    reply,
                }
            })
            .collect();
        Self { prepared, gap }
    }

    /// The answer to `body` and its content type; `None` for a family without a prepared answer.
    pub(super) fn answer(&self, family: Family, body: &[u8]) -> Option<(Body, &'static str)> {
        let prepared = self.prepared.iter().find(|p| p.reply.family == family)?;
        let scan = scan(body);
        let usage = Usage {
            prompt: body.len() / 4,
            cached: 0,
            completion: scan.max_tokens,
        };
        if !scan.stream {
            let text = TEXT.repeat(scan.max_tokens);
            let whole = prepared.reply.whole(&[&text], usage).to_string();
            return Some((Body::from(whole), "application/json"));
        }
        // Only the Responses API repeats the whole text at the end of its stream.
        let text = match family {
            Family::Responses => TEXT.repeat(scan.max_tokens),
            _ => String::new(),
        };
        let end = if scan.include_usage {
            let reply = Reply {
                include_usage: true,
                ..prepared.reply.clone()
            };
            reply.end(&text, usage)
        } else {
            prepared.reply.end(&text, usage)
        };
        let stream = ZeroStream {
            open: Some(prepared.open.clone()).filter(|open| !open.is_empty()),
            delta: prepared.delta.clone(),
            left: scan.max_tokens,
            tail: Some(Bytes::from(prepared.close.clone() + &end)),
            flushed: true,
            gap: self.gap,
            pause: None,
        };
        Some((
            Body::Zero(Box::new(stream)),
            "text/event-stream; charset=utf-8",
        ))
    }
}

/// A key inside a JSON string would be written `\"stream\":`, so the scan meets keys only.
fn scan(body: &[u8]) -> Scan {
    let is_true = |key: &str| {
        value_after(body, key.as_bytes()).is_some_and(|value| value.starts_with(b"true"))
    };
    let stream = is_true("\"stream\":");
    // max_tokens, max_completion_tokens and max_output_tokens.
    let named = value_after(body, b"_tokens\":").and_then(|value| {
        let digits = value
            .iter()
            .take(9)
            .take_while(|b| b.is_ascii_digit())
            .count();
        std::str::from_utf8(&value[..digits])
            .ok()?
            .parse::<usize>()
            .ok()
    });
    Scan {
        stream,
        include_usage: stream && is_true("\"include_usage\":"),
        max_tokens: named.unwrap_or(MAX_TOKENS_DEFAULT).clamp(1, MAX_TOKENS_MAX),
    }
}

fn value_after<'a>(body: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let at = memmem::find(body, key)? + key.len();
    Some(body[at..].trim_ascii_start())
}

/// A prepared stream. Each chunk is written to the socket by itself, as an engine's are: after each piece the
/// stream is pending once, which makes hyper flush.
#[derive(Debug)]
pub(super) struct ZeroStream {
    open: Option<Bytes>,
    delta: Bytes,
    left: usize,
    tail: Option<Bytes>,
    flushed: bool,
    gap: Duration,
    pause: Option<Pin<Box<Sleep>>>,
}

impl ZeroStream {
    pub(super) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if !self.flushed {
            if self.gap.is_zero() {
                self.flushed = true;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let gap = self.gap;
            let pause = self
                .pause
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(gap)));
            if pause.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            pause.as_mut().reset(Instant::now() + gap);
            self.flushed = true;
        }
        if let Some(open) = self.open.take() {
            return Poll::Ready(Some(open));
        }
        if self.left > 0 {
            self.left -= 1;
            self.flushed = self.left == 0;
            return Poll::Ready(Some(self.delta.clone()));
        }
        Poll::Ready(self.tail.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scan_finds_keys_and_not_text() {
        let body = br#"{"messages":[{"content":"say \"stream\": true"}],"stream" : 1,"stream": false,"max_completion_tokens": 7}"#;
        assert_eq!(
            scan(body),
            Scan {
                stream: false,
                include_usage: false,
                max_tokens: 7
            }
        );
        let body = br#"{"stream":true,"stream_options":{"include_usage": true},"max_tokens":12}"#;
        assert_eq!(
            scan(body),
            Scan {
                stream: true,
                include_usage: true,
                max_tokens: 12
            }
        );
        assert_eq!(scan(b"{}").max_tokens, MAX_TOKENS_DEFAULT);
    }
}
