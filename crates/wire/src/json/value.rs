//! Walking what was checked.

use super::{LONG_STRING_BYTES, decode, skip_space, string_end};
use std::borrow::Cow;

/// A value within a document that [`check`] (or [`crate::head::parse`]) has passed. On bytes that
/// were never checked it reads what it can: wrong perhaps, but always within the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Value<'h, 'a> {
    body: &'a [u8],
    long: &'h [(u32, u32)],
    start: usize,
    end: usize,
}

impl<'h, 'a> Value<'h, 'a> {
    /// The one value of a document.
    #[must_use]
    pub fn document(body: &'a [u8], long: &'h [(u32, u32)]) -> Self {
        let start = skip_space(body, 0);
        Self::at(body, long, start, body.len())
    }

    /// The value between two offsets.
    #[must_use]
    pub(crate) fn at(body: &'a [u8], long: &'h [(u32, u32)], start: usize, end: usize) -> Self {
        Self {
            body,
            long,
            start,
            end,
        }
    }

    /// The bytes as they stand.
    #[must_use]
    pub fn raw(&self) -> &'a [u8] {
        self.body.get(self.start..self.end).unwrap_or_default()
    }

    /// Where it stands in the document.
    #[must_use]
    pub fn span(&self) -> std::ops::Range<usize> {
        self.start..self.end
    }

    fn first(&self) -> Option<u8> {
        self.raw().first().copied()
    }

    /// Whether it is `null`.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.first() == Some(b'n')
    }

    /// Whether it is a string.
    #[must_use]
    pub fn is_string(&self) -> bool {
        self.first() == Some(b'"')
    }

    /// Whether it is an object.
    #[must_use]
    pub fn is_object(&self) -> bool {
        self.first() == Some(b'{')
    }

    /// Whether it is an array.
    #[must_use]
    pub fn is_array(&self) -> bool {
        self.first() == Some(b'[')
    }

    /// Whether it says something: no null, no empty string, array or object.
    #[must_use]
    pub fn is_filled(&self) -> bool {
        match self.first() {
            None | Some(b'n') => false,
            Some(b'"') => self.string_raw().is_some_and(|s| !s.is_empty()),
            Some(b'{') => self.members().next().is_some(),
            Some(b'[') => self.elements().next().is_some(),
            Some(_) => true,
        }
    }

    /// A string's bytes between its quotes, escapes not decoded.
    #[must_use]
    pub fn string_raw(&self) -> Option<&'a [u8]> {
        let raw = self.raw();
        if raw.len() < 2 || raw[0] != b'"' {
            return None;
        }
        raw.get(1..raw.len() - 1)
    }

    /// A string, decoded. None for other kinds and for what is no text (bad UTF-8 or escapes).
    #[must_use]
    pub fn string(&self) -> Option<Cow<'a, str>> {
        decode(self.string_raw()?)
    }

    /// A whole number that fits, also where it is written as `12.0`.
    #[must_use]
    pub fn u32(&self) -> Option<u32> {
        let text = core::str::from_utf8(self.raw()).ok()?;
        let whole = text
            .split_once('.')
            .filter(|(_, f)| f.bytes().all(|b| b == b'0'));
        whole.map_or(text, |(number, _)| number).parse().ok()
    }

    /// `true` or `false`.
    #[must_use]
    pub fn bool(&self) -> Option<bool> {
        match self.raw() {
            b"true" => Some(true),
            b"false" => Some(false),
            _ => None,
        }
    }

    /// An object's members in order; nothing for other kinds.
    #[must_use]
    pub fn members(&self) -> Members<'h, 'a> {
        Members(Walk::within(self, b'{'))
    }

    /// An array's elements in order; nothing for other kinds.
    #[must_use]
    pub fn elements(&self) -> Elements<'h, 'a> {
        Elements(Walk::within(self, b'['))
    }

    /// An object's member; of duplicates the last, as most parsers have it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Self> {
        self.members()
            .filter(|(key, _)| *key == name.as_bytes())
            .last()
            .map(|(_, value)| value)
    }
}

/// A walk within one container, not checking.
#[derive(Clone, Debug)]
struct Walk<'h, 'a> {
    container: Value<'h, 'a>,
    at: usize,
}

impl<'h, 'a> Walk<'h, 'a> {
    fn within(container: &Value<'h, 'a>, opening: u8) -> Self {
        let at = if container.first() == Some(opening) {
            container.start + 1
        } else {
            container.end
        };
        Self {
            container: *container,
            at,
        }
    }

    fn peek(&self) -> Option<u8> {
        if self.at < self.container.end {
            self.container.body.get(self.at).copied()
        } else {
            None
        }
    }

    /// To the first byte that is neither white space nor separator.
    fn separators(&mut self) {
        while let Some(b' ' | b'\n' | b'\t' | b'\r' | b',' | b':') = self.peek() {
            self.at += 1;
        }
    }

    /// Behind the string whose opening quote is here.
    fn string(&mut self) -> Option<()> {
        let start = self.at + 1;
        // Short strings are scanned; for long ones the check has left the end.
        let near = self.container.body.get(..self.container.end)?;
        let probe = near.get(..near.len().min(start + LONG_STRING_BYTES))?;
        let end = match string_end(probe, start) {
            Some(end) => end,
            None => match self
                .container
                .long
                .binary_search_by_key(&(start as u64), |l| l.0.into())
            {
                Ok(found) => self.container.long[found].1 as usize,
                Err(_) => string_end(near, start)?,
            },
        };
        self.at = end + 1;
        Some(())
    }

    /// The value that starts here, stepping behind it.
    fn value(&mut self) -> Option<Value<'h, 'a>> {
        let start = self.at;
        let mut depth = 0_usize;
        loop {
            match self.peek()? {
                b'"' => self.string()?,
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' if depth > 0 => {
                    depth -= 1;
                    self.at += 1;
                }
                _ if depth > 0 => {
                    self.at += 1;
                    continue;
                }
                b'}' | b']' | b',' | b':' => return None,
                _ => {
                    while !matches!(
                        self.peek(),
                        None | Some(b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t')
                    ) {
                        self.at += 1;
                    }
                }
            }
            if depth == 0 {
                let Value { body, long, .. } = self.container;
                return Some(Value::at(body, long, start, self.at));
            }
        }
    }
}

/// See [`Value::members`].
#[derive(Clone, Debug)]
pub struct Members<'h, 'a>(Walk<'h, 'a>);

impl<'h, 'a> Iterator for Members<'h, 'a> {
    /// The key's bytes between its quotes (escapes not decoded), and the value.
    type Item = (&'a [u8], Value<'h, 'a>);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.separators();
        if self.0.peek()? != b'"' {
            return None;
        }
        let start = self.0.at + 1;
        self.0.string()?;
        let key = self.0.container.body.get(start..self.0.at - 1)?;
        self.0.separators();
        Some((key, self.0.value()?))
    }
}

/// See [`Value::elements`].
#[derive(Clone, Debug)]
pub struct Elements<'h, 'a>(Walk<'h, 'a>);

impl<'h, 'a> Iterator for Elements<'h, 'a> {
    type Item = Value<'h, 'a>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.separators();
        self.0.value()
    }
}
