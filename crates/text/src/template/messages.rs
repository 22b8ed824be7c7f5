//! Messages as engines hand them to a template: each engine changes the client's own a little.

use super::RenderError;
use super::named::Named;
use super::request::value;
use crate::memo::Memo;
use crate::pieces::{LONG_TEXT_BYTES, Message};
use maitred_wire::json::{self, Value as Wire};
use minijinja::value::Value;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// The form of content that a template wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentShape {
    /// One string.
    String,
    /// A list of parts.
    Parts,
}

/// Whose reading of a request the renderings follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// As `apply_chat_template` gets them: nothing is changed.
    Transformers,
    /// vLLM (read in 0.32): contents in the template's form, text parts joined by line feeds,
    /// known fields only, arguments of tool calls as objects, tools with their known fields.
    #[default]
    Vllm,
    /// SGLang: as vLLM, but parts joined by spaces, and fields kept.
    Sglang,
}

/// What a message's fields take beside its text: the map, the names, the shared pointers' counts.
const FIELDS_BYTES: usize = 512;

/// What a nested value takes beside its text, for each mark that opens or parts values: a place in
/// its list or map, or a list or map of its own.
const NESTED_BYTES: usize = 96;

/// The longest JSON text of arguments that is read.
const ARGUMENTS_DEPTH_MAX: usize = 100;

/// Fields of the same name as in Python's `dict`: a later one replaces the value, not the place.
pub(super) type Fields = Vec<(String, Value)>;

fn set(fields: &mut Fields, name: &str, value: Value) {
    match fields.iter_mut().find(|(known, _)| known == name) {
        Some(field) => field.1 = value,
        None => fields.push((name.to_owned(), value)),
    }
}

fn get<'f>(fields: &'f Fields, name: &str) -> Option<&'f Value> {
    fields.iter().find(|(known, _)| known == name).map(|f| &f.1)
}

pub(super) fn map(fields: Fields) -> Value {
    Value::from_object(Named(fields))
}

/// How one request's messages are read.
pub(super) struct Reading {
    pub(super) dialect: Dialect,
    pub(super) shape: ContentShape,
    /// The template knows the role `developer`.
    pub(super) developer: bool,
}

impl Reading {
    /// All messages.
    ///
    /// # Errors
    /// A message is no object or has no role, has media, or a text that is none.
    pub(super) fn messages(&self, list: &Wire<'_, '_>) -> Result<Vec<Fields>, RenderError> {
        if !list.is_array() {
            return Err(RenderError::Field("messages"));
        }
        let mut messages = Vec::new();
        for message in list.elements() {
            messages.push(self.message(&message)?);
        }
        let developer = |message: &Fields| role(message) == "developer";
        if self.joins(messages.iter().any(developer)) {
            messages = as_system(messages);
        }
        Ok(messages)
    }

    /// All messages, of which those read before are remembered by their bytes. None where something
    /// is to be done to a message because of the others.
    ///
    /// # Errors
    /// As [`Self::messages`].
    pub(super) fn remembered(
        &self,
        list: &Wire<'_, '_>,
        memo: &Memo<Arc<Message>>,
        seed: u64,
    ) -> Result<Option<Vec<Arc<Message>>>, RenderError> {
        if !list.is_array() {
            return Err(RenderError::Field("messages"));
        }
        let seed = seed ^ u64::from(self.shape == ContentShape::Parts);
        let mut messages = Vec::new();
        for message in list.elements() {
            let raw = message.raw();
            let key = xxh3_128_with_seed(raw, seed);
            let known = memo.get(key, raw.len());
            messages.push(match known {
                Some(known) => known,
                None => {
                    let fields = self.message(&message)?;
                    let plain = fields.iter().all(|(_, value)| value.as_str().is_some());
                    let nested = if plain { 0 } else { marks(raw) * NESTED_BYTES };
                    let new = Arc::new(Message::new(map(fields), seed));
                    let long = new.long().len() * LONG_TEXT_BYTES;
                    memo.insert(key, &new, raw.len() + nested + FIELDS_BYTES + long);
                    new
                }
            });
        }
        let joins = self.joins(messages.iter().any(|message| message.developer));
        Ok((!joins).then_some(messages))
    }

    /// Whether a message's reading depends on the others. `developer`: one of them has that role.
    fn joins(&self, developer: bool) -> bool {
        developer && self.dialect == Dialect::Vllm && !self.developer
    }

    fn message(&self, message: &Wire<'_, '_>) -> Result<Fields, RenderError> {
        if !message.is_object() {
            return Err(RenderError::Field("messages"));
        }
        if !plain_names(message) {
            return Err(RenderError::Field("messages"));
        }
        if has_media(message) {
            return Err(RenderError::Media);
        }
        let fields = match self.dialect {
            Dialect::Transformers => all_fields(message)?,
            Dialect::Vllm => self.vllm(message)?,
            Dialect::Sglang => self.sglang(message)?,
        };
        if get(&fields, "role").is_none() {
            return Err(RenderError::Field("messages.role"));
        }
        Ok(fields)
    }

