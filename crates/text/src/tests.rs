#![allow(clippy::unwrap_used)]

mod history;
mod options;

use crate::{Context, Identified, Scope, identify, scope};
use maitred_core::request::{Identity, KeySource};
use maitred_wire::{Endpoint, head};
use proptest::prelude::*;
use serde_json::{Value, json};

const BLOCK: usize = 64;

#[derive(Clone, Copy)]
struct Caller<'a> {
    tenant: u64,
    client: u64,
    headers: &'a [(&'a str, &'a str)],
}

const CALLER: Caller<'static> = Caller {
    tenant: 1,
    client: 2,
    headers: &[],
};

fn of_text(endpoint: Endpoint, body: &str, caller: Caller<'_>) -> Identified {
    let head = head::parse(endpoint, body.as_bytes(), 128).unwrap();
    let header = |name: &str| {
        let found = caller.headers.iter().find(|(n, _)| *n == name);
        found.map(|(_, value)| *value)
    };
    let salt = head.value("cache_salt").and_then(|salt| salt.string());
    let context = Context {
        scope: scope(&Scope {
            pool: 7,
            model: head.model.as_deref().unwrap_or_default(),
            revision: "",
            isolation: caller.tenant,
            cache_salt: salt.as_deref().unwrap_or_default(),
        }),
        tenant: caller.tenant,
        client_scope: caller.client,
        pool: 7,
        block_bytes: BLOCK,
        token_block: 16,
        session_headers: &["x-session-id"],
        scenario_header: "x-scenario",
        header: &header,
    };
    identify(endpoint, &head, &context)
}

fn of(endpoint: Endpoint, body: &Value) -> Identified {
    of_text(endpoint, &body.to_string(), CALLER)
}

fn chat(messages: Value) -> Identified {
    of(Endpoint::Chat, &json!({"model": "m", "messages": messages}))
}

fn with_headers(body: &Value, headers: &[(&str, &str)]) -> Identified {
    let caller = Caller { headers, ..CALLER };
    of_text(Endpoint::Chat, &body.to_string(), caller)
}

fn hello() -> Value {
    json!({"model": "m", "messages": [
        {"role": "system", "content": "You help. It is 10:00:59."},
        {"role": "user", "content": "hello there"}]})
}

fn is_prefix(short: &Identified, long: &Identified) -> bool {
    !short.chain.is_empty() && long.chain.starts_with(&short.chain)
}

