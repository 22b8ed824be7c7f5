//! The load: keep-alive connections on one thread, with a reader that only finds the end.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use crate::bodies::Talk;

/// Outcome of one run of load.
#[derive(Debug)]
pub(crate) struct Run {
    /// Requests answered with 200.
    pub(crate) ok: u64,
    /// Requests answered with anything else.
    pub(crate) other: u64,
    /// Wall time of the run.
    pub(crate) wall: Duration,
    /// Whole time of each request in nanoseconds.
    pub(crate) latency: Histogram<u64>,
    /// Chunks of chunked answers, without the last empty ones.
    pub(crate) chunks: u64,
}

impl Run {
    fn new() -> Result<Self, String> {
        let latency = Histogram::new(3).map_err(|error| error.to_string())?;
        Ok(Self {
            ok: 0,
            other: 0,
            wall: Duration::ZERO,
            latency,
            chunks: 0,
        })
    }

    fn merge(&mut self, other: &Self) -> Result<(), String> {
        self.ok += other.ok;
        self.other += other.other;
        self.chunks += other.chunks;
        self.latency
            .add(&other.latency)
            .map_err(|error| error.to_string())
    }

    /// The latency at a quantile, in milliseconds.
    pub(crate) fn latency_ms(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1e6
    }
}

/// How hard the load presses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Connections.
    pub(crate) connections: usize,
    /// Requests in all.
    pub(crate) count: usize,
    /// Requests per second of each connection; as fast as answers come when none.
    pub(crate) rate: Option<f64>,
}

/// Sends `pace.count` requests to `target`. `nonce` makes the texts of this run distinct from
/// those of others, and is moved on.
pub(crate) fn drive(
    target: SocketAddr,
    talks: &mut Vec<Talk>,
    pace: Pace,
    nonce: &mut u64,
) -> Result<Run, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("runtime: {error}"))?;
    let shares = deal(std::mem::take(talks), pace.connections);
    let left = Rc::new(Cell::new(pace.count));
    let numbers = Rc::new(Cell::new(*nonce));
    let local = LocalSet::new();
    let started = Instant::now();
    let run = local.block_on(&runtime, async {
        let tasks: Vec<_> = shares
            .into_iter()
            .map(|share| {
                let budget = (Rc::clone(&left), Rc::clone(&numbers));
                tokio::task::spawn_local(connection(target, share, budget, pace.rate))
            })
            .collect();
        let mut run = Run::new()?;
        for task in tasks {
            let (part, share) = task.await.map_err(|error| error.to_string())?;
            run.merge(&part?)?;
            talks.extend(share);
        }
        Ok::<Run, String>(run)
    });
    *nonce = numbers.get();
    let mut run = run?;
    run.wall = started.elapsed();
    Ok(run)
}

/// Deals the talks to connections like cards.
fn deal(talks: Vec<Talk>, connections: usize) -> Vec<Vec<Talk>> {
    let mut shares: Vec<Vec<Talk>> = (0..connections).map(|_| Vec::new()).collect();
    for (index, talk) in talks.into_iter().enumerate() {
        shares[index % connections].push(talk);
    }
    shares
}

type Budget = (Rc<Cell<usize>>, Rc<Cell<u64>>);

/// Runs one connection until the budget is spent; hands its talks back.
async fn connection(
    target: SocketAddr,
    mut share: Vec<Talk>,
    budget: Budget,
    rate: Option<f64>,
) -> (Result<Run, String>, Vec<Talk>) {
    let run = talk_until_spent(target, &mut share, budget, rate).await;
    (run, share)
}

async fn talk_until_spent(
    target: SocketAddr,
    share: &mut [Talk],
    (left, numbers): Budget,
    rate: Option<f64>,
) -> Result<Run, String> {
    let failed = |error: io::Error| format!("{target}: {error}");
    let stream = TcpStream::connect(target).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    let mut line = Line {
        stream,
        buffer: vec![0; 64 * 1024],
    };
    let mut run = Run::new()?;
    let started = tokio::time::Instant::now();
    let mut sent = 0u32;
    loop {
        for talk in share.iter_mut() {
            let nonce = numbers.get();
            numbers.set(nonce + 1);
            for request in talk.iter_mut() {
                if left.get() == 0 {
                    return Ok(run);
                }
                left.set(left.get() - 1);
                if let Some(rate) = rate {
                    let due = started + Duration::from_secs_f64(f64::from(sent) / rate);
                    tokio::time::sleep_until(due).await;
                }
                sent += 1;
                let begin = Instant::now();
                let answer = line.exchange(request.bytes(nonce)).await.map_err(failed)?;
                let taken = begin.elapsed().as_nanos().min(u128::from(u64::MAX)) as u64;
                run.latency
                    .record(taken)
                    .map_err(|error| error.to_string())?;
                run.chunks += answer.chunks;
                if answer.status == 200 {
                    run.ok += 1;
                } else {
                    run.other += 1;
                }
            }
        }
    }
}

