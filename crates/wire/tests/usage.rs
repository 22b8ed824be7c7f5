//! Every form in which engines say how much of a prompt they had in their cache: a number, zero, or
//! unknown, which is neither.
#![allow(clippy::unwrap_used, clippy::panic)]

use maitred_wire::{Endpoint, StreamObserver, answer};

/// A form, with `@` where the cached tokens stand. Whatever they are, the prompt has 400 tokens; the
/// answer has 3.
struct Form {
    name: &'static str,
    endpoint: Endpoint,
    text: &'static str,
    /// Events and not one document.
    streamed: bool,
    /// What an engine says that does not count cached tokens here.
    silent: &'static str,
}

const fn form(
    name: &'static str,
    endpoint: Endpoint,
    streamed: bool,
    silent: &'static str,
    text: &'static str,
) -> Form {
    Form {
        name,
        endpoint,
        text,
        streamed,
        silent,
    }
}

const DETAILS: &str = r#""prompt_tokens_details":{"cached_tokens":@},"#;

/// `@` is in the object that is taken out where nothing is said.
const FORMS: [Form; 12] = [
    form(
        "vLLM chat, whole",
        Endpoint::Chat,
        false,
        DETAILS,
        r#"{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":400,"prompt_tokens_details":{"cached_tokens":@},"total_tokens":403,"completion_tokens":3},"kv_transfer_params":null}"#,
    ),
    form(
        "vLLM and SGLang completions, whole",
        Endpoint::Completions,
        false,
        DETAILS,
        r#"{"choices":[{"index":0,"text":"a"}],"usage":{"prompt_tokens":400,"prompt_tokens_details":{"cached_tokens":@},"completion_tokens":3,"reasoning_tokens":0}}"#,
    ),
    form(
        "vLLM chat, usage in a last chunk",
        Endpoint::Chat,
        true,
        DETAILS,
        r#"data: {"choices":[{"index":0,"delta":{"content":"a"}}],"usage":null}

data: {"choices":[],"usage":{"prompt_tokens":400,"prompt_tokens_details":{"cached_tokens":@},"completion_tokens":3}}

data: [DONE]

"#,
    ),
    form(
        "vLLM completions, usage in every chunk, details in the last",
        Endpoint::Completions,
        true,
        DETAILS,
        r#"data: {"choices":[{"index":0,"text":"a"}],"usage":{"prompt_tokens":400,"completion_tokens":1}}

data: {"choices":[{"index":0,"text":"b"}],"usage":{"prompt_tokens":400,"completion_tokens":2}}

data: {"choices":[],"usage":{"prompt_tokens":400,"prompt_tokens_details":{"cached_tokens":@},"completion_tokens":3}}

data: [DONE]

"#,
    ),
    form(
        "responses, whole",
        Endpoint::Responses,
        false,
        r#""input_tokens_details":{"cached_tokens":@},"#,
        r#"{"id":"resp_1","output":[],"usage":{"input_tokens":400,"input_tokens_details":{"cached_tokens":@},"output_tokens":3,"output_tokens_details":{"reasoning_tokens":0}}}"#,
    ),
    form(
        "responses, streamed",
        Endpoint::Responses,
        true,
        r#""input_tokens_details":{"cached_tokens":@},"#,
        r#"event: response.output_text.delta
data: {"type":"response.output_text.delta","delta":"a"}

event: response.completed
data: {"type":"response.completed","response":{"id":"resp_1","usage":{"input_tokens":400,"input_tokens_details":{"cached_tokens":@},"output_tokens":3}}}

"#,
    ),
    form(
        "one name at the top of usage",
        Endpoint::Chat,
        false,
        r#""cached_tokens":@,"#,
        r#"{"choices":[],"usage":{"prompt_tokens":400,"cached_tokens":@,"completion_tokens":3}}"#,
    ),
    form(
        "hits and misses",
        Endpoint::Chat,
        false,
        r#""prompt_cache_hit_tokens":@,"#,
        r#"{"choices":[],"usage":{"prompt_tokens":400,"prompt_cache_hit_tokens":@,"prompt_cache_miss_tokens":7,"completion_tokens":3}}"#,
    ),
    form(
        "SGLang's own, whole",
        Endpoint::Other,
        false,
        r#""cached_tokens":@,"#,
        r#"{"text":"a","meta_info":{"id":"x","prompt_tokens":400,"cached_tokens":@,"completion_tokens":3,"e2e_latency":0.5}}"#,
    ),
    form(
        "SGLang's own, streamed",
        Endpoint::Other,
        true,
        r#""cached_tokens":@,"#,
        r#"data: {"text":"a","meta_info":{"prompt_tokens":400,"completion_tokens":1}}

data: {"text":"ab","meta_info":{"prompt_tokens":400,"cached_tokens":@,"completion_tokens":3}}

data: [DONE]

"#,
    ),
    form(
        "llama.cpp, usage beside timings that agree",
        Endpoint::Chat,
        true,
        DETAILS,
        r#"data: {"choices":[{"index":0,"delta":{"content":"a"}}]}

data: {"choices":[],"usage":{"prompt_tokens":400,"prompt_tokens_details":{"cached_tokens":@},"completion_tokens":3},"timings":{"prompt_n":400,"predicted_n":3}}

data: [DONE]

"#,
    ),
    form(
        "a field of that name elsewhere is none",
        Endpoint::Chat,
        false,
        DETAILS,
        r#"{"cached_tokens":9,"tokens_cached":9,"choices":[{"message":{"content":"\"cached_tokens\": 9","cached_tokens":9}}],"usage":{"prompt_tokens":400,"prompt_tokens_details":{"cached_tokens":@},"completion_tokens":3}}"#,
    ),
];

