//! The checking walk: structure proved once, iteratively, with a bound on depth.

use super::{
    Fault, LONG_STRING_BYTES, LongStrings, leading_digits, skip_space, string_end, word_at,
};
use smallvec::SmallVec;

fn skip_digits(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b'0'..=b'9') = bytes.get(at) {
        at += 1;
    }
    at
}

/// Skips whole numbers that a comma follows, from where a value is expected to where the next one
/// is: a prompt of token ids has many of them.
fn skip_whole_numbers(bytes: &[u8], mut at: usize) -> usize {
    while let Some(word) = word_at(bytes, at) {
        let digits = leading_digits(word);
        let zero = word as u8 == b'0';
        if digits == 0 || digits == 8 || zero || bytes.get(at + digits) != Some(&b',') {
            break;
        }
        at += digits + 1;
        if let Some(b' ') = bytes.get(at) {
            at += 1;
        }
    }
    at
}

/// The end of a number that starts at `at`.
fn number_end(bytes: &[u8], at: usize) -> Result<usize, Fault> {
    let digits = |from: usize| {
        let end = skip_digits(bytes, from);
        if end > from {
            Ok(end)
        } else {
            Err(fault(bytes, from))
        }
    };
    let first = at + usize::from(bytes.get(at) == Some(&b'-'));
    let mut end = if bytes.get(first) == Some(&b'0') {
        first + 1
    } else {
        digits(first)?
    };
    if bytes.get(end) == Some(&b'.') {
        end = digits(end + 1)?;
    }
    if let Some(b'e' | b'E') = bytes.get(end) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        end = digits(end + 1 + sign)?;
    }
    Ok(end)
}

fn fault(bytes: &[u8], at: usize) -> Fault {
    if at >= bytes.len() {
        Fault::Truncated(bytes.len())
    } else {
        Fault::Syntax(at)
    }
}

fn literal_end(bytes: &[u8], at: usize, literal: &[u8]) -> Result<usize, Fault> {
    let end = at + literal.len();
    if bytes.get(at..end) == Some(literal) {
        return Ok(end);
    }
    let same = bytes[at..].iter().zip(literal).take_while(|(a, b)| a == b);
    Err(fault(bytes, at + same.count()))
}

/// Kinds of the open containers, one bit each, and how deep they may go.
struct Open {
    bits: SmallVec<[u64; 4]>,
    depth: usize,
    depth_max: usize,
}

impl Open {
    fn push(&mut self, object: bool, at: usize) -> Result<(), Fault> {
        if self.depth >= self.depth_max {
            return Err(Fault::TooDeep(at));
        }
        let (word, bit) = (self.depth / 64, self.depth % 64);
        if word == self.bits.len() {
            self.bits.push(0);
        }
        self.bits[word] = self.bits[word] & !(1 << bit) | u64::from(object) << bit;
        self.depth += 1;
        Ok(())
    }

    /// Closes the innermost; gives whether another is open and, if so, whether it is an object.
    fn pop(&mut self) -> Option<bool> {
        self.depth -= 1;
        self.innermost()
    }

    /// Whether the innermost container is an object; None where none is open.
    fn innermost(&self) -> Option<bool> {
        let last = self.depth.checked_sub(1)?;
        Some(self.bits[last / 64] >> (last % 64) & 1 == 1)
    }
}

/// A checking walk over one document.
pub(crate) struct Checker<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) at: usize,
    pub(crate) long: LongStrings,
    open: Open,
}

impl<'a> Checker<'a> {
    /// `outer` containers are open already around what will be walked.
    pub(crate) fn new(bytes: &'a [u8], depth_max: usize, outer: usize) -> Self {
        Self {
            bytes,
            at: 0,
            long: Vec::new(),
            open: Open {
                bits: SmallVec::new(),
                depth: 0,
                depth_max: depth_max.saturating_sub(outer),
            },
        }
    }

