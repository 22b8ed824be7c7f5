//! Decoding of strings.

use std::borrow::Cow;

/// Decodes the bytes of a string (without its quotes). None where they are no text.
#[must_use]
pub fn decode(raw: &[u8]) -> Option<Cow<'_, str>> {
    let text = simdutf8::basic::from_utf8(raw).ok()?;
    let Some(mut slash) = memchr::memchr(b'\\', raw) else {
        return Some(Cow::Borrowed(text));
    };
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    loop {
        out.push_str(rest.get(..slash)?);
        let escape = *rest.as_bytes().get(slash + 1)?;
        rest = rest.get(slash + 2..)?;
        out.push(match escape {
            b'"' | b'\\' | b'/' => char::from(escape),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let (decoded, after) = decode_unicode(rest)?;
                rest = after;
                decoded
            }
            _ => return None,
        });
        let Some(next) = memchr::memchr(b'\\', rest.as_bytes()) else {
            break;
        };
        slash = next;
    }
    out.push_str(rest);
    Some(Cow::Owned(out))
}

/// What follows `\u`: four hex digits, and for the first half of a pair the second escape too.
/// A lone half decodes as the replacement character.
fn decode_unicode(text: &str) -> Option<(char, &str)> {
    let hex = |digits: &str| {
        digits
            .bytes()
            .all(|b| b.is_ascii_hexdigit())
            .then(|| u32::from_str_radix(digits, 16).ok())
            .flatten()
    };
    let first = hex(text.get(..4)?)?;
    let rest = text.get(4..)?;
    if (0xd800..0xdc00).contains(&first)
        && let Some(second) = rest
            .strip_prefix("\\u")
            .and_then(|r| r.get(..4))
            .and_then(hex)
        && (0xdc00..0xe000).contains(&second)
    {
        let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        return Some((char::from_u32(code)?, rest.get(6..)?));
    }
    Some((
        char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER),
        rest,
    ))
}
