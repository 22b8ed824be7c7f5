//! `maitred agent`: pulls for an engine that can not be reached.

use maitred_agent::{Base, Settings};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Run beside an OpenAI-compatible engine and pull requests for it: nobody has to reach this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where maitred listens for workers (`pull.listen`).
    #[arg(long)]
    broker: String,
    /// A file with the worker token.
    #[arg(long)]
    token_file: PathBuf,
    /// The engine.
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    engine: String,
    /// A file with the engine's API key.
    #[arg(long)]
    engine_key_file: Option<PathBuf>,
    /// This worker's name; it belongs to the token from its first use.
    #[arg(long)]
    name: String,
    /// The pool to serve; by default the one that fits the models.
    #[arg(long)]
    pool: Option<String>,
    /// Requests at once.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    slots: u32,
    /// A model to serve; may be repeated. By default what the engine lists.
    #[arg(long = "model")]
    models: Vec<String>,
    /// Most tokens of a prompt with its answer. By default what the engine says.
    #[arg(long)]
    context_max: Option<u32>,
    /// Most tokens of an answer.
    #[arg(long)]
    output_max: Option<u32>,
}

/// Pulls until the process is told to end.
pub(crate) fn run(args: Args) -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()),
        )
        .init();
    match pull(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody reads standard error: then the exit code must do.
            let _ = writeln!(std::io::stderr(), "maitred agent: {error}");
            ExitCode::FAILURE
        }
    }
}

fn pull(args: Args) -> Result<(), Box<dyn std::error::Error>> {
    let secret = |path: &PathBuf| {
        std::fs::read_to_string(path)
            .map(|text| text.trim().to_owned())
            .map_err(|error| format!("{}: {error}", path.display()))
    };
    let settings = Settings {
        broker: Base::parse(&args.broker)?,
        token: secret(&args.token_file)?,
        engine: Base::parse(&args.engine)?,
        engine_key: args.engine_key_file.as_ref().map(secret).transpose()?,
        name: args.name,
        pool: args.pool,
        slots: args.slots,
        models: args.models,
        context_max: args.context_max,
        output_max: args.output_max,
        wait: Duration::from_secs(25),
        beat: Duration::from_secs(2),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut term = signal(SignalKind::terminate())?;
        let stop = async {
            tokio::select! {
                _ = term.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
        };
        maitred_agent::run(settings, stop).await?;
        Ok(())
    })
}
