#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

fn observe(endpoint: Endpoint, stream: &str) -> StreamObserver {
    let mut observer = StreamObserver::new(endpoint);
    observer.push(stream.as_bytes());
    observer
}

fn usage(prompt: u32, cached: Option<u32>, output: u32) -> WireUsage {
    WireUsage {
        prompt_tokens: Some(prompt),
        cached_tokens: cached,
        output_tokens: Some(output),
    }
}

const CHAT: &str = concat!(
    ": hello\n\n",
    "data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}],\"usage\":null}\n\n",
    "data: {\"id\":\"c1\",\"choices\":[{\"index\":1,\"delta\":{\"content\":\"北🙂 \\\"usage\\\":\"}}]}\r\n\r\n",
    "data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":400,\"completion_tokens\":3}}\n\n",
    "data: {\"id\":\"c1\",\"choices\":[],\"usage\":{\"prompt_tokens\":400,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":320}}}\n\n",
    "data: [DONE]\n\n",
);

const RESPONSES: &str = concat!(
    "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\",\"usage\":null}}\n\n",
    "event: response.reasoning_text.delta\ndata: {\"type\":\"response.reasoning_text.delta\",\"delta\":\"hm\"}\n\n",
    "data: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\n\n",
    "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\",\"usage\":{\"input_tokens\":9,\"input_tokens_details\":{\"cached_tokens\":0},\"output_tokens\":8,\"total_tokens\":17}}}\n\n",
);

const MESSAGES: &str = concat!(
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"usage\":{\"input_tokens\":12,\"cache_read_input_tokens\":988,\"output_tokens\":1}}}\n\n",
    "event: ping\ndata: {\"type\":\"ping\"}\n\n",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"hi\"}}\n\n",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":25}}\n\n",
    "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
);

#[test]
fn the_last_complete_usage_counts_once() {
    let chat = observe(Endpoint::Chat, CHAT);
    assert_eq!(chat.usage(), usage(400, Some(320), 3));
    assert!(chat.first_token() && chat.finished() && chat.at_boundary());
    assert!(!chat.error() && !chat.aborted());
    assert_eq!(chat.data_events(), 5);
    let early = concat!(
        "data: {\"choices\":[],\"usage\":{\"completion_tokens\":1}}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"
    );
    let mut observer = observe(Endpoint::Chat, early);
    assert!(!observer.finished());
    observer.push(
        b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":25}}\n\n",
    );
    assert_eq!(observer.usage(), usage(7, None, 25));
}

#[test]
fn families_are_told_apart() {
    let responses = observe(Endpoint::Responses, RESPONSES);
    assert_eq!(responses.usage(), usage(9, Some(0), 8));
    assert_eq!(responses.response_id(), Some("resp_1"));
    assert!(responses.first_token() && responses.finished());
    let messages = observe(Endpoint::Messages, MESSAGES);
    assert_eq!(messages.usage(), usage(1000, Some(988), 25));
    assert!(messages.first_token() && messages.finished());
    assert_eq!(messages.response_id(), None);
}

