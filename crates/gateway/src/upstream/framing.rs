//! Where a response body ends: RFC 9112 section 6, as a decoder over whatever bytes have come.

use bytes::{Buf, Bytes, BytesMut};

/// Bytes of one chunk-size line with its extensions.
const SIZE_LINE_MAX: usize = 4 << 10;
/// Bytes of all trailer lines.
const TRAILERS_MAX: usize = 16 << 10;

/// How a body is framed, and how far it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Nothing comes (any more).
    Empty,
    /// So many bytes are still to come.
    Length(u64),
    /// Chunks.
    Chunked(ChunkState),
    /// All until the connection closes.
    Close,
}

/// What comes next in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkState {
    /// A size line.
    Size,
    /// So many bytes of data.
    Data(u64),
    /// The line end behind the data.
    DataEnd,
    /// Trailer lines, of which so many bytes were read.
    Trailers(usize),
}

/// What could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A piece of the body.
    Data(Bytes),
    /// More bytes are needed.
    More,
    /// The body is complete.
    End,
}

/// The bytes are no chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FramingError;

impl Framing {
    pub(crate) const CHUNKED: Self = Self::Chunked(ChunkState::Size);

    /// Takes the next piece out of `buf`.
    pub(crate) fn next(&mut self, buf: &mut BytesMut) -> Result<Step, FramingError> {
        match self {
            Self::Empty | Self::Length(0) => Ok(Step::End),
            Self::Length(left) => Ok(take(left, buf)),
            Self::Close if buf.is_empty() => Ok(Step::More),
            Self::Close => Ok(Step::Data(buf.split().freeze())),
            Self::Chunked(state) => {
                let step = state.next(buf)?;
                if step == Step::End {
                    *self = Self::Empty;
                }
                Ok(step)
            }
        }
    }

    /// The whole length, where it is known.
    pub(crate) fn length(&self) -> Option<u64> {
        match self {
            Self::Empty => Some(0),
            Self::Length(n) => Some(*n),
            Self::Chunked(_) | Self::Close => None,
        }
    }
}

fn take(left: &mut u64, buf: &mut BytesMut) -> Step {
    if buf.is_empty() {
        return Step::More;
    }
    let n = usize::try_from(*left).map_or(buf.len(), |left| left.min(buf.len()));
    *left -= n as u64;
    Step::Data(buf.split_to(n).freeze())
}

impl ChunkState {
    fn next(&mut self, buf: &mut BytesMut) -> Result<Step, FramingError> {
        loop {
            match self {
                Self::Size => {
                    let Some(line) = line_end(buf, SIZE_LINE_MAX)? else {
                        return Ok(Step::More);
                    };
                    let size = chunk_size(&buf[..line])?;
                    buf.advance(line + 2);
                    *self = if size == 0 {
                        Self::Trailers(0)
                    } else {
                        Self::Data(size)
                    };
                }
                Self::Data(left) => {
                    let step = take(left, buf);
                    if *left == 0 {
                        *self = Self::DataEnd;
                    }
                    return Ok(step);
                }
                Self::DataEnd => {
                    if buf.len() < 2 {
                        return Ok(Step::More);
                    }
                    if &buf[..2] != b"\r\n" {
                        return Err(FramingError);
                    }
                    buf.advance(2);
                    *self = Self::Size;
                }
                Self::Trailers(read) => {
                    let Some(line) = line_end(buf, TRAILERS_MAX)? else {
                        return Ok(Step::More);
                    };
                    buf.advance(line + 2);
                    if line == 0 {
                        return Ok(Step::End);
                    }
                    *read += line + 2;
                    if *read > TRAILERS_MAX {
                        return Err(FramingError);
                    }
                }
            }
        }
    }
}

/// Length of the first line without its end; None: not all of it is there.
fn line_end(buf: &BytesMut, max: usize) -> Result<Option<usize>, FramingError> {
    match memchr::memchr(b'\n', buf) {
        Some(at) if at > max => Err(FramingError),
        Some(at) if at > 0 && buf[at - 1] == b'\r' => Ok(Some(at - 1)),
        Some(_) => Err(FramingError),
        None if buf.len() > max => Err(FramingError),
        None => Ok(None),
    }
}

/// The size in a chunk-size line; extensions are skipped.
fn chunk_size(line: &[u8]) -> Result<u64, FramingError> {
    let digits = line
        .iter()
        .position(|b| !b.is_ascii_hexdigit())
        .unwrap_or(line.len());
    let rest = line[digits..].trim_ascii_start();
    if digits == 0 || digits > 15 || !(rest.is_empty() || rest[0] == b';') {
        return Err(FramingError);
    }
    let mut size = 0_u64;
    for digit in &line[..digits] {
        let value = char::from(*digit).to_digit(16).ok_or(FramingError)?;
        size = size * 16 + u64::from(value);
    }
    Ok(size)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{Framing, FramingError, Step};
    use bytes::BytesMut;

    fn read(
        framing: &mut Framing,
        pieces: &[&[u8]],
    ) -> Result<(Vec<u8>, bool, Vec<u8>), FramingError> {
        let mut buf = BytesMut::new();
        let mut out = Vec::new();
        for piece in pieces {
            buf.extend_from_slice(piece);
            loop {
                match framing.next(&mut buf)? {
                    Step::Data(data) => out.extend_from_slice(&data),
                    Step::More => break,
                    Step::End => return Ok((out, true, buf.to_vec())),
                }
            }
        }
        Ok((out, false, buf.to_vec()))
    }

    #[test]
    fn chunks_in_any_pieces_give_the_same_body() {
        let wire = b"5;ext=1\r\nhello\r\n6\r\n world\r\n0\r\nx-t: 1\r\n\r\n";
        for cut in 0..wire.len() {
            let (a, b) = wire.split_at(cut);
            let (body, end, rest) = read(&mut Framing::CHUNKED.clone(), &[a, b]).unwrap();
            assert_eq!(
                (body.as_slice(), end),
                (&b"hello world"[..], true),
                "cut {cut}"
            );
            assert!(rest.is_empty());
        }
        let single: Vec<&[u8]> = wire.chunks(1).collect();
        let (body, end, _) = read(&mut Framing::CHUNKED.clone(), &single).unwrap();
        assert_eq!((body.as_slice(), end), (&b"hello world"[..], true));
    }

    #[test]
    fn a_body_cut_short_is_not_at_its_end() {
        let (body, end, _) = read(&mut Framing::CHUNKED.clone(), &[b"5\r\nhel"]).unwrap();
        assert_eq!((body.as_slice(), end), (&b"hel"[..], false));
        let (body, end, _) = read(&mut Framing::Length(5), &[b"hel"]).unwrap();
        assert_eq!((body.as_slice(), end), (&b"hel"[..], false));
    }

    #[test]
    fn what_follows_the_body_stays() {
        let (body, end, rest) = read(&mut Framing::Length(3), &[b"abcHTTP"]).unwrap();
        assert_eq!(
            (body.as_slice(), end, rest.as_slice()),
            (&b"abc"[..], true, &b"HTTP"[..])
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for wire in [
            &b"\r\n"[..],
            b"g\r\n",
            b"5\nhello",
            b"5\r\nhelloXX",
            b"-1\r\n",
            b"5 x\r\n",
            b"fffffffffffffffff\r\n",
        ] {
            assert_eq!(
                read(&mut Framing::CHUNKED.clone(), &[wire]),
                Err(FramingError),
                "{wire:?}"
            );
        }
    }
}
