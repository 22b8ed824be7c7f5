//! `maitred serve`: the gateway.

use maitred_gateway::config::{Config, Flags, PoolSettings, Problem, check};
use maitred_gateway::{Running, start};
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Serve clients from workers: the gateway.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Configuration file; --listen, --admin, --policy, --fairness, --records and --threads override it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where clients connect; 127.0.0.1:8080 where nothing else is said.
    #[arg(long, value_name = "ADDR", value_parser = address)]
    listen: Option<SocketAddr>,
    /// Where operators connect; 127.0.0.1:8081 where nothing else is said.
    #[arg(long, value_name = "ADDR", value_parser = address)]
    admin: Option<SocketAddr>,
    /// A worker's URL, such as http://10.0.0.1:8000 (without /v1); once for each worker.
    #[arg(long = "worker", value_name = "URL")]
    workers: Vec<String>,
    /// Placement policy of every pool: session where nothing else is said.
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Who goes next in the line of every pool: promise where nothing else is said.
    #[arg(long, value_name = "NAME")]
    fairness: Option<String>,
    /// The model that the workers serve; without it, whatever they list.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Directory for attempt records.
    #[arg(long, value_name = "DIR")]
    records: Option<PathBuf>,
    /// Threads of the data path; one per core where nothing else is said.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// What to log: a level, or a filter such as `info,maitred_gateway=debug`.
    #[arg(
        long,
        value_name = "FILTER",
        default_value = "info",
        env = "MAITRED_LOG"
    )]
    log: String,
    /// Log lines as JSON.
    #[arg(long)]
    log_json: bool,
}

/// Serves until SIGTERM or SIGINT.
pub(crate) fn run(args: Args) -> ExitCode {
    let config = match configure(&args) {
        Ok(config) => config,
        Err(message) => return complain(&message),
    };
    if let Err(message) = log(&args) {
        return complain(&message);
    }
    // The data path has threads of its own; what is left fits on this one.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return complain(&error.to_string()),
    };
    match runtime.block_on(serve(config, &args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => complain(&message),
    }
}

fn complain(message: &str) -> ExitCode {
    // Nobody reads standard error: then the exit code must do.
    let _ = writeln!(std::io::stderr(), "maitred serve: {message}");
    ExitCode::FAILURE
}

fn configure(args: &Args) -> Result<Config, String> {
    let file = match &args.config {
        Some(path) => Some(read(path)?),
        None => None,
    };
    let flags = Flags {
        listen: args.listen,
        admin: args.admin,
        workers: args.workers.clone(),
        policy: args.policy.clone(),
        fairness: args.fairness.clone(),
        model: args.model.clone(),
        records: args.records.clone(),
        threads: args.threads,
    };
    flags
        .apply(file)
        .map_err(|problems| all(&problems, |problem| problem.to_string()))
}

fn read(path: &Path) -> Result<Config, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    check(&text)
        .map_err(|problems| all(&problems, |problem| format!("{}:{problem}", path.display())))
}

fn all(problems: &[Problem], show: impl Fn(&Problem) -> String) -> String {
    let lines: Vec<String> = problems.iter().map(show).collect();
    lines.join("\n")
}

fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse()
        .map_err(|_| "must be an IP address with a port, such as 127.0.0.1:8080")
}

fn log(args: &Args) -> Result<(), String> {
    if let Some(word) = args.log.split(',').find(|word| !is_directive(word.trim())) {
        return Err(format!(
            "--log: `{word}` is neither a level (off, error, warn, info, debug, trace) nor TARGET=LEVEL"
        ));
    }
    let filter = EnvFilter::try_new(&args.log).map_err(|error| format!("--log: {error}"))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()));
    let set = if args.log_json {
        builder.json().try_init()
    } else {
        builder.try_init()
    };
    set.map_err(|error| format!("--log: {error}"))
}

/// A misspelt level would be taken for a target, and nothing would be logged.
fn is_directive(word: &str) -> bool {
    word.contains(['=', '[', ']', '{', '}']) || word.parse::<LevelFilter>().is_ok()
}

async fn serve(config: Config, args: &Args) -> Result<(), String> {
    let grace = config.shutdown_grace;
    // Before anything is served: a signal must not be missed.
    let mut term = signal(SignalKind::terminate()).map_err(|e| e.to_string())?;
    let mut int = signal(SignalKind::interrupt()).map_err(|e| e.to_string())?;
    let mut hangup = signal(SignalKind::hangup()).map_err(|e| e.to_string())?;
    let running = start(config).await.map_err(|error| error.to_string())?;
    let mut out = std::io::stdout();
    // Nobody reads it: no reason not to serve.
    let _ = out
        .write_all(greeting(&running).as_bytes())
        .and_then(|()| out.flush());
    loop {
        tokio::select! {
            _ = term.recv() => tracing::info!("SIGTERM"),
            _ = int.recv() => tracing::info!("SIGINT"),
            _ = hangup.recv() => {
                reload(&running, args);
                continue;
            }
        }
        break;
    }
    tracing::info!(
        grace_seconds = grace.as_secs_f64(),
        "closing: running requests may finish; a second signal ends them"
    );
    let shutdown = running.shutdown(grace);
    tokio::select! {
        () = shutdown => {}
        _ = term.recv() => tracing::warn!("ended at once"),
        _ = int.recv() => tracing::warn!("ended at once"),
    }
    Ok(())
}

/// Reads the configuration again and takes its tenants; what is wrong with it changes nothing.
fn reload(running: &Running, args: &Args) {
    let fresh = configure(args);
    match fresh.and_then(|config| running.gateway.reload_tenants(&config)) {
        Ok(tenants) => tracing::info!(tenants, "SIGHUP: the tenants were read again"),
        Err(problem) => tracing::error!(problem, "SIGHUP: the tenants stay as they were"),
    }
}

fn greeting(running: &Running) -> String {
    let config = &running.gateway.config;
    let mut text = format!(
        "maitred serves http://{}, admin http://{}",
        running.data, running.admin
    );
    if let Some(pull) = running.pull {
        text.push_str(&format!(", pull http://{pull}"));
    }
    text.push('\n');
    for pool in &config.pools {
        greet_pool(&mut text, pool);
    }
    match &config.records.dir {
        Some(dir) => text.push_str(&format!("records in {}\n", dir.display())),
        None => text.push_str("records are not kept (--records DIR keeps them)\n"),
    }
    text
}

fn greet_pool(text: &mut String, pool: &PoolSettings) {
    let model = match &pool.model {
        Some(model) => format!("model {model}"),
        None => "whatever model its workers list".to_owned(),
    };
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "pool {}: {model}, policy {}, fairness {}, workers {}",
        pool.name,
        pool.core.policy.name(),
        pool.core.fairness.name(),
        pool.workers.len()
    );
    if pool.workers.is_empty() {
        text.push_str("  requests wait until there is a worker: --worker URL, `workers` in the file, or POST /workers\n");
    }
    for worker in &pool.workers {
        let _ = writeln!(text, "  {} at {}", worker.name, worker.url);
    }
}
