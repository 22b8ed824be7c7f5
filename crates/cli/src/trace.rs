//! `maitred trace`: what traces are like, and how they become others.

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use maitred_lab::trace::{
    Arrivals, Format, PlanReader, Reading, StatsReader, TraceError, Writer, open, read, write_plan,
};
use maitred_lab::workload;

/// Look at traces, convert them, make some. Files may be zstd.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Stats(StatsArgs),
    Convert(ConvertArgs),
    Generate(GenerateArgs),
}

/// Requests, sessions, lengths, the reuse that would be possible, and how the load comes.
#[derive(Debug, clap::Args)]
struct StatsArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Write a trace in another format.
#[derive(Debug, clap::Args)]
struct ConvertArgs {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    out: OutArgs,
    #[command(flatten)]
    arrivals: ArrivalsArgs,
}

/// Write synthetic traffic; `maitred simulate --workloads` lists the kinds.
#[derive(Debug, clap::Args)]
struct GenerateArgs {
    /// Kind, with options after colons (`agents:sessions=20`).
    kind: String,
    /// Seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Tokens in a block.
    #[arg(long, value_name = "TOKENS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    block_tokens: u32,
    #[command(flatten)]
    out: OutArgs,
}

/// A trace and how to read it.
#[derive(Debug, clap::Args)]
pub(crate) struct SourceArgs {
    /// The trace.
    file: PathBuf,
    #[command(flatten)]
    reading: ReadingArgs,
}

/// How to read a trace.
#[derive(Debug, clap::Args)]
pub(crate) struct ReadingArgs {
    /// Its format, where the first line does not tell: maitred, mooncake, bailian, blocks, ragpulse, azure, openai,
    /// prompts, dialogues, records.
    #[arg(long, value_name = "NAME", value_parser = format)]
    pub(crate) format: Option<Format>,
    /// RAGPulse: the file with the lengths of parts.
    #[arg(long, value_name = "FILE")]
    parts: Option<PathBuf>,
    /// Dialogues: the file with the tools of every request.
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    /// Tokens of answers of which the trace says nothing.
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    output: u32,
    /// Pauses between an answer and the next request are cut at so many seconds; 0: they are not.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    pause_max: f64,
}

impl ReadingArgs {
    pub(crate) fn reading(&self) -> Reading {
        Reading {
            parts: self.parts.clone(),
            tools: self.tools.clone(),
            output: self.output,
            pause_max: self.pause_max,
        }
    }
}

/// Times that a trace may leave open.
#[derive(Debug, clap::Args)]
pub(crate) struct ArrivalsArgs {
    /// Sessions a second, where the trace does not say when they begin.
    #[arg(long, value_name = "RATE", default_value_t = Arrivals::default().rate)]
    session_rate: f64,
    /// Seconds before a follow-up, where the trace does not say.
    #[arg(long, value_name = "SECONDS", default_value_t = Arrivals::default().pause)]
    pause: f64,
    /// Draw when sessions begin although the trace says: for sessions that were recorded one after the other.
    #[arg(long)]
    draw_starts: bool,
    /// At most so many requests, from the beginning of the file.
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,
}

impl ArrivalsArgs {
    pub(crate) fn reader(&self) -> PlanReader {
        let arrivals = Arrivals {
            rate: self.session_rate,
            pause: self.pause,
            drawn: self.draw_starts,
        };
        PlanReader::new(arrivals, self.limit.unwrap_or(usize::MAX))
    }
}

#[derive(Debug, clap::Args)]
struct OutArgs {
    /// Format to write: maitred, mooncake or bailian.
    #[arg(long, value_name = "NAME", value_parser = format, default_value = "maitred")]
    to: Format,
    /// Where to; standard output where it is not given.
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl OutArgs {
    fn open(&self) -> Result<BufWriter<Box<dyn Write>>, String> {
        let out: Box<dyn Write> = match &self.out {
            None => Box::new(std::io::stdout().lock()),
            Some(path) => {
                let file = std::fs::File::create(path);
                Box::new(file.map_err(|error| format!("{}: {error}", path.display()))?)
            }
        };
        Ok(BufWriter::new(out))
    }
}

fn format(text: &str) -> Result<Format, String> {
    Format::named(text).ok_or_else(|| {
        let known: Vec<&str> = Format::ALL.iter().map(|(name, _)| *name).collect();
        format!("must be one of {}", known.join(", "))
    })
}

pub(crate) fn run(args: Args) -> ExitCode {
    let done = match args.what {
        What::Stats(args) => stats(&args),
        What::Convert(args) => convert(&args),
        What::Generate(args) => generate(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            let _ = writeln!(std::io::stderr(), "maitred trace: {message}");
            ExitCode::FAILURE
        }
    }
}

impl SourceArgs {
    fn told(&self, error: &dyn std::fmt::Display) -> String {
        format!("{}: {error}", self.file.display())
    }

    /// Reads it row by row. A row may be looked at before the tokens in a block are known only by formats that have one
    /// size: the head of ours is read first.
    fn each(
        &self,
        take: &mut dyn FnMut(maitred_lab::trace::Row) -> Result<(), TraceError>,
    ) -> Result<(Format, u32), String> {
        let lines = open(&self.file).map_err(|error| self.told(&error))?;
        let reading = self.reading.reading();
        read(lines, self.reading.format, &reading, take).map_err(|error| self.told(&error))
    }
}

fn print(text: &str) {
    // A closed pipe is the reader's choice.
    let _ = write!(std::io::stdout(), "{text}");
}

fn stats(args: &StatsArgs) -> Result<(), String> {
    let mut reader = StatsReader::default();
    let (format, block) = args.source.each(&mut |row| {
        reader.take(&row);
        Ok(())
    })?;
    let stats = reader.finish(format, block);
    print(&if args.json {
        format!("{:#}\n", serde_json::json!(stats))
    } else {
        stats.to_string()
    });
    Ok(())
}

fn convert(args: &ConvertArgs) -> Result<(), String> {
    let wrong = |error: &dyn std::fmt::Display| args.source.told(error);
    let mut out = args.out.open()?;
    if args.out.to == Format::Maitred && args.arrivals.limit.is_none() {
        let mut writer = Writer::new(out);
        args.source.each(&mut |row| writer.row(&row))?;
        return writer.into_inner().flush().map_err(|error| wrong(&error));
    }
    let mut reader = args.arrivals.reader();
    let (_, block) = args.source.each(&mut |row| reader.take(row))?;
    if reader.left_out() > 0 {
        let _ = writeln!(
            std::io::stderr(),
            "{} requests are left out",
            reader.left_out()
        );
    }
    let plan = reader.plan(block, 1);
    write_plan(&mut out, &plan, args.out.to).map_err(|error| wrong(&error))?;
    out.flush().map_err(|error| wrong(&error))
}

fn generate(args: &GenerateArgs) -> Result<(), String> {
    let generator = workload::named(&args.kind)?;
    let plan = generator.plan(args.block_tokens, args.seed, 1.0);
    let mut out = args.out.open()?;
    let written = write_plan(&mut out, &plan, args.out.to).map_err(|error| error.to_string());
    written.and_then(|()| out.flush().map_err(|error| error.to_string()))
}
