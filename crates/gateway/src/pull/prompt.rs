//! A request as one plain prompt, for workers that can do no more, and the text that comes back as
//! an answer of the client's API.
//!
//! A request is plain if all that it asks for can be said that way: whatever is not known here, or
//! has no counterpart there, keeps it from such workers. Nothing is left out silently.

use super::reply::Reply;
use crate::text::PoolText;
use maitred_wire::json::Value as Wire;
use maitred_wire::{Endpoint, RequestHead, head};
use serde_json::{Map, Value, json};

/// Stop sequences, and characters of all of them, that such a request may have.
const STOPS_MAX: usize = 128;
const STOP_CHARS_MAX: usize = 2_000;
/// Bytes of a rendered prompt.
const PROMPT_MAX: usize = 16 << 20;

/// What a request's field asks for.
enum Asks {
    /// Nothing of the answer: it is for us, or a part of what is rendered.
    Nothing,
    /// A number, within these bounds, under that name.
    Number(&'static str, f64, f64),
    /// The same, whole.
    Whole(&'static str, f64, f64),
    /// Something that is not offered, unless it is this number (or `false` for 0).
    Only(f64),
    /// Something that is not offered, unless it is empty.
    Empty,
    /// One of these words.
    Words(&'static [&'static str]),
    /// Text, not another format.
    Text,
    Stop,
}

fn asks(endpoint: Endpoint, field: &str) -> Option<Asks> {
    let chat = endpoint == Endpoint::Chat;
    Some(match field {
        "messages"
        | "chat_template_kwargs"
        | "documents"
        | "add_generation_prompt"
        | "continue_final_message"
        | "reasoning_effort"
            if chat =>
        {
            Asks::Nothing
        }
        "prompt" if !chat => Asks::Nothing,
        "model"
        | "stream"
        | "stream_options"
        | "max_tokens"
        | "max_completion_tokens"
        | "user"
        | "metadata"
        | "prompt_cache_key"
        | "prompt_cache_retention"
        | "safety_identifier"
        | "session_params"
        | "store"
        | "service_tier"
        | "priority"
        | "request_id"
        | "rid"
        | "cache_prompt"
        | "parallel_tool_calls" => Asks::Nothing,
        "temperature" => Asks::Number("temperature", 0.0, 5.0),
        "top_p" => Asks::Number("top_p", 0.001, 1.0),
        // -1 and 0 are both said for: all.
        "top_k" => Asks::Whole("top_k", -1.0, 200.0),
        "min_p" => Asks::Number("min_p", 0.0, 1.0),
        "top_a" => Asks::Number("top_a", 0.0, 1.0),
        "typical_p" => Asks::Number("typical", 0.0, 1.0),
        "tfs_z" => Asks::Number("tfs", 0.0, 1.0),
        "repetition_penalty" | "repeat_penalty" => Asks::Number("rep_pen", 1.0, 3.0),
        "repeat_last_n" => Asks::Whole("rep_pen_range", 0.0, 4_096.0),
        "dynatemp_range" => Asks::Number("dynatemp_range", 0.0, 5.0),
        "dynatemp_exponent" => Asks::Number("dynatemp_exponent", 0.0, 5.0),
        "stop" => Asks::Stop,
        "n" | "best_of" => Asks::Only(1.0),
        "presence_penalty" | "frequency_penalty" | "top_logprobs" | "min_tokens" | "n_probs" => {
            Asks::Only(0.0)
        }
        "echo" | "ignore_eos" | "use_beam_search" | "include_stop_str_in_output" => Asks::Only(0.0),
        "logprobs" if chat => Asks::Only(0.0),
        "tools" | "functions" | "logit_bias" | "suffix" | "bad_words" | "stop_token_ids" => {
            Asks::Empty
        }
        "tool_choice" => Asks::Words(&["none", "auto"]),
        "response_format" => Asks::Text,
        _ => return None,
    })
}

/// What a plain request says beside its prompt.
#[derive(Default)]
struct Options {
    payload: Map<String, Value>,
    stop: Vec<String>,
}

fn number(value: &Wire<'_, '_>) -> Option<f64> {
    let text = core::str::from_utf8(value.raw()).ok()?;
    text.parse::<f64>().ok().filter(|n| n.is_finite())
}

fn is_empty(value: &Wire<'_, '_>) -> bool {
    match value.raw().first() {
        Some(b'[') => value.elements().next().is_none(),
        Some(b'{') => value.members().next().is_none(),
        Some(b'"') => value.raw().len() == 2,
        _ => false,
    }
}

/// None: it can not be said as a plain request.
fn options(endpoint: Endpoint, head: &RequestHead<'_>) -> Option<Options> {
    let mut found = Options::default();
    for field in &head.fields {
        let value = head.value(field.name)?;
        if value.is_null() {
            continue;
        }
        match asks(endpoint, field.name)? {
            Asks::Nothing => {}
            Asks::Number(name, least, most) => {
                let n = number(&value).filter(|n| (least..=most).contains(n))?;
                found.payload.insert(name.to_owned(), json!(n));
            }
            Asks::Whole(name, least, most) => {
                let n =
                    number(&value).filter(|n| (least..=most).contains(n) && n.fract() == 0.0)?;
                #[allow(clippy::cast_possible_truncation)]
                found
                    .payload
                    .insert(name.to_owned(), json!(n.max(0.0) as i64));
            }
            Asks::Only(only) => {
                let none = only == 0.0 && value.bool() == Some(false);
                if !none && number(&value) != Some(only) {
                    return None;
                }
            }
            Asks::Empty => {
                if !is_empty(&value) {
                    return None;
                }
            }
            Asks::Words(words) => {
                value
                    .string()
                    .filter(|word| words.contains(&word.as_ref()))?;
            }
            Asks::Text => {
                let kind = value.get("type").and_then(|kind| kind.string());
                kind.filter(|kind| kind == "text")?;
            }
            Asks::Stop => found.stop = stops(&value)?,
        }
    }
    Some(found)
}

fn stops(value: &Wire<'_, '_>) -> Option<Vec<String>> {
    let stops: Vec<String> = if value.is_string() {
        vec![value.string()?.into_owned()]
    } else if value.is_array() {
        let texts = value
            .elements()
            .map(|stop| Some(stop.string()?.into_owned()));
        texts.collect::<Option<_>>()?
    } else {
        return None;
    };
    let chars: usize = stops.iter().map(|stop| stop.chars().count()).sum();
    let fits = stops.len() <= STOPS_MAX && chars <= STOP_CHARS_MAX;
    (fits && !stops.iter().any(String::is_empty)).then_some(stops)
}

/// The text of a completion's prompt; None: there are several, or it is token ids.
fn prompt(head: &RequestHead<'_>) -> Option<String> {
    let value = head.value("prompt")?;
    if value.is_string() {
        return Some(value.string()?.into_owned());
    }
    let mut elements = value.elements();
    let only = elements.next().filter(|only| only.is_string())?;
    if elements.next().is_some() {
        return None;
    }
    Some(only.string()?.into_owned())
}

/// Whether the request can be one plain prompt. Of a chat it must be known, besides, that the pool's
/// template renders it.
pub(crate) fn is_plain(endpoint: Endpoint, head: &RequestHead<'_>) -> bool {
    match endpoint {
        Endpoint::Chat => head.field("messages").is_some(),
        Endpoint::Completions => prompt(head).is_some(),
        _ => return false,
    }
    .then(|| options(endpoint, head))
    .flatten()
    .is_some()
}

/// What the worker takes, and what is known of the prompt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) context_max: u32,
    pub(crate) output_max: u32,
    /// Of the prompt; an estimate unless `exact`.
    pub(crate) prompt_tokens: u32,
    pub(crate) exact: bool,
}

