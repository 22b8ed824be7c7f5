//! A body with one top-level field changed; all other bytes stay as they are.

use crate::head::RequestHead;

/// The body with `name` set to the raw JSON `value`: replaced wherever it stands (so that every
/// parser sees it, whichever of two it takes), else put in as the last field. `name` is written as
/// it is and must need no escapes. Equal input gives equal bytes.
#[must_use]
pub fn set_field(head: &RequestHead<'_>, name: &str, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(head.body.len() + name.len() + value.len() + 4);
    let mut copied = 0;
    for field in head.fields.iter().filter(|f| f.name == name) {
        out.extend_from_slice(&head.body[copied..field.value.start]);
        out.extend_from_slice(value);
        copied = field.value.end;
    }
    if copied == 0 {
        let last = head.fields.last();
        // Behind the last field, or behind the opening brace.
        copied = last.map_or_else(
            || {
                head.body
                    .iter()
                    .position(|b| *b == b'{')
                    .map_or(0, |n| n + 1)
            },
            |field| field.value.end,
        );
        out.extend_from_slice(&head.body[..copied]);
        if last.is_some() {
            out.push(b',');
        }
        out.push(b'"');
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        out.extend_from_slice(value);
    }
    out.extend_from_slice(&head.body[copied..]);
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;
    use crate::head::parse;

    fn set(body: &str, name: &str, value: &str) -> String {
        let head = parse(Endpoint::Chat, body.as_bytes(), 128).unwrap();
        String::from_utf8(set_field(&head, name, value.as_bytes())).unwrap()
    }

    #[test]
    fn only_the_fields_span_changes() {
        assert_eq!(
            set(r#"{ "a" : 1 , "b":2}"#, "a", "7"),
            r#"{ "a" : 7 , "b":2}"#
        );
        assert_eq!(set(r#"{"a":1,"a":[2]}"#, "a", "7"), r#"{"a":7,"a":7}"#);
        assert_eq!(set(r#"{"b":"x"} "#, "a", "7"), r#"{"b":"x","a":7} "#);
        assert_eq!(set(" { } ", "a", "7"), r#" {"a":7 } "#);
    }
}
