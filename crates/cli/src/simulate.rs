//! `maitred simulate`: the scheduler in virtual time, policy beside policy.

mod grid;
mod progress;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use maitred_core::line::FairnessConfig;
use maitred_core::place::PolicyConfig;
use maitred_lab::scenario::starvation::{LEGEND, Starvation, Sums, table};
use serde_json::json;

use progress::Progress;

/// Try policies in virtual time: the real scheduler, modelled engines, clients that wait for their answers.
///
/// Without a subcommand: every placement under every fairness, load and seed, on one workload.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    grid: grid::GridArgs,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Starvation(StarvationArgs),
}

/// Deep conversations that never end against newcomers who want to begin: who starts, who waits, who is refused.
#[derive(Debug, clap::Args)]
struct StarvationArgs {
    /// Fairness policies, with options after colons (`promise:new_share=0.3`); all of them where none is named.
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    policies: Vec<String>,
    /// Loads over capacity; where none is given, the scenario as it stands (about 4.7).
    #[arg(long, value_name = "X,..", value_delimiter = ',', value_parser = load)]
    load: Vec<f64>,
    /// Seed of clients and choices; several are played one after the other.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1")]
    seed: Vec<u64>,
    /// Placement policy.
    #[arg(long, value_name = "NAME")]
    placement: Option<String>,
    /// Deep conversations, before --load scales them.
    #[arg(long, default_value_t = Starvation::default().deep)]
    deep: u32,
    /// Newcomers, before --load scales them.
    #[arg(long, default_value_t = Starvation::default().newcomers)]
    newcomers: u32,
    /// Newcomers in a second, before --load scales it.
    #[arg(long, default_value_t = Starvation::default().rate, value_parser = load)]
    rate: f64,
    /// The share of refused newcomers who come once more at the time they were told.
    #[arg(long, default_value_t = Starvation::default().retry_share, value_parser = share)]
    retry_share: f64,
    /// The longest wait in seconds that policies other than promise grant.
    #[arg(long, default_value_t = Starvation::default().rivals_wait.as_secs())]
    rivals_wait: u64,
    /// Tokens that each worker's cache holds.
    #[arg(long, default_value_t = Starvation::default().kv_tokens)]
    kv_tokens: u64,
    /// Print JSON instead of the table.
    #[arg(long)]
    json: bool,
}

fn load(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "must be a number".to_owned())?;
    if value > 0.0 && value <= 100.0 {
        Ok(value)
    } else {
        Err("must be more than 0 and at most 100".to_owned())
    }
}

fn share(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "must be a number".to_owned())?;
    if (0.0..=1.0).contains(&value) {
        Ok(value)
    } else {
        Err("must be from 0 to 1".to_owned())
    }
}

/// Simulates and prints.
pub(crate) fn run(args: Args) -> ExitCode {
    let text = match args.what {
        Some(What::Starvation(args)) => starvation(&args),
        None => grid::run(&args.grid),
    };
    match text {
        Ok(text) => {
            // A closed pipe is the reader's choice.
            let _ = write!(std::io::stdout(), "{text}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            let _ = writeln!(std::io::stderr(), "maitred simulate: {message}");
            ExitCode::FAILURE
        }
    }
}

fn starvation(args: &StarvationArgs) -> Result<String, String> {
    let mut base = Starvation {
        deep: args.deep,
        newcomers: args.newcomers,
        rate: args.rate,
        retry_share: args.retry_share,
        kv_tokens: args.kv_tokens,
        rivals_wait: Duration::from_secs(args.rivals_wait),
        ..Starvation::default()
    };
    if let Some(name) = &args.placement {
        base.placement = PolicyConfig::named(name).map_err(|error| format!("{name}: {error}"))?;
    }
    let policies: Vec<&str> = if args.policies.is_empty() {
        FairnessConfig::NAMES.to_vec()
    } else {
        args.policies.iter().map(String::as_str).collect()
    };
    let mut cells: Vec<(Starvation, &str)> = Vec::new();
    for seed in &args.seed {
        let seeded = Starvation {
            seed: *seed,
            ..base.clone()
        };
        let mut scenarios: Vec<Starvation> =
            args.load.iter().map(|load| seeded.at_load(*load)).collect();
        if scenarios.is_empty() {
            scenarios.push(seeded);
        }
        for scenario in scenarios {
            cells.extend(policies.iter().map(|policy| (scenario.clone(), *policy)));
        }
    }
    let progress = Progress::new(cells.len());
    let mut rows: Vec<(String, Sums)> = Vec::new();
    for (done, (scenario, policy)) in cells.iter().enumerate() {
        let pool = scenario.pool(policy)?;
        progress.show(done, &format!("{policy} at load {:.2}", scenario.load()));
        let sums = scenario
            .play(pool, &mut |_, _| {})
            .map_err(|error| error.to_string())?;
        rows.push(((*policy).to_owned(), sums));
    }
    progress.clear();
    if args.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|(policy, sums)| json!({ "policy": policy, "sums": sums }))
            .collect();
        return Ok(format!("{:#}\n", json!({ "starvation": rows })));
    }
    Ok(format!("{}\n{LEGEND}", table(&rows)))
}