/// A request as a plain worker gets it.
pub(crate) struct Prompt {
    /// Prompt and options.
    pub(crate) payload: Value,
    /// The model that the client named.
    pub(crate) model: Option<String>,
    /// How its text becomes an answer.
    pub(crate) reply: Reply,
}

impl Prompt {
    /// Reads the request that the client sent. `text`: the pool's template and tokenizer. None: it
    /// is not plain after all.
    pub(crate) fn read(
        endpoint: Endpoint,
        body: &[u8],
        depth_max: usize,
        text: Option<&PoolText>,
        bounds: Bounds,
    ) -> Option<Self> {
        let head = head::parse(endpoint, body, depth_max).ok()?;
        let Options { mut payload, stop } = options(endpoint, &head)?;
        let (prompt, ends) = match endpoint {
            Endpoint::Chat => rendered(text?, &head)?,
            _ => (prompt(&head)?, None),
        };
        let room = bounds.context_max.saturating_sub(bounds.prompt_tokens);
        let max_length = head
            .max_tokens
            .unwrap_or(bounds.output_max.min(room))
            .max(1);
        let mut stop_sequence = stop.clone();
        stop_sequence.extend(ends.clone());
        for (name, default) in [
            ("min_p", 0.0),
            ("smoothing_factor", 0.0),
            ("dynatemp_range", 0.0),
            ("dynatemp_exponent", 1.0),
        ] {
            payload.entry(name).or_insert(json!(default));
        }
        payload.insert("prompt".to_owned(), json!(prompt));
        payload.insert("n".to_owned(), json!(1));
        payload.insert("max_length".to_owned(), json!(max_length));
        let context = bounds.context_max.max(max_length);
        payload.insert("max_context_length".to_owned(), json!(context));
        if !stop_sequence.is_empty() {
            payload.insert("stop_sequence".to_owned(), json!(stop_sequence));
        }
        let model = head.model.as_deref().map(str::to_owned);
        Some(Self {
            payload: Value::Object(payload),
            reply: Reply {
                endpoint,
                stream: head.stream,
                include_usage: head.include_usage,
                model: model.clone(),
                stop: stop_sequence,
                prompt_tokens: bounds.exact.then_some(bounds.prompt_tokens),
                max_length,
            },
            model,
        })
    }
}

