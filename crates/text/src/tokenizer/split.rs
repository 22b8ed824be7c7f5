//! Where a text may be cut so that its pieces tokenise alone as they do within the whole.
//!
//! Tokenizers look for added tokens first, in the raw text, and treat what lies between them one
//! by one. So a text may be cut at such tokens, unless something in the tokenizer looks across:
//! a token that must be a whole word, a pre-tokenizer that treats the text's beginning in its own
//! way, or a step that is not known here. Then the text is tokenised whole.

use crate::pieces::{Pieces, Span};
use aho_corasick::{AhoCorasick, MatchKind};
use rustc_hash::FxBuildHasher;
use serde_json::Value;
use std::collections::HashSet;

/// Why texts of a tokenizer are not cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WholeReason {
    /// An added token matches whole words only.
    SingleWord,
    /// An added token is empty.
    EmptyToken,
    /// A step that treats a text's beginning in its own way, or that is not known.
    Step,
    /// Merges are dropped at random.
    Dropout,
    /// No added token can be cut at.
    NoTokens,
    /// The cut pieces did not give the ids of the whole, on texts tried at load.
    Tried,
}

/// Finds the added tokens in a text.
pub(super) struct Splitter {
    matcher: AhoCorasick,
    /// By pattern: the token's id, where the text may be cut at it.
    cuts: Vec<Option<u32>>,
    /// Beginnings of tokens, the tokens themselves left out.
    beginnings: HashSet<Vec<u8>, FxBuildHasher>,
    /// Ends of tokens, the tokens themselves left out.
    ends: HashSet<Vec<u8>, FxBuildHasher>,
    /// Bytes of the longest token.
    longest: usize,
}

/// A piece of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// An added token.
    Token(u32),
    /// The text between two of them.
    Text(Span),
}

struct Added {
    content: String,
    single_word: bool,
    strips: bool,
    normalized: bool,
}

fn added_tokens(json: &Value) -> Vec<Added> {
    let flag = |token: &Value, name: &str| token.get(name).and_then(Value::as_bool) == Some(true);
    let tokens = json.get("added_tokens").and_then(Value::as_array);
    let read = |token: &Value| {
        Some(Added {
            content: token.get("content")?.as_str()?.to_owned(),
            single_word: flag(token, "single_word"),
            strips: flag(token, "lstrip") || flag(token, "rstrip"),
            normalized: flag(token, "normalized"),
        })
    };
    tokens.into_iter().flatten().filter_map(read).collect()
}

impl Splitter {
    /// Reads what a `tokenizer.json` says. `id_of` gives an added token's id as the tokenizer has
    /// it, which may be another than the file's.
    ///
    /// # Errors
    /// Its texts cannot be cut.
    pub(super) fn new(
        json: &Value,
        id_of: impl Fn(&str) -> Option<u32>,
    ) -> Result<Self, WholeReason> {
        steps(json)?;
        let tokens = added_tokens(json);
        if tokens.iter().any(|t| t.single_word) {
            return Err(WholeReason::SingleWord);
        }
        if tokens.iter().any(|t| t.content.is_empty()) {
            return Err(WholeReason::EmptyToken);
        }
        // Tokens that match in normalised text are found within the pieces, later.
        let raw: Vec<&Added> = tokens.iter().filter(|t| !t.normalized).collect();
        let cuts: Vec<Option<u32>> = raw
            .iter()
            .map(|t| can_cut(t).then(|| id_of(&t.content))?)
            .collect();
        if cuts.iter().all(Option::is_none) {
            return Err(WholeReason::NoTokens);
        }
        let matcher = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(raw.iter().map(|t| t.content.as_str()))
            .map_err(|_| WholeReason::Step)?;
        let (mut beginnings, mut ends) = (HashSet::default(), HashSet::default());
        for token in &raw {
            let bytes = token.content.as_bytes();
            for (beginning, end) in (1..bytes.len()).filter_map(|at| bytes.split_at_checked(at)) {
                beginnings.insert(beginning.to_vec());
                ends.insert(end.to_vec());
            }
        }
        Ok(Self {
            matcher,
            cuts,
            beginnings,
            ends,
            longest: raw.iter().map(|t| t.content.len()).max().unwrap_or(0),
        })
    }

