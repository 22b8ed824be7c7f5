//! Reading records back.

use crate::attempt::AttemptRecord;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// A longer line is no record.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// Lines that are told one by one; of more only the number is known.
pub const BAD_LINES_MAX: usize = 8;

/// Records could not be read from a path.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct ReadError {
    /// Which.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// The record files of a directory, oldest first.
///
/// # Errors
/// The directory cannot be read.
pub fn record_files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| crate::sink::is_record_file(path))
        .collect();
    files.sort();
    Ok(files)
}

/// The files that `paths` name: files as they are, directories by the record files in them.
///
/// # Errors
/// A directory cannot be read, or has no record files.
pub fn expand(paths: &[PathBuf]) -> Result<Vec<PathBuf>, ReadError> {
    let mut files = Vec::new();
    for path in paths {
        let wrong = |source| ReadError {
            path: path.clone(),
            source,
        };
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let inside = record_files(path).map_err(wrong)?;
        if inside.is_empty() {
            return Err(wrong(io::Error::other("no record files in it")));
        }
        files.extend(inside);
    }
    Ok(files)
}

/// A line that is no record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// From 1.
    pub line: u64,
    /// What is wrong.
    pub problem: String,
}

/// The records of one file, in order. A line that cannot be read (the last one of a process that
/// was killed) is counted in [`Records::unreadable`], told in [`Records::bad`], and passed over.
pub struct Records {
    lines: BufReader<File>,
    line: Vec<u8>,
    number: u64,
    unreadable: u64,
    bad: Vec<BadLine>,
}

impl Records {
    /// Opens a file.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let file = File::open(path).map_err(|source| ReadError {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            lines: BufReader::new(file),
            line: Vec::new(),
            number: 0,
            unreadable: 0,
            bad: Vec::new(),
        })
    }

    /// Lines that were no records.
    #[must_use]
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// The first of them, at most [`BAD_LINES_MAX`].
    #[must_use]
    pub fn bad(&self) -> &[BadLine] {
        &self.bad
    }

    fn wrong(&mut self, problem: String) {
        self.unreadable += 1;
        if self.bad.len() < BAD_LINES_MAX {
            self.bad.push(BadLine {
                line: self.number,
                problem,
            });
        }
    }

    /// Reads a line; whether there was one. Of one that is too long the rest is passed over.
    fn read_line(&mut self) -> io::Result<bool> {
        self.line.clear();
        self.number += 1;
        let mut bounded = (&mut self.lines).take(LINE_BYTES_MAX);
        if bounded.read_until(b'\n', &mut self.line)? == 0 {
            return Ok(false);
        }
        if self.line.len() as u64 == LINE_BYTES_MAX && !self.line.ends_with(b"\n") {
            self.wrong(format!("longer than {LINE_BYTES_MAX} bytes"));
            self.line.clear();
            self.lines.skip_until(b'\n')?;
        }
        Ok(true)
    }
}

impl Iterator for Records {
    type Item = AttemptRecord;

    fn next(&mut self) -> Option<AttemptRecord> {
        loop {
            match self.read_line() {
                Ok(false) => return None,
                Ok(true) if self.line.trim_ascii().is_empty() => {}
                Ok(true) => match serde_json::from_slice(&self.line) {
                    Ok(record) => return Some(record),
                    Err(error) => self.wrong(error.to_string()),
                },
                Err(error) => {
                    self.wrong(error.to_string());
                    return None;
                }
            }
        }
    }
}
