#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
//! Idioms of chat templates, with what Python's Jinja2 makes of them.

use super::*;
use maitred_wire::{Endpoint, head};

fn compile(source: &str) -> Templates {
    compile_as(source, Dialect::Transformers)
}

fn compile_as(source: &str, dialect: Dialect) -> Templates {
    let sources = [("default".to_owned(), source.to_owned())];
    let special = [("bos_token".to_owned(), "<s>".to_owned())];
    Templates::compile(&sources, &special, dialect, 1_000_000, 1 << 20).unwrap()
}

fn render(templates: &Templates, body: &str) -> Result<String, RenderError> {
    let head = head::parse(Endpoint::Chat, body.as_bytes(), 128).unwrap();
    let now = WallTime {
        unix_seconds: 1_709_211_909,
        offset_seconds: 0,
    };
    let rendered = templates.render(Endpoint::Chat, &head, now, 1 << 20);
    rendered.map(|r| r.text.into_text())
}

fn one(source: &str, body: &str) -> String {
    render(&compile(source), body).unwrap_or_else(|error| panic!("{source}: {error:?}"))
}

const HI: &str = r#"{"messages":[{"role":"user","content":"hi"}]}"#;

#[test]
fn blocks_are_trimmed_and_the_last_line_feed_dropped() {
    let source = "{%- for m in messages %}\n    {% if true %}\n{{ m.role }}\n    {% endif %}\n{% endfor %}\nend\n";
    assert_eq!(one(source, HI), "user\nend");
}

#[test]
fn idioms_print_what_jinja2_prints() {
    for (source, text) in [
        ("{{ bos_token }}{{ messages[0]['content'] }}", "<s>hi"),
        (
            "{{ messages[0] | tojson }}",
            r#"{"role": "user", "content": "hi"}"#,
        ),
        (
            "{{ {'a': 1e20, 'b': '<&\\''} | tojson }}",
            r#"{"a": 1e+20, "b": "<&'"}"#,
        ),
        (
            "{{ {'a': [1]} | tojson(indent=2) }}",
            "{\n  \"a\": [\n    1\n  ]\n}",
        ),
        ("{{ '{\n\na\n' | indent(2, first=true) }}|", "  {\n\n  a\n|"),
        (
            "{{ none is iterable }} {{ 'a' is iterable }} {{ 1 is iterable }}",
            "False True False",
        ),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ strftime_now('%d %b %Y') }}", "29 Feb 2024"),
        (
            "{% macro d() %}{{ strftime_now('%Y') }}{% endmacro %}{{ d() }}",
            "2024",
        ),
        (
            "{% for i in [1,2,3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
            "13",
        ),
        (
            "{% for i in [1,2,3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "1",
        ),
        (
            "{% generation %}{{ messages[0].content }}{% endgeneration %}",
            "hi",
        ),
        (
            "{{ messages[0] is sequence }} {{ 'a' is sequence }} {{ 1 is sequence }}",
            "True True False",
        ),
        (
            "{{ tools is defined }} {{ tools is none }} {{ documents is none }}",
            "True True True",
        ),
        (
            "{{ nothing is defined }}{{ nothing }}{% for x in nothing %}{% endfor %}",
            "False",
        ),
        (
            "{{ ' a '.strip() }}|{{ 'abc'.removeprefix('a') }}|{{ 'abc'.removesuffix('c') }}",
            "a|bc|ab",
        ),
        (
            "{{ 'a:b:c'.partition(':') | list | tojson }}",
            r#"["a", ":", "b:c"]"#,
        ),
        (
            "{{ 'a b  c '.rsplit(None, 1) | tojson }}",
            r#"["a b", "c"]"#,
        ),
        ("{{ 'a-b-c'.rsplit('-', 1) | tojson }}", r#"["a-b", "c"]"#),
        (
            "{{ '7'.zfill(3) }}{{ '-7'.zfill(3) }}|{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '.') }}|{{ 'ab'.center(5) }}|",
            "007-07|a  |..a|  ab |",
        ),
        ("{{ 'abcb'.index('b') }}{{ 'abcb'.rindex('b') }}", "13"),
        (
            "{% set ns = namespace(x=1) %}{% for i in [1] %}{% set ns.x = 2 %}{% endfor %}{{ ns.x }}",
            "2",
        ),
        (
            "{{ none }} {{ true }} {{ [1, 'a'] }} {{ {'a': none} }}",
            "None True [1, 'a'] {'a': None}",
        ),
        ("{{ add_generation_prompt }}", "True"),
        (
            "{{ messages[0].get('name', 'x') }}{{ messages[0].items() | list | length }}",
            "x2",
        ),
        (
            "{{ messages[::-1][0].content }}{{ messages[-1].content[1:] }}",
            "hii",
        ),
    ] {
        assert_eq!(one(source, HI), text, "{source}");
    }
}