    fn vllm(&self, message: &Wire<'_, '_>) -> Result<Fields, RenderError> {
        let role = message.get("role").and_then(|r| r.string());
        let role = role.ok_or(RenderError::Field("messages.role"))?;
        let mut fields = vec![("role".to_owned(), Value::from(role.as_ref()))];
        let drop_billing = role == "system";
        let content = self.content(message, "\n", role == "tool", drop_billing)?;
        set(&mut fields, "content", content);
        let mut copy = |from: &str, to: &str| -> Result<(), RenderError> {
            if let Some(found) = message.get(from).filter(|v| !v.is_null()) {
                set(&mut fields, to, value(&found)?);
            }
            Ok(())
        };
        match role.as_ref() {
            "assistant" => {
                copy("reasoning", "reasoning")?;
                copy("reasoning", "reasoning_content")?;
            }
            "tool" => copy("tool_call_id", "tool_call_id")?,
            _ => {}
        }
        for name in ["name", "task"] {
            if message.get(name).is_some_and(|v| v.is_string()) {
                copy(name, name)?;
            }
        }
        if role == "assistant" {
            set_calls(&mut fields, message, self.dialect)?;
        }
        if role == "developer" {
            let tools = message.get("tools").map(|t| value(&t)).transpose()?;
            set(&mut fields, "tools", tools.unwrap_or(Value::from(())));
        }
        Ok(fields)
    }

    fn sglang(&self, message: &Wire<'_, '_>) -> Result<Fields, RenderError> {
        let mut fields = all_fields(message)?;
        fields.retain(|(_, value)| !value.is_none());
        set(
            &mut fields,
            "content",
            self.content(message, " ", false, false)?,
        );
        if role(&fields) == "assistant" {
            set_calls(&mut fields, message, self.dialect)?;
        }
        Ok(fields)
    }

    /// The content in the template's form.
    fn content(
        &self,
        message: &Wire<'_, '_>,
        joint: &str,
        as_string: bool,
        drop_billing: bool,
    ) -> Result<Value, RenderError> {
        let field = RenderError::Field("messages.content");
        let wants_parts = self.shape == ContentShape::Parts;
        let Some(content) = message.get("content").filter(|c| !c.is_null()) else {
            let parts = wants_parts && !as_string && self.dialect == Dialect::Vllm;
            return Ok(if parts {
                Value::from(Vec::<Value>::new())
            } else {
                Value::from("")
            });
        };
        let mut texts: Vec<String> = Vec::new();
        if let Some(text) = content.string() {
            // SGLang leaves strings as they are, whatever the template wants. One copy where nothing is to be changed.
            let as_it_is = !drop_billing && (!wants_parts || as_string);
            if self.dialect == Dialect::Sglang || as_it_is {
                return Ok(Value::from(text.as_ref()));
            }
            texts.push(text.into_owned());
        } else if content.is_array() {
            for part in content.elements() {
                texts.extend(text_of(&part)?);
            }
        } else {
            return Err(field);
        }
        if drop_billing {
            texts.retain_mut(keep_after_billing);
        }
        if wants_parts && !as_string {
            return Ok(texts.into_iter().map(part).collect());
        }
        Ok(match <[String; 1]>::try_from(texts) {
            Ok([only]) => Value::from(only),
            Err(texts) => Value::from(texts.join(joint)),
        })
    }
}

/// Whether no name is written with escapes: such ones are not found where they are looked for.
pub(super) fn plain_names(object: &Wire<'_, '_>) -> bool {
    !object.members().any(|(name, _)| name.contains(&b'\\'))
}

/// Marks that open or part values, those within texts too.
fn marks(raw: &[u8]) -> usize {
    let is_mark = |byte: &&u8| matches!(byte, b'[' | b'{' | b',' | b':');
    raw.iter().filter(is_mark).count()
}

