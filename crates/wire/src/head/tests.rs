#![allow(clippy::unwrap_used)]

use super::*;
use crate::json;
use proptest::prelude::*;

fn chat(body: &str) -> Result<RequestHead<'_>, BodyError> {
    parse(Endpoint::Chat, body.as_bytes(), DEPTH_MAX_DEFAULT)
}

fn kind(body: &str) -> BodyErrorKind {
    chat(body).unwrap_err().kind
}

#[test]
fn the_fields_that_routing_needs_are_read() {
    let body = r#" {"model":"a\/b\u00e9\ud83d\ude42","stream":true,"stream_options":{"include_usage":true},
        "max_tokens":9,"max_completion_tokens":7,"messages":[{"role":"user","content":"hi"}]} "#;
    let head = chat(body).unwrap();
    assert_eq!(head.model.as_deref(), Some("a/bé🙂"));
    assert!(head.stream && head.include_usage);
    assert_eq!(head.max_tokens, Some(7));
    let names: Vec<_> = head.fields.iter().map(|f| f.name).collect();
    assert_eq!(
        names,
        [
            "model",
            "stream",
            "stream_options",
            "max_tokens",
            "max_completion_tokens",
            "messages"
        ]
    );
    assert_eq!(&head.body[head.fields[1].key.clone()], b"\"stream\"");
    assert_eq!(
        head.field("stream_options"),
        Some(&br#"{"include_usage":true}"#[..])
    );
    assert_eq!(head.field("nothing"), None);
}

