//! Options that change what an engine does with the prompt, beside the prompt itself.

use super::of;
use maitred_wire::Endpoint;
use serde_json::{Value, json};

#[test]
fn requests_that_forbid_the_cache_are_known() {
    let reads = |field: &str, value: Value, others: Value| {
        let mut body = json!({"model": "m", "prompt": "a"});
        body[field] = value;
        for (name, value) in others.as_object().unwrap() {
            body[name] = value.clone();
        }
        of(Endpoint::Completions, &body).reads_cache
    };
    let none = || json!({});
    for (field, value, others, expected) in [
        ("cache_prompt", json!(false), none(), false),
        ("cache_prompt", json!(true), none(), true),
        ("cache_prompt", json!(null), none(), true),
        ("prompt_logprobs", json!(0), none(), false),
        ("prompt_logprobs", json!(null), none(), true),
        ("prompt_logprob_token_ids", json!([1]), none(), false),
        ("echo", json!(true), json!({"logprobs": 1}), false),
        ("echo", json!(true), none(), true),
        ("echo", json!(false), json!({"logprobs": 1}), true),
        ("logprobs", json!(5), none(), true),
    ] {
        assert_eq!(
            reads(field, value.clone(), others.clone()),
            expected,
            "{field} {value} {others}"
        );
    }
}

#[test]
fn prompts_that_the_engine_cuts_are_like_none_but_those_cut_alike() {
    let ids: Vec<u32> = (0..100).collect();
    let chain = |prompt: &Value, tokens: Value, side: Value| {
        let body = json!({"model": "m", "prompt": prompt,
            "truncate_prompt_tokens": tokens, "truncation_side": side});
        of(Endpoint::Completions, &body).chain
    };
    for prompt in [json!(ids), json!("words ".repeat(40))] {
        let plain = of(
            Endpoint::Completions,
            &json!({"model": "m", "prompt": prompt}),
        )
        .chain;
        let cut = |tokens: Value, side: Value| chain(&prompt, tokens, side);
        let left = cut(json!(50), json!("left"));
        assert_eq!(left, cut(json!(50), json!("left")));
        for other in [
            &plain,
            &cut(json!(50), json!("right")),
            &cut(json!(51), json!("left")),
        ] {
            assert_eq!(other.len().min(1), 1);
            assert!(!left.contains(&other[0]));
        }
    }
    let ids = json!(ids);
    let plain = of(Endpoint::Completions, &json!({"model": "m", "prompt": ids})).chain;
    assert_eq!(chain(&ids, Value::Null, Value::Null), plain);
}
