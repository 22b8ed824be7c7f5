//! From text to token ids: always those of the Hugging Face tokenizer, and for text seen before
//! without tokenising it again.

mod plan;
mod split;

pub use crate::memo::MemoCounts;
pub(crate) use plan::{Cut, CutPart};
pub use plan::{Ids, Plan};
pub use split::WholeReason;

use crate::memo::Memo;
use crate::pieces::{Piece as TextPiece, Pieces, Span};
use plan::{Known, Part};
use serde_json::Value;
use split::{Piece, Splitter};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use tokenizers::Tokenizer as Reference;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// One in this many tokenised texts is tokenised by the reference too, which takes some twenty
/// times as long.
const SAMPLE_EVERY: u64 = 8192;

/// The longest text that is sampled, in bytes.
const SAMPLE_BYTES_MAX: usize = 8 << 10;

/// Texts tried at load: both encoders must agree on them, and pieces with the whole.
const TRIED: [&str; 8] = [
    "",
    "Hello, world! It's 12345.678 o'clock.",
    "  leading,\ttabs\r\n\r\n  and   trailing  \n\n",
    "Ünïcödé: naïve café, 你好世界, こんにちは, привет, שלום, 🙂👍🏽",
    "fn main() {\n    println!(\"{}\", 1 << 20);\n}\n",
    "{\"a\": [1, 2.5e-7, null], \"b\": \"<&>'\"}",
    "don't CAN'T we'll I'VE \u{a0}\u{3000}\u{200b}e\u{301}",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa                                        -----",
];

/// What is wrong with a tokenizer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// The file is no tokenizer that the reference reads; holds what it says.
    #[error("not a tokenizer: {0}")]
    Unreadable(String),
    /// A text could not be tokenised.
    #[error("the tokenizer failed on a text")]
    Failed,
}

/// Tokens that the tokenizer adds around a text where it is asked to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Around {
    before: Vec<u32>,
    after: Vec<u32>,
}

/// What a tokenizer did since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenizerCounts {
    /// What the memo did.
    pub memo: MemoCounts,
    /// Texts tokenised by both encoders.
    pub sampled: u64,
    /// Of those, texts with different ids. From the first one on, only the reference is used.
    pub mismatches: u64,
    /// Texts tokenised whole, because the tokenizer's texts cannot be cut.
    pub whole: u64,
}

