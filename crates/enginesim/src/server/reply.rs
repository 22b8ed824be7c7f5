//! How each API family says its answer: the events of a stream, and the whole body.

use serde_json::{Value, json};

use super::ask::Family;
use crate::model::Usage;

/// The head of one answer.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub(super) family: Family,
    pub(super) id: String,
    pub(super) model: String,
    /// Unix seconds.
    pub(super) created: u64,
    pub(super) include_usage: bool,
    /// `length` or `stop`.
    pub(super) finish: &'static str,
    /// Whether usage says how many tokens were cached.
    pub(super) tells_cached: bool,
}

impl Reply {
    /// Sent before the first token is there.
    pub(super) fn greet(&self) -> String {
        match self.family {
            Family::Responses => {
                let response = self.response("in_progress", &[], Value::Null);
                sse_event("response.created", json!({"response": response}))
            }
            _ => String::new(),
        }
    }

    /// Opens a choice, together with its first token.
    pub(super) fn open(&self, choice: usize, usage: Usage) -> String {
        match self.family {
            Family::Chat => self.chunk(json!([{
                "index": choice, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null
            }])),
            Family::Responses => {
                let item = json!({"id": self.item_id(), "type": "message", "role": "assistant",
                    "status": "in_progress", "content": []});
                let part = json!({"item_id": self.item_id(), "output_index": 0, "content_index": 0,
                    "part": output_text("")});
                sse_event("response.output_item.added", json!({"output_index": 0, "item": item}))
                    + &sse_event("response.content_part.added", part)
            }
            Family::Messages => {
                let message = json!({"id": self.id, "type": "message", "role": "assistant", "model": self.model,
                    "content": [], "stop_reason": null, "stop_sequence": null, "usage": self.usage(usage)});
                let block = json!({"index": 0, "content_block": {"type": "text", "text": ""}});
                sse_event("message_start", json!({"message": message})) + &sse_event("content_block_start", block)
            }
            Family::Completions | Family::Embeddings => String::new(),
        }
    }

    /// One token's text.
    pub(super) fn delta(&self, choice: usize, text: &str) -> String {
        match self.family {
            Family::Chat => self.chunk(json!([{
                "index": choice, "delta": {"content": text}, "logprobs": null, "finish_reason": null
            }])),
            Family::Completions => self.chunk(json!([{
                "index": choice, "text": text, "logprobs": null, "finish_reason": null
            }])),
            Family::Responses => sse_event(
                "response.output_text.delta",
                json!({"item_id": self.item_id(), "output_index": 0, "content_index": 0, "delta": text}),
            ),
            Family::Messages => sse_event(
                "content_block_delta",
                json!({"index": 0, "delta": {"type": "text_delta", "text": text}}),
            ),
            Family::Embeddings => String::new(),
        }
    }

    /// Closes a choice.
    pub(super) fn close(&self, choice: usize) -> String {
        match self.family {
            Family::Chat => self.chunk(json!([{
                "index": choice, "delta": {}, "logprobs": null, "finish_reason": self.finish, "stop_reason": null
            }])),
            Family::Completions => self.chunk(json!([{
                "index": choice, "text": "", "logprobs": null, "finish_reason": self.finish, "stop_reason": null
            }])),
            Family::Messages => sse_event("content_block_stop", json!({"index": 0})),
            Family::Responses | Family::Embeddings => String::new(),
        }
    }

    /// Ends the stream. `text` is the first choice's whole text.
    pub(super) fn end(&self, text: &str, usage: Usage) -> String {
        match self.family {
            Family::Chat | Family::Completions => {
                let mut out = String::new();
                if self.include_usage {
                    let mut last = self.head();
                    last["choices"] = json!([]);
                    last["usage"] = self.usage(usage);
                    out = sse(&last);
                }
                out + "data: [DONE]\n\n"
            }
            Family::Responses => {
                let response = self.response("completed", &[text], self.usage(usage));
                let at = |field: &str, value: Value| {
                    let mut event =
                        json!({"item_id": self.item_id(), "output_index": 0, "content_index": 0});
                    event[field] = value;
                    event
                };
                let item = json!({"output_index": 0, "item": response["output"][0]});
                sse_event("response.output_text.done", at("text", json!(text)))
                    + &sse_event("response.content_part.done", at("part", output_text(text)))
                    + &sse_event("response.output_item.done", item)
                    + &sse_event("response.completed", json!({"response": response}))
            }
            Family::Messages => {
                let delta = json!({"delta": {"stop_reason": self.stop_reason(), "stop_sequence": null},
                    "usage": self.usage(usage)});
                sse_event("message_delta", delta) + &sse_event("message_stop", json!({}))
            }
            Family::Embeddings => String::new(),
        }
    }

