//! A rendered text in pieces: long texts that messages brought are referred to, not copied.
//!
//! A follow-up brings its whole history again. Its long texts were hashed and looked through when
//! they were read first; what the template writes around them is little.

use minijinja::value::{Value, ValueKind};
use rustc_hash::FxBuildHasher;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// The shortest text that is referred to, in bytes: what is shorter is copied with less work.
pub(crate) const LONG_BYTES_MIN: usize = 128;

/// How deep texts are looked for in a message: content, its parts, their texts.
const DEPTH_MAX: usize = 3;

/// What a long text takes beside itself, in bytes.
pub(crate) const LONG_TEXT_BYTES: usize = size_of::<LongText>();

/// A text of some length within a message.
#[derive(Debug)]
pub(crate) struct LongText {
    /// Shares its bytes with the message's own value.
    text: Value,
    hash: u128,
    /// Whether no added token is in it, or can reach into it from outside; known once looked for.
    plain: OnceLock<bool>,
}

impl LongText {
    pub(crate) fn text(&self) -> &str {
        self.text.as_str().unwrap_or_default()
    }

    /// Stands for the text.
    pub(crate) fn hash(&self) -> u128 {
        self.hash
    }

    /// What `look` says of the text, which is asked once.
    pub(crate) fn is_plain(&self, look: impl FnOnce(&str) -> bool) -> bool {
        *self.plain.get_or_init(|| look(self.text()))
    }
}

/// A message as templates get it, with its long texts.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) value: Value,
    /// Its role is `developer`.
    pub(crate) developer: bool,
    long: Vec<LongText>,
}

impl Message {
    /// `seed` is one that nobody outside can foresee.
    pub(crate) fn new(value: Value, seed: u64) -> Self {
        let mut long = Vec::new();
        find_long(&value, seed, DEPTH_MAX, &mut long);
        let role = value.get_attr("role").ok();
        let developer = role.is_some_and(|role| role.as_str() == Some("developer"));
        Self {
            value,
            developer,
            long,
        }
    }

    pub(crate) fn long(&self) -> &[LongText] {
        &self.long
    }
}

fn find_long(value: &Value, seed: u64, depth: usize, found: &mut Vec<LongText>) {
    if let Some(text) = value.as_str() {
        if text.len() >= LONG_BYTES_MIN {
            found.push(LongText {
                hash: xxh3_128_with_seed(text.as_bytes(), seed),
                text: value.clone(),
                plain: OnceLock::new(),
            });
        }
        return;
    }
    if depth == 0 {
        return;
    }
    let is_map = value.kind() == ValueKind::Map;
    if !is_map && value.kind() != ValueKind::Seq {
        return;
    }
    for item in value.try_iter().into_iter().flatten() {
        if !is_map {
            find_long(&item, seed, depth - 1, found);
        } else if let Ok(member) = value.get_item(&item) {
            find_long(&member, seed, depth - 1, found);
        }
    }
}

/// A long text at its place.
#[derive(Clone, Debug)]
pub(crate) struct Inserted {
    /// Bytes of the own text before it.
    pub(crate) at: usize,
    message: Arc<Message>,
    which: usize,
}

impl Inserted {
    pub(crate) fn long(&self) -> Option<&LongText> {
        self.message.long.get(self.which)
    }

    pub(crate) fn text(&self) -> &str {
        self.long().map_or("", LongText::text)
    }
}

/// A text: the template's own, and long texts of messages put in between.
#[derive(Clone, Debug, Default)]
pub struct Pieces {
    pub(crate) own: String,
    /// In the order of their places.
    pub(crate) inserted: Vec<Inserted>,
}

/// A part of [`Pieces`]: bytes of the own text, and which of the inserted ones are within.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) own: Range<usize>,
    pub(crate) inserted: Range<usize>,
}

impl Span {
    pub(crate) fn is_empty(&self) -> bool {
        self.own.is_empty() && self.inserted.is_empty()
    }
}