#[test]
fn any_output_of_any_choice_is_the_first_token() {
    let first = |delta: &str| {
        let chunk = format!("data: {{\"choices\":[{{\"index\":3,\"delta\":{delta}}}]}}\n\n");
        observe(Endpoint::Chat, &chunk).first_token()
    };
    assert!(first(r#"{"content":"x"}"#));
    assert!(first(r#"{"content":null,"reasoning_content":"x"}"#));
    assert!(first(r#"{"some_thoughts":"x"}"#));
    assert!(first(
        r#"{"tool_calls":[{"index":0,"function":{"name":"f","arguments":""}}]}"#
    ));
    assert!(!first(r#"{"role":"assistant","content":""}"#));
    assert!(!first(
        r#"{"role":"assistant","content":null,"tool_calls":[]}"#
    ));
    assert!(!first("{}"));
    let text = "data: {\"choices\":[{\"index\":0,\"text\":\" a\"}]}\n\n";
    assert!(observe(Endpoint::Completions, text).first_token());
}

#[test]
fn errors_aborts_and_failures_show() {
    let error = "data: {\"error\":{\"message\":\"boom\",\"code\":500}}\n\ndata: [DONE]\n\n";
    assert!(observe(Endpoint::Chat, error).error());
    assert!(observe(Endpoint::Chat, "error: {\"code\":500}\n\n").error());
    assert!(!observe(Endpoint::Chat, "data: {\"choices\":[],\"error\":null}\n\n").error());
    let abort = "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n\ndata: {\"choices\":[{\"text\":\"a\",\"finish_reason\":\"abort\"}]}\n\n";
    assert!(observe(Endpoint::Completions, abort).aborted());
    let failed = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"id\":\"resp_2\",\"error\":{}}}\n\n";
    let failed = observe(Endpoint::Responses, failed);
    assert!(failed.error() && failed.finished());
    let messages =
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n";
    assert!(observe(Endpoint::Messages, messages).error());
}

#[test]
fn comments_are_no_sign_of_life_and_half_events_are_no_boundary() {
    let mut observer = StreamObserver::new(Endpoint::Chat);
    observer.push(b":\n\n:\n\n: ping\n\n");
    assert_eq!(observer.data_events(), 0);
    assert!(observer.at_boundary());
    observer.push(b"data: {\"choices\":");
    assert!(!observer.at_boundary());
    observer.push(b"[]}\n");
    assert!(!observer.at_boundary());
    observer.push(b"\n");
    assert!(observer.at_boundary());
    assert_eq!(observer.data_events(), 1);
}

#[test]
fn llamacpp_timings_stand_in_for_usage() {
    let chunk = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\"timings\":{\"cache_n\":136,\"prompt_n\":1,\"predicted_n\":8}}\n\n";
    assert_eq!(
        observe(Endpoint::Chat, chunk).usage(),
        usage(137, Some(136), 8)
    );
}

#[test]
fn an_event_beyond_the_bound_is_passed_over_and_its_end_found() {
    let mut observer = StreamObserver::with_event_bytes_max(Endpoint::Chat, 100);
    let long = format!(
        "data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n",
        "x".repeat(5000)
    );
    for piece in long.as_bytes().chunks(700) {
        observer.push(piece);
    }
    assert_eq!(observer.skipped_events(), 1);
    assert!(observer.first_token() && observer.at_boundary());
    observer.push(b"data: [DONE]\n\n");
    assert!(observer.finished());
    assert_eq!(observer.skipped_events(), 1);
}

fn facts(o: &StreamObserver) -> (bool, WireUsage, Option<String>, bool, bool, bool, bool, u64) {
    let id = o.response_id().map(String::from);
    let (first, usage) = (o.first_token(), o.usage());
    (
        first,
        usage,
        id,
        o.finished(),
        o.error(),
        o.aborted(),
        o.at_boundary(),
        o.data_events(),
    )
}

#[test]
fn one_byte_at_a_time_says_the_same() {
    for (endpoint, stream) in [
        (Endpoint::Chat, CHAT),
        (Endpoint::Responses, RESPONSES),
        (Endpoint::Messages, MESSAGES),
    ] {
        let whole = observe(endpoint, stream);
        let mut single = StreamObserver::new(endpoint);
        for byte in stream.as_bytes() {
            single.push(&[*byte]);
        }
        assert_eq!(facts(&whole), facts(&single), "{endpoint:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_split_says_the_same(cuts in prop::collection::vec(1usize..40, 1..60), max in 20usize..300) {
        let stream = CHAT.replace("\n\n", "\r\n\r\n");
        let mut whole = StreamObserver::with_event_bytes_max(Endpoint::Chat, max);
        whole.push(stream.as_bytes());
        let mut split = StreamObserver::with_event_bytes_max(Endpoint::Chat, max);
        let (mut rest, mut n) = (stream.as_bytes(), 0);
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(cuts[n % cuts.len()].min(rest.len()));
            split.push(piece);
            (rest, n) = (after, n + 1);
        }
        prop_assert_eq!(facts(&whole), facts(&split));
        prop_assert_eq!(whole.skipped_events(), split.skipped_events());
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), text in "(data: |event: |error|\\{|\\}|\\[|\"choices\":|\"delta\":|\"usage\"|:|,|\n|\r|[a-z1]){0,60}") {
        for endpoint in [Endpoint::Chat, Endpoint::Responses, Endpoint::Messages, Endpoint::Other] {
            let mut observer = StreamObserver::with_event_bytes_max(endpoint, 64);
            observer.push(&bytes);
            observer.push(text.as_bytes());
            observer.push(b"\n\n");
            prop_assert!(observer.at_boundary());
        }
    }
}
