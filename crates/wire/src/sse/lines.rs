//! From bytes to events: lines, fields, blank lines (the event stream format of the HTML standard).

/// One event.
pub(super) struct Event<'b> {
    /// The `event` field; empty without.
    pub(super) name: &'b [u8],
    /// The `data` fields, joined by line feeds; only the beginning where `whole` is false.
    pub(super) data: &'b [u8],
    /// Nothing was left out.
    pub(super) whole: bool,
}

const DATA_FIELD: &[u8] = b"data";

/// Bytes of memory that a buffer keeps between events.
const BYTES_KEPT: usize = 16 * 1024;

/// Splits a stream into events, keeping at most one.
#[derive(Debug)]
pub(super) struct Lines {
    bytes_max: usize,
    /// The unfinished line.
    line: Vec<u8>,
    /// Fields of the unfinished event.
    name: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    has_field: bool,
    /// Bytes of the event were left out.
    cut: bool,
    /// The last byte was a carriage return: a line feed that follows ends no second line.
    after_return: bool,
    /// Bytes of the line have passed (kept or not).
    in_line: bool,
    started: bool,
    pub(super) data_events: u64,
    pub(super) skipped_events: u64,
}

impl Lines {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            line: Vec::new(),
            name: Vec::new(),
            data: Vec::new(),
            has_data: false,
            has_field: false,
            cut: false,
            after_return: false,
            in_line: false,
            started: false,
            data_events: 0,
            skipped_events: 0,
        }
    }

    pub(super) fn at_boundary(&self) -> bool {
        !self.in_line && !self.has_field
    }

    pub(super) fn push(&mut self, mut bytes: &[u8], sink: &mut impl FnMut(Event<'_>)) {
        if self.after_return && !bytes.is_empty() {
            self.after_return = false;
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        while let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) {
            let line = &bytes[..end];
            if self.in_line {
                self.keep(line);
                let whole = core::mem::take(&mut self.line);
                self.line(&whole, sink);
                self.line = whole;
                self.line.clear();
                self.line.shrink_to(BYTES_KEPT);
                self.in_line = false;
            } else {
                self.line(line, sink);
            }
            let mut next = end + 1;
            if bytes[end] == b'\r' {
                match bytes.get(next) {
                    Some(b'\n') => next += 1,
                    Some(_) => {}
                    None => self.after_return = true,
                }
            }
            bytes = &bytes[next..];
        }
        if !bytes.is_empty() {
            self.in_line = true;
            self.keep(bytes);
        }
    }

    /// Room for more data of the event.
    fn room(&self) -> usize {
        let held = self.data.len() + self.name.len();
        self.bytes_max.saturating_sub(held)
    }

    /// Adds to the unfinished line: as much as `line` will have room for, and a little more, so
    /// that it sees that something was left out.
    fn keep(&mut self, bytes: &[u8]) {
        let room = self.room() + DATA_FIELD.len() + 8;
        let room = room.saturating_sub(self.line.len());
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn line(&mut self, mut line: &[u8], sink: &mut impl FnMut(Event<'_>)) {
        if !core::mem::replace(&mut self.started, true) {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        let colon = memchr::memchr(b':', line);
        match colon {
            None if line.is_empty() => return self.event(sink),
            // A comment.
            Some(0) => return,
            _ => {}
        }
        let (field, value) = match colon {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &line[line.len()..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        self.has_field = true;
        match field {
            DATA_FIELD => {
                if core::mem::replace(&mut self.has_data, true) {
                    self.data.push(b'\n');
                }
                let room = self.room();
                self.cut |= value.len() > room;
                self.data.extend_from_slice(&value[..value.len().min(room)]);
            }
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(&value[..value.len().min(64)]);
            }
            // Older llama.cpp servers sent errors in a field of that name.
            b"error" => {
                self.name.clear();
                self.name.extend_from_slice(field);
                self.has_data = true;
            }
            _ => {}
        }
    }

    /// A blank line: the event is complete.
    fn event(&mut self, sink: &mut impl FnMut(Event<'_>)) {
        if self.has_data {
            self.data_events += 1;
            self.skipped_events += u64::from(self.cut);
            sink(Event {
                name: &self.name,
                data: &self.data,
                whole: !self.cut,
            });
        }
        self.name.clear();
        self.data.clear();
        // One long event must not hold its memory until the stream ends.
        self.data.shrink_to(BYTES_KEPT);
        self.has_data = false;
        self.has_field = false;
        self.cut = false;
    }
}
