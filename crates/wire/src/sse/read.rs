//! What an event says, family by family.

use super::Seen;
use super::lines::Event;
use crate::answer::{continuable, input_of, is_error};
use crate::endpoint::Endpoint;
use crate::json::Value;
use crate::usage::Input;
use memchr::memmem::Finder;
use std::sync::LazyLock;

static USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"usage\""));
static META_INFO: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"meta_info\""));
static TIMINGS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"timings\""));
static ERROR: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"error\""));
static ABORT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"abort\""));

/// Whether a chunk after the first token holds anything else that is read.
fn says_more(endpoint: Endpoint, data: &[u8]) -> bool {
    let holds = |finder: &Finder<'_>| finder.find(data).is_some();
    [&USAGE, &TIMINGS, &ERROR, &ABORT]
        .iter()
        .any(|finder| holds(finder))
        || (endpoint == Endpoint::Other && holds(&META_INFO))
}

impl Seen {
    pub(super) fn event(&mut self, endpoint: Endpoint, event: &Event<'_>) {
        self.error |= event.name == b"error";
        match endpoint {
            Endpoint::Responses => self.responses_event(event),
            Endpoint::Messages | Endpoint::CountTokens => self.anthropic_event(event),
            _ => self.openai_chunk(endpoint, event),
        }
    }

    fn openai_chunk(&mut self, endpoint: Endpoint, event: &Event<'_>) {
        if event.data == b"[DONE]" {
            self.finished = true;
            return;
        }
        if !event.whole {
            // So much text has content in it, whatever else.
            self.first_token = true;
            return;
        }
        if self.first_token && !says_more(endpoint, event.data) {
            return;
        }
        for (key, value) in Value::document(event.data, &[]).members() {
            match key {
                b"choices" => value.elements().for_each(|c| self.choice(&c)),
                b"usage" => self.reports.usage(&value, input_of(endpoint)),
                b"meta_info" if endpoint == Endpoint::Other => {
                    self.reports.usage(&value, Input::Whole);
                }
                b"timings" => self.reports.timings(&value),
                b"error" => self.error |= is_error(&value),
                b"id" => self.id(endpoint, &value),
                // Native streams of engines, on paths of their own.
                b"content" | b"text" | b"token" if endpoint == Endpoint::Other => {
                    self.first_token |= value.is_filled();
                }
                _ => {}
            }
        }
    }

    fn choice(&mut self, choice: &Value<'_, '_>) {
        for (key, value) in choice.members() {
            match key {
                // Reasoning has many names, so any field that says something counts; those that
                // come with every message do not.
                b"delta" | b"message" => {
                    self.first_token |= value.members().any(|(name, said)| {
                        !matches!(name, b"role" | b"id" | b"name" | b"index") && is_said(&said)
                    });
                }
                b"text" => self.first_token |= value.is_filled(),
                b"finish_reason" => self.aborted |= value.raw() == br#""abort""#,
                _ => {}
            }
        }
    }

    fn id(&mut self, endpoint: Endpoint, value: &Value<'_, '_>) {
        if self.response_id.is_none()
            && let Some(id) = value.string().filter(|id| continuable(endpoint, id))
        {
            self.response_id = Some(id.into_owned());
        }
    }

    fn responses_event(&mut self, event: &Event<'_>) {
        let kind = event_kind(event);
        if kind.ends_with(b".delta") {
            if !self.first_token {
                let delta = Value::document(event.data, &[]).get("delta");
                self.first_token = !event.whole || delta.is_some_and(|d| d.is_filled());
            }
            return;
        }
        match kind {
            b"response.completed" | b"response.incomplete" => self.finished = true,
            b"response.failed" => {
                self.finished = true;
                self.error = true;
            }
            b"error" => self.error = true,
            b"response.created" | b"response.in_progress" | b"response.queued" => {}
            _ => return,
        }
        let Some(response) = Value::document(event.data, &[]).get("response") else {
            return;
        };
        for (key, value) in response.members() {
            match key {
                b"id" => self.id(Endpoint::Responses, &value),
                b"usage" => self.reports.usage(&value, input_of(Endpoint::Responses)),
                _ => {}
            }
        }
    }

    fn anthropic_event(&mut self, event: &Event<'_>) {
        let input = input_of(Endpoint::Messages);
        let document = Value::document(event.data, &[]);
        match event_kind(event) {
            b"content_block_delta" if self.first_token => {}
            b"content_block_delta" => {
                let said = |d: Value<'_, '_>| {
                    d.members()
                        .any(|(name, said)| name != b"type" && is_said(&said))
                };
                self.first_token = !event.whole || document.get("delta").is_some_and(said);
            }
            b"content_block_start" => {
                // A call says the tool's name before its first delta.
                let block = document.get("content_block").and_then(|b| b.get("type"));
                let tool = block.and_then(|kind| kind.string_raw());
                self.first_token |= tool.is_some_and(|kind| kind.ends_with(b"tool_use"));
            }
            b"message_start" => {
                for (key, value) in document.get("message").iter().flat_map(Value::members) {
                    match key {
                        b"usage" => self.reports.usage(&value, input),
                        b"id" => self.id(Endpoint::Messages, &value),
                        _ => {}
                    }
                }
            }
            b"message_delta" => {
                if let Some(usage) = document.get("usage") {
                    self.reports.usage(&usage, input);
                }
                let reason = document.get("delta").and_then(|d| d.get("stop_reason"));
                self.aborted |= reason.is_some_and(|r| r.raw() == br#""abort""#);
            }
            b"message_stop" => self.finished = true,
            b"error" => self.error = true,
            _ => {}
        }
    }
}

/// Text, a list, or an object that is not empty.
fn is_said(value: &Value<'_, '_>) -> bool {
    (value.is_string() || value.is_array() || value.is_object()) && value.is_filled()
}

/// The event's kind: its `event` field, else the `type` in its data.
fn event_kind<'b>(event: &Event<'b>) -> &'b [u8] {
    if !event.name.is_empty() {
        return event.name;
    }
    let kind = Value::document(event.data, &[])
        .members()
        .find(|(key, _)| *key == b"type");
    kind.and_then(|(_, value)| value.string_raw())
        .unwrap_or_default()
}
