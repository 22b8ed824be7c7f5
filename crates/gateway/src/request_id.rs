//! Names that follow a request end to end: `x-request-id` and `traceparent`.

use crate::headers::{REQUEST_ID, TRACEPARENT, text_of};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use maitred_core::rng::mix;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Characters of a request id that is taken from the client.
const INBOUND_MAX: usize = 128;

/// The request's id: the client's own where it is well formed, else a new one.
pub(crate) fn request_id(headers: &HeaderMap) -> HeaderValue {
    if let Some(value) = headers.get(&REQUEST_ID)
        && is_well_formed(value.as_bytes())
    {
        return own(value);
    }
    let (a, b) = fresh();
    let mut text = Vec::with_capacity(28);
    text.extend_from_slice(b"mtd-");
    put_hex(&mut text, a, 16);
    put_hex(&mut text, b, 8);
    HeaderValue::from_maybe_shared(Bytes::from(text)).unwrap_or(HeaderValue::from_static("mtd-0"))
}

/// A copy: the value itself is a part of the connection's read buffer, and would keep all of it.
fn own(value: &HeaderValue) -> HeaderValue {
    HeaderValue::from_bytes(value.as_bytes()).unwrap_or_else(|_| value.clone())
}

/// The last `digits` hexadecimal digits of a number.
fn put_hex(text: &mut Vec<u8>, value: u64, digits: u32) {
    for place in (0..digits).rev() {
        let digit = usize::try_from(value >> (4 * place) & 15).unwrap_or(0);
        text.push(b"0123456789abcdef"[digit]);
    }
}

fn is_well_formed(value: &[u8]) -> bool {
    (1..=INBOUND_MAX).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic)
}

/// The `traceparent` to send on: the client's where it is valid, else a new one (W3C Trace Context,
/// version 00). A new one is not sampled: nobody upstream asked for a trace.
pub(crate) fn traceparent(headers: &HeaderMap) -> HeaderValue {
    if let Some(value) = headers.get(&TRACEPARENT)
        && text_of(value).is_some_and(is_traceparent)
    {
        return own(value);
    }
    let ((a, b), (c, _)) = (fresh(), fresh());
    let mut text = Vec::with_capacity(55);
    text.extend_from_slice(b"00-");
    put_hex(&mut text, a, 16);
    put_hex(&mut text, b, 16);
    text.push(b'-');
    put_hex(&mut text, c | 1, 16);
    text.extend_from_slice(b"-00");
    HeaderValue::from_maybe_shared(Bytes::from(text))
        .unwrap_or(HeaderValue::from_static("00-0-0-00"))
}

/// `00-<32 hex>-<16 hex>-<2 hex>`, lower case, ids not all zero; later versions may have more.
fn is_traceparent(text: &str) -> bool {
    let mut parts = text.split('-');
    let mut hex = |length: usize, zero: bool| {
        parts.next().is_some_and(|p| {
            p.len() == length
                && p.bytes()
                    .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
                && (zero || p.bytes().any(|b| b != b'0'))
        })
    };
    let known = hex(2, true) && hex(32, false) && hex(16, false) && hex(2, true);
    let more = parts.next().is_some();
    known && !text.starts_with("ff") && !(more && text.starts_with("00"))
}

/// 128 bits that no other process and no earlier call has given out (for all practical purposes):
/// a counter in this process, spread by its start time and number.
pub(crate) fn fresh() -> (u64, u64) {
    static SEED: OnceLock<u64> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let seed = *SEED.get_or_init(|| {
        let nanos = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_nanos());
        #[allow(clippy::cast_possible_truncation)]
        let nanos = nanos as u64;
        mix(nanos ^ (u64::from(std::process::id()) << 40))
    });
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    (
        mix(seed ^ count),
        mix(seed.rotate_left(32).wrapping_add(count)),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{is_traceparent, request_id, traceparent};
    use http::{HeaderMap, HeaderValue};

    fn with(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
        headers
    }

    #[test]
    fn a_well_formed_id_is_kept_and_others_are_replaced() {
        assert_eq!(request_id(&with("x-request-id", "job-17")), "job-17");
        for bad in ["", "a b", &"x".repeat(129), &"x".repeat(4_096)] {
            let id = request_id(&with("x-request-id", bad));
            assert!(id.to_str().unwrap().starts_with("mtd-"), "{bad}");
        }
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }

    #[test]
    fn a_valid_trace_is_kept_and_others_are_replaced() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(traceparent(&with("traceparent", good)), good);
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            let minted = traceparent(&with("traceparent", bad));
            assert_ne!(minted, bad);
            assert!(is_traceparent(minted.to_str().unwrap()), "{minted:?}");
        }
    }
}