#[test]
fn of_duplicates_the_last_counts() {
    let head = chat(r#"{"model":"a","stream":true,"model":"b","stream":false}"#).unwrap();
    assert_eq!(head.model.as_deref(), Some("b"));
    assert!(!head.stream);
}

#[test]
fn null_is_absent_and_odd_limits_are_the_engines_business() {
    let head =
        chat(r#"{"model":null,"stream":null,"max_tokens":1.5,"stream_options":null}"#).unwrap();
    assert_eq!(
        (head.model, head.stream, head.max_tokens),
        (None, false, None)
    );
    assert_eq!(chat(r#"{"max_tokens":12.0}"#).unwrap().max_tokens, Some(12));
    let head = chat(r#"{"max_tokens":-1,"max_output_tokens":"x"}"#).unwrap();
    assert_eq!(head.max_tokens, None);
    assert!(chat("{}").is_ok());
}

#[test]
fn a_wrong_type_names_the_field_and_its_place() {
    let error = chat(r#"{"a":1,"model":["secret"]}"#).unwrap_err();
    assert_eq!((error.field, error.offset), (Some("model"), 15));
    assert_eq!(error.to_string(), "`model` must be a string (byte 15)");
    let error = chat(r#"{"stream":"yes"}"#).unwrap_err();
    assert_eq!(error.to_string(), "`stream` must be a boolean (byte 10)");
}

#[test]
fn what_is_no_json_object_is_refused_with_the_offset() {
    assert_eq!(kind("[1]"), BodyErrorKind::NotObject);
    assert_eq!(kind("\"x\""), BodyErrorKind::NotObject);
    for (body, offset) in [
        ("", 0),
        ("  ", 2),
        ("{", 1),
        ("{\"a\"", 4),
        ("{\"a\":", 5),
        ("{\"a\":1", 6),
        ("{\"a\":\"x", 7),
        ("{\"a\":\"x\\\"", 9),
        ("{\"a\":1}x", 7),
        ("{\"a\":1,}", 7),
        ("{\"a\" 1}", 5),
        ("{a:1}", 1),
        ("{\"a\":01}", 6),
        ("{\"a\":1.}", 7),
        ("{\"a\":-}", 6),
        ("{\"a\":nul}", 8),
        ("{\"a\":[1 2]}", 8),
        ("{\"a\":[1,]}", 8),
        ("{\"a\":[}", 6),
        ("{\"a\":{\"b\":1]}", 11),
        ("{\"a\":1}{}", 7),
        ("nope", 1),
    ] {
        let error = chat(body).unwrap_err();
        assert_eq!(
            (error.kind, error.offset),
            (BodyErrorKind::NotJson, offset),
            "{body}"
        );
    }
}

#[test]
fn depth_is_bounded_without_recursion() {
    let nested = |depth: usize| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        format!("{{\"x\":{open}{close}}}")
    };
    // The object itself is the first level.
    assert!(chat(&nested(127)).is_ok());
    assert_eq!(kind(&nested(128)), BodyErrorKind::TooDeep);
    assert_eq!(kind(&"[".repeat(200_000)), BodyErrorKind::TooDeep);
    assert!(parse(Endpoint::Chat, nested(5_000).as_bytes(), 10_000).is_ok());
}

#[test]
fn fields_are_bounded() {
    let body = |count: usize| {
        let fields: Vec<_> = (0..count).map(|n| format!("\"f{n}\":1")).collect();
        format!("{{{}}}", fields.join(","))
    };
    assert!(chat(&body(FIELDS_MAX)).is_ok());
    assert_eq!(kind(&body(FIELDS_MAX + 1)), BodyErrorKind::TooManyFields);
}

#[test]
fn long_strings_are_found_again() {
    let long = "x\\\"y".repeat(100);
    let body = format!("{{\"a\":{{\"b\":[\"{long}\",2]}},\"c\":\"{long}\"}}");
    let head = chat(&body).unwrap();
    let list = head.value("a").unwrap().get("b").unwrap();
    let items: Vec<_> = list.elements().map(|v| v.raw().len()).collect();
    assert_eq!(items, [402, 1]);
    assert_eq!(head.value("c").unwrap().string_raw(), Some(long.as_bytes()));
}

fn value() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::Value;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<i32>().prop_map(|n| Value::from(f64::from(n) / 8.0)),
        "\\PC{0,90}".prop_map(Value::from),
        "[\\\\\"\n\t é]{0,90}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map("[a-z\"]{0,5}", inner, 0..6)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

/// The same document read through the walks, to compare with another parser's.
fn rebuilt(value: &Value<'_, '_>) -> serde_json::Value {
    if value.is_object() {
        let members = value.members();
        let members = members.map(|(k, v)| (json::decode(k).unwrap().into_owned(), rebuilt(&v)));
        serde_json::Value::Object(members.collect())
    } else if value.is_array() {
        value.elements().map(|v| rebuilt(&v)).collect()
    } else if value.is_string() {
        value.string().unwrap().into_owned().into()
    } else {
        serde_json::from_slice(value.raw()).unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn documents_read_as_another_parser_reads_them(document in value(), pretty in any::<bool>()) {
        let text = if pretty {
            serde_json::to_string_pretty(&document).unwrap()
        } else {
            document.to_string()
        };
        let long = json::check(text.as_bytes(), 64).unwrap();
        prop_assert_eq!(rebuilt(&Value::document(text.as_bytes(), &long)), document.clone());
        // Without what the check left, the walks find the same.
        prop_assert_eq!(rebuilt(&Value::document(text.as_bytes(), &[])), document);
    }

    #[test]
    fn cut_documents_are_refused(document in value(), cut in 1usize..200) {
        let text = format!("{{\"a\":{document}}}");
        let cut = cut.min(text.len());
        let head = &text.as_bytes()[..text.len() - cut];
        let error = parse(Endpoint::Chat, head, 64).unwrap_err();
        prop_assert_eq!((error.kind, error.offset), (BodyErrorKind::NotJson, head.len()));
    }

    #[test]
    fn verdicts_agree_with_another_parser(text in "(\\{|\\}|\\[|\\]|:|,|\"a\"|\"b\":|1|-2.5e3|0|null|true|false| |\"x\\\\n\"){0,14}") {
        let ours = json::check(text.as_bytes(), 64).is_ok();
        let theirs = serde_json::from_str::<serde_json::Value>(&text).is_ok();
        prop_assert_eq!(ours, theirs, "{}", text);
    }
}
