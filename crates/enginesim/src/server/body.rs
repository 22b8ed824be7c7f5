//! Response bodies: a piece of bytes, or tokens as they come.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use super::replica::{Call, Part};
use super::reply::Reply;
use super::zero::ZeroStream;
use crate::model::Usage;
use crate::tokens;

/// What this server answers with.
#[derive(Debug)]
pub(super) enum Body {
    Whole(Option<Bytes>),
    Tokens(Box<TokenStream>),
    Zero(Box<ZeroStream>),
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Self::Whole(Some(Bytes::from(text)))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take()),
            Self::Tokens(stream) => stream.poll_piece(cx),
            Self::Zero(stream) => stream.poll_piece(cx),
        };
        piece.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            _ => SizeHint::default(),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }
}

/// One token is one SSE event. Dropping it, as hyper does when the client is gone, cancels the jobs.
#[derive(Debug)]
pub(super) struct TokenStream {
    reply: Reply,
    /// `None` once all is said.
    call: Option<Call>,
    greeting: Option<String>,
    prompt: usize,
    text: String,
    unfinished: usize,
    totals: Totals,
}

impl TokenStream {
    /// `prompt`: tokens of the first prompt, for the families whose stream opens with its usage.
    pub(super) fn new(reply: Reply, call: Call, prompt: usize, n: usize) -> Self {
        Self {
            greeting: Some(reply.greet()).filter(|g| !g.is_empty()),
            unfinished: call.choices(),
            reply,
            call: Some(call),
            prompt,
            text: String::new(),
            totals: Totals::new(n),
        }
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(greeting) = self.greeting.take() {
            return Poll::Ready(Some(Bytes::from(greeting)));
        }
        let Some(call) = &mut self.call else {
            return Poll::Ready(None);
        };
        let Poll::Ready(part) = call.parts.poll_recv(cx) else {
            return Poll::Pending;
        };
        let Some((choice, part)) = part else {
            self.call = None;
            return Poll::Ready(None);
        };
        Poll::Ready(Some(Bytes::from(self.say(choice, part))))
    }

    fn say(&mut self, choice: usize, part: Part) -> String {
        match part {
            Part::First { token, cached } => {
                let usage = Usage {
                    prompt: self.prompt,
                    cached,
                    completion: 0,
                };
                self.reply.open(choice, usage) + &self.token(choice, token)
            }
            Part::Token(token) => self.token(choice, token),
            Part::Done(usage) => {
                self.totals.add(choice, usage);
                let mut out = self.reply.close(choice);
                self.unfinished -= 1;
                if self.unfinished == 0 {
                    out.push_str(&self.reply.end(&self.text, self.totals.usage));
                    self.call = None;
                }
                out
            }
        }
    }

    fn token(&mut self, choice: usize, token: u32) -> String {
        let text = tokens::text_of(&[token]);
        if choice == 0 {
            self.text.push_str(&text);
        }
        self.reply.delta(choice, &text)
    }
}

/// Sums usage over choices: choices of one prompt count it once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Totals {
    /// Replies per prompt.
    pub(super) n: usize,
    pub(super) usage: Usage,
}

impl Totals {
    pub(super) fn new(n: usize) -> Self {
        Self {
            n: n.max(1),
            usage: Usage::default(),
        }
    }

    pub(super) fn add(&mut self, choice: usize, usage: Usage) {
        if choice.is_multiple_of(self.n) {
            self.usage.prompt += usage.prompt;
            self.usage.cached += usage.cached;
        }
        self.usage.completion += usage.completion;
    }
}