    /// The answer in one piece.
    pub(super) fn whole(&self, texts: &[&str], usage: Usage) -> Value {
        match self.family {
            Family::Chat | Family::Completions => {
                let choices: Vec<Value> = texts
                    .iter()
                    .enumerate()
                    .map(|(at, text)| self.choice(at, text))
                    .collect();
                let mut body = self.head();
                body["object"] = json!(if self.family == Family::Chat {
                    "chat.completion"
                } else {
                    "text_completion"
                });
                body["choices"] = Value::Array(choices);
                body["usage"] = self.usage(usage);
                body
            }
            Family::Responses => self.response("completed", texts, self.usage(usage)),
            Family::Messages => {
                let text = texts.first().copied().unwrap_or_default();
                json!({"id": self.id, "type": "message", "role": "assistant", "model": self.model,
                    "content": [{"type": "text", "text": text}], "stop_reason": self.stop_reason(),
                    "stop_sequence": null, "usage": self.usage(usage)})
            }
            Family::Embeddings => Value::Null,
        }
    }

    fn choice(&self, index: usize, text: &str) -> Value {
        if self.family == Family::Chat {
            json!({"index": index, "message": {"role": "assistant", "content": text, "refusal": null, "tool_calls": []},
                "logprobs": null, "finish_reason": self.finish, "stop_reason": null})
        } else {
            json!({"index": index, "text": text, "logprobs": null, "finish_reason": self.finish, "stop_reason": null})
        }
    }

    /// Usage in the family's words. In Anthropic's, `input_tokens` leaves out what was read from the cache.
    pub(super) fn usage(&self, usage: Usage) -> Value {
        let total = usage.prompt + usage.completion;
        let mut told = match self.family {
            Family::Chat | Family::Completions | Family::Embeddings => json!({
                "prompt_tokens": usage.prompt, "total_tokens": total, "completion_tokens": usage.completion,
                "prompt_tokens_details": {"cached_tokens": usage.cached}
            }),
            Family::Responses => json!({
                "input_tokens": usage.prompt, "input_tokens_details": {"cached_tokens": usage.cached},
                "output_tokens": usage.completion, "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": total
            }),
            Family::Messages => json!({
                "input_tokens": usage.prompt - usage.cached, "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": usage.cached, "output_tokens": usage.completion
            }),
        };
        if !self.tells_cached {
            let details = [
                "prompt_tokens_details",
                "input_tokens_details",
                "cache_read_input_tokens",
            ];
            for name in details {
                if let Some(detail) = told.get_mut(name) {
                    *detail = Value::Null;
                }
            }
        }
        told
    }

    fn stop_reason(&self) -> &'static str {
        if self.finish == "length" {
            "max_tokens"
        } else {
            "end_turn"
        }
    }

    fn item_id(&self) -> String {
        format!("msg_{}", self.id.trim_start_matches("resp_"))
    }

    fn response(&self, status: &str, texts: &[&str], usage: Value) -> Value {
        let output: Vec<Value> = texts
            .iter()
            .map(|text| {
                json!({"id": self.item_id(), "type": "message", "role": "assistant", "status": "completed",
                    "content": [output_text(text)]})
            })
            .collect();
        json!({"id": self.id, "object": "response", "created_at": self.created, "status": status,
            "model": self.model, "output": output, "parallel_tool_calls": true, "tool_choice": "auto", "tools": [],
            "error": null, "incomplete_details": null, "usage": usage})
    }

    fn head(&self) -> Value {
        let object = if self.family == Family::Chat {
            "chat.completion.chunk"
        } else {
            "text_completion"
        };
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model})
    }

    fn chunk(&self, choices: Value) -> String {
        let mut chunk = self.head();
        chunk["choices"] = choices;
        sse(&chunk)
    }
}

fn output_text(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": null})
}

fn sse(data: &Value) -> String {
    format!("data: {data}\n\n")
}

fn sse_event(name: &str, mut data: Value) -> String {
    data["type"] = json!(name);
    format!("event: {name}\ndata: {data}\n\n")
}
