//! Lines of a file, plain or zstd, one at a time.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::TraceError;

/// A longer line is refused: nothing that we know has one, and memory is bounded by it.
pub const LINE_BYTES_MAX: u64 = 1 << 30;

/// The first bytes of a zstd frame.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Opens a file, and unpacks it where it is zstd, whatever its name.
///
/// # Errors
/// It cannot be opened.
pub fn open(path: &Path) -> std::io::Result<Lines<Box<dyn BufRead + Send>>> {
    let mut file = BufReader::new(File::open(path)?);
    let packed = file.fill_buf()?.starts_with(&ZSTD);
    let reader: Box<dyn BufRead + Send> = if packed {
        Box::new(BufReader::new(zstd::Decoder::with_buffer(file)?))
    } else {
        Box::new(file)
    };
    Ok(Lines::new(reader))
}

/// See the module. Lines that are empty are passed over, and counted.
#[derive(Debug)]
pub struct Lines<R> {
    reader: R,
    line: Vec<u8>,
    number: u64,
    peeked: bool,
}

impl<R: BufRead> Lines<R> {
    /// From the beginning of `reader`.
    pub fn new(reader: R) -> Self {
        Self {
            reader,
            line: Vec::new(),
            number: 0,
            peeked: false,
        }
    }

    /// The number of the line that was read last, from 1.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The next line, which `next` will return once more.
    ///
    /// # Errors
    /// As [`Lines::next`].
    pub fn peek(&mut self) -> Result<Option<&[u8]>, TraceError> {
        if !self.peeked {
            self.peeked = self.next()?.is_some();
            if !self.peeked {
                return Ok(None);
            }
        }
        Ok(Some(&self.line))
    }

    /// The next line without its end.
    ///
    /// # Errors
    /// It cannot be read, or is longer than [`LINE_BYTES_MAX`].
    #[allow(clippy::should_implement_trait)] // It lends.
    pub fn next(&mut self) -> Result<Option<&[u8]>, TraceError> {
        if std::mem::take(&mut self.peeked) {
            return Ok(Some(&self.line));
        }
        loop {
            self.line.clear();
            self.number += 1;
            let mut bounded = self.reader.by_ref().take(LINE_BYTES_MAX);
            if bounded.read_until(b'\n', &mut self.line)? == 0 {
                return Ok(None);
            }
            if self.line.len() as u64 == LINE_BYTES_MAX {
                return Err(self.wrong("line", format!("longer than {LINE_BYTES_MAX} bytes")));
            }
            let end = self.line.trim_ascii_end().len();
            self.line.truncate(end);
            if !self.line.is_empty() {
                return Ok(Some(&self.line));
            }
        }
    }

    /// What is wrong with a field of the line that was read last.
    pub fn wrong(&self, field: &str, problem: impl Into<String>) -> TraceError {
        wrong(self.number, field, problem)
    }
}

/// What is wrong with a field of a line.
pub(super) fn wrong(line: u64, field: &str, problem: impl Into<String>) -> TraceError {
    TraceError::Line {
        line,
        field: field.to_owned(),
        problem: problem.into(),
    }
}