    /// Whether no token is in the text, and none can be made by what stands before or behind it:
    /// then the pieces of a longer text are found without looking at this part of it.
    pub(super) fn is_plain(&self, text: &str) -> bool {
        let bytes = text.as_bytes();
        let part = |range: std::ops::Range<usize>| bytes.get(range).unwrap_or_default();
        let length = bytes.len();
        // A token is no longer than the text: it cannot have the text within it.
        length >= self.longest
            && !(1..self.longest).any(|some| {
                self.ends.contains(part(0..some))
                    || self.beginnings.contains(part(length - some..length))
            })
            && !self.matcher.is_match(text)
    }

    /// The pieces of `text`, in order, without gaps. The texts inserted in it must be plain.
    pub(super) fn pieces(&self, text: &Pieces) -> Vec<Piece> {
        let mut found = Vec::new();
        let mut span = Span {
            own: 0..0,
            inserted: 0..0,
        };
        // No token reaches across an inserted text.
        let ends = text.inserted.iter().map(|inserted| inserted.at);
        for (at, end) in ends.chain([text.own.len()]).enumerate() {
            span.inserted.end = at;
            let start = span.own.end;
            let run = text.own.get(start..end).unwrap_or_default();
            for token in self.matcher.find_iter(run) {
                let Some(Some(id)) = self.cuts.get(token.pattern().as_usize()) else {
                    continue;
                };
                span.own.end = start + token.start();
                let after = start + token.end();
                let next = Span {
                    own: after..after,
                    inserted: at..at,
                };
                let before = std::mem::replace(&mut span, next);
                if !before.is_empty() {
                    found.push(Piece::Text(before));
                }
                found.push(Piece::Token(*id));
            }
            span.own.end = end;
        }
        if !span.is_empty() {
            found.push(Piece::Text(span));
        }
        found
    }
}

/// Whether a text may be cut at a token: not if it takes the white space around it; neither if it
/// is white space at its ends, which such a token could take.
fn can_cut(token: &Added) -> bool {
    !token.strips && token.content.trim().len() == token.content.len()
}

/// Whether all steps treat pieces as they treat the whole.
fn steps(json: &Value) -> Result<(), WholeReason> {
    let model = json.get("model").unwrap_or(&Value::Null);
    if !matches!(
        kind(model),
        Some("BPE" | "Unigram" | "WordPiece" | "WordLevel") | None
    ) {
        return Err(WholeReason::Step);
    }
    if model
        .get("dropout")
        .and_then(Value::as_f64)
        .is_some_and(|d| d > 0.0)
    {
        return Err(WholeReason::Dropout);
    }
    if !pre_tokenizer(json.get("pre_tokenizer").unwrap_or(&Value::Null)) {
        return Err(WholeReason::Step);
    }
    if !normalizer(json.get("normalizer").unwrap_or(&Value::Null)) {
        return Err(WholeReason::Step);
    }
    Ok(())
}

fn kind(step: &Value) -> Option<&str> {
    step.get("type").and_then(Value::as_str)
}

fn all(step: &Value, name: &str, fits: fn(&Value) -> bool) -> bool {
    step.get(name)
        .and_then(Value::as_array)
        .is_some_and(|steps| steps.iter().all(fits))
}

fn pre_tokenizer(step: &Value) -> bool {
    match kind(step) {
        None => step.is_null(),
        Some("Sequence") => all(step, "pretokenizers", pre_tokenizer),
        // `first` prepends at the text's beginning only.
        Some("Metaspace") => matches!(
            step.get("prepend_scheme").and_then(Value::as_str),
            Some("always" | "never")
        ),
        Some(
            "ByteLevel" | "Split" | "Digits" | "Punctuation" | "Whitespace" | "WhitespaceSplit"
            | "BertPreTokenizer" | "UnicodeScripts" | "CharDelimiterSplit",
        ) => true,
        Some(_) => false,
    }
}

