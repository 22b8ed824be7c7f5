//! A model's files small enough to reckon with.

use std::path::Path;

use serde_json::{Value, json};

/// A `tokenizer.json` in which every byte is a token of its own number; `<s>` is 256 and `<e>` 257.
pub fn byte_tokenizer() -> Value {
    let plain = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut others = 256..;
    let vocabulary: serde_json::Map<String, Value> = (0..256_u32)
        .map(|b| {
            let c = if plain(b) { b } else { others.next().unwrap() };
            (char::from_u32(c).unwrap().to_string(), b.into())
        })
        .collect();
    let added = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true})
    };
    json!({"version": "1.0", "added_tokens": [added(256, "<s>"), added(257, "<e>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []}})
}

/// Writes it into `folder` with this chat template.
pub fn write_model(folder: &Path, template: &str) {
    std::fs::write(folder.join("tokenizer.json"), byte_tokenizer().to_string()).unwrap();
    std::fs::write(folder.join("chat_template.jinja"), template).unwrap();
}
