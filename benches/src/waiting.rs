//! What a request that waits in the line takes of memory, beside its body.
//!
//! The pool's one worker has one seat and never answers. Requests of 1 KiB come over connections of
//! their own, and over streams of HTTP/2 connections. The connections are open, and have been used,
//! before the requests are counted, so what they take is told apart. All requests are second turns of
//! conversations of their own, under the default fairness.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::process::resident;
use crate::targets::{self, Running};

/// Bytes of a body.
pub(crate) const BODY: usize = 1 << 10;
/// Streams on one HTTP/2 connection; below what the gateway allows.
const STREAMS: usize = 250;
const PATIENCE: Duration = Duration::from_secs(120);

/// Bytes of memory, per request or connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiting {
    pub(crate) requests: usize,
    /// Of a waiting request beside its body.
    pub(crate) request: f64,
    /// Of an open connection that waits for nothing.
    pub(crate) connection: f64,
}

/// Over connections of their own, and over HTTP/2.
pub(crate) fn measure(
    binary: &Path,
    dir: &Path,
    count: usize,
) -> Result<[(&'static str, Waiting); 2], String> {
    let worker = never_answers().map_err(|error| format!("worker: {error}"))?;
    let own = over(binary, dir, worker, count, Protocol::Http1)?;
    let shared = over(binary, dir, worker, count, Protocol::Http2)?;
    Ok([("a connection each", own), ("HTTP/2 streams", shared)])
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Protocol {
    Http1,
    Http2,
}

fn over(
    binary: &Path,
    dir: &Path,
    worker: SocketAddr,
    count: usize,
    protocol: Protocol,
) -> Result<Waiting, String> {
    let (gateway, addr, admin) = serve(binary, dir, worker)?;
    let io = |error: std::io::Error| format!("waiting: {error}");
    let memory = || resident(gateway.pid()).map(|bytes| bytes as f64);
    // The seat is taken, and everything was used once.
    let mut holder = TcpStream::connect(addr).map_err(io)?;
    holder.write_all(&http1(addr, count)).map_err(io)?;
    let fresh = memory()?;
    let each = match protocol {
        Protocol::Http1 => 1,
        Protocol::Http2 => STREAMS,
    };
    let mut connections = Vec::new();
    for _ in 0..count.div_ceil(each) {
        let mut stream = TcpStream::connect(addr).map_err(io)?;
        match protocol {
            Protocol::Http1 => used(&mut stream, addr).map_err(io)?,
            Protocol::Http2 => open_http2(&mut stream).map_err(io)?,
        }
        connections.push(stream);
    }
    let open = memory()?;
    for number in 0..count {
        let stream = &mut connections[number / each];
        let bytes = match protocol {
            Protocol::Http1 => http1(addr, number),
            Protocol::Http2 => http2(addr, number, (number % each) as u32 * 2 + 1),
        };
        stream.write_all(&bytes).map_err(io)?;
    }
    until_waiting(admin, count)?;
    let full = memory()?;
    Ok(Waiting {
        requests: count,
        request: (full - open) / count as f64 - BODY as f64,
        connection: (open - fresh) / connections.len() as f64,
    })
}

/// A gateway before that worker.
fn serve(
    binary: &Path,
    dir: &Path,
    worker: SocketAddr,
) -> Result<(Running, SocketAddr, SocketAddr), String> {
    let config = dir.join("waiting.yaml");
    let text = format!(
        "threads: 1\npools:\n  - name: default\n    slots: 1\n    line_max: 1000000\n    max_wait: 1h\n    \
         workers: [{{ url: 'http://{worker}', assume_ready: true }}]\n"
    );
    std::fs::write(&config, text).map_err(|error| format!("{config:?}: {error}"))?;
    let config = config.display().to_string();
    targets::serve(binary, &["--config", &config], dir)
}

/// Answers GETs and holds everything else.
fn never_answers() -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let addr = listener.local_addr()?;
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for stream in listener.incoming().flatten() {
            if let Some(stream) = answer(stream) {
                held.push(stream);
            }
        }
    });
    Ok(addr)
}

