//! What a client asks for: the few fields the engine honours, and the prompt's tokens. Unknown fields are ignored.

use std::sync::Arc;

use serde_json::Value;

use crate::tokens;

/// Reply length when the client names none.
const MAX_TOKENS_DEFAULT: usize = 64;
/// Choices one request may ask for.
const CHOICES_MAX: u64 = 64;

/// The API a request came through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Chat,
    Completions,
    Responses,
    Messages,
    Embeddings,
}

/// A request the engine understood.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) prompts: Vec<Vec<u32>>,
    /// Replies per prompt.
    pub(super) n: usize,
    pub(super) max_tokens: usize,
    /// The client named `max_tokens`: the reply ends for its length.
    pub(super) limited: bool,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    /// The cache salt: calls with different ones share no block.
    pub(super) salt: Option<Arc<str>>,
}

/// A request refused: the message and the field it is about.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: u16,
    pub(super) message: String,
    pub(super) param: Option<&'static str>,
}

impl Refusal {
    pub(super) fn bad(message: impl Into<String>, param: Option<&'static str>) -> Self {
        Self {
            status: 400,
            message: message.into(),
            param,
        }
    }
}

/// Reads a request of `family`; `served` is the only model there is.
pub(super) fn parse(family: Family, body: &Value, served: &str) -> Result<Ask, Refusal> {
    if !body.is_object() {
        return Err(Refusal::bad("the body is not a JSON object", None));
    }
    if let Some(model) = body.get("model").filter(|m| !m.is_null())
        && model.as_str() != Some(served)
    {
        return Err(Refusal {
            status: 404,
            message: format!("The model {model} does not exist."),
            param: Some("model"),
        });
    }
    let lengths: &[&'static str] = match family {
        Family::Chat => &["max_completion_tokens", "max_tokens"],
        Family::Responses => &["max_output_tokens"],
        Family::Completions | Family::Messages => &["max_tokens"],
        Family::Embeddings => &[],
    };
    let mut named = None;
    for field in lengths {
        if let (None, Some(count)) = (named, count(body, field)?) {
            if count == 0 {
                return Err(Refusal::bad(
                    format!("{field} must be at least 1"),
                    Some(field),
                ));
            }
            named = Some(usize::try_from(count).unwrap_or(usize::MAX));
        }
    }
    let n = match count(body, "n")? {
        None => 1,
        Some(n @ 1..=CHOICES_MAX) => n as usize,
        Some(_) => {
            return Err(Refusal::bad(
                format!("n must be from 1 to {CHOICES_MAX}"),
                Some("n"),
            ));
        }
    };
    let prompts = match family {
        Family::Chat | Family::Messages => vec![chat(body)?],
        Family::Responses => vec![responses(body)?],
        Family::Completions => texts(body, "prompt")?,
        Family::Embeddings => texts(body, "input")?,
    };
    let single = matches!(
        family,
        Family::Responses | Family::Messages | Family::Embeddings
    );
    Ok(Ask {
        prompts,
        n: if single { 1 } else { n },
        max_tokens: match family {
            Family::Embeddings => 0,
            _ => named.unwrap_or(MAX_TOKENS_DEFAULT),
        },
        limited: named.is_some(),
        stream: body.get("stream").and_then(Value::as_bool).unwrap_or(false),
        include_usage: body
            .pointer("/stream_options/include_usage")
            .and_then(Value::as_bool)
            .unwrap_or(false),
        salt: body
            .get("cache_salt")
            .and_then(Value::as_str)
            .map(Arc::from),
    })
}

fn count(body: &Value, field: &'static str) -> Result<Option<u64>, Refusal> {
    match body.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            Some(count) => Ok(Some(count)),
            None => Err(Refusal::bad(
                format!("{field} must be a whole number"),
                Some(field),
            )),
        },
    }
}

