//! `maitred`: one binary for the gateway, the simulated engines and the demo.

mod engine;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "maitred", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Engine(engine::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Engine(args) => engine::run(args),
    }
}