#[test]
fn a_refusal_keeps_the_templates_words_and_work_is_bounded() {
    let refusing = compile("{{ raise_exception('no ' ~ messages[0].role) }}");
    assert_eq!(
        render(&refusing, HI),
        Err(RenderError::Raised("no user".to_owned()))
    );
    let endless =
        compile("{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}");
    assert_eq!(render(&endless, HI), Err(RenderError::Fuel));
    let failing = compile("\n{{ messages[0].a.b }}");
    assert!(matches!(
        render(&failing, HI),
        Err(RenderError::Failed { line: 2, .. })
    ));
}

#[test]
fn options_come_from_the_request() {
    let source = "{{ enable_thinking }} {{ reasoning_effort }} {{ x }} {{ add_generation_prompt }} {{ documents | tojson }}";
    let body = r#"{"messages":[], "chat_template_kwargs":{"x":1.0,"reasoning_effort":"low"},
        "reasoning_effort":"high","add_generation_prompt":false,"documents":[{"title":"t"}]}"#;
    assert_eq!(one(source, body), r#"True high 1.0 False [{"title": "t"}]"#);
    let none = r#"{"messages":[],"reasoning_effort":"none"}"#;
    assert_eq!(one("{{ enable_thinking }}", none), "False");
    let own = r#"{"messages":[],"chat_template":"x"}"#;
    assert_eq!(render(&compile(source), own), Err(RenderError::OwnTemplate));
}

#[test]
fn a_final_message_is_left_open() {
    let source = "{% for m in messages %}<{{ m.content }}>{% endfor %}{% if add_generation_prompt %}G{% endif %}";
    let body = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b "}],"continue_final_message":true}"#;
    assert_eq!(one(source, body), "<a><b ");
    let trims = "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}";
    assert_eq!(one(trims, body), "<a><b");
}

#[test]
fn templates_are_asked_which_content_they_want() {
    let strings = "{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}";
    let parts = "{% for m in messages %}{% for p in m['content'] %}{{ p['text'] }};{% endfor %}{% endfor %}";
    let both = "{% for m in messages %}{% if m.content is string %}s{{ m.content }}{% else %}{% for p in m.content %}p{{ p.text }}{% endfor %}{% endif %}{% endfor %}";
    let prints = "{% for m in messages %}{{ m.content }}{% endfor %}";
    for (source, shape) in [
        (strings, ContentShape::String),
        (parts, ContentShape::Parts),
        (both, ContentShape::Parts),
        (prints, ContentShape::String),
    ] {
        assert_eq!(compile(source).shape(false), Some(shape), "{source}");
    }
    let body = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"role":"user","content":"c"}]}"#;
    let as_vllm = |source| render(&compile_as(source, Dialect::Vllm), body).unwrap();
    assert_eq!(as_vllm(strings), "<a\nb><c>");
    assert_eq!(as_vllm(parts), "a;b;c;");
    assert_eq!(as_vllm(both), "papbpc");
    let sglang = render(&compile_as(strings, Dialect::Sglang), body).unwrap();
    assert_eq!(sglang, "<a b><c>");
}

