//! A worker's text as an answer of the client's API.

use bytes::Bytes;
use maitred_text::model::TextModel;
use maitred_wire::answer::AnswerFacts;
use maitred_wire::{Endpoint, WireUsage};
use serde_json::{Value, json};

/// What an answer needs to know of its request.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    /// Chat or completions.
    pub(crate) endpoint: Endpoint,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    /// The model that the client named.
    pub(crate) model: Option<String>,
    /// The text ends before any of these: workers may send on behind them.
    pub(crate) stop: Vec<String>,
    /// Where they are known exactly.
    pub(crate) prompt_tokens: Option<u32>,
    pub(crate) max_length: u32,
}

/// An answer as the client gets it.
pub(crate) struct Written {
    pub(crate) content_type: &'static str,
    pub(crate) body: Bytes,
    pub(crate) facts: AnswerFacts,
}

impl Reply {
    /// The answer. `id`: of the job; `created`: seconds since 1970; `filtered`: the worker withheld
    /// something. Without the pool's tokenizer no tokens are counted, and whether the text came to
    /// its own end is not known: `finish_reason` is null then.
    pub(crate) fn write(
        &self,
        id: &str,
        created: u64,
        text: &str,
        filtered: bool,
        tokens: Option<&TextModel>,
    ) -> Written {
        let (text, stopped) = cut(text, &self.stop);
        let output = tokens.and_then(|model| count(model, text));
        let finish = match output {
            _ if filtered => Some("content_filter"),
            _ if stopped => Some("stop"),
            Some(tokens) if tokens >= self.max_length => Some("length"),
            Some(_) => Some("stop"),
            None => None,
        };
        let usage = match (self.prompt_tokens, output) {
            (Some(prompt), Some(output)) => json!({
                "prompt_tokens": prompt,
                "completion_tokens": output,
                "total_tokens": prompt.saturating_add(output),
            }),
            _ => Value::Null,
        };
        let facts = AnswerFacts {
            usage: WireUsage {
                prompt_tokens: self.prompt_tokens,
                cached_tokens: None,
                output_tokens: output,
            },
            ..AnswerFacts::default()
        };
        let (content_type, body) = if self.stream {
            (
                "text/event-stream",
                self.events(id, created, text, finish, &usage),
            )
        } else {
            (
                "application/json",
                self.document(id, created, text, finish, usage),
            )
        };
        Written {
            content_type,
            body: Bytes::from(body),
            facts,
        }
    }

    fn is_chat(&self) -> bool {
        self.endpoint == Endpoint::Chat
    }

    fn shell(&self, id: &str, created: u64, object: &str, choices: Value) -> Value {
        let kind = if self.is_chat() { "chatcmpl" } else { "cmpl" };
        json!({
            "id": format!("{kind}-{id}"),
            "object": object,
            "created": created,
            "model": self.model,
            "choices": choices,
        })
    }

    fn document(
        &self,
        id: &str,
        created: u64,
        text: &str,
        finish: Option<&str>,
        usage: Value,
    ) -> String {
        let mut choice = json!({"index": 0, "logprobs": null, "finish_reason": finish});
        let object = if self.is_chat() {
            choice["message"] = json!({"role": "assistant", "content": text});
            "chat.completion"
        } else {
            choice["text"] = json!(text);
            "text_completion"
        };
        let mut document = self.shell(id, created, object, json!([choice]));
        if !usage.is_null() {
            document["usage"] = usage;
        }
        document.to_string()
    }

    fn events(
        &self,
        id: &str,
        created: u64,
        text: &str,
        finish: Option<&str>,
        usage: &Value,
    ) -> String {
        let choice = |delta: Value, finish: Option<&str>| {
            let mut choice = json!({"index": 0, "logprobs": null, "finish_reason": finish});
            if self.is_chat() {
                choice["delta"] = delta;
            } else {
                choice["text"] = json!(delta["content"].as_str().unwrap_or_default());
            }
            json!([choice])
        };
        let said = json!({"role": "assistant", "content": text});
        let mut pieces = vec![choice(said, None), choice(json!({}), finish)];
        // The client asked for it; what nobody counted is left out all the same.
        let counted = self.include_usage && !usage.is_null();
        if counted {
            pieces.push(json!([]));
        }
        let object = match self.is_chat() {
            true => "chat.completion.chunk",
            false => "text_completion",
        };
        let last = pieces.len() - 1;
        let mut out = String::new();
        for (n, piece) in pieces.into_iter().enumerate() {
            let mut event = self.shell(id, created, object, piece);
            if counted && n == last {
                event["usage"] = usage.clone();
            }
            out.push_str(&format!("data: {event}\n\n"));
        }
        out.push_str("data: [DONE]\n\n");
        out
    }
}

