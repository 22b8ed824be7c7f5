//! The way from a request to the disk: a bounded queue, a writer thread, rotated files.

use crate::attempt::AttemptRecord;
use crate::line;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// While records come, the writer sleeps this long between two looks: waking it for each of them
/// would cost the senders more than the record itself.
const REST: Duration = Duration::from_millis(50);
/// The writer's buffer is written out when it has grown to this many bytes.
const BATCH_BYTES: usize = 256 << 10;
/// Write errors are logged at most this often.
const WARN_EVERY: Duration = Duration::from_secs(60);
const FILE_PREFIX: &str = "attempts-";
const FILE_SUFFIX: &str = ".jsonl";

/// Where records go and how much of them is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkSettings {
    /// The directory; created when missing. None: records are counted and dropped.
    pub dir: Option<PathBuf>,
    /// A file that has reached this many bytes is followed by a new one.
    pub rotate_bytes: u64,
    /// Files kept, the one being written included; at least 1.
    pub keep_files: usize,
    /// Records that may wait for the writer; what comes on top is lost (and counted).
    pub buffer: usize,
}

impl Default for SinkSettings {
    fn default() -> Self {
        Self {
            dir: None,
            rotate_bytes: 64 << 20,
            keep_files: 8,
            buffer: 8_192,
        }
    }
}

/// The sink could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The directory is missing and cannot be made, or no file can be written in it.
    #[error("records.dir {}: {source}", dir.display())]
    Dir {
        /// Which.
        dir: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The writer thread could not be started.
    #[error("records: cannot start the writer thread: {0}")]
    Thread(io::Error),
}

/// What became of the records so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkCounts {
    /// Taken by [`RecordSink::send`].
    pub sent: u64,
    /// Written to a file.
    pub written: u64,
    /// Lost: the buffer was full, or the disk refused them.
    pub lost: u64,
    /// Write errors (one may lose many records).
    pub errors: u64,
}

#[derive(Default)]
struct Counters {
    sent: AtomicU64,
    written: AtomicU64,
    lost: AtomicU64,
    errors: AtomicU64,
}

/// Takes records without ever blocking. Cheap to clone; the writer ends when the last clone is
/// dropped, or at [`RecordSink::close`].
#[derive(Clone)]
pub struct RecordSink {
    inner: Arc<Inner>,
}

struct Inner {
    queue: std::sync::RwLock<Option<SyncSender<Arc<AttemptRecord>>>>,
    counters: Arc<Counters>,
    writer: std::sync::Mutex<Option<JoinHandle<()>>>,
}

impl RecordSink {
    /// Opens the directory and starts the writer thread (none where no directory is set).
    ///
    /// # Errors
    /// The directory cannot be used, or the thread cannot be started.
    pub fn open(settings: &SinkSettings) -> Result<Self, SinkError> {
        let counters = Arc::new(Counters::default());
        let Some(dir) = &settings.dir else {
            return Ok(Self::build(None, counters, None));
        };
        let files = Files::open(dir, settings).map_err(|source| SinkError::Dir {
            dir: dir.clone(),
            source,
        })?;
        let (sender, receiver) = sync_channel(settings.buffer.max(1));
        let thread_counters = Arc::clone(&counters);
        let thread = std::thread::Builder::new()
            .name("records".to_owned())
            .spawn(move || Writer::new(files, thread_counters).run(&receiver))
            .map_err(SinkError::Thread)?;
        Ok(Self::build(Some(sender), counters, Some(thread)))
    }

    /// A sink that counts and keeps nothing.
    #[must_use]
    pub fn counting() -> Self {
        Self::build(None, Arc::new(Counters::default()), None)
    }