fn role(message: &Fields) -> &str {
    get(message, "role")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn all_fields(message: &Wire<'_, '_>) -> Result<Fields, RenderError> {
    let mut fields = Fields::new();
    for (name, member) in message.members() {
        let name = json::decode(name).ok_or(RenderError::Field("messages"))?;
        set(&mut fields, &name, value(&member)?);
    }
    Ok(fields)
}

/// A text part's text. None for parts that engines skip.
fn text_of(part: &Wire<'_, '_>) -> Result<Option<String>, RenderError> {
    let field = RenderError::Field("messages.content");
    if let Some(text) = part.string() {
        return Ok(Some(text.into_owned()));
    }
    if !plain_names(part) {
        return Err(field);
    }
    let kind = part.get("type").and_then(|t| t.string());
    let name = match kind.as_deref() {
        Some("text" | "input_text" | "output_text") | None => "text",
        Some("refusal") => "refusal",
        Some("thinking") => "thinking",
        Some(_) => return Err(RenderError::Media),
    };
    let Some(text) = part.get(name).filter(|t| !t.is_null()) else {
        return Ok(None);
    };
    let text = text.string().ok_or(field)?;
    Ok(Some(text.into_owned()))
}

fn part(text: String) -> Value {
    Value::from_pairs([("type", Value::from("text")), ("text", Value::from(text))])
}

/// vLLM drops the line by which one coding agent tells whom to bill: it changes with every
/// request. Whether the text stays at all.
fn keep_after_billing(text: &mut String) -> bool {
    const BILLING: &str = "x-anthropic-billing-header";
    if !text.starts_with(BILLING) {
        return true;
    }
    let rest = text
        .split_once('\n')
        .map_or("", |(_, rest)| rest)
        .to_owned();
    *text = rest;
    !text.is_empty()
}

/// Whether a part of the content is no text.
fn has_media(message: &Wire<'_, '_>) -> bool {
    const MEDIA: [&str; 10] = [
        "image",
        "image_url",
        "input_image",
        "image_embeds",
        "audio_url",
        "input_audio",
        "video_url",
        "video",
        "file",
        "prompt_embeds",
    ];
    message.get("content").is_some_and(|content| {
        content.elements().any(|part| {
            let kind = part.get("type").and_then(|t| t.string());
            kind.is_some_and(|kind| MEDIA.contains(&kind.as_ref()))
        })
    })
}

/// Tool calls with their arguments as objects, as the documents of Transformers ask for. No calls
/// are no field.
fn set_calls(
    fields: &mut Fields,
    message: &Wire<'_, '_>,
    dialect: Dialect,
) -> Result<(), RenderError> {
    let field = RenderError::Field("messages.tool_calls");
    let Some(calls) = message.get("tool_calls").filter(|c| !c.is_null()) else {
        return Ok(());
    };
    if !calls.is_array() {
        return Err(field);
    }
    let mut read = Vec::new();
    for call in calls.elements() {
        let function = call.get("function").filter(|f| f.is_object());
        let function = function.ok_or_else(|| field.clone())?;
        if !plain_names(&call) || !plain_names(&function) {
            return Err(field);
        }
        let arguments = arguments_of(function.get("arguments"))?;
        let mut inner = all_fields(&function)?;
        let mut entries = all_fields(&call)?;
        if dialect == Dialect::Vllm {
            // The fields of its type, in that type's order.
            set(&mut inner, "arguments", Value::from(()));
            inner = in_order(inner, &["arguments", "name"]);
            entries = in_order(entries, &["id", "function", "type"]);
        }
        set(&mut inner, "arguments", arguments);
        set(&mut entries, "function", map(inner));
        read.push(map(entries));
    }
    fields.retain(|(name, _)| name != "tool_calls");
    if !read.is_empty() {
        fields.push(("tool_calls".to_owned(), Value::from(read)));
    }
    Ok(())
}

/// The named fields, in that order.
fn in_order(mut fields: Fields, names: &[&str]) -> Fields {
    fields.retain(|(name, _)| names.contains(&name.as_str()));
    fields.sort_by_key(|(name, _)| names.iter().position(|known| known == name));
    fields
}

/// Arguments as an object; an empty one for what is none.
fn arguments_of(arguments: Option<Wire<'_, '_>>) -> Result<Value, RenderError> {
    let empty = || Value::from_pairs(Vec::<(String, Value)>::new());
    let Some(arguments) = arguments else {
        return Ok(empty());
    };
    if arguments.is_object() {
        return value(&arguments);
    }
    let Some(text) = arguments.string() else {
        return Ok(empty());
    };
    let Ok(long) = json::check(text.as_bytes(), ARGUMENTS_DEPTH_MAX) else {
        return Ok(empty());
    };
    let inner = Wire::document(text.trim_ascii_end().as_bytes(), &long);
    if inner.is_object() {
        return value(&inner);
    }
    Ok(empty())
}

/// vLLM for templates without the role `developer`: as `system`, and all system messages in one
/// at the beginning.
fn as_system(messages: Vec<Fields>) -> Vec<Fields> {
    let mut texts = Vec::new();
    let mut others = Vec::new();
    let mut systems = Vec::new();
    let mut late = false;
    for (at, mut message) in messages.into_iter().enumerate() {
        if role(&message) == "developer" {
            set(&mut message, "role", Value::from("system"));
            message.retain(|(name, _)| name != "tools");
        }
        if role(&message) != "system" {
            others.push(message);
            continue;
        }
        late |= at > 0 || !systems.is_empty();
        let text = get(&message, "content").map(plain_text).unwrap_or_default();
        if !text.is_empty() {
            texts.push(text);
        }
        systems.push(message);
    }
    if late {
        systems = vec![vec![
            ("role".to_owned(), Value::from("system")),
            ("content".to_owned(), Value::from(texts.join("\n\n"))),
        ]];
    }
    systems.extend(others);
    systems
}

fn plain_text(content: &Value) -> String {
    if let Some(text) = content.as_str() {
        return text.to_owned();
    }
    let parts = content.try_iter().into_iter().flatten();
    let texts: Vec<String> = parts
        .filter_map(|part| Some(part.get_attr("text").ok()?.as_str()?.to_owned()))
        .collect();
    texts.join("\n")
}
