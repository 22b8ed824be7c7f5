//! Frames and the greeting, pure.

use bytes::{BufMut, Bytes, BytesMut};

/// Bytes that each side sends first.
pub(crate) const GREETING_BYTES: usize = 64;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Signature, version 3.0, mechanism NULL, not as server.
pub(crate) fn greeting() -> [u8; GREETING_BYTES] {
    let mut greeting = [0; GREETING_BYTES];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

/// What is wrong with a peer's greeting.
pub(crate) fn check_greeting(greeting: &[u8; GREETING_BYTES]) -> Result<(), &'static str> {
    if greeting[0] != 0xff || greeting[9] & 1 != 1 {
        return Err("does not speak ZMTP");
    }
    if greeting[10] < 3 {
        return Err("speaks a ZMTP older than 3");
    }
    let mechanism = &greeting[12..32];
    if &mechanism[..4] != b"NULL" || mechanism[4..].iter().any(|byte| *byte != 0) {
        return Err("asks for a mechanism other than NULL");
    }
    Ok(())
}

/// How a frame begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) more: bool,
    pub(crate) command: bool,
    /// Bytes of the head itself.
    pub(crate) bytes: usize,
    /// Bytes of what follows.
    pub(crate) body: u64,
}

/// Reads a frame's head; none: more bytes are needed.
pub(crate) fn head(input: &[u8]) -> Result<Option<Head>, &'static str> {
    let Some(&flags) = input.first() else {
        return Ok(None);
    };
    if flags & !(MORE | LONG | COMMAND) != 0 || (flags & COMMAND != 0 && flags & MORE != 0) {
        return Err("sent a frame with unknown flags");
    }
    let length = if flags & LONG == 0 {
        input.get(1).map(|length| (2, u64::from(*length)))
    } else {
        let length = input.get(1..).and_then(|rest| rest.first_chunk::<8>());
        length.map(|length| (9, u64::from_be_bytes(*length)))
    };
    Ok(length.map(|(bytes, body)| Head {
        more: flags & MORE != 0,
        command: flags & COMMAND != 0,
        bytes,
        body,
    }))
}

fn put(flags: u8, body: &[u8], out: &mut BytesMut) {
    match u8::try_from(body.len()) {
        Ok(length) => out.put_slice(&[flags, length]),
        Err(_) => {
            out.put_u8(flags | LONG);
            out.put_u64(body.len() as u64);
        }
    }
    out.put_slice(body);
}

/// Appends a message of these frames.
pub(crate) fn put_message<F: AsRef<[u8]>>(frames: &[F], out: &mut BytesMut) {
    for (place, frame) in frames.iter().enumerate() {
        let more = if place + 1 < frames.len() { MORE } else { 0 };
        put(more, frame.as_ref(), out);
    }
}

/// Appends a command.
pub(crate) fn put_command(name: &str, data: &[u8], out: &mut BytesMut) {
    let mut body = Vec::with_capacity(1 + name.len() + data.len());
    body.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
    body.extend_from_slice(name.as_bytes());
    body.extend_from_slice(data);
    put(COMMAND, &body, out);
}

/// Appends the command that ends the handshake.
pub(crate) fn put_ready(kind: &str, out: &mut BytesMut) {
    let mut data = Vec::new();
    for (name, value) in [("Socket-Type", kind), ("Identity", "")] {
        data.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        data.extend_from_slice(name.as_bytes());
        data.extend_from_slice(&(value.len() as u32).to_be_bytes());
        data.extend_from_slice(value.as_bytes());
    }
    put_command("READY", &data, out);
}

/// A command's name and data.
pub(crate) fn command(body: &Bytes) -> Option<(Bytes, Bytes)> {
    let length = usize::from(*body.first()?);
    let end = 1 + length;
    (body.len() >= end).then(|| (body.slice(1..end), body.slice(end..)))
}

/// The socket type that a READY command names.
pub(crate) fn ready_kind(mut data: &[u8]) -> Option<&[u8]> {
    while let Some((&length, rest)) = data.split_first() {
        let (name, rest) = rest.split_at_checked(usize::from(length))?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (value, rest) = rest.split_at_checked(length)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(value);
        }
        data = rest;
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames_by_hand() {
        let mut out = BytesMut::new();
        put_message(&[b"ab".as_slice(), b""], &mut out);
        assert_eq!(&out[..], [1, 2, b'a', b'b', 0, 0]);
        let mut out = BytesMut::new();
        put_message(&[vec![7; 256]], &mut out);
        assert_eq!(&out[..9], [2, 0, 0, 0, 0, 0, 0, 1, 0]);
        let read = head(&out).unwrap().unwrap();
        assert_eq!((read.bytes, read.body, read.more), (9, 256, false));
        assert_eq!(head(&[2, 0, 0]), Ok(None));
        assert_eq!(head(&[0]), Ok(None));
        assert!(head(&[8, 0]).is_err());
        assert!(head(&[5, 0]).is_err());
    }

    #[test]
    fn the_handshake_by_hand() {
        let mut out = BytesMut::new();
        put_ready("SUB", &mut out);
        let read = head(&out).unwrap().unwrap();
        assert!(read.command);
        let (name, data) = command(&out.freeze().slice(read.bytes..)).unwrap();
        assert_eq!(&name[..], b"READY");
        assert_eq!(ready_kind(&data), Some(b"SUB".as_slice()));
        assert_eq!(ready_kind(b"\x0bSocket-Type\x00\x00\x00\x09SUB"), None);
        assert_eq!(check_greeting(&greeting()), Ok(()));
        let mut plain = greeting();
        plain[12..17].copy_from_slice(b"PLAIN");
        assert!(check_greeting(&plain).is_err());
        assert!(check_greeting(&[0; GREETING_BYTES]).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = head(&bytes);
            let _ = ready_kind(&bytes);
            let _ = command(&Bytes::from(bytes));
        }
    }
}
