//! `maitred explain`: one request's story, from a running gateway or from record files.

use maitred_records::{AttemptRecord, Records, expand, story};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of an answer; attempts of one request are few.
const ANSWER_MAX: u64 = 16 << 20;
const WAIT: Duration = Duration::from_secs(10);

/// Tell what was decided about a request, why, and what came of it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The request's id (`x-request-id` of its answer).
    id: String,
    /// The admin address of a running gateway.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8081")]
    admin: String,
    /// The admin token.
    #[arg(long, env = "MAITRED_ADMIN_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// A record file, or a directory of them, to look in instead; once for each.
    #[arg(long, value_name = "PATH")]
    records: Vec<PathBuf>,
    /// Print the records as JSON too.
    #[arg(long)]
    json: bool,
}

/// Prints the story; fails where the request is not known.
pub(crate) fn run(args: Args) -> ExitCode {
    let told = if args.records.is_empty() {
        ask(&args)
    } else {
        search(&args)
    };
    match told {
        Ok((story, attempts)) => {
            let mut out = std::io::stdout();
            // A closed pipe is the reader's choice.
            let _ = writeln!(out, "{story}");
            if args.json {
                let _ = writeln!(out, "{attempts:#}");
            }
            ExitCode::SUCCESS
        }
        Err(message) => {
            let _ = writeln!(std::io::stderr(), "maitred explain: {message}");
            ExitCode::FAILURE
        }
    }
}

fn search(args: &Args) -> Result<(String, Value), String> {
    let mut found: Vec<Arc<AttemptRecord>> = Vec::new();
    for file in expand(&args.records).map_err(|error| error.to_string())? {
        let records = Records::open(&file).map_err(|error| error.to_string())?;
        found.extend(
            records
                .filter(|record| record.request_id.as_str() == args.id)
                .map(Arc::new),
        );
    }
    if found.is_empty() {
        return Err(format!("no record of request `{}`", args.id));
    }
    found.sort_by_key(|record| record.attempt);
    let shown: Vec<Value> = found
        .iter()
        .filter_map(|record| serde_json::to_value(&**record).ok())
        .collect();
    Ok((story(&found), Value::from(shown)))
}

fn ask(args: &Args) -> Result<(String, Value), String> {
    let (status, body) = get(args).map_err(|error| format!("{}: {error}", args.admin))?;
    let mut answer: Value = serde_json::from_str(&body)
        .map_err(|_| format!("{}: it does not answer as an admin listener", args.admin))?;
    if status != 200 {
        let message = answer["error"]["message"].as_str();
        return Err(message.unwrap_or("no explanation").to_owned());
    }
    let story = answer["story"].as_str().unwrap_or_default().to_owned();
    Ok((story, answer["attempts"].take()))
}

/// One GET over HTTP/1.0, so that the answer ends with the connection.
fn get(args: &Args) -> std::io::Result<(u16, String)> {
    let authority = args.admin.trim_end_matches('/');
    let authority = authority.strip_prefix("http://").unwrap_or(authority);
    let mut stream = TcpStream::connect(authority)?;
    stream.set_read_timeout(Some(WAIT))?;
    stream.set_write_timeout(Some(WAIT))?;
    let mut request = format!(
        "GET /explain/{} HTTP/1.0\r\nHost: {authority}\r\n",
        encoded(&args.id)
    );
    if let Some(token) = &args.token {
        request.push_str(&format!("Authorization: Bearer {token}\r\n"));
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(ANSWER_MAX).read_to_string(&mut answer)?;
    let bad = || std::io::Error::other("no HTTP answer");
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(bad)?;
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok());
    Ok((status.ok_or_else(bad)?, body.to_owned()))
}

fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