#[test]
fn as_vllm_arguments_are_objects_and_tools_have_its_fields() {
    let source = "{{ messages | tojson }}{{ tools | tojson }}";
    let body = r#"{"messages":[
        {"role":"assistant","content":null,"refusal":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"b\": 1, \"a\": 2.50}"}}]},
        {"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"x"},{"type":"text","text":"y"}]},
        {"role":"assistant","content":"","reasoning":"r","tool_calls":[]}],
        "tools":[{"function":{"parameters":{"z":1},"name":"f","other":1},"type":"function"}]}"#;
    assert_eq!(
        render(&compile_as(source, Dialect::Vllm), body).unwrap(),
        concat!(
            r#"[{"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"arguments": {"b": 1, "a": 2.5}, "name": "f"}, "type": "function"}]}, "#,
            r#"{"role": "tool", "content": "x\ny", "tool_call_id": "1"}, "#,
            r#"{"role": "assistant", "content": "", "reasoning": "r", "reasoning_content": "r"}]"#,
            r#"[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"z": 1}}}]"#,
        )
    );
}

#[test]
fn developers_become_systems_where_the_template_does_not_know_them() {
    let source = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";
    let body = r#"{"messages":[{"role":"system","content":"a"},{"role":"user","content":"u"},{"role":"developer","content":"b"}]}"#;
    let vllm = compile_as(source, Dialect::Vllm);
    assert_eq!(render(&vllm, body).unwrap(), "system:a\n\nb;user:u;");
    let knows = compile_as(&format!("{source}{{# 'developer' #}}"), Dialect::Vllm);
    assert_eq!(
        render(&knows, body).unwrap(),
        "system:a;user:u;developer:b;"
    );
}

#[test]
fn what_cannot_be_rendered_exactly_is_refused() {
    let plain = compile_as("{{ messages[0].content }}", Dialect::Vllm);
    for (content, error) in [
        (
            r#"[{"type":"image_url","image_url":{"url":"u"}}]"#,
            RenderError::Media,
        ),
        ("3", RenderError::Field("messages.content")),
    ] {
        let body = format!(r#"{{"messages":[{{"role":"user","content":{content}}}]}}"#);
        assert_eq!(render(&plain, &body), Err(error), "{content}");
    }
    for (body, field) in [
        (
            r#"{"messages":[{"role":"user","c\u006fntent":"x"}]}"#,
            "messages",
        ),
        (
            r#"{"messages":[{"role":"user","content":[{"t\u0065xt":"x"}]}]}"#,
            "messages.content",
        ),
        (
            r#"{"messages":[{"role":"assistant","tool_calls":[{"function":{"n\u0061me":"f"}}]}]}"#,
            "messages.tool_calls",
        ),
        (
            r#"{"messages":[],"tools":[{"function":{"n\u0061me":"f"}}]}"#,
            "tools",
        ),
        (
            r#"{"messages":[],"to\u006fls":[{"function":{"name":"f"}}]}"#,
            "body",
        ),
    ] {
        assert_eq!(
            render(&plain, body),
            Err(RenderError::Field(field)),
            "{body}"
        );
    }
}

#[test]
fn messages_read_before_render_as_the_first_time() {
    let source = "{% for m in messages %}[{{ m.role }}:{{ m.content }}{% if m.tool_calls %}\
                  {{ m.tool_calls[0].function.arguments | tojson }}{% endif %}]{% endfor %}";
    let templates = compile_as(source, Dialect::Vllm);
    let call = r#"{"role":"assistant","content":null,"tool_calls":[{"type":"function","id":"1","function":{"name":"f","arguments":"{\"a\": 1}"}}]}"#;
    let first = format!(
        r#"{{"messages":[{{"role":"user","content":"a\nb"}},{call},{{"role":"user","content":"c"}}]}}"#
    );
    let text = "[user:a\nb][assistant:{\"a\": 1}][user:c]";
    assert_eq!(render(&templates, &first).unwrap(), text);
    let held = templates.memo_bytes();
    assert!(held > 0);
    assert_eq!(render(&templates, &first).unwrap(), text);
    assert_eq!(templates.memo_bytes(), held, "nothing is read again");
    // Left open, and beside a role that changes the others: read anew, and kept apart.
    let open = first.replace("]}", r#"],"continue_final_message":true}"#);
    assert!(render(&templates, &open).is_ok_and(|open| open.ends_with("[user:c")));
    let developer = first.replacen("\"user\"", "\"developer\"", 1);
    assert!(
        render(&templates, &developer)
            .unwrap()
            .starts_with("[system:a\nb]")
    );
    assert_eq!(render(&templates, &first).unwrap(), text);
}
