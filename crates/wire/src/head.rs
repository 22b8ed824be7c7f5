//! The few fields of a request that routing needs, borrowed from the client's bytes.

use crate::endpoint::Endpoint;
use crate::json::{Checker, Fault, LongStrings, Value};
use core::ops::Range;
use smallvec::SmallVec;
use std::borrow::Cow;

/// Depth of nesting that a body may have, unless configured.
pub const DEPTH_MAX_DEFAULT: usize = 128;

/// Top-level fields that a body may have: every API has fewer than a hundred.
pub const FIELDS_MAX: usize = 1024;

/// One top-level field: where its key and value lie in the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// The name as written between its quotes (escapes not decoded).
    pub name: &'a str,
    /// The key's bytes, quotes included.
    pub key: Range<usize>,
    /// The value's bytes, without white space around.
    pub value: Range<usize>,
}

/// A request body, read once.
#[derive(Clone, Debug)]
pub struct RequestHead<'a> {
    /// The whole body.
    pub body: &'a [u8],
    /// `model`, decoded.
    pub model: Option<Cow<'a, str>>,
    /// `stream`; false when absent or null.
    pub stream: bool,
    /// `stream_options.include_usage`; false when absent.
    pub include_usage: bool,
    /// The smallest of `max_tokens`, `max_completion_tokens` and `max_output_tokens`, of those that
    /// are whole numbers.
    pub max_tokens: Option<u32>,
    /// All top-level fields in wire order. Of two with one name the last counts.
    pub fields: SmallVec<[Field<'a>; 16]>,
    /// Where the long strings lie, so that no later walk scans them again.
    long: LongStrings,
}

impl<'a> RequestHead<'a> {
    /// The raw value of a top-level field; of duplicates the last, as most parsers have it.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&'a [u8]> {
        self.value(name).map(|v| v.raw())
    }

    /// As [`Self::field`], to be walked.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<Value<'_, 'a>> {
        let field = self.fields.iter().rev().find(|f| f.name == name)?;
        let Range { start, end } = field.value;
        Some(Value::at(self.body, &self.long, start, end))
    }
}

/// What is wrong with a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyErrorKind {
    /// The bytes are not one JSON document.
    NotJson,
    /// The document is no object.
    NotObject,
    /// Nested deeper than the limit.
    TooDeep,
    /// More top-level fields than [`FIELDS_MAX`].
    TooManyFields,
    /// A field has a type that it may not have; holds the name of the right type.
    WrongType(&'static str),
}

/// Why a body was refused. Holds no text of the prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct BodyError {
    /// What is wrong.
    pub kind: BodyErrorKind,
    /// The byte at which it was seen.
    pub offset: usize,
    /// The top-level field, where one is at fault.
    pub field: Option<&'static str>,
}

impl core::fmt::Display for BodyError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.kind {
            BodyErrorKind::NotJson => write!(f, "body is not valid JSON (byte {})", self.offset),
            BodyErrorKind::NotObject => write!(f, "body must be a JSON object"),
            BodyErrorKind::TooDeep => write!(f, "body is nested too deep (byte {})", self.offset),
            BodyErrorKind::TooManyFields => {
                write!(f, "body has more than {FIELDS_MAX} top-level fields")
            }
            BodyErrorKind::WrongType(right) => write!(
                f,
                "`{}` must be {right} (byte {})",
                self.field.unwrap_or("field"),
                self.offset
            ),
        }
    }
}

impl From<Fault> for BodyError {
    fn from(fault: Fault) -> Self {
        Self {
            kind: match fault {
                Fault::Syntax(_) | Fault::Truncated(_) => BodyErrorKind::NotJson,
                Fault::TooDeep(_) => BodyErrorKind::TooDeep,
            },
            offset: fault.offset(),
            field: None,
        }
    }
}

