//! Histories and tools that clients send otherwise than before: equal to the letter up to the change, and
//! not behind it.

use super::{BLOCK, CALLER, of, of_text};
use maitred_core::request::BlockHash;
use maitred_wire::Endpoint;
use serde_json::{Value, json};

/// Bytes of whole blocks that two prompts begin with.
fn common(one: &[BlockHash], two: &[BlockHash]) -> usize {
    BLOCK * one.iter().zip(two).take_while(|(a, b)| a == b).count()
}

/// Arguments of a call that were parsed, stored and written again came back with their keys in another
/// order, and an old call was computed anew with all behind it.
#[test]
fn arguments_in_another_order_are_another_history() {
    let before = "words that were said before ".repeat(40);
    let body = |arguments: &str| {
        let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}});
        json!({"model": "m", "messages": [
            {"role": "user", "content": before},
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": before},
            {"role": "user", "content": "go on"}]})
    };
    let [one, two] = [r#"{"city":"Oslo","days":2}"#, r#"{"days":2,"city":"Oslo"}"#]
        .map(|arguments| of(Endpoint::Chat, &body(arguments)));
    let known = common(&one.chain, &two.chain);
    assert!(
        (before.len() - BLOCK..before.len() + 2 * BLOCK).contains(&known),
        "{known}"
    );
    assert!(one.chain.len() * BLOCK > 2 * before.len());
    // It is the same conversation all the same.
    assert_eq!(one.session, two.session);
}

/// A proxy that sent other tools with each turn, to save prompt, made every turn a new one.
#[test]
fn a_choice_of_tools_that_changes_is_equal_up_to_the_first_other_one() {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "description": "does what it says ".repeat(20)}});
    let with = |names: &[&str]| {
        let tools: Vec<Value> = names.iter().map(|name| tool(name)).collect();
        let body = json!({"model": "m", "tools": tools,
            "messages": [{"role": "user", "content": "hello ".repeat(100)}]});
        of_text(Endpoint::Chat, &body.to_string(), CALLER).chain
    };
    let one = tool("a").to_string().len();
    let [ab, abc, ac] = [&["a", "b"][..], &["a", "b", "c"], &["a", "c"]].map(with);
    let added = common(&ab, &abc);
    assert!(
        (2 * one - BLOCK..2 * one + BLOCK).contains(&added),
        "{added} of 2 x {one}"
    );
    let removed = common(&abc, &ac);
    assert!(
        (one - BLOCK..one + 2 * BLOCK).contains(&removed),
        "{removed} of {one}"
    );
}
