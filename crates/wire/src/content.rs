//! The true text of a request: a canonical rendering in the order in which engines render.
//!
//! Order: options that change the rendering, tools, instructions, then the history message by
//! message. Within a message: role, names, reasoning, content, tool calls, whatever order its keys
//! have. What a string holds is taken as it stands between its quotes: escapes are not decoded, so
//! two clients that escape differently are two texts.
//!
//! A history that only grew has the older rendering as a prefix: nothing closes a message, the next
//! one opens. Marks are control characters, which a JSON string cannot hold unescaped.
//!
//! Left out, because they do not change the beginning of what the engine sees: `tool_choice`,
//! `response_format`, `add_generation_prompt` and `continue_final_message` (they act at the end),
//! and `cache_control`, which clients move from turn to turn.

use crate::endpoint::Endpoint;
use crate::fields;
use crate::head::RequestHead;
use crate::json::Value;

/// Opens a message, an option or the tools.
pub const MESSAGE: &[u8] = b"\x1e";
/// Opens a part of a message.
pub const PART: &[u8] = b"\x1f";
/// Stands between a name and its value.
pub const NAME: &[u8] = b"\x1d";

/// Options that change what the engine renders before or around the messages: vLLM's and SGLang's
/// template options, reasoning switches, adapters that a request names beside its model.
const OPTIONS: [&str; 15] = [
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "reasoning",
    "reasoning_format",
    "thinking",
    "enable_thinking",
    "documents",
    "mm_processor_kwargs",
    "add_special_tokens",
    fields::TRUNCATE,
    fields::TRUNCATION_SIDE,
    "lora_path",
    "lora",
    "prompt_template",
];

/// Fields that hold the text where an endpoint's own are missing, and for unknown paths.
const TEXT_FIELDS: [&str; 12] = [
    "messages",
    "prompt",
    "input",
    "content",
    "text",
    "inputs",
    "query",
    "queries",
    "tokens",
    "input_ids",
    "input_prefix",
    "documents",
];

/// What a part of the rendering is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Options that change the rendering.
    Options,
    /// Tool definitions.
    Tools,
    /// System, developer and instruction text.
    System,
    /// What the user said.
    User,
    /// A plain prompt: text or token ids without roles.
    Prompt,
    /// What the model said.
    Assistant,
    /// What a tool gave back.
    Tool,
    /// Any other message.
    Other,
}

/// Takes a rendering, piece by piece.
pub trait Sink<'a> {
    /// A message, or another part of the request, begins.
    fn section(&mut self, _section: Section) {}
    /// Bytes of the rendering that are no content: marks, roles, names.
    fn mark(&mut self, bytes: &'a [u8]);
    /// Content, as it stands in the body.
    fn span(&mut self, bytes: &'a [u8]);
    /// A picture, sound, video or file: its URL or its encoded bytes, as they stand in the body.
    fn media(&mut self, bytes: &'a [u8]) {
        self.span(bytes);
    }
    /// A prompt of token ids, as a raw JSON array.
    fn tokens(&mut self, raw: &'a [u8]) {
        self.span(raw);
    }
    /// The batch has this many prompts beyond the first, which are not rendered.
    fn extra_prompts(&mut self, _count: u32) {}
}

struct Bytes<F>(F);

impl<'a, F: FnMut(&'a [u8])> Sink<'a> for Bytes<F> {
    fn mark(&mut self, bytes: &'a [u8]) {
        (self.0)(bytes);
    }
    fn span(&mut self, bytes: &'a [u8]) {
        (self.0)(bytes);
    }
}

/// Gives the rendering to `sink`, span by span.
pub fn render<'a>(endpoint: Endpoint, head: &RequestHead<'a>, sink: &mut impl FnMut(&'a [u8])) {
    walk(endpoint, head, &mut Bytes(sink));
}

