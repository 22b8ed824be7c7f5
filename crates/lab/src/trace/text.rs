//! Traces that hold the prompts themselves. Blocks are those that the gateway chains over the bytes of a request (its
//! canonical rendering, 64 bytes a block); a token is taken for 4 bytes, so that lengths are estimates.
//!
//! - `openai`: a request's body as sent, or a line that holds it as `body` or `request`, with `conversation_id` or
//!   `session_id`, `timestamp` (s) and `simulated_tool_delay_ms_after` (before the session's next request) where it has
//!   them. The answer's length: `target_output_tokens`, `usage.completion_tokens`, `max_completion_tokens`, `max_tokens`.
//! - `prompts`: `input` is the whole prompt, `output` the answer, `timestamp` in microseconds, `session_id`.
//! - `dialogues`: every message of role `assistant` answers a request with all `messages` before it.

use std::collections::HashMap;
use std::io::BufRead;

use maitred_core::prefix::ChainBuilder;
use maitred_text::{Context, identify};
use maitred_wire::{Endpoint, head};
use serde_json::{Map, Value, json};

use super::field::{Fields, Names, spans};
use super::lines::wrong;
use super::{Format, Lines, Reading, Row, Take, TraceError, open, records};

/// Tokens in a block,
const BLOCK: u32 = 16;
/// and its bytes.
const BLOCK_BYTES: usize = 64;
/// Bytes of a token.
const TOKEN_BYTES: u64 = 4;
const MICROS: f64 = 1e6;
/// Bodies are nested no deeper.
const DEPTH_MAX: usize = 128;

pub(super) fn read<R: BufRead>(
    lines: &mut Lines<R>,
    format: Format,
    reading: &Reading,
    mut take: Box<Take<'_>>,
) -> Result<u32, TraceError> {
    let tools = match &reading.tools {
        Some(path) => Some(
            serde_json::from_slice(&all(path)?)
                .map_err(|error| wrong(0, "tools", format!("{}: {error}", path.display())))?,
        ),
        None => None,
    };
    let mut texts = Texts {
        reading,
        tools,
        names: Names::default(),
        delays: HashMap::new(),
    };
    while let Some(text) = lines.next()? {
        let text = text.to_vec();
        let fields = Fields::parse(&text, lines.number())?;
        match format {
            Format::Prompts => take(texts.prompt(&fields, lines.number())?)?,
            Format::Dialogues => texts.dialogue(fields, lines.number(), &mut *take)?,
            _ => take(texts.request(fields, lines.number())?)?,
        }
    }
    Ok(BLOCK)
}

fn all(path: &std::path::Path) -> Result<Vec<u8>, TraceError> {
    let mut lines = open(path)?;
    let mut bytes = Vec::new();
    while let Some(line) = lines.next()? {
        bytes.extend_from_slice(line);
        bytes.push(b'\n');
    }
    Ok(bytes)
}

/// The body in a line: the line itself, or what it holds.
pub(super) fn body(line: &Map<String, Value>) -> Option<&Map<String, Value>> {
    let asks = |map: &&Map<String, Value>| {
        ["messages", "prompt", "input"]
            .iter()
            .any(|name| map.contains_key(*name))
    };
    let held = ["body", "request"]
        .iter()
        .filter_map(|name| line.get(*name)?.as_object());
    held.chain([line]).find(asks)
}

struct Texts<'a> {
    reading: &'a Reading,
    tools: Option<Value>,
    names: Names,
    /// Seconds that a session's last line asks to wait before the next request.
    delays: HashMap<u64, f64>,
}

