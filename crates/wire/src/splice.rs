//! A body with some top-level fields changed; all other bytes stay as they are.

use crate::head::RequestHead;

/// The body with `name` set to the raw JSON `value`: replaced wherever it stands (so that every
/// parser sees it, whichever of two it takes), else put in as the last field. `name` is written as
/// it is and must need no escapes. Equal input gives equal bytes.
#[must_use]
pub fn set_field(head: &RequestHead<'_>, name: &str, value: &[u8]) -> Vec<u8> {
    set_fields(head, &[(name, value)])
}

/// The same for several fields of different names.
#[must_use]
pub fn set_fields(head: &RequestHead<'_>, fields: &[(&str, &[u8])]) -> Vec<u8> {
    let more: usize = fields.iter().map(|(n, v)| n.len() + v.len() + 4).sum();
    let mut out = Vec::with_capacity(head.body.len() + more);
    let mut copied = 0;
    for field in &head.fields {
        if let Some((_, value)) = fields.iter().find(|(name, _)| *name == field.name) {
            out.extend_from_slice(&head.body[copied..field.value.start]);
            out.extend_from_slice(value);
            copied = field.value.end;
        }
    }
    // What is new goes behind the last field, or behind the opening brace.
    let end = head.fields.last().map_or_else(
        || {
            let brace = head.body.iter().position(|b| *b == b'{');
            brace.map_or(0, |n| n + 1)
        },
        |field| field.value.end,
    );
    let mut first = head.fields.is_empty();
    let is_there = |name: &str| head.fields.iter().any(|f| f.name == name);
    for (name, value) in fields.iter().filter(|(name, _)| !is_there(name)) {
        out.extend_from_slice(&head.body[copied..end]);
        copied = end;
        if !std::mem::take(&mut first) {
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

/// The body with the messages of role `from` given the role `to`, and how many these are; all other
/// bytes, and the messages' order, stay. `to` is written as it is and must need no escapes. None:
/// there is no such message.
#[must_use]
pub fn rename_role(head: &RequestHead<'_>, from: &str, to: &str) -> Option<(Vec<u8>, u32)> {
    let mut out = Vec::new();
    let (mut copied, mut renamed) = (0, 0);
    let messages = head.value("messages");
    for message in messages.iter().flat_map(|messages| messages.elements()) {
        let before = copied;
        for (key, value) in message.members() {
            if key == b"role" && value.string().is_some_and(|role| role == from) {
                out.extend_from_slice(&head.body[copied..value.span().start]);
                out.push(b'"');
                out.extend_from_slice(to.as_bytes());
                out.push(b'"');
                copied = value.span().end;
            }
        }
        renamed += u32::from(copied > before);
    }
    if renamed == 0 {
        return None;
    }
    out.extend_from_slice(&head.body[copied..]);
    Some((out, renamed))
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

    #[test]
    fn only_roles_of_that_name_change() {
        let rename = |body: &str| {
            let head = parse(Endpoint::Chat, body.as_bytes(), 128).unwrap();
            let renamed = rename_role(&head, "developer", "system");
            renamed.map(|(body, n)| (String::from_utf8(body).unwrap(), n))
        };
        let body = r#"{"messages":[ {"role" : "developer","content":"developer"},{"role":"user","content":[{"role":"developer"}]},
            {"content":null, "role":"dev\u0065loper"} ],"role":"developer"}"#;
        let expected = r#"{"messages":[ {"role" : "system","content":"developer"},{"role":"user","content":[{"role":"developer"}]},
            {"content":null, "role":"system"} ],"role":"developer"}"#;
        assert_eq!(rename(body), Some((expected.to_owned(), 2)));
        for none in [
            "{}",
            r#"{"messages":[{"role":"system"}, 1, null]}"#,
            r#"{"messages":"developer"}"#,
        ] {
            assert_eq!(rename(none), None, "{none}");
        }
    }

    #[test]
    fn several_fields_change_at_once() {
        let set = |body: &str| {
            let head = parse(Endpoint::Chat, body.as_bytes(), 128).unwrap();
            let fields: [(&str, &[u8]); 2] = [("model", b"\"n\""), ("salt", b"1")];
            String::from_utf8(set_fields(&head, &fields)).unwrap()
        };
        assert_eq!(
            set(r#"{"salt": 0, "x":[ 1 ], "model" :"m" } "#),
            r#"{"salt": 1, "x":[ 1 ], "model" :"n" } "#
        );
        assert_eq!(
            set(r#"{"model":"m", "x":2}"#),
            r#"{"model":"n", "x":2,"salt":1}"#
        );
        assert_eq!(set("{}"), r#"{"model":"n","salt":1}"#);
    }
}