/// Gives the rendering with its sections to `sink`.
pub fn walk<'a>(endpoint: Endpoint, head: &RequestHead<'a>, sink: &mut impl Sink<'a>) {
    options(endpoint, head, sink);
    let found = match endpoint {
        Endpoint::Chat => history(head, "messages", sink),
        Endpoint::Messages | Endpoint::CountTokens => {
            instructions(head, "system", sink);
            history(head, "messages", sink)
        }
        Endpoint::Responses => {
            instructions(head, "instructions", sink);
            history(head, "input", sink)
        }
        Endpoint::Completions => prompt(head, "prompt", sink),
        Endpoint::Embeddings => prompt(head, "input", sink),
        Endpoint::Tokenize => history(head, "messages", sink) || prompt(head, "prompt", sink),
        Endpoint::Detokenize => prompt(head, "tokens", sink),
        Endpoint::Rerank => pairs(head, &["query"], &["documents", "texts"], sink),
        Endpoint::Score => pairs(
            head,
            &["text_1", "queries", "query"],
            &["text_2", "documents", "items"],
            sink,
        ),
        Endpoint::Models | Endpoint::Other => false,
    };
    if !found {
        let _ = TEXT_FIELDS.iter().any(|name| match *name {
            "messages" => history(head, name, sink),
            _ => prompt(head, name, sink),
        });
    }
}

fn given<'h, 'a>(head: &'h RequestHead<'a>, name: &str) -> Option<Value<'h, 'a>> {
    head.value(name).filter(|v| !v.is_null())
}

fn options<'a>(endpoint: Endpoint, head: &RequestHead<'a>, sink: &mut impl Sink<'a>) {
    let documents_are_text = matches!(endpoint, Endpoint::Rerank | Endpoint::Score);
    for name in OPTIONS {
        if name == "documents" && documents_are_text {
            continue;
        }
        if let Some(value) = given(head, name) {
            option(name, &value, sink);
        }
    }
    // A stored template, which holds the beginning.
    if endpoint == Endpoint::Responses
        && let Some(value) = given(head, "prompt")
    {
        option("prompt", &value, sink);
    }
    // `functions` is the older name.
    for name in ["tools", "functions"] {
        if let Some(value) = given(head, name).filter(Value::is_filled) {
            sink.section(Section::Tools);
            sink.mark(MESSAGE);
            sink.mark(b"tools");
            sink.mark(NAME);
            sink.span(value.raw());
        }
    }
}

fn option<'a>(name: &'static str, value: &Value<'_, 'a>, sink: &mut impl Sink<'a>) {
    sink.section(Section::Options);
    sink.mark(MESSAGE);
    sink.mark(name.as_bytes());
    sink.mark(NAME);
    sink.span(value.raw());
}

/// System text beside the messages: a string or a list of blocks.
fn instructions<'a>(head: &RequestHead<'a>, name: &str, sink: &mut impl Sink<'a>) {
    if let Some(value) = given(head, name) {
        sink.section(Section::System);
        sink.mark(MESSAGE);
        sink.mark(b"system");
        content(&value, sink);
    }
}

/// A list of messages or items; a bare string is one user message.
fn history<'a>(head: &RequestHead<'a>, name: &str, sink: &mut impl Sink<'a>) -> bool {
    let Some(value) = given(head, name) else {
        return false;
    };
    if value.is_array() {
        for item in value.elements() {
            message(&item, sink);
        }
    } else {
        sink.section(Section::User);
        sink.mark(MESSAGE);
        sink.mark(b"user");
        content(&value, sink);
    }
    true
}

fn section_of(role: &[u8]) -> Section {
    match role {
        b"system" | b"developer" => Section::System,
        b"user" => Section::User,
        b"assistant" | b"model" => Section::Assistant,
        b"tool" | b"function" => Section::Tool,
        _ => Section::Other,
    }
}

/// Fields of a message beside role and content that templates render, in the order in which they
/// are rendered here; those from [`AFTER_CONTENT`] on follow the content.
const MESSAGE_FIELDS: [&[u8]; 10] = [
    b"name",
    b"tool_call_id",
    b"reasoning_content",
    b"reasoning",
    b"reasoning_details",
    b"thinking",
    b"refusal",
    b"audio",
    b"tool_calls",
    b"function_call",
];
const AFTER_CONTENT: usize = 6;