impl Texts<'_> {
    fn assumed(&self) -> u32 {
        match self.reading.output {
            0 => records::OUTPUT,
            output => output,
        }
    }

    fn prompt(&mut self, fields: &Fields, line: u64) -> Result<Row, TraceError> {
        let text = |field: &str| match fields.map().get(field).and_then(Value::as_str) {
            Some(text) => Ok(text),
            None => Err(fields.wrong(field, "must be text")),
        };
        let mut chain = ChainBuilder::new(0, BLOCK_BYTES);
        chain.push(text("input")?.as_bytes());
        let (chain, bytes) = chain.finish();
        let session = fields.name("session_id")?;
        let at = fields.some_number("timestamp")?;
        Ok(Row {
            line,
            at: at.map(|micros| micros / MICROS),
            session: session.map(|name| self.names.number(&name)),
            spans: spans(chain),
            input: tokens(bytes),
            output: tokens(text("output")?.len() as u64),
            estimated: true,
            block: BLOCK,
            ..Row::default()
        })
    }

    fn dialogue(
        &mut self,
        mut fields: Fields,
        line: u64,
        take: &mut Take<'_>,
    ) -> Result<(), TraceError> {
        let Some(Value::Array(messages)) = fields.take("messages") else {
            return Err(fields.wrong("messages", "must be a list"));
        };
        for (place, message) in messages.iter().enumerate() {
            if message.get("role").and_then(Value::as_str) != Some("assistant") {
                continue;
            }
            let mut body = json!({ "messages": messages[..place] });
            if let Some(tools) = &self.tools {
                body["tools"] = tools.clone();
            }
            // The answer's text as it stands, calls of tools included.
            let answer = message.to_string().len() as u64;
            take(Row {
                session: Some(line),
                output: tokens(answer),
                ..self.identified(Endpoint::Chat, &body, line)?.0
            })?;
        }
        Ok(())
    }

    fn request(&mut self, fields: Fields, line: u64) -> Result<Row, TraceError> {
        let outer = fields.map();
        let found = body(outer).ok_or_else(|| fields.wrong("messages", "is missing"))?;
        let endpoint = if found.contains_key("messages") {
            Endpoint::Chat
        } else if found.contains_key("prompt") {
            Endpoint::Completions
        } else {
            Endpoint::Responses
        };
        let (row, session) = self.identified(endpoint, &Value::Object(found.clone()), line)?;
        let named = match fields.name("conversation_id")? {
            Some(name) => Some(name),
            None => fields.name("session_id")?,
        };
        let session = match named {
            Some(name) => Some(self.names.number(&name)),
            None => session,
        };
        let delay = session.and_then(|session| self.delays.remove(&session));
        let after = fields.some_number("simulated_tool_delay_ms_after")?;
        if let Some((session, after)) = session.zip(after) {
            self.delays.insert(session, after / 1e3);
        }
        let output = match fields.some_tokens("target_output_tokens")? {
            Some(output) => Some(output),
            None => answered(outer, found),
        };
        Ok(Row {
            at: fields.some_number("timestamp")?,
            pause: delay,
            session,
            output: output.unwrap_or(self.assumed()),
            ..row
        })
    }

    /// What the gateway would make of it, and its session by its content.
    fn identified(
        &self,
        endpoint: Endpoint,
        body: &Value,
        line: u64,
    ) -> Result<(Row, Option<u64>), TraceError> {
        let bytes = body.to_string().into_bytes();
        let head = head::parse(endpoint, &bytes, DEPTH_MAX)
            .map_err(|error| wrong(line, "body", error.to_string()))?;
        let context = Context {
            scope: 0,
            tenant: 0,
            // There is one client, so content tells conversations apart.
            client_scope: 1,
            pool: 0,
            block_bytes: BLOCK_BYTES,
            token_block: BLOCK as usize,
            session_headers: &[],
            scenario_header: "",
            header: &|_| None,
        };
        let found = identify(endpoint, &head, &context);
        let input = found.prompt_tokens.unwrap_or(tokens(found.prompt_bytes));
        let row = Row {
            line,
            spans: spans(found.chain),
            input,
            estimated: true,
            block: BLOCK,
            ..Row::default()
        };
        Ok((row, found.session.map(|key| key.0)))
    }
}

fn tokens(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(TOKEN_BYTES))
        .unwrap_or(u32::MAX)
        .max(1)
}

/// The answer's length, where a line or its body tells.
fn answered(line: &Map<String, Value>, body: &Map<String, Value>) -> Option<u32> {
    let usage = |map: &Map<String, Value>| {
        let usage = map.get("usage")?;
        usage
            .get("completion_tokens")
            .or(usage.get("output_tokens"))
            .cloned()
    };
    let response = line.get("response").and_then(Value::as_object);
    let asked = ["max_completion_tokens", "max_output_tokens", "max_tokens"];
    let told = usage(line).or_else(|| usage(response?));
    told.or_else(|| asked.iter().find_map(|name| body.get(*name).cloned()))
        .and_then(|count| u32::try_from(count.as_u64()?).ok())
}
