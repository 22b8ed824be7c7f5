//! `maitred engine`: simulated engines as real servers.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use maitred_enginesim::model::Config;
use maitred_enginesim::server::{self, KvConfig, KvFormat, ServerConfig};

/// Serve simulated engines: the OpenAI API, vLLM's metric names, one port per replica.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Port of the first replica; the others follow. 0 lets the system choose.
    #[arg(long, default_value_t = 9_000)]
    port: u16,
    /// Replicas, each with an engine and a cache of its own.
    #[arg(long, default_value_t = 1)]
    replicas: usize,
    /// Name of the model served.
    #[arg(long, default_value = "sim")]
    model: String,
    /// Engine seconds per wall second.
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// KV cache per replica, tokens.
    #[arg(long, default_value_t = 262_144)]
    kv_tokens: usize,
    /// Tokens per KV block.
    #[arg(long, default_value_t = 16)]
    block_tokens: usize,
    /// Sequences that run at once.
    #[arg(long, default_value_t = 32)]
    slots: usize,
    /// Prefill speed, tokens per second.
    #[arg(long, default_value_t = 16_000)]
    prefill_rate: u64,
    /// Fixed time of a step, milliseconds.
    #[arg(long, default_value_t = 10.0)]
    step_ms: f64,
    /// Time each running sequence adds to a step, milliseconds.
    #[arg(long, default_value_t = 0.3)]
    per_seq_ms: f64,
    /// Tokens one step may compute.
    #[arg(long, default_value_t = 2_048)]
    max_batch_tokens: usize,
    /// Answer at once, without the model: a backend for measuring what is in front of it.
    #[arg(long)]
    zero: bool,
    /// With --zero: pause between the chunks of a stream, milliseconds.
    #[arg(long, default_value_t = 0, requires = "zero")]
    zero_gap_ms: u64,
    /// Publish KV events as vLLM does, from this port on; replays follow after the last replica's. 0 lets
    /// the system choose.
    #[arg(long, conflicts_with = "zero")]
    kv_events_port: Option<u16>,
    /// How they are written: as vLLM does now, or as it did up to 0.23.
    #[arg(long, default_value = "map", requires = "kv_events_port")]
    kv_events_format: Format,
    /// Their topic; by default kv@HOST:PORT@MODEL.
    #[arg(long, requires = "kv_events_port")]
    kv_events_topic: Option<String>,
    /// Messages kept for replays.
    #[arg(long, default_value_t = 10_000, requires = "kv_events_port")]
    kv_events_buffer: usize,
    /// Each so many-th message reaches no subscriber, but can be replayed.
    #[arg(long, default_value_t = 0, requires = "kv_events_port")]
    kv_events_drop_every: u64,
    /// Each so many-th message is lost altogether.
    #[arg(long, default_value_t = 0, requires = "kv_events_port")]
    kv_events_lose_every: u64,
    /// Threads that serve.
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    Map,
    Array,
}

impl Args {
    fn kv(&self) -> Option<KvConfig> {
        Some(KvConfig {
            port: self.kv_events_port?,
            format: match self.kv_events_format {
                Format::Map => KvFormat::Map,
                Format::Array => KvFormat::Array,
            },
            topic: self.kv_events_topic.clone(),
            buffer: self.kv_events_buffer,
            drop_every: self.kv_events_drop_every,
            lose_every: self.kv_events_lose_every,
        })
    }
}

/// Serves until the process is told to end.
pub(crate) fn run(args: Args) -> ExitCode {
    match serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody reads standard error: then the exit code must do.
            let _ = writeln!(std::io::stderr(), "maitred engine: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: Args) -> std::io::Result<()> {
    let kv = args.kv();
    let config = ServerConfig {
        port: args.port,
        replicas: args.replicas,
        served_model: args.model,
        speed: args.speed,
        engine: Config {
            block_tokens: args.block_tokens,
            kv_tokens: args.kv_tokens,
            slots: args.slots,
            max_batch_tokens: args.max_batch_tokens,
            prefill_tokens_per_second: args.prefill_rate,
            base_step_ns: ns(args.step_ms),
            per_sequence_ns: ns(args.per_seq_ms),
            ..Config::default()
        },
        zero: args.zero,
        zero_gap: Duration::from_millis(args.zero_gap_ms),
        kv,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(args.threads.clamp(1, 64))
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let running = server::start(config).await?;
        let mut out = std::io::stdout();
        for url in &running.urls {
            writeln!(out, "{url}")?;
        }
        // Apart from the addresses, which others read.
        let mut err = std::io::stderr();
        for (url, kv) in running.urls.iter().zip(&running.kv) {
            writeln!(err, "{url} KV events {} replay {}", kv.events, kv.replay)?;
        }
        out.flush()?;
        tokio::select! {
            () = running.forever() => Ok(()),
            stop = tokio::signal::ctrl_c() => stop,
        }
    })
}

/// Milliseconds from a flag, as nanoseconds; negative counts as none.
fn ns(ms: f64) -> u64 {
    (ms * 1e6) as u64
}