fn message<'a>(value: &Value<'_, 'a>, sink: &mut impl Sink<'a>) {
    let mut role = None;
    let mut body = None;
    let mut fields = [None; MESSAGE_FIELDS.len()];
    for (key, member) in value.members() {
        match key {
            b"role" => role = Some(member),
            b"content" => body = Some(member),
            _ => {
                if let Some(n) = MESSAGE_FIELDS.iter().position(|f| *f == key) {
                    fields[n] = Some(member);
                }
            }
        }
    }
    let Some(role) = role.filter(|_| value.is_object()) else {
        return item(value, sink);
    };
    let role = role.string_raw().unwrap_or_else(|| role.raw());
    sink.section(section_of(role));
    sink.mark(MESSAGE);
    sink.mark(role);
    message_fields(&fields, 0..AFTER_CONTENT, sink);
    if let Some(body) = body {
        content(&body, sink);
    }
    message_fields(&fields, AFTER_CONTENT..fields.len(), sink);
}

fn message_fields<'a>(
    fields: &[Option<Value<'_, 'a>>; MESSAGE_FIELDS.len()],
    range: core::ops::Range<usize>,
    sink: &mut impl Sink<'a>,
) {
    for n in range {
        if let Some(member) = fields[n].filter(Value::is_filled) {
            sink.mark(PART);
            sink.mark(MESSAGE_FIELDS[n]);
            sink.mark(NAME);
            sink.span(member.raw());
        }
    }
}

/// An item of a history that is no message: a call, its output, a thought, or something unknown.
fn item<'a>(value: &Value<'_, 'a>, sink: &mut impl Sink<'a>) {
    let kind = value.get("type").and_then(|t| t.string_raw());
    let kind = kind.unwrap_or_default();
    sink.section(if kind.ends_with(b"_output") {
        Section::Tool
    } else if kind.ends_with(b"_call") || kind == b"reasoning" {
        Section::Assistant
    } else if value.is_string() {
        Section::User
    } else {
        Section::Other
    });
    sink.mark(MESSAGE);
    part(value, sink);
}

/// A message's content, of any type. Nothing said renders as nothing, however it is written.
fn content<'a>(value: &Value<'_, 'a>, sink: &mut impl Sink<'a>) {
    if value.is_array() {
        for element in value.elements() {
            part(&element, sink);
        }
    } else {
        part(value, sink);
    }
}

/// Whether a part's kind is a picture, sound, video or file: `image_url`, `input_image`, `image`,
/// `input_audio`, `video_url`, `file`, `document` and their like.
fn is_media(kind: &[u8]) -> bool {
    let kinds: [&[u8]; 5] = [b"image", b"audio", b"video", b"file", b"document"];
    let words = || kind.split(|b| *b == b'_');
    words().any(|word| kinds.contains(&word))
}

/// One part. Text renders as a bare string does; other kinds with all their members but those that
/// no engine renders.
fn part<'a>(value: &Value<'_, 'a>, sink: &mut impl Sink<'a>) {
    if !value.is_filled() {
        return;
    }
    sink.mark(PART);
    if let Some(text) = value.string_raw() {
        return sink.span(text);
    }
    if !value.is_object() {
        return sink.span(value.raw());
    }
    let (mut kind, mut text) = (None, None);
    for (key, member) in value.members() {
        match key {
            b"type" => kind = member.string_raw(),
            b"text" => text = member.string_raw(),
            _ => {}
        }
    }
    let kind = kind.unwrap_or(b"text");
    if kind.ends_with(b"text")
        && let Some(text) = text
    {
        return sink.span(text);
    }
    sink.mark(kind);
    let media = is_media(kind);
    for (key, member) in value.members() {
        // Ids and states of items are the server's; `cache_control` moves from turn to turn.
        if !matches!(key, b"type" | b"id" | b"status" | b"cache_control") && member.is_filled() {
            sink.mark(NAME);
            sink.mark(key);
            sink.mark(NAME);
            let said = member.string_raw().unwrap_or_else(|| member.raw());
            if media {
                sink.media(said);
            } else {
                sink.span(said);
            }
        }
    }
}

fn open_prompt<'a>(sink: &mut impl Sink<'a>) {
    sink.section(Section::Prompt);
    sink.mark(MESSAGE);
}

