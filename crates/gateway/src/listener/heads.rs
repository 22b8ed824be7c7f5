//! The raw heads of an HTTP/1 connection, and what its socket must know of the requests on it.

use memchr::memmem::Finder;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

/// Bytes of a head that are kept to see how it frames its body.
const HEAD_KEPT_MAX: usize = 64 << 10;
/// The end of a head.
static HEAD_END: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\r\n\r\n"));

/// The raw head of the request that is being read: the HTTP library joins fields that must not be
/// joined, so what was really sent is looked at here.
#[derive(Debug, Default)]
pub(crate) struct HeadWatch {
    /// It is asked for on the connection's own thread only; the lock is never waited for.
    heads: Mutex<Heads>,
    /// A request of this connection is in a pool.
    attended: AtomicBool,
}

#[derive(Debug, Default)]
struct Heads {
    kept: Vec<u8>,
    complete: bool,
    /// The connection ends while the client may still be sending.
    lingers: bool,
}

impl HeadWatch {
    /// Bytes came from the client.
    pub(super) fn read(&self, bytes: &[u8]) {
        let mut heads = self.heads.lock();
        if heads.complete {
            return;
        }
        // Nearly always the whole head comes at once, with a body behind it that is not wanted.
        if heads.kept.is_empty()
            && let Some(end) = HEAD_END.find(bytes)
        {
            heads.kept.extend_from_slice(&bytes[..end + 2]);
            heads.complete = true;
            return;
        }
        let from = heads.kept.len().saturating_sub(3);
        let room = HEAD_KEPT_MAX.saturating_sub(heads.kept.len());
        heads
            .kept
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
        if let Some(end) = HEAD_END.find(&heads.kept[from..]) {
            heads.kept.truncate(from + end + 2);
            heads.complete = true;
        } else if bytes.len() > room {
            heads.complete = true;
        }
    }

    /// The request was read; the next bytes are the next one's.
    pub(crate) fn next(&self) {
        let mut heads = self.heads.lock();
        heads.kept.clear();
        heads.complete = false;
    }

    /// The request is refused before it was read whole: the answer must outlive what is on its way.
    pub(crate) fn linger(&self) {
        self.heads.lock().lingers = true;
    }

    pub(super) fn lingers(&self) -> bool {
        self.heads.lock().lingers
    }

    /// Whether a worker, or a place in the line, is held for the client.
    pub(super) fn is_attended(&self) -> bool {
        self.attended.load(Ordering::Relaxed)
    }

    /// Method and target of the head that is being read, as far as they can be told.
    pub(crate) fn asked(&self) -> (String, String) {
        let heads = self.heads.lock();
        let line = heads.kept.split(|b| *b == b'\n').next();
        let mut words = line.unwrap_or_default().split(|b| *b == b' ');
        let mut word = || String::from_utf8_lossy(words.next().unwrap_or_default()).into_owned();
        (word(), word())
    }

    /// The value of a field of the head that is being read; `name` is in small letters.
    pub(crate) fn field(&self, name: &str) -> Option<Vec<u8>> {
        let heads = self.heads.lock();
        let mut lines = heads.kept.split(|b| *b == b'\n').skip(1);
        lines.find_map(|line| {
            let colon = memchr::memchr(b':', line)?;
            let (field, value) = line.split_at(colon);
            let found = field.eq_ignore_ascii_case(name.as_bytes());
            found.then(|| value[1..].trim_ascii().to_vec())
        })
    }

    /// Whether a request with a transfer coding came with a length too, or was sent in a way in
    /// which that can not be told (behind another one, unasked).
    pub(crate) fn ambiguous(&self, method: &str) -> bool {
        let heads = self.heads.lock();
        if !heads.complete || !heads.kept.starts_with(method.as_bytes()) {
            return true;
        }
        heads
            .kept
            .split(|b| *b == b'\n')
            .filter_map(|line| line.split(|b| *b == b':').next())
            .any(|name| name.trim_ascii().eq_ignore_ascii_case(b"content-length"))
    }
}

/// While it lives, a client that leaves is looked for however much of what it sent is unread.
pub(crate) struct Attended(Arc<HeadWatch>);

impl Attended {
    pub(crate) fn new(heads: &Arc<HeadWatch>) -> Self {
        heads.attended.store(true, Ordering::Relaxed);
        Self(Arc::clone(heads))
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        self.0.attended.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::HeadWatch;

    fn watched(pieces: &[&str]) -> HeadWatch {
        let heads = HeadWatch::default();
        for piece in pieces {
            heads.read(piece.as_bytes());
        }
        heads
    }

    #[test]
    fn a_length_beside_a_coding_is_seen_wherever_the_head_is_cut() {
        let head = "POST / HTTP/1.1\r\nContent-length : 5\r\nTransfer-Encoding: chunked\r\n\r\n5";
        for cut in 0..head.len() {
            let (a, b) = head.split_at(cut);
            assert!(watched(&[a, b]).ambiguous("POST"), "cut {cut}");
        }
    }

    #[test]
    fn a_coding_alone_is_clear_also_where_the_body_speaks_of_lengths() {
        let head = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\r\ncontent-length: 5\r\n";
        assert!(!watched(&[head]).ambiguous("POST"));
        let single: Vec<String> = head.chars().map(String::from).collect();
        let single: Vec<&str> = single.iter().map(String::as_str).collect();
        assert!(!watched(&single).ambiguous("POST"));
    }

    #[test]
    fn what_was_not_seen_is_ambiguous() {
        assert!(watched(&[]).ambiguous("POST"));
        assert!(watched(&["POST / HTTP/1.1\r\n"]).ambiguous("POST"));
        assert!(watched(&["x: POST\r\n\r\n"]).ambiguous("POST"));
    }
}