/// A tokenizer with its memo.
pub struct Tokenizer {
    fast: Option<fastokens::Tokenizer>,
    /// Whether `fast` has agreed with the reference so far.
    trusted: AtomicBool,
    reference: Reference,
    splitter: Result<Splitter, WholeReason>,
    around: Around,
    memo: Memo<Arc<[u32]>>,
    seed: u64,
    tokenised: AtomicU64,
    sampled: AtomicU64,
    mismatches: AtomicU64,
    whole: AtomicU64,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`. `memo_bytes` bounds the memo. Takes seconds for large
    /// vocabularies: not for a thread that must answer.
    ///
    /// # Errors
    /// The reference cannot read it. What the fast encoder cannot read is left to the reference.
    pub fn from_json(json: &[u8], memo_bytes: usize) -> Result<Self, TokenizerError> {
        let unreadable = |e: String| TokenizerError::Unreadable(e);
        let mut value: Value =
            serde_json::from_slice(json).map_err(|e| unreadable(e.to_string()))?;
        // Engines tokenise prompts whole, whatever the file says about lengths.
        if let Some(object) = value.as_object_mut() {
            object.insert("truncation".to_owned(), Value::Null);
            object.insert("padding".to_owned(), Value::Null);
        }
        let mut reference = Reference::from_bytes(json).map_err(|e| unreadable(e.to_string()))?;
        reference
            .with_truncation(None)
            .map_err(|e| unreadable(e.to_string()))?
            .with_padding(None);
        let splitter = Splitter::new(&value, |token| reference.token_to_id(token));
        let fast = fastokens::Tokenizer::from_json(value).ok();
        let mut tokenizer = Self {
            trusted: AtomicBool::new(fast.is_some()),
            fast,
            reference,
            splitter,
            around: Around::default(),
            memo: Memo::new(memo_bytes),
            // Hashes that nobody outside can foresee: equal ones cannot be made.
            seed: RandomState::new().hash_one(0),
            tokenised: AtomicU64::new(0),
            sampled: AtomicU64::new(0),
            mismatches: AtomicU64::new(0),
            whole: AtomicU64::new(0),
        };
        tokenizer.around = tokenizer.find_around()?;
        tokenizer.try_texts()?;
        // What was tried at load does not count.
        tokenizer.memo = Memo::new(memo_bytes);
        tokenizer.sampled = AtomicU64::new(0);
        tokenizer.whole = AtomicU64::new(0);
        Ok(tokenizer)
    }

    /// What is added around a text.
    fn find_around(&self) -> Result<Around, TokenizerError> {
        let plain = self.reference_ids("a", false)?;
        let special = self.reference_ids("a", true)?;
        let at = special.windows(plain.len().max(1)).position(|w| w == plain);
        let at = at.ok_or(TokenizerError::Failed)?;
        Ok(Around {
            before: special.get(..at).unwrap_or_default().to_vec(),
            after: special.get(at + plain.len()..).unwrap_or_default().to_vec(),
        })
    }

    /// Compares the encoders, and pieces with the whole, on a few texts.
    fn try_texts(&mut self) -> Result<(), TokenizerError> {
        let token = self.added_token();
        let mut texts: Vec<String> = TRIED.iter().map(|t| (*t).to_owned()).collect();
        texts.push(TRIED.join(&token));
        texts.push(TRIED.join(&format!(" {token}\n")));
        for text in &texts {
            let right = self.reference_ids(text, false)?;
            if self.fast_ids(text).is_some_and(|ids| ids != right) {
                self.distrust();
            }
            if self.splitter.is_ok() && self.by_pieces(text)? != right {
                self.splitter = Err(WholeReason::Tried);
            }
        }
        Ok(())
    }

    /// The text of some added token; empty without.
    fn added_token(&self) -> String {
        let tokens = self.reference.get_added_tokens_decoder();
        let first = tokens.iter().min_by_key(|(id, _)| **id);
        first
            .map(|(_, token)| token.content.clone())
            .unwrap_or_default()
    }

    fn by_pieces(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        Ok(self.finish(self.plan(text.to_owned(), false))?.to_vec())
    }

    /// The encoder in use: `fastokens`, or `tokenizers`.
    #[must_use]
    pub fn encoder(&self) -> &'static str {
        if self.fast.is_some() && self.trusted.load(Relaxed) {
            "fastokens"
        } else {
            "tokenizers"
        }
    }

    /// Why texts are tokenised whole; None where they are cut.
    #[must_use]
    pub fn whole_reason(&self) -> Option<WholeReason> {
        self.splitter.as_ref().err().copied()
    }

    /// What was done since the start.
    #[must_use]
    pub fn counts(&self) -> TokenizerCounts {
        TokenizerCounts {
            memo: self.memo.counts(),
            sampled: self.sampled.load(Relaxed),
            mismatches: self.mismatches.load(Relaxed),
            whole: self.whole.load(Relaxed),
        }
    }

    /// The ids of the reference, without cutting, memo or the fast encoder.
    ///
    /// # Errors
    /// The tokenizer fails on the text.
    pub fn reference_ids(&self, text: &str, special: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.reference.encode_fast(text, special);
        let encoding = encoding.map_err(|_| TokenizerError::Failed)?;
        Ok(encoding.get_ids().to_vec())
    }

    fn fast_ids(&self, text: &str) -> Option<Vec<u32>> {
        if !self.trusted.load(Relaxed) {
            return None;
        }
        self.fast.as_ref()?.encode(text).ok()
    }

    fn distrust(&self) {
        self.mismatches.fetch_add(1, Relaxed);
        self.trusted.store(false, Relaxed);
        self.memo.clear();
    }

    /// Tokenises one text; some are tokenised twice and compared.
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let Some(ids) = self.fast_ids(text) else {
            return self.reference_ids(text, false);
        };
        let count = self.tokenised.fetch_add(1, Relaxed);
        if count.is_multiple_of(SAMPLE_EVERY) && text.len() <= SAMPLE_BYTES_MAX {
            self.sampled.fetch_add(1, Relaxed);
            let right = self.reference_ids(text, false)?;
            if right != ids {
                self.distrust();
                return Ok(right);
            }
        }
        Ok(ids)
    }

    /// Cuts a text and looks up its parts: one pass over what is new of it, no tokenising.
    /// `special`: whether the tokenizer's own tokens come around.
    #[must_use]
    pub fn plan(&self, text: impl Into<Pieces>, special: bool) -> Plan {
        self.look_up(self.cut(text.into(), special), 0)
    }

    /// Cuts a text.
    pub(crate) fn cut(&self, mut text: Pieces, special: bool) -> Cut {
        let pieces = match &self.splitter {
            Ok(splitter) => {
                text = text.keeping(|long| long.is_plain(|text| splitter.is_plain(text)));
                splitter.pieces(&text)
            }
            Err(_) => vec![Piece::Text(text.whole())],
        };
        let mut scratch = Vec::new();
        let mut part = |piece| match piece {
            Piece::Token(id) => CutPart::Token(id),
            Piece::Text(span) => {
                let (key, bytes) = self.key(&text, &span, &mut scratch);
                CutPart::Text { span, key, bytes }
            }
        };
        let parts = pieces.into_iter().map(&mut part).collect();
        Cut {
            text,
            parts,
            special,
        }
    }

    /// Looks up the parts from `from` on; those before are known as a whole.
    pub(crate) fn look_up(&self, cut: Cut, from: usize) -> Plan {
        let mut parts = Vec::with_capacity(cut.parts.len().saturating_sub(from));
        let (mut missing_bytes, mut skipped, mut skipped_bytes) = (0, 0, 0);
        for (at, part) in cut.parts.into_iter().enumerate() {
            let known = at < from;
            match part {
                CutPart::Text { bytes, .. } if known => {
                    skipped += 1;
                    skipped_bytes += bytes;
                }
                CutPart::Token(_) if known => {}
                CutPart::Token(id) => parts.push(Part::Known(Known::Token(id))),
                CutPart::Text { span, key, bytes } => parts.push(match self.memo.get(key, bytes) {
                    Some(ids) => Part::Known(Known::Text(ids)),
                    None => {
                        missing_bytes += bytes;
                        Part::Missing(span, key)
                    }
                }),
            }
        }
        self.memo.count_hits(skipped, skipped_bytes);
        Plan {
            text: cut.text,
            parts,
            missing_bytes,
            around: (cut.special && from == 0, cut.special),
        }
    }

    /// What a part of a text is remembered by, and its bytes. Of inserted texts their hashes are
    /// hashed: the same text in other pieces is remembered apart.
    fn key(&self, text: &Pieces, span: &Span, scratch: &mut Vec<u8>) -> (u128, usize) {
        if span.inserted.is_empty() {
            let own = text.own.get(span.own.clone()).unwrap_or_default();
            return (xxh3_128_with_seed(own.as_bytes(), self.seed), own.len());
        }
        scratch.clear();
        let mut bytes = 0;
        text.each(span, |piece| {
            // A mark and a length before each: no two lists of pieces look alike.
            let (mark, length) = match &piece {
                TextPiece::Own(own) => (0, own.len()),
                TextPiece::Long(long) => (1, long.text().len()),
            };
            bytes += length;
            scratch.push(mark);
            scratch.extend_from_slice(&(length as u64).to_le_bytes());
            match piece {
                TextPiece::Own(own) => scratch.extend_from_slice(own.as_bytes()),
                TextPiece::Long(long) => scratch.extend_from_slice(&long.hash().to_le_bytes()),
            }
        });
        (xxh3_128_with_seed(scratch, !self.seed), bytes)
    }

    /// The ids; tokenises what is missing, and remembers it.
    ///
    /// # Errors
    /// The tokenizer fails on the text.
    pub fn finish(&self, plan: Plan) -> Result<Ids, TokenizerError> {
        if self.splitter.is_err() && plan.missing_bytes > 0 {
            self.whole.fetch_add(1, Relaxed);
        }
        let own = |ids: &[u32]| ids.iter().copied().map(Known::Token).collect::<Vec<_>>();
        let mut parts = Vec::with_capacity(plan.parts.len() + 2);
        if plan.around.0 {
            parts.extend(own(&self.around.before));
        }
        let before = parts.len();
        for part in plan.parts {
            parts.push(match part {
                Part::Known(known) => known,
                Part::Missing(span, key) => {
                    let new: Arc<[u32]> = self.encode(&plan.text.text(&span))?.into();
                    self.memo.insert(key, &new, size_of_val(&*new));
                    Known::Text(new)
                }
            });
        }
        if plan.around.1 {
            parts.extend(own(&self.around.after));
        }
        Ok(Ids { parts, before })
    }
}

#[cfg(test)]
pub(crate) mod tests;
