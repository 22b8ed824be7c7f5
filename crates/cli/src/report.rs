//! `maitred report`: what records say of a time in service.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use maitred_lab::review::{Review, page, text};
use maitred_records::{BAD_LINES_MAX, Records, expand};

/// Say from attempt records where the warmth went: reuse by cause, predictions against what engines said, what leaving a
/// warm worker was worth, and how old what was gone by was; for each policy, tenant, model and turn.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Record files, or directories of them.
    #[arg(required = true, value_name = "FILES")]
    records: Vec<PathBuf>,
    /// Write a page, too: self-contained HTML.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> ExitCode {
    match reviewed(&args) {
        Ok(text) => {
            // A closed pipe is the reader's choice.
            let _ = write!(std::io::stdout(), "{text}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            let _ = writeln!(std::io::stderr(), "maitred report: {message}");
            ExitCode::FAILURE
        }
    }
}

/// What could not be read, over all files.
#[derive(Default)]
struct Unread {
    lines: u64,
    named: Vec<String>,
}

fn reviewed(args: &Args) -> Result<String, String> {
    let mut review = Review::default();
    let mut unread = Unread::default();
    let files = expand(&args.records).map_err(|error| error.to_string())?;
    for path in &files {
        let mut records = Records::open(path).map_err(|error| error.to_string())?;
        for record in records.by_ref() {
            review.take(&record);
        }
        unread.lines += records.unreadable();
        let room = BAD_LINES_MAX.saturating_sub(unread.named.len());
        let named = records.bad().iter().take(room);
        unread
            .named
            .extend(named.map(|bad| format!("{}:{}: {}", path.display(), bad.line, bad.problem)));
    }
    let sources = args.records.iter().map(|path| path.display().to_string());
    let sources = sources.collect::<Vec<_>>().join(" ");
    if let Some(path) = &args.html {
        let html = page(&sources, &review, &[]);
        std::fs::write(path, html).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if args.json {
        let told = serde_json::json!({
            "files": files.len(),
            "unreadable_lines": unread.lines,
            "unreadable": unread.named,
            "review": review,
        });
        return Ok(format!("{told:#}\n"));
    }
    let mut said = String::new();
    if unread.lines > 0 {
        said = format!("{} lines are no records:\n", unread.lines);
        for line in &unread.named {
            said.push_str(&format!("  {line}\n"));
        }
        if unread.lines > unread.named.len() as u64 {
            said.push_str("  ...\n");
        }
    }
    Ok(said + &text(&review))
}