/// The tokens of a chat in the order engines render it: tools, system, messages, then the mark of the reply.
pub(super) fn chat(body: &Value) -> Result<Vec<u32>, Refusal> {
    let messages = body
        .get("messages")
        .and_then(Value::as_array)
        .filter(|m| !m.is_empty())
        .ok_or_else(|| {
            Refusal::bad(
                "messages must be a list with at least one message",
                Some("messages"),
            )
        })?;
    let mut out = Vec::new();
    push_tools(body, &mut out);
    if let Some(system) = body.get("system") {
        out.push(tokens::special("system"));
        push_content(system, &mut out);
    }
    for message in messages {
        push_message(message, &mut out, "messages")?;
    }
    out.push(tokens::special("assistant"));
    Ok(out)
}

fn responses(body: &Value) -> Result<Vec<u32>, Refusal> {
    let mut out = Vec::new();
    push_tools(body, &mut out);
    if let Some(Value::String(text)) = body.get("instructions") {
        out.push(tokens::special("system"));
        tokens::push_text(text, &mut out);
    }
    match body.get("input") {
        Some(Value::String(text)) => {
            out.push(tokens::special("user"));
            tokens::push_text(text, &mut out);
        }
        Some(Value::Array(items)) => {
            for item in items {
                if item.get("role").is_some() {
                    push_message(item, &mut out, "input")?;
                } else {
                    push_json("item", item, &mut out);
                }
            }
        }
        _ => {
            return Err(Refusal::bad(
                "input must be a string or a list",
                Some("input"),
            ));
        }
    }
    out.push(tokens::special("assistant"));
    Ok(out)
}

/// One prompt or many: a string, strings, token ids, or lists of token ids.
fn texts(body: &Value, field: &'static str) -> Result<Vec<Vec<u32>>, Refusal> {
    let refuse = || {
        Refusal::bad(
            format!("{field} must be a string, strings, token ids or lists of token ids"),
            Some(field),
        )
    };
    let of_text = |text: &str| {
        let mut out = Vec::new();
        tokens::push_text(text, &mut out);
        out
    };
    let of_ids = |ids: &[Value]| -> Option<Vec<u32>> {
        ids.iter()
            .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
            .collect()
    };
    let prompts: Vec<Vec<u32>> = match body.get(field) {
        Some(Value::String(text)) => vec![of_text(text)],
        Some(Value::Array(items)) if items.first().is_some_and(Value::is_number) => {
            vec![of_ids(items).ok_or_else(refuse)?]
        }
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| match item {
                Value::String(text) => Some(of_text(text)),
                Value::Array(ids) => of_ids(ids),
                _ => None,
            })
            .collect::<Option<_>>()
            .ok_or_else(refuse)?,
        _ => return Err(refuse()),
    };
    if prompts.is_empty() || prompts.iter().any(Vec::is_empty) {
        return Err(Refusal::bad(
            format!("{field} must not be empty"),
            Some(field),
        ));
    }
    Ok(prompts)
}

fn push_tools(body: &Value, out: &mut Vec<u32>) {
    if let Some(tools) = body
        .get("tools")
        .filter(|t| t.as_array().is_some_and(|t| !t.is_empty()))
    {
        push_json("tools", tools, out);
    }
}

fn push_message(message: &Value, out: &mut Vec<u32>, field: &'static str) -> Result<(), Refusal> {
    let role = message
        .get("role")
        .and_then(Value::as_str)
        .ok_or_else(|| Refusal::bad("a message needs a role", Some(field)))?;
    out.push(tokens::special(role));
    if let Some(content) = message.get("content") {
        push_content(content, out);
    }
    if let Some(calls) = message.get("tool_calls").filter(|c| !c.is_null()) {
        push_json("tool_calls", calls, out);
    }
    Ok(())
}

fn push_content(content: &Value, out: &mut Vec<u32>) {
    match content {
        Value::String(text) => tokens::push_text(text, out),
        Value::Array(parts) => {
            for part in parts {
                match part.get("text").and_then(Value::as_str) {
                    Some(text) => tokens::push_text(text, out),
                    None => push_json("part", part, out),
                }
            }
        }
        _ => {}
    }
}

fn push_json(mark: &str, value: &Value, out: &mut Vec<u32>) {
    out.push(tokens::special(mark));
    tokens::push_text(&value.to_string(), out);
}