    fn build(
        sender: Option<SyncSender<Arc<AttemptRecord>>>,
        counters: Arc<Counters>,
        writer: Option<JoinHandle<()>>,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                queue: std::sync::RwLock::new(sender),
                counters,
                writer: std::sync::Mutex::new(writer),
            }),
        }
    }

    /// Hands a record over. Never blocks: where the writer is behind by more than the buffer, the
    /// record is counted as lost.
    pub fn send(&self, record: Arc<AttemptRecord>) {
        let counters = &self.inner.counters;
        counters.sent.fetch_add(1, Ordering::Relaxed);
        let Ok(queue) = self.inner.queue.read() else {
            counters.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if let Some(queue) = queue.as_ref()
            && queue.try_send(record).is_err()
        {
            counters.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What became of the records so far.
    #[must_use]
    pub fn counts(&self) -> SinkCounts {
        let c = &self.inner.counters;
        SinkCounts {
            sent: c.sent.load(Ordering::Relaxed),
            written: c.written.load(Ordering::Relaxed),
            lost: c.lost.load(Ordering::Relaxed),
            errors: c.errors.load(Ordering::Relaxed),
        }
    }

    /// Writes out what is queued and ends the writer; blocks until it is done. Records sent
    /// afterwards are counted only.
    pub fn close(&self) {
        if let Ok(mut queue) = self.inner.queue.write() {
            *queue = None;
        }
        let writer = self.inner.writer.lock().ok().and_then(|mut w| w.take());
        if let Some(writer) = writer
            && writer.join().is_err()
        {
            tracing::error!("the record writer ended by a panic");
        }
    }
}

/// Takes records from the queue, batches their lines, writes them out.
struct Writer {
    files: Files,
    counters: Arc<Counters>,
    batch: Vec<u8>,
    batch_records: u64,
    warned: Option<Instant>,
}

impl Writer {
    fn new(files: Files, counters: Arc<Counters>) -> Self {
        Self {
            files,
            counters,
            batch: Vec::with_capacity(BATCH_BYTES + 4_096),
            batch_records: 0,
            warned: None,
        }
    }

    fn run(mut self, queue: &Receiver<Arc<AttemptRecord>>) {
        // With nothing queued there is nothing to hurry for: sleep until a record comes.
        while let Ok(record) = queue.recv() {
            self.add(&record);
            if !self.drain(queue) {
                return;
            }
        }
    }

    /// Takes records in batches until none came for a while; false where no sender is left.
    fn drain(&mut self, queue: &Receiver<Arc<AttemptRecord>>) -> bool {
        loop {
            std::thread::sleep(REST);
            let mut taken = 0_u32;
            let connected = loop {
                match queue.try_recv() {
                    Ok(record) => self.add(&record),
                    Err(TryRecvError::Empty) => break true,
                    Err(TryRecvError::Disconnected) => break false,
                }
                taken += 1;
                if self.batch.len() >= BATCH_BYTES {
                    self.flush();
                }
            };
            self.flush();
            if !connected || taken == 0 {
                return connected;
            }
        }
    }

    fn add(&mut self, record: &AttemptRecord) {
        line::write(record, &mut self.batch);
        self.batch_records += 1;
    }

    fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let records = std::mem::take(&mut self.batch_records);
        match self.files.write(&self.batch) {
            Ok(()) => {
                self.counters.written.fetch_add(records, Ordering::Relaxed);
            }
            Err(error) => self.lose(records, &error.to_string()),
        }
        self.batch.clear();
    }

    fn lose(&mut self, records: u64, why: &str) {
        self.counters.lost.fetch_add(records, Ordering::Relaxed);
        self.counters.errors.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        if self.warned.is_none_or(|at| now - at >= WARN_EVERY) {
            self.warned = Some(now);
            tracing::warn!(lost = records, error = why, "records could not be written");
        }
    }
}

/// The rotated files: numbered, so that the name's order is the order of writing.
struct Files {
    dir: PathBuf,
    rotate_bytes: u64,
    keep_files: usize,
    current: Option<(PathBuf, File)>,
    bytes: u64,
    next_number: u64,
}

impl Files {
    fn open(dir: &Path, settings: &SinkSettings) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let last = numbered(dir)?.into_iter().map(|(number, _)| number).max();
        let mut files = Self {
            dir: dir.to_owned(),
            rotate_bytes: settings.rotate_bytes.max(1),
            keep_files: settings.keep_files.max(1),
            current: None,
            bytes: 0,
            next_number: last.map_or(1, |number| number + 1),
        };
        files.rotate()?;
        Ok(files)
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        // A file that somebody removed takes what is written to it, and nobody can read that.
        let there = self.current.as_ref().is_some_and(|(path, _)| path.exists());
        if !there || self.bytes >= self.rotate_bytes {
            self.rotate()?;
        }
        let Some((_, file)) = self.current.as_mut() else {
            return Err(io::Error::other("no file"));
        };
        let result = file.write_all(lines);
        match result {
            Ok(()) => self.bytes += lines.len() as u64,
            // A half-written line must not be continued: the next batch gets a file of its own.
            Err(_) => self.current = None,
        }
        result
    }

    fn rotate(&mut self) -> io::Result<()> {
        let path = self
            .dir
            .join(format!("{FILE_PREFIX}{:08}{FILE_SUFFIX}", self.next_number));
        std::fs::create_dir_all(&self.dir)?;
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        self.next_number += 1;
        self.current = Some((path, file));
        self.bytes = 0;
        let mut files = numbered(&self.dir)?;
        files.sort();
        let surplus = files.len().saturating_sub(self.keep_files);
        for (_, path) in files.into_iter().take(surplus) {
            std::fs::remove_file(path)?;
        }
        Ok(())
    }
}

fn numbered(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    Ok(std::fs::read_dir(dir)?
        .filter_map(Result::ok)
        .filter_map(|entry| Some((file_number(&entry.path())?, entry.path())))
        .collect())
}

fn file_number(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    name.strip_prefix(FILE_PREFIX)?
        .strip_suffix(FILE_SUFFIX)?
        .parse()
        .ok()
}

/// Whether the path is named like a file of the sink.
pub(crate) fn is_record_file(path: &Path) -> bool {
    file_number(path).is_some()
}
