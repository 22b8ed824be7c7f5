//! From a request's bytes to the variables of a template.

use super::messages::{Dialect, Fields, Reading, map, plain_names};
use super::{CONTINUE_TAG, Call, RenderError, Templates, WallTime};
use crate::pieces::Pieces;
use maitred_wire::json::{self, Value as Wire};
use maitred_wire::{Endpoint, RequestHead, fields};
use minijinja::value::Value;

/// The text that an engine tokenises, and how it does so.
#[derive(Clone, Debug)]
pub struct Rendered {
    /// The text.
    pub text: Pieces,
    /// Whether the tokenizer adds its own tokens around (a beginning of text, say): so it is for
    /// plain prompts, and not for chats, whose templates write them.
    pub add_special_tokens: bool,
}

/// A JSON value for a template: objects keep their order, of two members with one name the last
/// counts in the first's place, as in Python.
///
/// # Errors
/// A string is no text (a lone half of a surrogate pair, say), or a number does not fit 128 bits.
pub(super) fn value(wire: &Wire<'_, '_>) -> Result<Value, RenderError> {
    let bad = RenderError::Field("body");
    match wire.raw().first() {
        Some(b'"') => Ok(match wire.string().ok_or(bad)? {
            std::borrow::Cow::Borrowed(text) => Value::from(text),
            std::borrow::Cow::Owned(text) => Value::from(text),
        }),
        Some(b'{') => {
            let mut members = Vec::new();
            for (name, member) in wire.members() {
                let name = json::decode(name).ok_or_else(|| bad.clone())?;
                members.push((Value::from(name.as_ref()), value(&member)?));
            }
            Ok(Value::from_pairs(members))
        }
        Some(b'[') => {
            let items: Result<Vec<Value>, RenderError> =
                wire.elements().map(|item| value(&item)).collect();
            Ok(Value::from(items?))
        }
        Some(b't') => Ok(Value::from(true)),
        Some(b'f') => Ok(Value::from(false)),
        Some(b'n') => Ok(Value::from(())),
        _ => number(wire.raw()).ok_or(bad),
    }
}

fn number(raw: &[u8]) -> Option<Value> {
    let text = core::str::from_utf8(raw).ok()?;
    if text.contains(['.', 'e', 'E']) {
        return Some(Value::from(text.parse::<f64>().ok()?));
    }
    match text.parse::<i64>() {
        Ok(number) => Some(Value::from(number)),
        Err(_) => Some(Value::from(text.parse::<i128>().ok()?)),
    }
}

impl Templates {
    /// Renders a request as the engine would; `text_bytes_max` bounds the text.
    ///
    /// # Errors
    /// See [`RenderError`]; the caller falls back to bytes.
    pub fn render(
        &self,
        endpoint: Endpoint,
        head: &RequestHead<'_>,
        now: WallTime,
        text_bytes_max: usize,
    ) -> Result<Rendered, RenderError> {
        if fields::truncates(head) {
            return Err(RenderError::Truncated);
        }
        let is_chat = match endpoint {
            Endpoint::Chat => true,
            Endpoint::Tokenize => head.field("messages").is_some(),
            _ => false,
        };
        plainly_asked(head)?;
        let rendered = if is_chat {
            self.chat(head, now)?
        } else {
            plain_prompt(endpoint, head)?
        };
        if rendered.text.bytes() > text_bytes_max {
            return Err(RenderError::TooLarge);
        }
        Ok(rendered)
    }

    fn chat(&self, head: &RequestHead<'_>, now: WallTime) -> Result<Rendered, RenderError> {
        let own = ["chat_template"];
        if own
            .iter()
            .any(|f| head.value(f).is_some_and(|v| !v.is_null()))
        {
            return Err(RenderError::OwnTemplate);
        }
        let tools = tools(head, self.dialect)?;
        let (name, template) = self
            .choose(tools.is_some())
            .ok_or(RenderError::NoTemplate)?;
        if template.unlike {
            return Err(RenderError::Unlike);
        }
        let reading = Reading {
            dialect: self.dialect,
            shape: template.shape,
            developer: template.developer,
        };
        let list = head
            .value("messages")
            .ok_or(RenderError::Field("messages"))?;
        let flag = |name: &str| head.value(name).and_then(|v| v.bool());
        let continue_final = flag("continue_final_message").unwrap_or(false);
        let remembered = match continue_final {
            true => None,
            false => reading.remembered(&list, &self.messages, self.seed)?,
        };
        let messages: Value = match &remembered {
            Some(known) => known.iter().map(|one| one.value.clone()).collect(),
            None => {
                let mut messages = reading.messages(&list)?;
                if continue_final {
                    leave_open(&mut messages)?;
                }
                messages.into_iter().map(map).collect()
            }
        };
        let mut variables = options(head)?;
        variables.push(("messages".to_owned(), messages));
        variables.push(("tools".to_owned(), tools.clone().unwrap_or(Value::from(()))));
        let generation = flag("add_generation_prompt").unwrap_or(!continue_final);
        variables.push(("add_generation_prompt".to_owned(), Value::from(generation)));
        let call = Call {
            variables,
            messages: remembered.unwrap_or_default(),
            tools: tools.is_some(),
            continue_final,
        };
        debug_assert_eq!(call.tools, tools.is_some());
        Ok(Rendered {
            text: self.render_named(name, call, now)?,
            add_special_tokens: flag("add_special_tokens").unwrap_or(false),
        })
    }
}