fn counts(endpoint: Endpoint, streamed: bool, text: &str) -> [Option<u32>; 3] {
    let usage = if streamed {
        let mut observer = StreamObserver::new(endpoint);
        for piece in text.as_bytes().chunks(7) {
            observer.push(piece);
        }
        observer.usage()
    } else {
        answer::read(endpoint, text.as_bytes()).usage
    };
    let cached = usage.cached_tokens;
    [usage.prompt_tokens, cached, usage.output_tokens]
}

/// What may stand there, and what it says of a prompt of 400 tokens.
const SAID: [(&str, Option<u32>); 15] = [
    ("320", Some(320)),
    ("320.0", Some(320)),
    ("400", Some(400)),
    ("0", Some(0)),
    ("null", None),
    ("-1", None),
    ("-0.5", None),
    ("12.5", None),
    (r#""320""#, None),
    ("true", None),
    ("[320]", None),
    (r#"{"text":320}"#, None),
    ("99999999999", None),
    // More than the prompt has.
    ("401", None),
    ("4294967295", None),
];

#[test]
fn cached_tokens_are_a_number_zero_or_unknown_in_every_form() {
    for form in &FORMS {
        let read = |text: &str| counts(form.endpoint, form.streamed, text);
        assert!(form.text.contains(form.silent), "{}", form.name);
        let silent = form.text.replace(form.silent, "");
        assert_eq!(read(&silent), [Some(400), None, Some(3)], "{}", form.name);
        let nothing = form.silent.replace(r#"{"cached_tokens":@}"#, "null");
        let silent = form
            .text
            .replace(form.silent, &nothing.replace('@', "null"));
        assert_eq!(read(&silent), [Some(400), None, Some(3)], "{}", form.name);
        for (said, cached) in SAID {
            let found = read(&form.text.replace('@', said));
            assert_eq!(found, [Some(400), cached, Some(3)], "{}: {said}", form.name);
        }
    }
}

/// Anthropic's form counts what was not cached, what was read and what was written apart; vLLM first says
/// the whole prompt as not cached.
#[test]
fn the_parts_of_the_input_are_one_prompt() {
    let whole = |usage: &str| {
        let text = format!(r#"{{"type":"message","id":"msg_1","content":[],"usage":{{{usage}}}}}"#);
        counts(Endpoint::Messages, false, &text)
    };
    let streamed = |first: &str, last: &str| {
        let text = format!(
            "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\"usage\":{{{first}}}}}}}\n\n\
             event: message_delta\ndata: {{\"type\":\"message_delta\",\"delta\":{{}},\"usage\":{{{last}}}}}\n\n"
        );
        counts(Endpoint::Messages, true, &text)
    };
    let said =
        |input: u32, rest: &str| format!(r#""input_tokens":{input},"output_tokens":3{rest}"#);
    let read = |tokens: &str| format!(r#","cache_read_input_tokens":{tokens}"#);
    let written = |tokens: &str| format!(r#","cache_creation_input_tokens":{tokens}"#);
    let both = |r: &str, w: &str| read(r) + &written(w);
    // Whole answers; the whole of what is said at the end of a stream is the same.
    for (input, rest, expected) in [
        (400, String::new(), [Some(400), None, Some(3)]),
        (400, both("0", "0"), [Some(400), Some(0), Some(3)]),
        (80, read("320"), [Some(400), Some(320), Some(3)]),
        (0, both("320", "80"), [Some(400), Some(320), Some(3)]),
        (16, both("0", "384"), [Some(400), Some(0), Some(3)]),
        (0, read("400"), [Some(400), Some(400), Some(3)]),
        (400, both("null", "null"), [Some(400), None, Some(3)]),
        (400, read("-1"), [Some(400), None, Some(3)]),
        (400, read(r#""0""#), [Some(400), None, Some(3)]),
        (16, written("384"), [Some(400), None, Some(3)]),
    ] {
        assert_eq!(whole(&said(input, &rest)), expected, "{input}{rest}");
        let start = r#""input_tokens":400,"output_tokens":0"#;
        assert_eq!(
            streamed(start, &said(input, &rest)),
            expected,
            "{input}{rest}"
        );
        let nothing = r#""input_tokens":0,"output_tokens":0"#;
        assert_eq!(
            streamed(nothing, &said(input, &rest)),
            expected,
            "{input}{rest}"
        );
    }
    // Said first, and at the end nothing but the answer, or zeros.
    let start = said(12, &both("300", "88"));
    for end in [
        r#""output_tokens":3"#.to_owned(),
        said(0, ""),
        said(0, &both("0", "0")),
        said(0, &both("null", "null")),
    ] {
        assert_eq!(
            streamed(&start, &end),
            [Some(400), Some(300), Some(3)],
            "{end}"
        );
    }
}

/// llama.cpp's `timings` count where `usage` says nothing; its `tokens_cached` is another thing.
#[test]
fn timings_count_where_usage_is_silent() {
    let of = |streamed: bool, timings: &str| {
        let timings = format!(r#""timings":{{{timings}}}"#);
        let text = if streamed {
            format!(
                "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"a\"}}}}]}}\n\n\
                 data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"stop\"}}],{timings}}}\n\n\
                 data: [DONE]\n\n"
            )
        } else {
            format!(r#"{{"content":"a","tokens_cached":124,"tokens_evaluated":400,{timings}}}"#)
        };
        let endpoint = if streamed {
            Endpoint::Chat
        } else {
            Endpoint::Other
        };
        counts(endpoint, streamed, &text)
    };
    for streamed in [false, true] {
        for (timings, expected) in [
            (
                r#""cache_n":320,"prompt_n":80,"predicted_n":3"#,
                [Some(400), Some(320), Some(3)],
            ),
            (
                r#""cache_n":0,"prompt_n":400,"predicted_n":3"#,
                [Some(400), Some(0), Some(3)],
            ),
            // Older ones count only what they computed.
            (r#""prompt_n":80,"predicted_n":3"#, [None, None, Some(3)]),
            (
                r#""cache_n":null,"prompt_n":80,"predicted_n":3"#,
                [None, None, Some(3)],
            ),
            (
                r#""cache_n":-1,"prompt_n":80,"predicted_n":3"#,
                [None, None, Some(3)],
            ),
        ] {
            assert_eq!(of(streamed, timings), expected, "{timings}");
        }
    }
}
