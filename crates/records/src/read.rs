//! Reading records back.

use crate::attempt::AttemptRecord;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

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

/// The records of one file, in order. A line that cannot be read (the last one of a process that
/// was killed) is counted in [`Records::unreadable`] and passed over.
pub struct Records {
    lines: io::Lines<BufReader<File>>,
    unreadable: u64,
}

impl Records {
    /// Opens a file.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            lines: BufReader::new(File::open(path)?).lines(),
            unreadable: 0,
        })
    }

    /// Lines that were no records.
    #[must_use]
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }
}

impl Iterator for Records {
    type Item = AttemptRecord;

    fn next(&mut self) -> Option<AttemptRecord> {
        loop {
            match self.lines.next()? {
                Ok(line) if line.trim().is_empty() => {}
                Ok(line) => match serde_json::from_str(&line) {
                    Ok(record) => return Some(record),
                    Err(_) => self.unreadable += 1,
                },
                Err(error) if error.kind() == io::ErrorKind::InvalidData => self.unreadable += 1,
                Err(_) => {
                    self.unreadable += 1;
                    return None;
                }
            }
        }
    }
}