struct Line {
    stream: TcpStream,
    buffer: Vec<u8>,
}

struct Answer {
    status: u16,
    chunks: u64,
}

impl Line {
    async fn exchange(&mut self, request: &[u8]) -> io::Result<Answer> {
        self.stream.write_all(request).await?;
        let mut filled = 0;
        let head_end = loop {
            let count = self.stream.read(&mut self.buffer[filled..]).await?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            filled += count;
            if let Some(at) = memchr::memmem::find(&self.buffer[..filled], b"\r\n\r\n") {
                break at + 4;
            }
        };
        let head = self.buffer[..head_end].to_ascii_lowercase();
        let status = std::str::from_utf8(head.get(9..12).unwrap_or_default())
            .ok()
            .and_then(|code| code.parse().ok())
            .unwrap_or(0);
        let mut answer = Answer { status, chunks: 0 };
        if let Some(length) = content_length(&head) {
            let mut have = filled - head_end;
            while have < length {
                have += self.read_some().await?;
            }
            return Ok(answer);
        }
        let mut chunked = Chunked::default();
        let mut done = chunked.advance(&self.buffer[head_end..filled])?;
        while !done {
            let count = self.read_some().await?;
            done = chunked.advance(&self.buffer[..count])?;
        }
        answer.chunks = chunked.chunks;
        Ok(answer)
    }

    async fn read_some(&mut self) -> io::Result<usize> {
        match self.stream.read(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => Ok(count),
        }
    }
}

/// `content-length` of a head in lower case.
fn content_length(head: &[u8]) -> Option<usize> {
    let name = b"\r\ncontent-length:";
    let at = memchr::memmem::find(head, name)? + name.len();
    let rest = &head[at..];
    let end = memchr::memchr(b'\r', rest)?;
    std::str::from_utf8(&rest[..end]).ok()?.trim().parse().ok()
}

/// Finds the end of a chunked body fed in pieces.
#[derive(Debug, Default)]
struct Chunked {
    state: State,
    size: usize,
    chunks: u64,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum State {
    #[default]
    Size,
    SizeLine,
    Data,
    /// CR LF after the data.
    DataEnd,
    /// The line after the last chunk: no trailers are expected.
    Last,
}

impl Chunked {
    /// True when the last chunk has been seen whole.
    fn advance(&mut self, mut bytes: &[u8]) -> io::Result<bool> {
        while let Some(&byte) = bytes.first() {
            match self.state {
                State::Size => match (byte as char).to_digit(16) {
                    Some(digit) => self.size = self.size * 16 + digit as usize,
                    None if byte == b'\r' || byte == b';' => self.state = State::SizeLine,
                    None => return Err(io::ErrorKind::InvalidData.into()),
                },
                State::SizeLine if byte == b'\n' => {
                    let last = self.size == 0;
                    self.chunks += u64::from(!last);
                    self.state = if last { State::Last } else { State::Data };
                }
                State::Data => {
                    let count = self.size.min(bytes.len());
                    self.size -= count;
                    if self.size == 0 {
                        self.state = State::DataEnd;
                    }
                    bytes = &bytes[count..];
                    continue;
                }
                State::DataEnd if byte == b'\n' => self.state = State::Size,
                State::Last if byte == b'\n' => return Ok(true),
                State::SizeLine | State::DataEnd | State::Last => {}
            }
            bytes = &bytes[1..];
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn chunked_end_is_found_wherever_the_pieces_are_cut() {
        let body = b"3\r\nabc\r\n10;x=y\r\n0123456789abcdef\r\n0\r\n\r\n";
        for cut in 0..body.len() {
            let mut chunked = Chunked::default();
            let first = chunked.advance(&body[..cut]).unwrap();
            assert!(!first, "cut {cut}");
            assert!(chunked.advance(&body[cut..]).unwrap(), "cut {cut}");
            assert_eq!(chunked.chunks, 2);
        }
        assert!(Chunked::default().advance(b"x").is_err());
    }

    #[test]
    fn content_length_is_read() {
        assert_eq!(
            content_length(b"http/1.1 200 ok\r\ncontent-length: 12\r\n\r\n"),
            Some(12)
        );
        assert_eq!(content_length(b"http/1.1 200 ok\r\n\r\n"), None);
    }
}
