//! A reader of MessagePack that borrows, never recurses and never trusts a length.

use super::KvError;

/// The next value, or the head of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Item<'a> {
    Nil,
    Bool,
    Unsigned(u64),
    /// Below zero.
    Negative(i64),
    Float(f64),
    Text(&'a [u8]),
    Binary(&'a [u8]),
    /// That many values follow.
    Array(u32),
    /// That many pairs follow.
    Map(u32),
    Extension,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Bytes left.
    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// How many of `count` values may be there at most: each has a byte. So much may be reserved.
    pub(super) fn plausible(&self, count: u32) -> usize {
        self.left().min(count as usize)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], KvError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(taken) = rest.get(..count) else {
            return Err(KvError::Truncated { at: self.at });
        };
        self.at += count;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], KvError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(taken) = rest.first_chunk::<N>() else {
            return Err(KvError::Truncated { at: self.at });
        };
        self.at += N;
        Ok(*taken)
    }

    fn number<const N: usize>(&mut self) -> Result<u64, KvError> {
        let mut wide = [0; 8];
        wide[8 - N..].copy_from_slice(&self.fixed::<N>()?);
        Ok(u64::from_be_bytes(wide))
    }

    fn length<const N: usize>(&mut self) -> Result<u32, KvError> {
        // At most 4 bytes are asked for.
        self.number::<N>()
            .map(|length| u32::try_from(length).unwrap_or(u32::MAX))
    }

    fn signed(number: i64) -> Item<'a> {
        u64::try_from(number).map_or(Item::Negative(number), Item::Unsigned)
    }

    /// Reads a value, of a container its head.
    pub(super) fn next(&mut self) -> Result<Item<'a>, KvError> {
        let [head] = self.fixed::<1>()?;
        Ok(match head {
            0x00..=0x7f => Item::Unsigned(u64::from(head)),
            0x80..=0x8f => Item::Map(u32::from(head & 0x0f)),
            0x90..=0x9f => Item::Array(u32::from(head & 0x0f)),
            0xa0..=0xbf => Item::Text(self.take(usize::from(head & 0x1f))?),
            0xc0 | 0xc1 => Item::Nil,
            0xc2 | 0xc3 => Item::Bool,
            0xc4 => {
                let length = self.length::<1>()?;
                Item::Binary(self.take(length as usize)?)
            }
            0xc5 => {
                let length = self.length::<2>()?;
                Item::Binary(self.take(length as usize)?)
            }
            0xc6 => {
                let length = self.length::<4>()?;
                Item::Binary(self.take(length as usize)?)
            }
            0xc7 => {
                let length = self.length::<1>()?;
                self.extension(length)?
            }
            0xc8 => {
                let length = self.length::<2>()?;
                self.extension(length)?
            }
            0xc9 => {
                let length = self.length::<4>()?;
                self.extension(length)?
            }
            0xca => Item::Float(f64::from(f32::from_be_bytes(self.fixed()?))),
            0xcb => Item::Float(f64::from_be_bytes(self.fixed()?)),
            0xcc => Item::Unsigned(self.number::<1>()?),
            0xcd => Item::Unsigned(self.number::<2>()?),
            0xce => Item::Unsigned(self.number::<4>()?),
            0xcf => Item::Unsigned(self.number::<8>()?),
            0xd0 => Self::signed(i64::from(i8::from_be_bytes(self.fixed()?))),
            0xd1 => Self::signed(i64::from(i16::from_be_bytes(self.fixed()?))),
            0xd2 => Self::signed(i64::from(i32::from_be_bytes(self.fixed()?))),
            0xd3 => Self::signed(i64::from_be_bytes(self.fixed()?)),
            0xd4..=0xd8 => self.extension(1 << (head - 0xd4))?,
            0xd9 => {
                let length = self.length::<1>()?;
                Item::Text(self.take(length as usize)?)
            }
            0xda => {
                let length = self.length::<2>()?;
                Item::Text(self.take(length as usize)?)
            }
            0xdb => {
                let length = self.length::<4>()?;
                Item::Text(self.take(length as usize)?)
            }
            0xdc => Item::Array(self.length::<2>()?),
            0xdd => Item::Array(self.length::<4>()?),
            0xde => Item::Map(self.length::<2>()?),
            0xdf => Item::Map(self.length::<4>()?),
            0xe0..=0xff => Item::Negative(i64::from(head.cast_signed())),
        })
    }

    /// Reads a number as most token ids are written, quickly; none: it is something else, or the end.
    #[inline]
    pub(super) fn small(&mut self) -> Option<u32> {
        let (id, bytes) = match *self.bytes.get(self.at..)? {
            [0xcd, a, b, ..] => (u32::from(u16::from_be_bytes([a, b])), 3),
            [0xce, a, b, c, d, ..] => (u32::from_be_bytes([a, b, c, d]), 5),
            [id @ 0..=0x7f, ..] => (u32::from(id), 1),
            [0xcc, id, ..] => (u32::from(id), 2),
            _ => return None,
        };
        self.at += bytes;
        Some(id)
    }

    fn extension(&mut self, length: u32) -> Result<Item<'a>, KvError> {
        self.fixed::<1>()?;
        self.take(length as usize)?;
        Ok(Item::Extension)
    }

    /// Passes `count` whole values, however deep.
    pub(super) fn skip(&mut self, count: u32) -> Result<(), KvError> {
        let mut open = u64::from(count);
        while open > 0 {
            // Each value that is still open has a byte, or it will never come.
            if open > self.left() as u64 {
                return Err(KvError::Truncated { at: self.at });
            }
            open -= 1;
            open += inside(self.next()?);
        }
        Ok(())
    }

    /// Passes what is inside of a value whose head was read.
    pub(super) fn skip_inside(&mut self, head: Item<'a>) -> Result<(), KvError> {
        let mut open = inside(head);
        while open > 0 {
            let count = u32::try_from(open).unwrap_or(u32::MAX);
            self.skip(count)?;
            open -= u64::from(count);
        }
        Ok(())
    }
}

/// Values that belong to a head.
fn inside(head: Item<'_>) -> u64 {
    match head {
        Item::Array(count) => u64::from(count),
        Item::Map(count) => 2 * u64::from(count),
        _ => 0,
    }
}