/// The chat as the template has it, and the text that ends an answer. The worker's tokenizer adds a
/// beginning of text by itself, where ours does: then the template's own is left out.
fn rendered(text: &PoolText, head: &RequestHead<'_>) -> Option<(String, Option<String>)> {
    let templates = text.model.templates();
    let rendered = templates
        .render(Endpoint::Chat, head, text.now(), PROMPT_MAX)
        .ok()?;
    let mut prompt = rendered.text.into_text();
    let special = |name: &str| templates.special(name).filter(|token| !token.is_empty());
    if let Some(bos) = special("bos_token")
        && prompt.starts_with(bos)
        && text.model.adds_before(bos)
    {
        prompt.drain(..bos.len());
    }
    Some((prompt, special("eos_token").map(str::to_owned)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{Bounds, Prompt, Value, is_plain, json};
    use maitred_wire::{Endpoint, head};

    const BOUNDS: Bounds = Bounds {
        context_max: 2_048,
        output_max: 512,
        prompt_tokens: 100,
        exact: false,
    };

    fn plain(endpoint: Endpoint, extra: &Value) -> bool {
        let mut body = match endpoint {
            Endpoint::Chat => json!({"model": "m", "messages": [{"role": "user", "content": "x"}]}),
            _ => json!({"model": "m", "prompt": "x"}),
        };
        body.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        let body = body.to_string();
        is_plain(
            endpoint,
            &head::parse(endpoint, body.as_bytes(), 64).unwrap(),
        )
    }

    #[test]
    fn what_can_not_be_said_keeps_a_request_away() {
        for asked in [
            json!({}),
            json!({"temperature": 0, "top_p": 0.9, "top_k": -1, "min_p": null, "seed": null}),
            json!({"n": 1, "stop": ["a", "b"], "max_tokens": 5, "stream": true}),
            json!({"presence_penalty": 0.0, "echo": false, "tools": [], "logit_bias": {}}),
            json!({"response_format": {"type": "text"}, "tool_choice": "none", "user": "u"}),
        ] {
            assert!(plain(Endpoint::Chat, &asked), "{asked}");
            assert!(plain(Endpoint::Completions, &asked), "{asked}");
        }
        for asked in [
            json!({"seed": 1}),
            json!({"n": 2}),
            json!({"temperature": 5.1}),
            json!({"temperature": "hot"}),
            json!({"top_p": 0}),
            json!({"top_k": 1.5}),
            json!({"stop": [""]}),
            json!({"stop": vec!["a"; 129]}),
            json!({"stop": "x".repeat(2_001)}),
            json!({"stop": 7}),
            json!({"presence_penalty": 0.5}),
            json!({"tools": [{"type": "function"}]}),
            json!({"logprobs": true}),
            json!({"response_format": {"type": "json_object"}}),
            json!({"tool_choice": "required"}),
            json!({"cache_salt": "s"}),
            json!({"guided_json": {}}),
            json!({"an_unknown_field": 1}),
        ] {
            assert!(!plain(Endpoint::Chat, &asked), "{asked}");
            assert!(!plain(Endpoint::Completions, &asked), "{asked}");
        }
        assert!(!plain(
            Endpoint::Completions,
            &json!({"prompt": ["a", "b"]})
        ));
        assert!(!plain(Endpoint::Completions, &json!({"prompt": [1, 2]})));
        assert!(plain(Endpoint::Completions, &json!({"prompt": ["a"]})));
        // 0 asks for the chosen token's own there.
        assert!(!plain(Endpoint::Completions, &json!({"logprobs": 0})));
        assert!(!plain(Endpoint::Messages, &json!({})));
    }

    #[test]
    fn a_completion_becomes_a_payload() {
        let body = json!({"model": "m", "prompt": "say \u{e9}", "max_tokens": 64, "stop": "\n",
            "temperature": 0.7, "top_k": -1, "stream": true});
        let read = |body: Value, bounds| {
            let body = body.to_string();
            Prompt::read(Endpoint::Completions, body.as_bytes(), 64, None, bounds).unwrap()
        };
        let prompt = read(body, BOUNDS);
        let expected = json!({"temperature": 0.7, "top_k": 0, "min_p": 0.0, "smoothing_factor": 0.0,
            "dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "prompt": "say \u{e9}", "n": 1,
            "max_length": 64, "max_context_length": 2_048, "stop_sequence": ["\n"]});
        assert_eq!(prompt.payload, expected);
        assert_eq!(prompt.model.as_deref(), Some("m"));
        // Without a word on the answer's length: what the worker takes, or what is left.
        let length = |prompt_tokens| {
            let bounds = Bounds {
                prompt_tokens,
                ..BOUNDS
            };
            read(json!({"prompt": "x"}), bounds).payload["max_length"].clone()
        };
        assert_eq!(length(100), 512);
        assert_eq!(length(2_000), 48);
        assert_eq!(length(3_000), 1);
    }
}