/// Reads the head of a request body; for now alike for every endpoint.
///
/// `messages`, `input`, `prompt` and all else may have any type: the engine judges them.
///
/// # Errors
/// The body is not one JSON object, is nested deeper than `depth_max`, has too many fields, or
/// `model` is neither string nor null, or `stream` neither boolean nor null.
pub fn parse<'a>(
    _endpoint: Endpoint,
    body: &'a [u8],
    depth_max: usize,
) -> Result<RequestHead<'a>, BodyError> {
    let (fields, long) = top_level(body, depth_max)?;
    let mut head = RequestHead {
        body,
        model: None,
        stream: false,
        include_usage: false,
        max_tokens: None,
        fields,
        long,
    };
    head.model = read_model(&head)?;
    head.stream = match head.value("stream") {
        None => false,
        Some(v) if v.is_null() => false,
        Some(v) => v
            .bool()
            .ok_or_else(|| wrong_type(&head, "stream", "a boolean"))?,
    };
    head.include_usage = head
        .value("stream_options")
        .and_then(|o| o.get("include_usage"))
        .and_then(|v| v.bool())
        .unwrap_or(false);
    head.max_tokens = ["max_tokens", "max_completion_tokens", "max_output_tokens"]
        .iter()
        .filter_map(|name| head.value(name)?.u32())
        .min();
    Ok(head)
}

type Fields<'a> = SmallVec<[Field<'a>; 16]>;

/// Checks the whole document and notes its top-level fields.
fn top_level(body: &[u8], depth_max: usize) -> Result<(Fields<'_>, LongStrings), BodyError> {
    let mut fields = Fields::new();
    let mut checker = Checker::new(body, depth_max, 1);
    checker.space();
    if checker.peek() != Some(b'{') {
        // Tell what is JSON of another kind from what is no JSON at all.
        let fault = crate::json::check(body, depth_max).err();
        return Err(fault.map_or(
            BodyError {
                kind: BodyErrorKind::NotObject,
                offset: checker.at,
                field: None,
            },
            BodyError::from,
        ));
    }
    checker.at += 1;
    checker.space();
    if checker.peek() == Some(b'}') {
        checker.at += 1;
    } else {
        loop {
            if fields.len() == FIELDS_MAX {
                return Err(BodyError {
                    kind: BodyErrorKind::TooManyFields,
                    offset: checker.at,
                    field: None,
                });
            }
            fields.push(field(&mut checker)?);
            checker.space();
            match checker.peek() {
                Some(b',') => checker.at += 1,
                Some(b'}') => {
                    checker.at += 1;
                    break;
                }
                _ => return Ok(checker.fault()?),
            }
            checker.space();
        }
    }
    checker.space();
    if checker.at < body.len() {
        return Ok(checker.fault()?);
    }
    Ok((fields, checker.long))
}

fn field<'a>(checker: &mut Checker<'a>) -> Result<Field<'a>, Fault> {
    let key = checker.at;
    checker.string()?;
    let key = key..checker.at;
    let name = core::str::from_utf8(&checker.bytes[key.start + 1..key.end - 1])
        .map_err(|_| Fault::Syntax(key.start))?;
    checker.expect(b':')?;
    checker.space();
    let start = checker.at;
    checker.value()?;
    Ok(Field {
        name,
        key,
        value: start..checker.at,
    })
}

fn read_model<'a>(head: &RequestHead<'a>) -> Result<Option<Cow<'a, str>>, BodyError> {
    match head.value("model") {
        None => Ok(None),
        Some(v) if v.is_null() => Ok(None),
        Some(v) => match v.string() {
            Some(model) => Ok(Some(model)),
            None => Err(wrong_type(head, "model", "a string")),
        },
    }
}

fn wrong_type(head: &RequestHead<'_>, name: &'static str, right: &'static str) -> BodyError {
    let field = head.fields.iter().rev().find(|f| f.name == name);
    BodyError {
        kind: BodyErrorKind::WrongType(right),
        offset: field.map_or(0, |f| f.value.start),
        field: Some(name),
    }
}

#[cfg(test)]
mod tests;
