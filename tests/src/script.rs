use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::{Gate, Recorded};

/// One thing a scripted worker does with the connection of a request.
#[derive(Clone, Debug)]
pub enum Step {
    /// Sends a status line and exactly these headers (no `date`, no framing added).
    Head(u16, Vec<(String, String)>),
    /// Sends one chunk of a chunked body, in one write.
    Chunk(Bytes),
    /// Sends the last, empty chunk of a chunked body.
    End,
    /// Sends these bytes as they are.
    Raw(Bytes),
    /// Waits until the test opens the gate.
    Wait(Gate),
    /// Waits for real time to pass, where that is the point of the test.
    Delay(Duration),
    /// Closes with a TCP reset. Ends the script.
    Reset,
    /// Closes in an orderly way (FIN). Ends the script.
    Close,
    /// Neither sends nor closes until the peer does. Ends the script.
    Hang,
}

impl Step {
    /// A head with `status` and these headers.
    pub fn head(status: u16, headers: &[(&str, &str)]) -> Self {
        let own = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        Self::Head(status, headers.iter().map(own).collect())
    }

    /// One chunk.
    pub fn chunk(bytes: impl Into<Bytes>) -> Self {
        Self::Chunk(bytes.into())
    }

    /// Raw bytes.
    pub fn raw(bytes: impl Into<Bytes>) -> Self {
        Self::Raw(bytes.into())
    }
}

type Choose = dyn Fn(&Recorded) -> Vec<Step> + Send + Sync;

/// What a worker does with its requests.
#[derive(Clone)]
pub struct Script {
    choose: Arc<Choose>,
    pub(crate) reads_body: bool,
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Script")
            .field("reads_body", &self.reads_body)
            .finish_non_exhaustive()
    }
}

impl Script {
    /// The same steps for every request.
    pub fn each(steps: Vec<Step>) -> Self {
        Self::by(move |_| steps.clone())
    }

    /// One list of steps per request in the order of their arrival; the last repeats.
    pub fn sequence(steps: Vec<Vec<Step>>) -> Self {
        Self::by(move |request| {
            let last = steps.len().saturating_sub(1);
            steps
                .get(request.number.min(last))
                .cloned()
                .unwrap_or_default()
        })
    }

    /// Steps chosen by the request.
    pub fn by(choose: impl Fn(&Recorded) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self {
            choose: Arc::new(choose),
            reads_body: true,
        }
    }

    /// A plain JSON chat answer to everything.
    pub fn ok() -> Self {
        Self::each(json_answer(200, CHAT_ANSWER))
    }

    /// Runs the steps as soon as the head has arrived and never reads the body.
    #[must_use]
    pub fn before_body(mut self) -> Self {
        self.reads_body = false;
        self
    }

    pub(crate) fn steps(&self, request: &Recorded) -> Vec<Step> {
        (self.choose)(request)
    }
}

impl From<Vec<Step>> for Script {
    fn from(steps: Vec<Step>) -> Self {
        Self::each(steps)
    }
}

/// The body of [`Script::ok`].
const CHAT_ANSWER: &str = concat!(
    r#"{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"#,
    r#""message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"#,
    r#""usage":{"prompt_tokens":8,"completion_tokens":1,"total_tokens":9}}"#
);

/// The steps of a complete JSON answer with a content-length.
pub fn json_answer(status: u16, body: &str) -> Vec<Step> {
    let length = body.len().to_string();
    vec![
        Step::head(
            status,
            &[
                ("content-type", "application/json"),
                ("content-length", &length),
            ],
        ),
        Step::raw(body.to_owned()),
    ]
}

/// The steps of a complete event stream: one chunk per event, then `[DONE]` and the last chunk.
pub fn stream_answer<'a>(events: impl IntoIterator<Item = &'a str>) -> Vec<Step> {
    let headers = [
        ("content-type", "text/event-stream"),
        ("transfer-encoding", "chunked"),
    ];
    let mut steps = vec![Step::head(200, &headers)];
    steps.extend(events.into_iter().map(|data| Step::chunk(sse_event(data))));
    steps.push(Step::chunk(sse_event("[DONE]")));
    steps.push(Step::End);
    steps
}

/// `data: ...` and the blank line that ends the event.
pub fn sse_event(data: &str) -> String {
    format!("data: {data}\n\n")
}
