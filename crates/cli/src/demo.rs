//! `maitred demo`: four simulated engines, the gateway, and the same clients under two policies.

mod client;
mod play;
mod score;
mod traffic;
mod verdict;
mod view;

use std::fmt::Display;
use std::process::ExitCode;
use std::time::Duration;

use maitred_enginesim::server::{self, Running as Engines, ServerConfig};
use maitred_gateway::config::{DEFAULT_POLICY, Flags};

use play::{Outcome, Plan};
use traffic::Mix;
use view::View;

/// Engines of the demo.
const ENGINES: usize = 4;
/// The model they serve.
const MODEL: &str = "demo";
/// The policy everybody knows, to compare with.
const BASELINE: &str = "round_robin";
/// Clients of one kind.
const CLIENTS_MAX: usize = 1_000;
/// What a gateway's running requests get at its end; they were cut off before.
const GRACE: Duration = Duration::from_millis(500);

/// Play conversations through four simulated engines, first under round_robin, then under the default policy.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Length of both runs together.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(4..=3_600))]
    seconds: u64,
    /// Seed of everything the clients do.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Coding agents among the clients.
    #[arg(long, default_value_t = 40)]
    agents: usize,
    /// Chats among the clients.
    #[arg(long, default_value_t = 24)]
    chats: usize,
    /// Callers of shared instructions among the clients.
    #[arg(long, default_value_t = 8)]
    callers: usize,
    /// Leave the gateway and the engines serving afterwards.
    #[arg(long)]
    keep: bool,
}

/// Plays the demo.
pub(crate) fn run(args: Args) -> ExitCode {
    let mut view = View::new();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            view.say(&format!("maitred demo: {error}"));
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(demo(&args, &mut view)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            view.say(&format!("maitred demo: {error}"));
            ExitCode::FAILURE
        }
    }
}

async fn demo(args: &Args, view: &mut View) -> Result<(), String> {
    let config = ServerConfig {
        replicas: ENGINES,
        served_model: MODEL.to_owned(),
        ..ServerConfig::default()
    };
    let length = Duration::from_secs(args.seconds) / 2;
    let mix = Mix {
        agents: args.agents.min(CLIENTS_MAX),
        chats: args.chats.min(CLIENTS_MAX),
        callers: args.callers.min(CLIENTS_MAX),
    };
    introduce(args, mix, &config, view);
    let engines = server::start(config).await.map_err(show)?;
    let mut outcomes: Vec<Outcome> = Vec::new();
    let mut kept = None;
    for policy in [BASELINE, DEFAULT_POLICY] {
        engines.reset_caches();
        // A gateway of its own for each run: nothing that the first one learnt helps the second.
        let gateway = gateway(&engines, policy, args.seed).await?;
        let plan = Plan {
            policy: policy.to_owned(),
            model: MODEL.to_owned(),
            mix,
            seed: args.seed,
            length,
        };
        outcomes.push(play::play(plan, gateway.data, &engines, view).await);
        view.say("");
        if args.keep && policy == DEFAULT_POLICY {
            kept = Some(gateway);
        } else {
            gateway.shutdown(GRACE).await;
        }
    }
    if let [before, after] = outcomes.as_slice() {
        for line in verdict::compare(before, after, length) {
            view.say(&line);
        }
    }
    if let Some(gateway) = kept {
        view.say(&farewell(&gateway));
        tokio::signal::ctrl_c().await.map_err(show)?;
        gateway.shutdown(GRACE).await;
    }
    engines.shutdown().await;
    Ok(())
}

fn introduce(args: &Args, mix: Mix, config: &ServerConfig, view: &mut View) {
    let e = &config.engine;
    view.say(&format!(
        "{ENGINES} simulated engines in real time: {} prompt tokens/s each, {} ms a step and {} ms a sequence,\n  \
         {} sequences at once, {} tokens of KV cache in blocks of {}",
        e.prefill_tokens_per_second,
        e.base_step_ns / 1_000_000,
        e.per_sequence_ns as f64 / 1e6,
        e.slots,
        e.kv_tokens,
        e.block_tokens,
    ));
    view.say(&mix.describe());
    view.say(&format!(
        "Two runs of {} s, the same clients with the same seed ({}):\n",
        args.seconds / 2,
        args.seed
    ));
}

async fn gateway(
    engines: &Engines,
    policy: &str,
    seed: u64,
) -> Result<maitred_gateway::Running, String> {
    let flags = Flags {
        listen: Some(([127, 0, 0, 1], 0).into()),
        admin: Some(([127, 0, 0, 1], 0).into()),
        workers: engines.urls.clone(),
        policy: Some(policy.to_owned()),
        model: Some(MODEL.to_owned()),
        ..Flags::default()
    };
    let mut config = flags.apply(None).map_err(|problems| {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        problems.join("\n")
    })?;
    config.seed = Some(seed);
    for pool in &mut config.pools {
        for worker in &mut pool.workers {
            // They serve already: no run should begin by waiting for probes.
            worker.assume_ready = true;
        }
    }
    maitred_gateway::start(config).await.map_err(show)
}

fn farewell(gateway: &maitred_gateway::Running) -> String {
    let (data, admin) = (gateway.data, gateway.admin);
    format!(
        "\nStill serving, until Ctrl-C:\n  clients    http://{data}/v1\n  operators  http://{admin}\n\n  \
         curl -N http://{data}/v1/chat/completions -H 'content-type: application/json' \\\n    \
         -d '{{\"model\": \"{MODEL}\", \"messages\": [{{\"role\": \"user\", \"content\": \"Good evening\"}}], \"stream\": true}}'\n  \
         curl http://{admin}/workers\n  \
         curl http://{admin}/explain/REQUEST_ID    # x-request-id of an answer (curl -i shows it)"
    )
}

fn show(error: impl Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_run_through_the_gateway_has_answers_and_no_errors() {
        let config = ServerConfig {
            replicas: 2,
            served_model: MODEL.to_owned(),
            speed: 50.0,
            ..ServerConfig::default()
        };
        let engines = server::start(config).await.unwrap();
        let gateway = gateway(&engines, DEFAULT_POLICY, 1).await.unwrap();
        let plan = Plan {
            policy: DEFAULT_POLICY.to_owned(),
            model: MODEL.to_owned(),
            mix: Mix {
                agents: 8,
                chats: 0,
                callers: 4,
            },
            seed: 1,
            length: Duration::from_secs(3),
        };
        let outcome = play::play(plan, gateway.data, &engines, &mut View::new()).await;
        assert_eq!((outcome.score.errors, outcome.score.first_error), (0, None));
        assert!(!outcome.score.samples.is_empty());
        // Cut off means gone from the engines, too.
        assert!(engines.replicas.iter().all(|r| r.metrics().running == 0));
        gateway.shutdown(GRACE).await;
        engines.shutdown().await;
    }
}
