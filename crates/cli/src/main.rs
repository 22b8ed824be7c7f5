//! `maitred`: one binary for the gateway, the simulated engines, the demo and the lab.

mod agent;
mod check;
mod demo;
mod engine;
mod explain;
mod fit;
mod hash_key;
mod report;
mod serve;
mod simulate;
mod trace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

// Many small and some large blocks from many threads: the system's allocator keeps more than it gives back.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
#[command(
    name = "maitred",
    version,
    about = "The maître d' of a room of LLM replicas: a gateway that seats each request where its cache is warm"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Args),
    Agent(agent::Args),
    Engine(engine::Args),
    Demo(demo::Args),
    Check(check::Args),
    Explain(explain::Args),
    Simulate(Box<simulate::Args>),
    Trace(trace::Args),
    Fit(fit::Args),
    Report(report::Args),
    HashKey(hash_key::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => serve::run(args),
        Command::Agent(args) => agent::run(args),
        Command::Engine(args) => engine::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Check(args) => check::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Simulate(args) => simulate::run(*args),
        Command::Trace(args) => trace::run(args),
        Command::Fit(args) => fit::run(args),
        Command::Report(args) => report::run(args),
        Command::HashKey(args) => hash_key::run(args),
    }
}
