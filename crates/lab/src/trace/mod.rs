//! Traces: what clients sent, written down by somebody. Each format has its file; all become [`Row`]s, one request at a
//! time, so that a reader needs no more memory than its longest line and what its format must remember.

mod azure;
mod bailian;
mod blocks;
mod field;
mod lines;
mod mooncake;
mod own;
mod plan;
mod ragpulse;
mod records;
mod stats;
#[cfg(test)]
mod tests;
mod text;
mod write;

pub use lines::{LINE_BYTES_MAX, Lines, open};
pub use plan::{Arrivals, PlanReader};
pub use stats::{Stats, StatsReader};
pub use write::{Writer, write_plan};

use std::io::BufRead;
use std::path::PathBuf;

use crate::plan::Span;

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A line is not what it should be.
    #[error("line {line}: {field}: {problem}")]
    Line {
        /// From 1.
        line: u64,
        /// The field, or `line` for the whole.
        field: String,
        /// What is wrong.
        problem: String,
    },
    /// The format cannot be told from the first line.
    #[error("the format cannot be told from the first line; name it (--format)")]
    UnknownFormat,
}

/// The formats that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    /// Our own: a head line, then one request a line.
    Maitred,
    /// Mooncake: `timestamp` (ms), `input_length`, `output_length`, `hash_ids` of 512 tokens.
    Mooncake,
    /// Qwen / Bailian: `chat_id`, `parent_chat_id`, `timestamp` (s), `hash_ids` of 16 tokens.
    Bailian,
    /// Sessions of block ids, one session a line: `requests` with `runs` or `hash_ids`.
    Blocks,
    /// RAGPulse: ids of the parts that a prompt is made of.
    RagPulse,
    /// Azure's CSV: time and lengths only.
    Azure,
    /// OpenAI requests, one a line: the body, or a line that holds one.
    OpenAi,
    /// Prompts as one text: `timestamp` (microseconds), `input`, `output`, `session_id`.
    Prompts,
    /// Whole dialogues, one a line: every assistant message answers all before it.
    Dialogues,
    /// The gateway's own records.
    Records,
}

impl Format {
    /// All of them with their names.
    pub const ALL: &'static [(&'static str, Self)] = &[
        ("maitred", Self::Maitred),
        ("mooncake", Self::Mooncake),
        ("bailian", Self::Bailian),
        ("blocks", Self::Blocks),
        ("ragpulse", Self::RagPulse),
        ("azure", Self::Azure),
        ("openai", Self::OpenAi),
        ("prompts", Self::Prompts),
        ("dialogues", Self::Dialogues),
        ("records", Self::Records),
    ];

    /// The one of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, format)| *format)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, format)| *format == self);
        found.map_or("", |(name, _)| name)
    }

    /// Told from the first line that is not empty.
    #[must_use]
    pub fn of(line: &[u8]) -> Option<Self> {
        if line.starts_with(b"TIMESTAMP,") {
            return Some(Self::Azure);
        }
        let head: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(line).ok()?;
        let has = |names: &[&str]| names.iter().all(|name| head.contains_key(*name));
        Some(if has(&["maitred_trace"]) {
            Self::Maitred
        } else if has(&["chat_id", "hash_ids"]) {
            Self::Bailian
        } else if head
            .get("hash_ids")
            .is_some_and(serde_json::Value::is_object)
        {
            Self::RagPulse
        } else if has(&["timestamp", "input_length", "hash_ids"]) {
            Self::Mooncake
        } else if has(&["id", "requests"]) {
            Self::Blocks
        } else if has(&["schema", "request_id", "attempt"]) {
            Self::Records
        } else if has(&["task_id", "trial", "messages"]) {
            Self::Dialogues
        } else if has(&["input", "session_id"]) {
            Self::Prompts
        } else if text::body(&head).is_some() {
            Self::OpenAi
        } else {
            return None;
        })
    }
}

/// One request as a trace has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// The line that it stands in, from 1.
    pub line: u64,
    /// When it was sent, in seconds from whenever the trace counts; None: the trace does not say.
    pub at: Option<f64>,
    /// Seconds between the answer before and this request, where the trace says that instead.
    pub pause: Option<f64>,
    /// Its session, numbered by the reader; None: a session of its own.
    pub session: Option<u64>,
    /// Whether `session` was inferred and not told.
    pub inferred: bool,
    /// The session whose last request so far called this session into being.
    pub called_by: Option<u64>,
    /// The next request of that session waits for the end of this one.
    pub awaited: bool,
    /// Hash of who pays, where the trace says.
    pub tenant: u64,
    /// A label.
    pub group: String,
    /// Tokens in a block: the same in all rows of a trace.
    pub block: u32,
    /// Blocks from the beginning. The last one may be unfilled where `partial`.
    pub spans: Vec<Span>,
    /// The last block of `spans` is not full; it is the same only where the whole prompt is.
    pub partial: bool,
    /// All prompt tokens.
    pub input: u32,
    /// Tokens of the answer.
    pub output: u32,
    /// The trace says nothing of prefixes: reuse is unknown, not zero.
    pub blind: bool,
    /// Lengths are estimated from bytes.
    pub estimated: bool,
}

impl Row {
    /// The ids of its blocks.
    pub fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        (self.spans.iter()).flat_map(|span| (0..u64::from(span.count)).map(|at| span.first + at))
    }

    /// Blocks, the unfilled one included.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.spans.iter().map(|span| u64::from(span.count)).sum()
    }
}

/// What readers need beside the file.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// RAGPulse: the file that says how long each part is; without it all parts of a prompt count as equally long.
    pub parts: Option<PathBuf>,
    /// Dialogues: the file with the tools that every request has.
    pub tools: Option<PathBuf>,
    /// Requests without a known length of answer get this one; 256 where it is 0.
    pub output: u32,
    /// Pauses are cut at so many seconds; none where it is 0.
    pub pause_max: f64,
}

/// Takes rows; returns what is wrong with one, to be told with its line.
pub type Take<'a> = dyn FnMut(Row) -> Result<(), TraceError> + 'a;

/// Reads a trace to its end, row by row, in the order of the file. Returns the tokens in a block.
///
/// # Errors
/// [`TraceError`]: the first line that is not what it should be ends it.
pub fn read(
    lines: Lines<Box<dyn BufRead + Send>>,
    format: Option<Format>,
    reading: &Reading,
    take: &mut Take<'_>,
) -> Result<(Format, u32), TraceError> {
    let mut lines = lines;
    let format = match format {
        Some(format) => format,
        None => {
            let first = lines.peek()?.ok_or(TraceError::UnknownFormat)?;
            Format::of(first).ok_or(TraceError::UnknownFormat)?
        }
    };
    let cut = |mut row: Row| {
        if reading.pause_max > 0.0 {
            row.pause = row.pause.map(|pause| pause.min(reading.pause_max));
        }
        take(row)
    };
    let take: Box<Take<'_>> = Box::new(cut);
    let block = match format {
        Format::Maitred => own::read(&mut lines, take),
        Format::Mooncake => mooncake::read(&mut lines, take),
        Format::Bailian => bailian::read(&mut lines, take),
        Format::Blocks => blocks::read(&mut lines, take),
        Format::RagPulse => ragpulse::read(&mut lines, reading, take),
        Format::Azure => azure::read(&mut lines, take),
        Format::OpenAi | Format::Prompts | Format::Dialogues => {
            text::read(&mut lines, format, reading, take)
        }
        Format::Records => records::read(&mut lines, reading, take),
    }?;
    Ok((format, block))
}
