//! `make bench`: CPU time, added latency and memory of the gateway, beside nginx and a direct
//! connection, in one run.
//!
//! The load is bounded by a number of requests, under a closed loop (16 keep-alive connections) and
//! at a fixed rate, and given to each target in turn in interleaved rounds; every figure is the median over rounds and
//! every ratio is taken within a round. The CPU time is that of the proxy's process alone, so
//! load and engines may share the machine with it. Engines answer at once.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bodies;
mod cases;
mod load;
mod process;
mod report;
mod targets;
mod waiting;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cases::{CASES, Case, IDENTITY, Source};
use report::Report;
use targets::{Serve, Target};

const USAGE: &str = "\
maitred-bench [--maitred PATH] [--policy NAME] [--rounds N] [--scale F] [--case TEXT]
              [--rival NAME=URL=PID]... [--markdown FILE] [--no-latency] [--no-memory]
              [--model-dir DIR]

  --maitred PATH   the binary to measure (default: beside this one)
  --policy NAME    its placement policy (default: cache_aware)
  --threads N      threads of maitred's data path (default: 1, as nginx's one process)
  --rounds N       rounds of each case (default: 5)
  --scale F        multiplies the number of requests (default: 1)
  --case TEXT      only cases whose name contains TEXT
  --rival ...      another router, already serving the engines named by --engine-port
  --engine-port N  first of the four engine ports (default: free ones)
  --markdown FILE  also writes the tables to FILE
  --no-latency, --no-memory   leave these out
  --waiting        only the memory of waiting requests
  --model-dir DIR  also measures prompts known by this model's tokens against prompts known by
                   their bytes (tokenizer.json and a chat template in DIR)
";

#[derive(Debug)]
struct Options {
    maitred: PathBuf,
    policy: String,
    threads: usize,
    rounds: usize,
    scale: f64,
    case: String,
    rivals: Vec<Target>,
    engine_port: Option<u16>,
    markdown: Option<PathBuf>,
    latency: bool,
    memory: bool,
    waiting_only: bool,
    model_dir: Option<PathBuf>,
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut options = Options {
        maitred: own.with_file_name("maitred"),
        policy: "cache_aware".to_owned(),
        threads: 1,
        rounds: 5,
        scale: 1.0,
        case: String::new(),
        rivals: Vec::new(),
        engine_port: None,
        markdown: None,
        latency: true,
        memory: true,
        waiting_only: false,
        model_dir: None,
    };
    while let Some(name) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .ok_or(format!("{name}: a value is missing"))
        };
        let wrong = |text: &str| format!("{name} {text}: not a number");
        match name.as_str() {
            "--maitred" => options.maitred = value()?.into(),
            "--policy" => options.policy = value()?,
            "--threads" => {
                let text = value()?;
                options.threads = text.parse().map_err(|_| wrong(&text))?;
            }
            "--rounds" => {
                let text = value()?;
                options.rounds = text.parse().map_err(|_| wrong(&text))?;
            }
            "--scale" => {
                let text = value()?;
                options.scale = text.parse().map_err(|_| wrong(&text))?;
            }
            "--case" => options.case = value()?,
            "--rival" => options.rivals.push(targets::rival(&value()?)?),
            "--engine-port" => {
                let text = value()?;
                options.engine_port = Some(text.parse().map_err(|_| wrong(&text))?);
            }
            "--markdown" => options.markdown = Some(value()?.into()),
            "--model-dir" => options.model_dir = Some(value()?.into()),
            "--no-latency" => options.latency = false,
            "--no-memory" => options.memory = false,
            "--waiting" => options.waiting_only = true,
            _ => return Err(format!("{name}: unknown\n{USAGE}")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let outcome = options(std::env::args().skip(1)).and_then(|options| bench(&options));
    match outcome {
        Ok(0) => ExitCode::SUCCESS,
        Ok(missed) => {
            eprintln!("{missed} target(s) missed");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("maitred-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures everything; returns how many targets were missed.
fn bench(options: &Options) -> Result<usize, String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let dir = dir.path();
    let mut source = Source::default();
    let mut report = Report::default();
    if options.waiting_only {
        waiting(options, dir, &mut report)?;
        println!("{}", report.text());
        return Ok(report.missed());
    }

    let (_engines, engines) = targets::engines(&options.maitred, options.engine_port, dir)?;
    let nginx = targets::nginx(&engines, dir)?;
    if nginx.is_none() {
        report.line("nginx is not installed: its rows and all ratios are skipped.\n");
    }
    let serve = Serve {
        policy: &options.policy,
        threads: options.threads,
        model_dir: None,
    };
    let start = |serve| targets::maitred(&options.maitred, serve, &engines, dir);
    let (gateway, maitred, _) = start(serve)?;
    let direct = Target {
        name: "direct".to_owned(),
        addr: engines[0],
        pid: None,
    };
    let mut all = vec![direct];
    all.extend(nginx.as_ref().map(|(_, target)| target.clone()));
    all.push(maitred.clone());
    all.extend(options.rivals.iter().cloned());

    report.cpu_head();
    let chosen = |case: &&Case| case.name.contains(&options.case);
    for case in CASES.iter().filter(chosen) {
        eprintln!("{}: {} rounds of {}", case.name, options.rounds, case.count);
        let samples = source.cpu(case, options.scale, options.rounds, &all)?;
        report.cpu_rows(case, &all, &samples);
    }
    if let Some(model_dir) = &options.model_dir {
        let serve = Serve {
            model_dir: Some(model_dir),
            ..serve
        };
        let (_gateway, tokens, admin) = start(serve)?;
        let both = [maitred, tokens];
        for case in IDENTITY.iter().filter(chosen) {
            eprintln!("{}: {} rounds of {}", case.name, options.rounds, case.count);
            let samples = source.cpu(case, options.scale, options.rounds, &both)?;
            report.cpu_rows(case, &both, &samples);
        }
        // A gateway that fell back to bytes would look cheap.
        let (in_tokens, in_bytes) = targets::identities(admin)?;
        report.line(&format!(
            "\nKnown by tokens: {in_tokens:.0} prompts; fell back to bytes: {in_bytes:.0}."
        ));
    }
    if options.latency {
        eprintln!("latency at a low rate");
        let samples = source.paced(options.scale, options.rounds, &all)?;
        report.latency(&all, &samples);
    }
    drop(gateway);
    if options.memory {
        eprintln!("memory");
        let (_gateway, fresh, _) = start(serve)?;
        let count = (100_000.0 * options.scale) as usize;
        let growth = source.memory(count, &fresh)?;
        report.memory(count, &growth);
        waiting(options, dir, &mut report)?;
    }
    report.line(&format!(
        "\n{} engines that answer at once, policy {}, records on, {} data thread(s) beside one nginx process; medians of \
         {} interleaved rounds, ratios within rounds; CPU time of the proxy's process only.",
        engines.len(),
        options.policy,
        options.threads,
        options.rounds
    ));
    println!("{}", report.text());
    if let Some(path) = &options.markdown {
        std::fs::write(path, report.text()).map_err(|error| format!("{path:?}: {error}"))?;
    }
    Ok(report.missed())
}

/// What waits in the line takes memory.
fn waiting(options: &Options, dir: &Path, report: &mut Report) -> Result<(), String> {
    eprintln!("memory of waiting requests");
    let count = (10_000.0 * options.scale) as usize;
    report.waiting(&waiting::measure(&options.maitred, dir, count)?);
    Ok(())
}
