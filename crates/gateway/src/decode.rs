//! Compressed request bodies, decoded within a bound: engines can not read them, and routing must.

use bytes::Bytes;
use flate2::read::{GzDecoder, ZlibDecoder};
use std::io::Read;

/// A coding that is decoded here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    Zstd,
    Gzip,
    Deflate,
}

/// Why a body could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecodeError {
    /// The bytes are not what `Content-Encoding` says.
    Corrupt,
    /// It would be larger than the bound.
    TooLarge,
}

impl Coding {
    /// The coding that a `Content-Encoding` names. `Ok(None)`: none. `Err`: one we do not know, or several.
    pub(crate) fn of(value: &str) -> Result<Option<Self>, ()> {
        match value.trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Ok(None),
            "zstd" => Ok(Some(Self::Zstd)),
            "gzip" | "x-gzip" => Ok(Some(Self::Gzip)),
            "deflate" => Ok(Some(Self::Deflate)),
            _ => Err(()),
        }
    }

    /// The decoded body, of at most `max` bytes.
    pub(crate) fn decode(self, body: &[u8], max: usize) -> Result<Bytes, DecodeError> {
        match self {
            Self::Zstd => {
                let decoder = zstd::stream::read::Decoder::with_buffer(body)
                    .map_err(|_| DecodeError::Corrupt)?;
                read_bounded(decoder, max)
            }
            Self::Gzip => read_bounded(GzDecoder::new(body), max),
            // HTTP's deflate is zlib's format; raw deflate is sent by some all the same.
            Self::Deflate => read_bounded(ZlibDecoder::new(body), max).or_else(|e| match e {
                DecodeError::Corrupt => read_bounded(flate2::read::DeflateDecoder::new(body), max),
                DecodeError::TooLarge => Err(e),
            }),
        }
    }
}

fn read_bounded(decoder: impl Read, max: usize) -> Result<Bytes, DecodeError> {
    let mut out = Vec::new();
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    decoder
        .take(limit)
        .read_to_end(&mut out)
        .map_err(|_| DecodeError::Corrupt)?;
    if out.len() > max {
        return Err(DecodeError::TooLarge);
    }
    Ok(Bytes::from(out))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{Coding, DecodeError};
    use std::io::Write;

    fn packed(coding: Coding, text: &[u8]) -> Vec<u8> {
        match coding {
            Coding::Zstd => zstd::stream::encode_all(text, 3).unwrap(),
            Coding::Gzip => {
                let mut e = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                e.write_all(text).unwrap();
                e.finish().unwrap()
            }
            Coding::Deflate => {
                let mut e =
                    flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
                e.write_all(text).unwrap();
                e.finish().unwrap()
            }
        }
    }

    #[test]
    fn every_coding_comes_back_within_its_bound() {
        let text = vec![b'x'; 100_000];
        for coding in [Coding::Zstd, Coding::Gzip, Coding::Deflate] {
            let body = packed(coding, &text);
            assert_eq!(coding.decode(&body, 100_000).unwrap(), text);
            assert_eq!(coding.decode(&body, 99_999), Err(DecodeError::TooLarge));
            assert_eq!(
                coding.decode(&body[..body.len() / 2], 100_000),
                Err(DecodeError::Corrupt)
            );
            assert_eq!(
                coding.decode(b"no such thing", 100),
                Err(DecodeError::Corrupt)
            );
        }
    }

    #[test]
    fn unknown_codings_are_told_apart_from_none() {
        assert_eq!(Coding::of("identity"), Ok(None));
        assert_eq!(Coding::of(" ZSTD"), Ok(Some(Coding::Zstd)));
        assert_eq!(Coding::of("br"), Err(()));
        assert_eq!(Coding::of("gzip, zstd"), Err(()));
    }
}