/// One piece of a [`Span`].
pub(crate) enum Piece<'p> {
    Own(&'p str),
    Long(&'p LongText),
}

impl From<String> for Pieces {
    fn from(own: String) -> Self {
        let inserted = Vec::new();
        Self { own, inserted }
    }
}

impl Pieces {
    /// Bytes of the whole text.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let inserted: usize = self.inserted.iter().map(|i| i.text().len()).sum();
        self.own.len() + inserted
    }

    /// The text in one.
    #[must_use]
    pub fn into_text(self) -> String {
        if self.inserted.is_empty() {
            return self.own;
        }
        let mut text = String::with_capacity(self.bytes());
        self.each(&self.whole(), |piece| {
            text.push_str(match piece {
                Piece::Own(own) => own,
                Piece::Long(long) => long.text(),
            });
        });
        text
    }

    pub(crate) fn whole(&self) -> Span {
        Span {
            own: 0..self.own.len(),
            inserted: 0..self.inserted.len(),
        }
    }

    /// The pieces of a part in order; no empty ones.
    pub(crate) fn each<'p>(&'p self, span: &Span, mut take: impl FnMut(Piece<'p>)) {
        let mut from = span.own.start;
        let own = |from: usize, to: usize| match self.own.get(from..to) {
            None | Some("") => None,
            Some(own) => Some(Piece::Own(own)),
        };
        for inserted in self.inserted.get(span.inserted.clone()).unwrap_or_default() {
            own(from, inserted.at).map(&mut take);
            inserted.long().map(Piece::Long).map(&mut take);
            from = inserted.at;
        }
        own(from, span.own.end).map(take);
    }

    /// The text of a part.
    pub(crate) fn text(&self, span: &Span) -> String {
        let mut text = String::new();
        self.each(span, |piece| {
            text.push_str(match piece {
                Piece::Own(own) => own,
                Piece::Long(long) => long.text(),
            });
        });
        text
    }

    /// The same text, with long texts put in that `keep` does not want referred to.
    pub(crate) fn keeping(self, keep: impl Fn(&LongText) -> bool) -> Self {
        let kept = |inserted: &Inserted| inserted.long().is_some_and(&keep);
        if self.inserted.iter().all(kept) {
            return self;
        }
        let mut found = Self::default();
        let mut from = 0;
        for mut inserted in self.inserted {
            let before = self.own.get(from..inserted.at).unwrap_or_default();
            found.own.push_str(before);
            from = inserted.at;
            if kept(&inserted) {
                inserted.at = found.own.len();
                found.inserted.push(inserted);
            } else {
                found.own.push_str(inserted.text());
            }
        }
        found.own.push_str(self.own.get(from..).unwrap_or_default());
        found
    }
}

/// The long texts that one rendering may print, known by where they lie in memory.
///
/// A value that is passed on shares its bytes, and while the messages live nothing else can lie
/// where they do: what starts there and is as long is the same text.
pub(crate) struct Known<'m> {
    messages: &'m [Arc<Message>],
    /// Address, length, message, text within it; in the messages' order.
    texts: Vec<(usize, usize, usize, usize)>,
    by_address: OnceLock<HashMap<usize, usize, FxBuildHasher>>,
}

impl<'m> Known<'m> {
    pub(crate) fn new(messages: &'m [Arc<Message>]) -> Self {
        let mut texts = Vec::new();
        for (at, message) in messages.iter().enumerate() {
            for (which, long) in message.long.iter().enumerate() {
                let text = long.text();
                texts.push((text.as_ptr().addr(), text.len(), at, which));
            }
        }
        Self {
            messages,
            texts,
            by_address: OnceLock::new(),
        }
    }

    /// Which text these bytes are. Templates mostly print one after another: `next` is the one to
    /// look at first.
    fn find(&self, bytes: &[u8], next: usize) -> Option<usize> {
        let is = |text: &(usize, usize, usize, usize)| {
            (text.0, text.1) == (bytes.as_ptr().addr(), bytes.len())
        };
        if self.texts.get(next).is_some_and(is) {
            return Some(next);
        }
        let by_address = self.by_address.get_or_init(|| {
            let texts = self.texts.iter().enumerate();
            texts.map(|(at, text)| (text.0, at)).collect()
        });
        let at = *by_address.get(&bytes.as_ptr().addr())?;
        self.texts.get(at).filter(|text| is(text)).map(|_| at)
    }
}

/// Takes what a template prints.
pub(crate) struct Gather<'k> {
    known: &'k Known<'k>,
    own: Vec<u8>,
    inserted: Vec<Inserted>,
    next: usize,
}

impl<'k> Gather<'k> {
    pub(crate) fn new(known: &'k Known<'k>) -> Self {
        Self {
            known,
            own: Vec::with_capacity(1024),
            inserted: Vec::with_capacity(known.texts.len()),
            next: 0,
        }
    }

    /// None: what was printed is no text, which it always is.
    pub(crate) fn finish(self) -> Option<Pieces> {
        let own = String::from_utf8(self.own).ok()?;
        let inserted = self.inserted;
        Some(Pieces { own, inserted })
    }

    fn known(&mut self, bytes: &[u8]) -> Option<Inserted> {
        let found = self.known.find(bytes, self.next)?;
        self.next = found + 1;
        let &(_, _, at, which) = self.known.texts.get(found)?;
        Some(Inserted {
            at: self.own.len(),
            message: Arc::clone(self.known.messages.get(at)?),
            which,
        })
    }
}

impl io::Write for Gather<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let known = (bytes.len() >= LONG_BYTES_MIN).then(|| self.known(bytes));
        match known.flatten() {
            Some(inserted) => self.inserted.push(inserted),
            None => self.own.extend_from_slice(bytes),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