fn answer(mut stream: TcpStream) -> Option<TcpStream> {
    let mut start = [0; 4];
    stream.read_exact(&mut start).ok()?;
    if &start != b"GET " {
        return Some(stream);
    }
    read_head(&mut stream).ok()?;
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    stream.write_all(head.as_bytes()).ok()?;
    None
}

/// A second turn, as long as [`BODY`] says, that begins as no other does.
fn body(number: usize) -> String {
    let start = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{number:09} ");
    let end = "\"},{\"role\":\"assistant\",\"content\":\"yes\"},{\"role\":\"user\",\"content\":\"go on\"}],\"max_tokens\":64}";
    let fill = BODY.saturating_sub(start.len() + end.len());
    let text: String = "lorem ipsum dolor sit amet "
        .chars()
        .cycle()
        .take(fill)
        .collect();
    format!("{start}{text}{end}")
}

fn http1(addr: SocketAddr, number: usize) -> Vec<u8> {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {addr}\r\ncontent-type: application/json\r\naccept: */*\r\n\
         user-agent: maitred-bench/1\r\nauthorization: Bearer sk-0123456789abcdef\r\ncontent-length: {BODY}\r\n\r\n{}",
        body(number)
    )
    .into_bytes()
}

/// Two answered requests, so that the connection has the buffers that it takes to serve some: the
/// first is read before it is known which protocol is spoken.
fn used(stream: &mut TcpStream, addr: SocketAddr) -> std::io::Result<()> {
    let ask = format!("HEAD /health HTTP/1.1\r\nhost: {addr}\r\n\r\n");
    for _ in 0..2 {
        stream.write_all(ask.as_bytes())?;
        read_head(stream)?;
    }
    Ok(())
}

fn read_head(stream: &mut TcpStream) -> std::io::Result<()> {
    let (mut byte, mut last) = ([0], [0; 4]);
    while &last != b"\r\n\r\n" {
        stream.read_exact(&mut byte)?;
        last.rotate_left(1);
        last[3] = byte[0];
    }
    Ok(())
}

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const DATA: u8 = 0;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// The preface, and what the other side has to say to it.
fn open_http2(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    frame(&mut out, SETTINGS, 0, 0, &[]);
    frame(&mut out, SETTINGS, 1, 0, &[]);
    stream.write_all(&out)?;
    let mut settings = [0; 9];
    stream.read_exact(&mut settings)
}

/// HEADERS with literal fields and one DATA frame.
fn http2(addr: SocketAddr, number: usize, stream: u32) -> Vec<u8> {
    // `:method: POST` and `:scheme: http` are in the static table.
    let mut block = vec![0x83, 0x86];
    let mut literal = |name: &str, value: &str| {
        block.push(0);
        for text in [name, value] {
            // Below 127 the length is one byte; no Huffman coding.
            block.push(text.len() as u8);
            block.extend_from_slice(text.as_bytes());
        }
    };
    literal(":path", "/v1/chat/completions");
    literal(":authority", &addr.to_string());
    literal("content-type", "application/json");
    literal("accept", "*/*");
    literal("user-agent", "maitred-bench/1");
    literal("authorization", "Bearer sk-0123456789abcdef");
    literal("content-length", &BODY.to_string());
    let mut out = Vec::with_capacity(BODY + 256);
    frame(&mut out, HEADERS, END_HEADERS, stream, &block);
    frame(&mut out, DATA, END_STREAM, stream, body(number).as_bytes());
    out
}

/// Waits until that many are in the line, by the gateway's own word.
fn until_waiting(admin: SocketAddr, count: usize) -> Result<(), String> {
    let end = Instant::now() + PATIENCE;
    loop {
        let text = targets::metrics(admin)?;
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix("maitred_line_requests{"));
        let waiting = line.and_then(|l| l.rsplit(' ').next()?.parse::<f64>().ok());
        if waiting == Some(count as f64) {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!("waiting: {waiting:?} of {count} are in the line"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