fn normalizer(step: &Value) -> bool {
    match kind(step) {
        None => step.is_null(),
        Some("Sequence") => all(step, "normalizers", normalizer),
        Some(
            "NFC" | "NFD" | "NFKC" | "NFKD" | "Lowercase" | "Prepend" | "Replace" | "Strip"
            | "StripAccents" | "Nmt" | "BertNormalizer" | "Precompiled" | "ByteLevel",
        ) => true,
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn token(id: u32, content: &str) -> Value {
        json!({"id": id, "content": content, "special": true, "normalized": false})
    }

    fn split(tokens: &[Value]) -> Result<Splitter, WholeReason> {
        let id_of = |content: &str| {
            let token = tokens.iter().find(|t| t["content"] == content)?;
            u32::try_from(token["id"].as_u64()?).ok()
        };
        let json = json!({"model": {"type": "BPE"}, "added_tokens": tokens});
        Splitter::new(&json, id_of)
    }

    fn pieces(splitter: &Splitter, text: &str) -> Vec<Piece> {
        splitter.pieces(&Pieces::from(text.to_owned()))
    }

    fn part(start: usize, end: usize) -> Piece {
        Piece::Text(Span {
            own: start..end,
            inserted: 0..0,
        })
    }

    #[test]
    fn texts_are_cut_at_the_longest_leftmost_tokens() {
        let splitter = split(&[token(1, "<a>"), token(2, "<a><b>"), token(3, "<b>")]).unwrap();
        assert_eq!(
            pieces(&splitter, "x<a><b>y<a>"),
            [part(0, 1), Piece::Token(2), part(7, 8), Piece::Token(1)]
        );
        assert_eq!(pieces(&splitter, ""), []);
        assert_eq!(pieces(&splitter, "<b><b"), [Piece::Token(3), part(3, 5)]);
    }

    #[test]
    fn tokens_that_take_white_space_stay_within_pieces() {
        let mut strips = token(1, "<s>");
        strips["rstrip"] = json!(true);
        let splitter = split(&[strips, token(2, "<e>"), token(3, "\n")]).unwrap();
        assert_eq!(
            pieces(&splitter, "a<s> b\n<e>c"),
            [part(0, 7), Piece::Token(2), part(10, 11)]
        );
    }

    #[test]
    fn what_tokens_can_reach_into_is_not_plain() {
        let splitter = split(&[token(1, "<a>"), token(2, "bb"), token(3, "+")]).unwrap();
        for (text, plain) in [
            ("long enough", true),
            ("<a", false),
            ("a <a> token", false),
            ("begins so<", false),
            ("begins so<a", false),
            ("a>ends so", false),
            (">ends so", false),
            ("ends so>", true),
            ("<a begins not", true),
            ("b begins", false),
            ("one + two", false),
        ] {
            assert_eq!(splitter.is_plain(text), plain, "{text}");
        }
    }

    #[test]
    fn tokenizers_that_look_across_are_not_cut() {
        let with = |name: &str, step: Value| {
            let mut json = json!({"model": {"type": "BPE"}, "added_tokens": [token(1, "<a>")]});
            json[name] = step;
            Splitter::new(&json, |_| Some(1)).err()
        };
        let metaspace = |scheme| json!({"type": "Metaspace", "prepend_scheme": scheme});
        assert_eq!(
            with("pre_tokenizer", metaspace("first")),
            Some(WholeReason::Step)
        );
        assert_eq!(with("pre_tokenizer", metaspace("always")), None);
        let nested =
            json!({"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "New"}]});
        assert_eq!(with("pre_tokenizer", nested), Some(WholeReason::Step));
        assert_eq!(with("normalizer", json!({"type": "NFC"})), None);
        assert_eq!(
            with("normalizer", json!({"type": "New"})),
            Some(WholeReason::Step)
        );
        let dropout = json!({"type": "BPE", "dropout": 0.1});
        assert_eq!(with("model", dropout), Some(WholeReason::Dropout));
        let mut word = token(1, "<a>");
        word["single_word"] = json!(true);
        assert_eq!(split(&[word]).err(), Some(WholeReason::SingleWord));
        assert_eq!(split(&[token(1, "")]).err(), Some(WholeReason::EmptyToken));
        assert_eq!(split(&[]).err(), Some(WholeReason::NoTokens));
    }
}
