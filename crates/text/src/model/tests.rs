#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::tokenizer::tests::small;
use maitred_wire::head;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use std::fs::write;

fn load(config: &Value, more: &[(&str, &str)]) -> Result<TextModel, LoadError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    write(path.join("tokenizer.json"), small().to_string()).unwrap();
    write(path.join("tokenizer_config.json"), config.to_string()).unwrap();
    std::fs::create_dir(path.join("additional_chat_templates")).unwrap();
    for (name, text) in more {
        write(path.join(name), text).unwrap();
    }
    let files = ModelFiles::in_directory(path);
    TextModel::load(&files, TextOptions::default())
}

fn render(model: &TextModel, body: &str) -> String {
    let head = head::parse(Endpoint::Chat, body.as_bytes(), 64).unwrap();
    let templates = model.templates();
    let rendered = templates.render(Endpoint::Chat, &head, WallTime::default(), 1 << 20);
    rendered.unwrap().text.into_text()
}

const HI: &str = r#"{"messages":[{"role":"user","content":"hi"}]}"#;
const TOOLS: &str = r#"{"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f"}}]}"#;

#[test]
fn templates_come_from_the_configuration_or_from_files() {
    let one = json!({"chat_template": "{{ bos_token }}{{ eos_token }}", "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "<e>"}, "add_bos_token": true, "pad_token": null});
    let model = load(&one, &[]).unwrap();
    assert_eq!(render(&model, HI), "<s><e>");
    let list = json!({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]});
    let model = load(&list, &[]).unwrap();
    assert_eq!(
        (render(&model, HI), render(&model, TOOLS)),
        ("d".to_owned(), "t".to_owned())
    );
    let files = [
        ("chat_template.jinja", "f"),
        ("additional_chat_templates/tool_use.jinja", "g"),
    ];
    let model = load(&one, &files).unwrap();
    assert_eq!(
        (render(&model, HI), render(&model, TOOLS)),
        ("f".to_owned(), "g".to_owned())
    );
}

#[test]
fn the_digest_tells_templates_and_tokens_apart() {
    let digest = |config: Value| load(&config, &[]).unwrap().digest();
    let one = digest(json!({"chat_template": "a", "bos_token": "<s>"}));
    assert_eq!(
        one,
        digest(json!({"chat_template": "a", "bos_token": "<s>"}))
    );
    assert_ne!(
        one,
        digest(json!({"chat_template": "b", "bos_token": "<s>"}))
    );
    assert_ne!(
        one,
        digest(json!({"chat_template": "a", "bos_token": "<t>"}))
    );
    assert_ne!(
        crate::scope::with_text(1, one),
        crate::scope::with_text(2, one)
    );
}

#[test]
fn every_reason_to_stay_on_bytes_is_documented() {
    let documents = include_str!("../../../../docs/identity.md");
    for reason in Fallback::REASONS {
        assert!(documents.contains(&format!("`{reason}`")), "{reason}");
    }
}

#[test]
fn faults_of_files_are_named() {
    let broken = load(&json!({"chat_template": "{% if %}"}), &[])
        .err()
        .unwrap();
    let said = broken.to_string();
    assert!(
        said.contains("/tokenizer_config.json: chat template `default`: "),
        "{said}"
    );
    let tool = "additional_chat_templates/tool.jinja";
    let files = [("chat_template.jinja", "f"), (tool, "{% if %}")];
    let broken = load(&json!({}), &files).err().unwrap().to_string();
    assert!(
        broken.contains(&format!("/{tool}: chat template `tool`: ")),
        "{broken}"
    );
    let broken = load(&json!({}), &[("tokenizer.json", "{}")]).err().unwrap();
    assert!(
        broken.to_string().contains("/tokenizer.json: tokenizer: "),
        "{broken}"
    );
    let form = load(&json!({}), &[("tokenizer_config.json", "{")])
        .err()
        .unwrap();
    assert!(
        form.to_string().contains("tokenizer_config.json: "),
        "{form}"
    );
    let files = ModelFiles {
        chat_template: Some("no/such.jinja".into()),
        ..ModelFiles::default()
    };
    let options = TextOptions::default();
    let missing = TextModel::load(&files, options).err().unwrap();
    assert!(missing.to_string().contains("no/such.jinja"), "{missing}");
    let nothing = TextModel::load(&ModelFiles::default(), options);
    assert!(matches!(nothing.err().unwrap(), LoadError::NoTokenizer));
}

#[test]
fn chains_are_those_of_the_clients_own_ids() {
    let config =
        json!({"chat_template": "{% for m in messages %}<s>{{ m.content }}<e>{% endfor %}"});
    let model = load(&config, &[]).unwrap();
    let context = Context {
        scope: 5,
        tenant: 0,
        client_scope: 0,
        pool: 0,
        block_bytes: 64,
        token_block: 2,
        session_headers: &[],
        scenario_header: "",
        header: &|_| None,
    };
    let head = head::parse(Endpoint::Chat, HI.as_bytes(), 64).unwrap();
    let bytes = crate::identify(Endpoint::Chat, &head, &context);
    let now = WallTime::default();
    let found = model
        .identify_tokens(Endpoint::Chat, &head, &context, now, bytes.clone())
        .unwrap();
    let hi = small()["model"]["vocab"]["hi"].clone();
    let body = format!("{{\"prompt\":[262,{hi},263]}}");
    let head = head::parse(Endpoint::Completions, body.as_bytes(), 64).unwrap();
    let given = crate::identify(Endpoint::Completions, &head, &context);
    assert_eq!(found.chain, given.chain);
    assert_eq!(found.prompt_bytes, bytes.prompt_bytes, "of the text");
    assert_eq!((found.chain.len(), found.prompt_tokens), (1, Some(3)));
    assert_eq!(
        (found.leading, found.identity),
        (given.leading, Identity::Tokens)
    );
    assert_eq!((found.opening, found.turn), (bytes.opening, bytes.turn));
    let counts = model.counts();
    assert_eq!((counts.requests, counts.tokens), (1, 3));
    let refused = model.plan(Endpoint::Completions, &head, now).err().unwrap();
    assert_eq!(refused.reason(), "token_prompt");
    model.count_busy();
    let counted: Vec<_> = model
        .counts()
        .fallbacks
        .into_iter()
        .filter(|f| f.1 > 0)
        .collect();
    assert_eq!(counted, [("token_prompt", 1), ("busy", 1)]);
}

#[test]
fn texts_beyond_the_bound_are_refused() {
    let options = TextOptions {
        content: Some(ContentShape::String),
        limits: TextLimits {
            text_bytes_max: 3,
            ..TextLimits::default()
        },
        ..TextOptions::default()
    };
    let sources = [("default".to_owned(), "{{ messages[0].content }}".to_owned())];
    let json = small().to_string();
    let model = TextModel::from_texts(&sources, &[], json.as_bytes(), options).unwrap();
    let long = r#"{"messages":[{"role":"user","content":"long"}]}"#;
    for (body, fits) in [(HI, true), (long, false)] {
        let head = head::parse(Endpoint::Chat, body.as_bytes(), 64).unwrap();
        let plan = model.plan(Endpoint::Chat, &head, WallTime::default());
        assert_eq!(
            plan.err().map(|e| e.reason()),
            (!fits).then_some("too_large")
        );
    }
}

fn chat(contents: &[String]) -> String {
    let message = |content| json!({"role": "user", "content": content});
    let messages: Vec<Value> = contents.iter().map(message).collect();
    json!({ "messages": messages }).to_string()
}

/// The ids that a model gives, and those of its reference over the rendered text in one. The chain
/// is that of the ids.
fn both_ids(model: &TextModel, body: &str) -> (Vec<u32>, Vec<u32>, String) {
    let head = head::parse(Endpoint::Chat, body.as_bytes(), 64).unwrap();
    let now = WallTime::default();
    for (scope, token_block) in [(1, 2), (2, 2), (1, 16)] {
        let cutting = Cutting { scope, token_block };
        let plan = model.plan_chain(Endpoint::Chat, &head, now, cutting);
        let found = model.chain(plan.unwrap()).unwrap();
        let ids = model.ids(model.plan(Endpoint::Chat, &head, now).unwrap());
        let right = in_tokens(Identified::unread(0), &ids.unwrap(), scope, token_block);
        assert_eq!(found.chain, right.chain, "{body}");
        assert_eq!(Some(found.tokens), right.prompt_tokens);
        assert_eq!(found.leading, right.leading);
    }
    let plan = model.plan(Endpoint::Chat, &head, now);
    let ids = model.ids(plan.unwrap()).unwrap().to_vec();
    let text = render(model, body);
    let right = model.tokenizer().reference_ids(&text, false).unwrap();
    (ids, right, text)
}

#[test]
fn a_prefix_seen_before_is_looked_up_as_a_whole_in_its_scope_only() {
    let template = "{% for m in messages %}<s>{{ m.content }}<e>.{% endfor %}";
    let model = load(&json!({ "chat_template": template }), &[]).unwrap();
    let long = "hi the low ".repeat(15);
    let said: Vec<String> = (0..4).map(|n| format!("{n} {long}")).collect();
    let plan = |count: usize, scope| {
        let body = chat(&said[..count]);
        let head = head::parse(Endpoint::Chat, body.as_bytes(), 64).unwrap();
        let cutting = Cutting {
            scope,
            token_block: 2,
        };
        let plan = model.plan_chain(Endpoint::Chat, &head, WallTime::default(), cutting);
        let plan = plan.unwrap();
        let found = (plan.known_tokens(), plan.missing_bytes());
        (model.chain(plan).unwrap(), found)
    };
    let (first, found) = plan(2, 1);
    assert_eq!(found, (0, 2 * said[0].len() + 2));
    let (second, found) = plan(3, 1);
    assert_eq!(found, (first.tokens as usize - 1, said[0].len()));
    let whole = first.chain.len() - 1;
    assert_eq!(second.chain[..whole], first.chain[..whole]);
    let hits = model.counts().tokenizer.memo.hits;
    assert_eq!(hits, 5, "what is in the prefix counts as found");
    // The same texts elsewhere: known, but chained anew.
    let (other, found) = plan(3, 2);
    assert_eq!(found, (0, 0));
    assert!(other.chain.iter().zip(&second.chain).all(|(a, b)| a != b));
    assert_ne!(other.leading, second.leading);
}

#[test]
fn tokens_that_begin_outside_of_a_long_text_are_found() {
    // `<e>` is a token, and the template's own text may be one half of it.
    let template =
        "{% for m in messages %}<{{ '<' + m.content + 'e>' }}{{ m.content }}>{% endfor %}";
    let model = load(&json!({ "chat_template": template }), &[]).unwrap();
    const PARTS: [&str; 9] = ["<", "e", ">", "<s>", "<e>", "<e><s>", " ", "\n", "e\u{301}"];
    let short = prop::sample::select(&PARTS[..]).prop_map(str::to_owned);
    let part = prop_oneof![4 => short, 1 => Just("hi the low ".repeat(15))];
    let content = prop::collection::vec(part, 0..6).prop_map(|parts| parts.concat());
    let contents = prop::collection::vec(content, 1..5);
    let mut runner = TestRunner::deterministic();
    runner
        .run(&contents, |contents| {
            // Each turn repeats what was said before.
            for turn in 1..=contents.len() {
                let (ids, right, text) = both_ids(&model, &chat(&contents[..turn]));
                let by_hand = |c: &String| format!("<<{c}e>{c}>");
                prop_assert_eq!(
                    text,
                    contents[..turn].iter().map(by_hand).collect::<String>()
                );
                prop_assert_eq!(ids, right);
            }
            Ok(())
        })
        .unwrap();
    let held = model.counts().tokenizer.memo;
    assert!(held.hits > 0 && held.misses > 0, "{held:?}");
}

#[test]
fn what_is_remembered_stays_within_its_budget() {
    let config = json!({"chat_template": "{% for m in messages %}<s>{{ m.content }}{{ m.tool_calls }}{% endfor %}"});
    let folder = tempfile::tempdir().unwrap();
    write(
        folder.path().join("tokenizer_config.json"),
        config.to_string(),
    )
    .unwrap();
    write(folder.path().join("tokenizer.json"), small().to_string()).unwrap();
    let mut options = TextOptions::default();
    options.limits.memo_bytes_max = 1 << 18;
    let model = TextModel::load(&ModelFiles::in_directory(folder.path()), options).unwrap();
    let call = |n: u32| {
        json!([{"id": "1", "type": "function",
        "function": {"name": "f", "arguments": {"a": vec![json!([n]); 40]}}}])
    };
    for n in 0..600 {
        let body = json!({"messages": [
            {"role": "user", "content": format!("{n} {}", "hi the low ".repeat(n as usize % 60))},
            {"role": "assistant", "content": "hi", "tool_calls": call(n)},
        ]});
        let (ids, right, _) = both_ids(&model, &body.to_string());
        assert_eq!(ids, right);
        let bytes = model.counts().tokenizer.memo.bytes;
        assert!(bytes <= 1 << 18, "{bytes} bytes after {n} requests");
    }
    let bytes = model.counts().tokenizer.memo.bytes;
    assert!(bytes > 1 << 17, "the budget is used: {bytes} bytes");
}
