//! Where the tags of a template are, as far as rewriting needs it.

/// What a piece of a template's source is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Text, a comment, or what stands in a raw block.
    Text,
    /// `{{ ... }}`.
    Print,
    /// `{% ... %}`.
    Statement,
}

/// Pieces of a source, which together are the source.
pub(super) struct Tags<'s> {
    rest: &'s str,
    /// Within a raw block a tag is text.
    raw: bool,
}

/// Cuts a source at its tags.
pub(super) fn tags(source: &str) -> Tags<'_> {
    Tags {
        rest: source,
        raw: false,
    }
}

impl<'s> Iterator for Tags<'s> {
    type Item = (Kind, &'s str);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let (kind, length) = match self.rest.find('{') {
            Some(0) => self.tag(),
            Some(start) => (Kind::Text, start),
            None => (Kind::Text, self.rest.len()),
        };
        let (piece, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some((kind, piece))
    }
}

impl Tags<'_> {
    /// What begins with the brace that is next, and its length.
    fn tag(&mut self) -> (Kind, usize) {
        match self.rest.as_bytes().get(1) {
            Some(b'#') if !self.raw => {
                let end = self.rest.find("#}").map(|end| end + 2);
                (Kind::Text, end.unwrap_or(self.rest.len()))
            }
            Some(b'{') if !self.raw => (Kind::Print, closed(self.rest, "}}")),
            Some(b'%') => {
                let length = closed(self.rest, "%}");
                let word = self.rest.get(..length).and_then(word);
                // In a raw block the end of a tag may hide the true one.
                if self.raw && word != Some("endraw") {
                    return (Kind::Text, 1);
                }
                self.raw = word == Some("raw");
                (Kind::Statement, length)
            }
            _ => (Kind::Text, 1),
        }
    }
}

/// A statement's only word; None where it has several, or is no statement.
pub(super) fn word(tag: &str) -> Option<&str> {
    let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    Some(inner.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace()))
}

/// Bytes of a tag up to its end, which is in no string and no brackets.
fn closed(tag: &str, end: &str) -> usize {
    let bytes = tag.as_bytes();
    let mut quote = None;
    let mut depth = 0_usize;
    let mut at = 2;
    while let Some(byte) = bytes.get(at) {
        match (quote, byte) {
            (Some(_), b'\\') => at += 1,
            (Some(open), _) if open == *byte => quote = None,
            (Some(_), _) => {}
            (None, b'"' | b'\'') => quote = Some(*byte),
            _ if depth == 0 && bytes.get(at..at + 2) == Some(end.as_bytes()) => return at + 2,
            (None, b'(' | b'[' | b'{') => depth += 1,
            (None, b')' | b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    tag.len()
}