/// The text before the first stop sequence, and whether there was one.
fn cut<'t>(text: &'t str, stop: &[String]) -> (&'t str, bool) {
    let first = stop
        .iter()
        .filter_map(|stop| text.find(stop.as_str()))
        .min();
    match first.and_then(|at| text.get(..at)) {
        Some(before) => (before, true),
        None => (text, false),
    }
}

fn count(model: &TextModel, text: &str) -> Option<u32> {
    let tokenizer = model.tokenizer();
    let ids = tokenizer
        .finish(tokenizer.plan(text.to_owned(), false))
        .ok()?;
    u32::try_from(ids.count()).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{Endpoint, Reply, Value, cut, json};

    fn reply(endpoint: Endpoint, stream: bool) -> Reply {
        Reply {
            endpoint,
            stream,
            include_usage: true,
            model: Some("m".to_owned()),
            stop: vec!["\n###".to_owned(), "###".to_owned()],
            prompt_tokens: Some(7),
            max_length: 8,
        }
    }

    #[test]
    fn the_text_ends_before_the_first_stop_sequence() {
        let stop = ["b".to_owned(), "ab".to_owned()];
        assert_eq!(cut("xxabx", &stop), ("xx", true));
        assert_eq!(cut("xxa", &stop), ("xxa", false));
        assert_eq!(cut("\u{e9}b", &stop), ("\u{e9}", true));
    }

    #[test]
    fn documents_have_the_apis_shape_and_no_count_that_nobody_made() {
        let read = |reply: Reply, text: &str, filtered| -> Value {
            let written = reply.write("j", 5, text, filtered, None);
            assert_eq!(written.content_type, "application/json");
            assert_eq!(written.facts.usage.output_tokens, None);
            serde_json::from_slice(&written.body).unwrap()
        };
        let chat = read(reply(Endpoint::Chat, false), " An oak.\n### user", false);
        let message = json!({"role": "assistant", "content": " An oak."});
        assert_eq!(
            chat,
            json!({"id": "chatcmpl-j", "object": "chat.completion", "created": 5, "model": "m",
                "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": "stop"}]})
        );
        let text = read(reply(Endpoint::Completions, false), "An oak", false);
        assert_eq!(
            text,
            json!({"id": "cmpl-j", "object": "text_completion", "created": 5, "model": "m",
                "choices": [{"index": 0, "text": "An oak", "logprobs": null, "finish_reason": null}]})
        );
        let censored = read(reply(Endpoint::Chat, false), "x", true);
        assert_eq!(censored["choices"][0]["finish_reason"], "content_filter");
    }

    #[test]
    fn streams_are_whole_events_that_end() {
        for endpoint in [Endpoint::Chat, Endpoint::Completions] {
            let written = reply(endpoint, true).write("j", 5, "a\nb ### c", false, None);
            assert_eq!(written.content_type, "text/event-stream");
            let mut observer = maitred_wire::StreamObserver::new(endpoint);
            observer.push(&written.body);
            assert!(observer.finished() && observer.first_token() && !observer.error());
            assert_eq!(observer.usage(), maitred_wire::WireUsage::default());
            let text = String::from_utf8(written.body.to_vec()).unwrap();
            let events: Vec<Value> = text
                .lines()
                .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
                .collect();
            assert_eq!(events.len(), 2, "{text}");
            let (first, last) = (&events[0], &events[1]);
            let said = match endpoint {
                Endpoint::Chat => &first["choices"][0]["delta"]["content"],
                _ => &first["choices"][0]["text"],
            };
            assert_eq!(said, "a\nb ");
            assert_eq!(last["choices"][0]["finish_reason"], "stop");
        }
    }
}
