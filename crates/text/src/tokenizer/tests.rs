#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
//! A tokenizer small enough to be written here: bytes, a few merges, a few added tokens.

use super::*;
use serde_json::json;
use std::collections::BTreeMap;

/// The characters by which byte-level tokenizers write bytes.
fn alphabet() -> Vec<char> {
    let mut spare = 256;
    (0..=255_u8)
        .map(|byte| {
            let plain = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
            if plain {
                return char::from(byte);
            }
            spare += 1;
            char::from_u32(spare - 1).unwrap()
        })
        .collect()
}

/// Its `tokenizer.json`.
pub(crate) fn small() -> Value {
    let mut vocabulary = BTreeMap::new();
    for c in alphabet() {
        vocabulary.insert(c.to_string(), vocabulary.len());
    }
    let merges = ["h i", "t h", "th e", "Ġ the", "l o", "lo w"];
    for merge in merges {
        vocabulary.insert(merge.replace(' ', ""), vocabulary.len());
    }
    let added = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true})
    };
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [added(262, "<s>"), added(263, "<e>"), added(264, "<e><s>")],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [262], "tokens": ["<s>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": merges},
    })
}

fn load(json: &Value) -> Tokenizer {
    Tokenizer::from_json(json.to_string().as_bytes(), 1 << 20).unwrap()
}

fn ids(tokenizer: &Tokenizer, text: &str, special: bool) -> Vec<u32> {
    tokenizer
        .finish(tokenizer.plan(text.to_owned(), special))
        .unwrap()
        .to_vec()
}

#[test]
fn ids_are_those_of_the_merges_and_lengths_are_not_cut() {
    let json = small();
    let id = |token: &str| u32::try_from(json["model"]["vocab"][token].as_u64().unwrap()).unwrap();
    let tokenizer = load(&json);
    assert_eq!(tokenizer.whole_reason(), None);
    let right = [id("hi"), id("Ġthe"), id("Ġ"), id("low"), 263, id("low")];
    assert_eq!(ids(&tokenizer, "hi the low<e>low", false)[..2], right[..2]);
    let whole = tokenizer.reference_ids("hi the low<e>low", false).unwrap();
    assert_eq!(whole, right);
    assert_eq!(ids(&tokenizer, "hi the low<e>low", false), right);
    assert_eq!(ids(&tokenizer, "hi", true), [262, id("hi")]);
    assert_eq!(ids(&tokenizer, "", true), [262]);
}

#[test]
fn what_was_tokenised_is_not_tokenised_again() {
    let tokenizer = load(&small());
    let missing = |text: &str| {
        let plan = tokenizer.plan(text.to_owned(), false);
        let missing = plan.missing_bytes();
        tokenizer.finish(plan).unwrap();
        missing
    };
    assert_eq!(missing("<s>hi there<e>low"), 11);
    assert_eq!(missing("<s>hi there<e>low<e>the rest"), 8);
    assert_eq!(missing("<s>hi there<e>low<e>the rest"), 0);
    let counts = tokenizer.counts();
    assert_eq!((counts.memo.hits, counts.memo.misses), (5, 3));
    assert_eq!((counts.mismatches, counts.whole), (0, 0));
    assert!(counts.memo.bytes > 0);
}

#[test]
fn a_tokenizer_that_looks_across_is_used_whole_and_counted() {
    let mut json = small();
    json["added_tokens"][1]["single_word"] = json!(true);
    let tokenizer = load(&json);
    assert_eq!(tokenizer.whole_reason(), Some(WholeReason::SingleWord));
    for text in ["low<e>low", "low <e> low", "<s><e>"] {
        assert_eq!(
            ids(&tokenizer, text, false),
            tokenizer.reference_ids(text, false).unwrap()
        );
    }
    assert_eq!(tokenizer.counts().whole, 3);
}

#[test]
fn an_encoder_that_differs_is_left_for_the_reference() {
    let tokenizer = load(&small());
    if tokenizer.encoder() == "fastokens" {
        tokenizer.distrust();
        assert_eq!(tokenizer.counts().mismatches, 1);
    }
    assert_eq!(tokenizer.encoder(), "tokenizers");
    assert_eq!(
        ids(&tokenizer, "hi", false),
        tokenizer.reference_ids("hi", false).unwrap()
    );
}

#[test]
fn what_is_no_tokenizer_is_told() {
    for json in ["", "{}", "[1]", "{\"model\": 3}"] {
        let error = Tokenizer::from_json(json.as_bytes(), 0).err().unwrap();
        assert!(matches!(error, TokenizerError::Unreadable(_)), "{json}");
    }
}