    pub(crate) fn space(&mut self) {
        self.at = skip_space(self.bytes, self.at);
    }

    pub(crate) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    pub(crate) fn fault<T>(&self) -> Result<T, Fault> {
        Err(fault(self.bytes, self.at))
    }

    /// White space, then one given byte.
    pub(crate) fn expect(&mut self, byte: u8) -> Result<(), Fault> {
        self.space();
        if self.peek() == Some(byte) {
            self.at += 1;
            Ok(())
        } else {
            self.fault()
        }
    }

    /// A string, from its opening quote to behind its closing one.
    pub(crate) fn string(&mut self) -> Result<(), Fault> {
        if self.peek() != Some(b'"') {
            return self.fault();
        }
        let start = self.at + 1;
        let Some(end) = string_end(self.bytes, start) else {
            return Err(Fault::Truncated(self.bytes.len()));
        };
        if end - start >= LONG_STRING_BYTES
            && let (Ok(start), Ok(end)) = (u32::try_from(start), u32::try_from(end))
        {
            self.long.push((start, end));
        }
        self.at = end + 1;
        Ok(())
    }

    /// A key and its colon.
    fn key(&mut self) -> Result<(), Fault> {
        self.string()?;
        self.expect(b':')
    }

    /// One value of any kind, without white space around it.
    pub(crate) fn value(&mut self) -> Result<(), Fault> {
        loop {
            match self.peek() {
                Some(b'"') => self.string()?,
                Some(b'{') => {
                    self.open.push(true, self.at)?;
                    self.at += 1;
                    self.space();
                    if self.peek() != Some(b'}') {
                        self.key()?;
                        self.space();
                        continue;
                    }
                    self.at += 1;
                    if self.open.pop().is_none() {
                        return Ok(());
                    }
                }
                Some(b'[') => {
                    self.open.push(false, self.at)?;
                    self.at += 1;
                    self.space();
                    if self.peek() != Some(b']') {
                        continue;
                    }
                    self.at += 1;
                    if self.open.pop().is_none() {
                        return Ok(());
                    }
                }
                Some(b'-' | b'0'..=b'9') => {
                    if self.open.innermost() == Some(false) {
                        self.at = skip_whole_numbers(self.bytes, self.at);
                        self.space();
                        if !matches!(self.peek(), Some(b'-' | b'0'..=b'9')) {
                            continue;
                        }
                    }
                    self.at = number_end(self.bytes, self.at)?;
                }
                Some(b't') => self.at = literal_end(self.bytes, self.at, b"true")?,
                Some(b'f') => self.at = literal_end(self.bytes, self.at, b"false")?,
                Some(b'n') => self.at = literal_end(self.bytes, self.at, b"null")?,
                _ => return self.fault(),
            }
            if !self.after_value()? {
                return Ok(());
            }
        }
    }

    /// What follows a value: commas and closing brackets. False when the outermost is complete.
    fn after_value(&mut self) -> Result<bool, Fault> {
        let Some(mut object) = self.open.innermost() else {
            return Ok(false);
        };
        loop {
            self.space();
            match self.peek() {
                Some(b',') => {
                    self.at += 1;
                    self.space();
                    if object {
                        self.key()?;
                        self.space();
                    }
                    return Ok(true);
                }
                Some(b'}') if object => {}
                Some(b']') if !object => {}
                _ => return self.fault(),
            }
            self.at += 1;
            match self.open.pop() {
                Some(outer) => object = outer,
                None => return Ok(false),
            }
        }
    }
}

/// Proves that `bytes` is one JSON document, nested at most `depth_max` deep.
///
/// # Errors
/// It is not; with the offset at which that showed.
pub fn check(bytes: &[u8], depth_max: usize) -> Result<LongStrings, Fault> {
    let mut checker = Checker::new(bytes, depth_max, 0);
    checker.space();
    checker.value()?;
    checker.space();
    if checker.at < bytes.len() {
        return checker.fault();
    }
    Ok(checker.long)
}