#[test]
fn a_conversation_that_grows_keeps_its_chain_and_its_key() {
    let filler = "word ".repeat(60);
    let mut messages = vec![
        json!({"role": "system", "content": filler}),
        json!({"role": "user", "content": [{"type": "text", "text": filler}]}),
    ];
    let first = chat(json!(messages));
    assert_eq!((first.turn, first.session_source), (1, KeySource::Content));
    messages.push(json!({"role": "assistant", "content": null, "tool_calls": [{"id": "c"}]}));
    messages.push(
        json!({"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "ok"}]}),
    );
    messages.push(json!({"role": "assistant", "content": []}));
    messages.push(json!({"role": "user", "content": "go on"}));
    let second = chat(json!(messages));
    assert!(is_prefix(&first, &second));
    assert_eq!(second.turn, 3);
    assert_eq!(first.session, second.session);
    assert_eq!(first.leading, second.leading);
    assert_eq!(first.scenario, second.scenario);
}

#[test]
fn attribution_lines_and_clocks_change_the_chain_but_not_the_key() {
    let body = |line: &str, clock: &str| {
        json!({"model": "m", "max_tokens": 9, "system": [
            {"type": "text", "text": format!("x-anthropic-billing-header: cch={line};")},
            {"type": "text", "text": format!("You are an agent. Now {clock}. {}", "a ".repeat(99))}],
            "messages": [{"role": "user", "content": "hi"}]})
    };
    let one = of(Endpoint::Messages, &body("00001", "10:00:59"));
    let two = of(Endpoint::Messages, &body("ffffa", "10:01:00"));
    assert_eq!(one.session, two.session);
    assert_eq!(one.scenario, two.scenario);
    assert_ne!(one.chain, two.chain);
}

#[test]
fn counters_of_any_length_do_not_change_the_key() {
    let key = |counter: &str| {
        let text = format!(
            "{}{counter}{}",
            "intro ".repeat(20),
            " and rules".repeat(30)
        );
        let system = json!({"role": "system", "content": text});
        chat(json!([system, {"role": "user", "content": "hi"}])).session
    };
    assert!(key("9").is_some());
    assert_eq!(key("9"), key("10"));
    assert_eq!(key("9"), key("1000000"));
    assert_ne!(key("9"), key("9x"));
}

#[test]
fn cache_marks_that_move_do_not_change_the_chain() {
    let first = of(
        Endpoint::Messages,
        &json!({"model": "m", "messages": [{"role": "user", "content": [
        {"type": "text", "text": "long ".repeat(50), "cache_control": {"type": "ephemeral"}}]}]}),
    );
    let second = of(
        Endpoint::Messages,
        &json!({"model": "m", "messages": [
        {"role": "user", "content": "long ".repeat(50)},
        {"role": "assistant", "content": [{"type": "text", "text": "yes"}]},
        {"role": "user", "content": [{"type": "text", "text": "more", "cache_control": {"type": "ephemeral"}}]}]}),
    );
    assert!(is_prefix(&first, &second));
    assert_eq!(second.turn, 2);
}

#[test]
fn what_changes_the_rendering_changes_the_chain() {
    let text = "words ".repeat(30);
    let base = json!({"model": "m", "messages": [{"role": "user", "content": text}]});
    let chain = |field: &str, value: Value| {
        let mut body = base.clone();
        body[field] = value;
        of(Endpoint::Chat, &body).chain
    };
    let plain = of(Endpoint::Chat, &base).chain;
    for (field, value) in [
        ("chat_template_kwargs", json!({"enable_thinking": true})),
        ("reasoning_effort", json!("high")),
        ("documents", json!([{"text": "d"}])),
        ("truncate_prompt_tokens", json!(64)),
        ("tools", json!([{"type": "function"}])),
        ("model", json!("other")),
        ("cache_salt", json!("s")),
    ] {
        assert_ne!(chain(field, value), plain, "{field}");
    }
    for field in ["temperature", "max_tokens", "seed", "request_id"] {
        assert_eq!(chain(field, json!(1)), plain, "{field}");
    }
}

#[test]
fn pictures_are_content_and_their_order_counts() {
    let with = |urls: &[&str]| {
        let mut parts = vec![json!({"type": "text", "text": "look ".repeat(20)})];
        let image = |url: &&str| json!({"type": "image_url", "image_url": {"url": url}});
        parts.extend(urls.iter().map(image));
        parts.push(json!({"type": "text", "text": "tail ".repeat(20)}));
        chat(json!([{"role": "user", "content": parts}]))
    };
    // However long its encoding, a picture is a picture.
    let bytes = with(&[&"x".repeat(1 << 20)]).prompt_bytes;
    assert!((4096..4608).contains(&bytes), "{bytes}");
    let with = |urls: &[&str]| with(urls).chain;
    assert_eq!(with(&["data:a"]), with(&["data:a"]));
    assert_ne!(with(&["data:a"]), with(&["data:b"]));
    assert_ne!(with(&["data:a", "data:b"]), with(&["data:b", "data:a"]));
}

#[test]
fn explicit_keys_come_in_order_and_blanks_are_absent() {
    let mut body = hello();
    body["prompt_cache_key"] = json!("pck");
    let source =
        |body: &Value, headers: &[(&str, &str)]| with_headers(body, headers).session_source;
    assert_eq!(
        source(&body, &[("x-session-id", "s"), ("session_id", "c")]),
        KeySource::Header
    );
    assert_eq!(
        source(&body, &[("session_id", "c")]),
        KeySource::HarnessHeader
    );
    assert_eq!(
        source(&body, &[("x-session-id", "  ")]),
        KeySource::PromptCacheKey
    );
    assert_eq!(
        source(&hello(), &[("x-session-id", ""), ("x-request-id", "r")]),
        KeySource::Content
    );
    let field = |name: &str, value: Value| {
        let mut body = hello();
        body[name] = value;
        of(Endpoint::Chat, &body).session_source
    };
    assert_eq!(field("prompt_cache_key", json!(" ")), KeySource::Content);
    assert_eq!(
        field("session_params", json!({"session_id": "s"})),
        KeySource::SessionParams
    );
    assert_eq!(field("conversation", json!("c")), KeySource::Conversation);
    assert_eq!(
        field("conversation", json!({"id": "c"})),
        KeySource::Conversation
    );
    assert_eq!(
        field("metadata", json!({"thread_id": 12})),
        KeySource::Metadata
    );
    assert_eq!(
        field("metadata", json!({"user_id": "just-a-user"})),
        KeySource::Content
    );
    assert_eq!(
        field("metadata", json!({"user_id": "user_1_account__session_ab"})),
        KeySource::Metadata
    );
    assert_eq!(
        field(
            "metadata",
            json!({"user_id": "{\"device_id\":\"d\",\"session_id\":\"ab\"}"})
        ),
        KeySource::Metadata
    );
    assert_eq!(field("metadata", json!(null)), KeySource::Content);
}

#[test]
fn keys_are_scoped_by_tenant_client_and_model() {
    let body = hello().to_string();
    let key = |tenant, client, headers: &[(&str, &str)]| {
        let caller = Caller {
            tenant,
            client,
            headers,
        };
        of_text(Endpoint::Chat, &body, caller).session
    };
    let named: &[(&str, &str)] = &[("x-session-id", "s")];
    for headers in [&[][..], named] {
        assert_eq!(key(1, 2, headers), key(1, 2, headers));
        assert_ne!(key(1, 2, headers), key(3, 2, headers));
        assert_ne!(key(1, 2, headers), key(1, 3, headers));
    }
    assert_eq!(key(0, 0, &[]), None);
    assert!(key(0, 0, named).is_some());
    let other = body.replace("\"m\"", "\"n\"");
    assert_ne!(
        of_text(Endpoint::Chat, &other, CALLER).session,
        key(1, 2, &[])
    );
}

#[test]
fn fresh_request_ids_do_not_change_the_key() {
    let key = |id: &str| with_headers(&hello(), &[("x-request-id", id)]).session;
    assert!(key("a").is_some());
    assert_eq!(key("a"), key("b"));
}

#[test]
fn prompts_of_all_shapes_have_keys() {
    let ids: Vec<u32> = (0..1000).collect();
    let longer: Vec<u32> = (0..1100).collect();
    let of = |prompt: Value| {
        of(
            Endpoint::Completions,
            &json!({"model": "m", "prompt": prompt}),
        )
    };
    let (one, two) = (of(json!(ids)), of(json!(longer)));
    assert_eq!(one.identity, Identity::Tokens);
    assert_eq!((one.prompt_tokens, one.prompt_bytes), (Some(1000), 4000));
    assert!(one.session.is_some());
    assert_eq!(one.session, two.session);
    assert_eq!(one.chain.len(), 1000 / 16);
    assert!(is_prefix(&one, &two));
    let batch = of(json!([[1, 2], [3]]));
    assert_eq!((batch.prompt_tokens, batch.extra_prompts), (Some(2), 1));
    let texts = of(json!(["a", "b", "c"]));
    assert_eq!((texts.identity, texts.extra_prompts), (Identity::Bytes, 2));
    assert_eq!(texts.session, of(json!("a")).session);
    let empty = of(json!(""));
    assert!(empty.chain.is_empty());
}

#[test]
fn no_endpoint_has_an_empty_text_for_a_body_with_one() {
    let text = "some text that fills more than one block, so that there is a chain of it at all";
    for (endpoint, body) in [
        (Endpoint::Responses, json!({"input": text})),
        (
            Endpoint::Responses,
            json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": text}]}]}),
        ),
        (Endpoint::Embeddings, json!({"input": [text]})),
        (Endpoint::Tokenize, json!({"content": text})),
        (
            Endpoint::Tokenize,
            json!({"messages": [{"role": "user", "content": text}]}),
        ),
        (
            Endpoint::Detokenize,
            json!({"tokens": (0..64).collect::<Vec<_>>()}),
        ),
        (
            Endpoint::Rerank,
            json!({"query": text, "documents": ["a", {"text": "b"}]}),
        ),
        (
            Endpoint::Score,
            json!({"text_1": text, "text_2": ["a", "b"]}),
        ),
        (Endpoint::CountTokens, json!({"messages": text})),
        (Endpoint::Chat, json!({"messages": {"role": text}})),
        (Endpoint::Chat, json!({"messages": [text]})),
        (Endpoint::Other, json!({"inputs": text})),
    ] {
        assert!(!of(endpoint, &body).chain.is_empty(), "{endpoint:?} {body}");
    }
}

#[test]
fn a_continued_response_has_an_exact_key_and_no_opening() {
    let body = json!({"model": "m", "input": "and now?", "previous_response_id": "resp_1"});
    let next = of(Endpoint::Responses, &body);
    assert_eq!(
        next.previous_response,
        Some(crate::response_key(CALLER.tenant, "resp_1"))
    );
    assert_eq!((next.turn, next.session, next.opening), (2, None, None));
    let items = json!({"input": [
        {"role": "user", "content": "q"},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"role": "user", "content": "q2"}]});
    assert_eq!(of(Endpoint::Responses, &items).turn, 3);
}

#[test]
fn keys_and_chains_are_the_same_in_every_process() {
    // A change of this value forgets every home at an upgrade.
    let read = chat(json!([{"role": "user", "content": "x".repeat(2 * BLOCK)}]));
    assert_eq!(read.chain.len(), 2);
    assert_eq!(read.session.unwrap().0, 4_022_771_907_642_320_571);
}

fn message() -> impl Strategy<Value = Value> {
    let role = prop::sample::select(vec!["user", "assistant", "tool", "system", "odd"]);
    let content = prop_oneof![
        "[ -~é\n]{0,40}".prop_map(Value::from),
        Just(Value::Null),
        Just(json!([])),
        "[a-z]{0,9}"
            .prop_map(|t| json!([{"type": "text", "text": t}, {"type": "new_kind", "x": [t]}])),
        any::<i32>().prop_map(Value::from),
    ];
    (role, content, any::<bool>()).prop_map(|(role, content, calls)| {
        let mut message = json!({"role": role, "content": content});
        if calls {
            message["tool_calls"] = json!([{"id": "c", "function": {"arguments": "{\"a\":1}"}}]);
        }
        message
    })
}

fn reversed(message: &Value) -> Value {
    let members = message.as_object().unwrap().iter().rev();
    Value::Object(members.map(|(k, v)| (k.clone(), v.clone())).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn append_only_histories_are_prefix_chains(messages in prop::collection::vec(message(), 1..12), cut in 1usize..12) {
        let cut = cut.min(messages.len());
        let short = chat(json!(messages[..cut]));
        let long = chat(json!(messages));
        prop_assert!(long.chain.starts_with(&short.chain));
        prop_assert!(long.turn >= short.turn);
    }

    #[test]
    fn white_space_and_key_order_of_messages_do_not_matter(messages in prop::collection::vec(message(), 1..8)) {
        let reordered: Vec<Value> = messages.iter().map(reversed).collect();
        let spaced = messages.iter().map(|m| {
            let members = m.as_object().unwrap().iter();
            let members: Vec<_> = members.map(|(k, v)| format!(" {} :\t{} ", json!(k), v)).collect();
            format!("{{{}}}", members.join(" ,\n"))
        });
        let spaced = spaced.collect::<Vec<_>>().join(" , ");
        let plain = chat(json!(messages));
        let spaced = of_text(Endpoint::Chat, &format!("{{\"messages\" : [ {spaced} ], \"model\":\"m\" }}"), CALLER);
        let reordered = chat(json!(reordered));
        for other in [spaced, reordered] {
            prop_assert_eq!(&plain.chain, &other.chain);
            prop_assert_eq!(plain.prompt_bytes, other.prompt_bytes);
            prop_assert_eq!(plain.session, other.session);
            prop_assert_eq!(plain.turn, other.turn);
        }
    }

    #[test]
    fn nothing_panics(body in "(\\{|\\}|\\[|\\]|:|,|\"messages\":|\"role\":|\"content\":|\"prompt\":|\"a\"|1|-2.5e3|null|true| |\\\\|\"){0,40}") {
        for endpoint in [Endpoint::Chat, Endpoint::Completions, Endpoint::Responses, Endpoint::Messages, Endpoint::Rerank] {
            if let Ok(head) = head::parse(endpoint, body.as_bytes(), 128) {
                prop_assert_eq!(head.body, body.as_bytes());
                of_text(endpoint, &body, CALLER);
            }
        }
    }
}
