//! `maitred check`: a configuration file's problems, each with its place.

use maitred_gateway::config::check;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Check a configuration file: every problem with line, column and field.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file.
    file: PathBuf,
}

/// Prints `FILE:LINE:COL: field: message` for each problem; fails where there is one.
pub(crate) fn run(args: Args) -> ExitCode {
    let name = args.file.display();
    let text = match std::fs::read_to_string(&args.file) {
        Ok(text) => text,
        Err(error) => {
            // Nobody reads standard error: then the exit code must do.
            let _ = writeln!(std::io::stderr(), "maitred check: {name}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut out = std::io::stdout();
    match check(&text) {
        Ok(config) => {
            let workers: usize = config.pools.iter().map(|pool| pool.workers.len()).sum();
            let pools = config.pools.len();
            let _ = writeln!(out, "{name}: good (pools {pools}, workers {workers})");
            ExitCode::SUCCESS
        }
        Err(problems) => {
            for problem in problems {
                let _ = writeln!(out, "{name}:{problem}");
            }
            ExitCode::FAILURE
        }
    }
}