/// A plain prompt in any of its shapes: text, token ids, or a batch of either, of which the first
/// is rendered.
fn prompt<'a>(head: &RequestHead<'a>, name: &str, sink: &mut impl Sink<'a>) -> bool {
    let Some(value) = given(head, name) else {
        return false;
    };
    open_prompt(sink);
    let first = value.elements().next();
    match first.and_then(|f| f.raw().first().copied()) {
        None => sink.span(value.string_raw().unwrap_or_else(|| value.raw())),
        Some(b'-' | b'0'..=b'9') => sink.tokens(value.raw()),
        Some(_) => {
            let more = value.elements().count().saturating_sub(1);
            sink.extra_prompts(u32::try_from(more).unwrap_or(u32::MAX));
            if let Some(first) = first {
                batch_item(&first, sink);
            }
        }
    }
    true
}

fn batch_item<'a>(item: &Value<'_, 'a>, sink: &mut impl Sink<'a>) {
    let numbers = item.elements().next();
    let numbers = numbers.is_some_and(|n| matches!(n.raw().first(), Some(b'-' | b'0'..=b'9')));
    if numbers {
        sink.tokens(item.raw());
    } else if let Some(text) = item.string_raw() {
        sink.span(text);
    } else {
        part(item, sink);
    }
}

/// A query (or several) against documents: rendered as one, each pair but the first is extra load.
fn pairs<'a>(
    head: &RequestHead<'a>,
    left: &[&str],
    right: &[&str],
    sink: &mut impl Sink<'a>,
) -> bool {
    let mut found = false;
    let mut most = 1;
    for names in [left, right] {
        let Some(value) = names.iter().find_map(|name| given(head, name)) else {
            continue;
        };
        if !found {
            open_prompt(sink);
        }
        found = true;
        content(&value, sink);
        most = most.max(value.elements().count());
    }
    sink.extra_prompts(u32::try_from(most - 1).unwrap_or(u32::MAX));
    found
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::head::parse;

    fn rendered(endpoint: Endpoint, body: &str) -> String {
        let head = parse(endpoint, body.as_bytes(), 128).unwrap();
        let mut out = Vec::new();
        render(endpoint, &head, &mut |bytes| out.extend_from_slice(bytes));
        let text = String::from_utf8(out).unwrap();
        text.replace('\x1e', "<")
            .replace('\x1f', "|")
            .replace('\x1d', "=")
    }

    #[test]
    fn a_chat_renders_in_the_order_of_engines() {
        let body = r#"{"messages":[{"content":"be\nkind","role":"system"},
            {"role":"user","content":[{"text":"a","type":"text"},{"type":"image_url","image_url":{"url":"u"}}],"name":"n"},
            {"role":"assistant","tool_calls":[{"id":"c"}],"content":null,"reasoning_content":"hm"},
            {"role":"tool","tool_call_id":"c","content":""}],
            "tools":[{"b":1}],"temperature":1,"tool_choice":"auto","reasoning_effort":"low"}"#;
        assert_eq!(
            rendered(Endpoint::Chat, body),
            "<reasoning_effort=\"low\"<tools=[{\"b\":1}]<system|be\\nkind\
             <user|name=\"n\"|a|image_url=image_url={\"url\":\"u\"}\
             <assistant|reasoning_content=\"hm\"|tool_calls=[{\"id\":\"c\"}]\
             <tool|tool_call_id=\"c\""
        );
    }

    #[test]
    fn the_other_endpoints_render_their_own_fields() {
        for (endpoint, body, expected) in [
            (Endpoint::Completions, r#"{"prompt":["a","b"]}"#, "<a"),
            (Endpoint::Completions, r#"{"prompt":[[1,2],[3]]}"#, "<[1,2]"),
            (
                Endpoint::Responses,
                r#"{"input":"hi","instructions":"be"}"#,
                "<system|be<user|hi",
            ),
            (
                Endpoint::Messages,
                r#"{"messages":[{"role":"user","content":"hi"}],"system":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#,
                "<system|a|b<user|hi",
            ),
            (
                Endpoint::Rerank,
                r#"{"documents":["a",{"text":"b"}],"query":"q"}"#,
                "<|q|a|b",
            ),
            (Endpoint::Score, r#"{"text_1":"q","text_2":["a"]}"#, "<|q|a"),
            (Endpoint::Chat, r#"{"messages":null,"prompt":"p"}"#, "<p"),
            (Endpoint::Chat, "{}", ""),
        ] {
            assert_eq!(rendered(endpoint, body), expected, "{body}");
        }
    }
}