/// Whether all that changes a prompt is there to be seen: no name is written with escapes, and no
/// part of the prompt is there as numbers.
fn plainly_asked(head: &RequestHead<'_>) -> Result<(), RenderError> {
    if head.fields.iter().any(|field| field.name.contains('\\')) {
        return Err(RenderError::Field("body"));
    }
    let embeds = head.value("prompt_embeds");
    match embeds.is_some_and(|value| !value.is_null()) {
        true => Err(RenderError::Media),
        false => Ok(()),
    }
}

/// The variables that a request sets itself. What is said outside `chat_template_kwargs` counts
/// more than what is said in it, unless it says nothing.
fn options(head: &RequestHead<'_>) -> Result<Fields, RenderError> {
    let mut found = Fields::new();
    if let Some(given) = head.value("chat_template_kwargs").filter(|v| !v.is_null()) {
        if !given.is_object() {
            return Err(RenderError::Field("chat_template_kwargs"));
        }
        for (name, member) in given.members() {
            let name = json::decode(name).ok_or(RenderError::Field("chat_template_kwargs"))?;
            if matches!(name.as_ref(), "chat_template" | "tokenize") {
                return Err(RenderError::OwnTemplate);
            }
            found.push((name.into_owned(), value(&member)?));
        }
    }
    let said = |name: &str| {
        head.value(name)
            .filter(|v| !v.is_null() && v.string_raw() != Some(b"auto"))
    };
    let documents = said("documents").map(|v| value(&v)).transpose()?;
    found.push(("documents".to_owned(), documents.unwrap_or(Value::from(()))));
    if let Some(effort) = said("reasoning_effort") {
        if !found.iter().any(|(name, _)| name == "enable_thinking") {
            let thinks = effort.string_raw() != Some(b"none");
            found.push(("enable_thinking".to_owned(), Value::from(thinks)));
        }
        found.push(("reasoning_effort".to_owned(), value(&effort)?));
    }
    Ok(found)
}

/// The tools in wire order; None where there are none.
fn tools(head: &RequestHead<'_>, dialect: Dialect) -> Result<Option<Value>, RenderError> {
    let Some(tools) = head.value("tools").filter(|t| t.is_filled()) else {
        return Ok(None);
    };
    if !tools.is_array() {
        return Err(RenderError::Field("tools"));
    }
    if dialect == Dialect::Transformers {
        return value(&tools).map(Some);
    }
    let mut read = Vec::new();
    for tool in tools.elements() {
        read.push(tool_of(&tool, dialect)?);
    }
    Ok(Some(Value::from(read)))
}

/// A tool with the fields that the engine's own type has, in that type's order.
fn tool_of(tool: &Wire<'_, '_>, dialect: Dialect) -> Result<Value, RenderError> {
    let field = RenderError::Field("tools");
    let function = tool.get("function").filter(|f| f.is_object());
    let function = function.ok_or_else(|| field.clone())?;
    if !plain_names(tool) || !plain_names(&function) {
        return Err(field);
    }
    let member = |name: &str| -> Result<Value, RenderError> {
        let found = function.get(name).map(|v| value(&v)).transpose()?;
        Ok(found.unwrap_or(Value::from(())))
    };
    let names: &[&str] = match dialect {
        Dialect::Sglang => &["description", "name", "parameters"],
        _ => &["name", "description", "parameters"],
    };
    let mut inner = Fields::new();
    for name in names {
        inner.push(((*name).to_owned(), member(name)?));
    }
    let strict = member("strict")?;
    if dialect == Dialect::Sglang {
        inner.push(("strict".to_owned(), Value::from(strict.is_true())));
    } else if !strict.is_none() {
        inner.push(("strict".to_owned(), strict));
    }
    let kind = tool.get("type").map(|v| value(&v)).transpose()?;
    Ok(Value::from_pairs([
        ("type", kind.unwrap_or(Value::from("function"))),
        ("function", Value::from_pairs(inner)),
    ]))
}

/// Marks where the final message's text ends.
fn leave_open(messages: &mut [Fields]) -> Result<(), RenderError> {
    let field = RenderError::Field("continue_final_message");
    let last = messages.last_mut().ok_or_else(|| field.clone())?;
    let content = last.iter_mut().find(|(name, _)| name == "content");
    let content = &mut content.ok_or_else(|| field.clone())?.1;
    if let Some(text) = content.as_str() {
        *content = Value::from(format!("{text}{CONTINUE_TAG}"));
        return Ok(());
    }
    let mut parts: Vec<Value> = content.try_iter().map_err(|_| field.clone())?.collect();
    for part in parts.iter_mut().rev() {
        if let Some(text) = part.get_attr("text").ok().as_ref().and_then(Value::as_str) {
            *part = Value::from_pairs([
                ("type", Value::from("text")),
                ("text", Value::from(format!("{text}{CONTINUE_TAG}"))),
            ]);
            *content = Value::from(parts);
            return Ok(());
        }
    }
    Err(field)
}

/// The text of a prompt without roles.
fn plain_prompt(endpoint: Endpoint, head: &RequestHead<'_>) -> Result<Rendered, RenderError> {
    let name = match endpoint {
        Endpoint::Completions | Endpoint::Tokenize => "prompt",
        _ => return Err(RenderError::Endpoint),
    };
    let mut prompt = head.value(name).ok_or(RenderError::Field("prompt"))?;
    // Of several prompts the first one counts, as for bytes.
    if let Some(first) = prompt.elements().next() {
        prompt = first;
    }
    let text = prompt.string().ok_or(RenderError::Field("prompt"))?;
    let special = head.value("add_special_tokens").and_then(|v| v.bool());
    Ok(Rendered {
        text: Pieces::from(text.into_owned()),
        add_special_tokens: special.unwrap_or(true),
    })
}
