//! `maitred simulate`: placement x fairness x load x seeds over one workload.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use maitred_core::line::FairnessConfig;
use maitred_core::place::PolicyConfig;
use maitred_enginesim::model;
use maitred_lab::grid::{self, Axes, Cell, FRONTIER_LEGEND, LEGEND, Room, Slo, table};
use maitred_lab::plan::{Manners, Plan};
use maitred_lab::report;
use maitred_lab::sim::{EngineKind, Reports};
use maitred_lab::trace::{self, PlanReader};
use maitred_lab::workload::{self, KINDS};
use serde_json::json;

use super::progress::Progress;
use crate::trace::{ArrivalsArgs, ReadingArgs};

/// What is played, under which policies, and where.
#[derive(Debug, clap::Args)]
pub(super) struct GridArgs {
    /// Synthetic traffic, with options after colons (`chat:sessions=800:turns=8`); `--workloads` lists them.
    #[arg(long, value_name = "KIND", default_value = "chat")]
    workload: String,
    /// List the kinds of synthetic traffic with their options and leave.
    #[arg(long)]
    workloads: bool,
    /// Play a trace instead (`maitred trace stats` says what it is like). A load other than its own moves its times.
    #[arg(long, value_name = "FILE", conflicts_with = "workload")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    reading: ReadingArgs,
    #[command(flatten)]
    arrivals: ArrivalsArgs,
    /// Placement policies, with options after colons (`cache_aware:cache_threshold=0.5`); all where none is named.
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    placement: Vec<String>,
    /// Fairness policies, with options after colons (`promise:new_share=0.3`).
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', default_value = FairnessConfig::default().name())]
    fairness: Vec<String>,
    /// Offered loads: there is so much more or less of the traffic that the engines could just serve it all at 1, with
    /// every reuse and full batches. Where none is given, the traffic as it stands.
    #[arg(long, value_name = "X,..", value_delimiter = ',', value_parser = super::load)]
    load: Vec<f64>,
    /// Seeds of traffic and choices.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1")]
    seed: Vec<u64>,
    /// So many seeds, from 1, instead of --seed.
    #[arg(long, value_name = "COUNT", conflicts_with = "seed")]
    seeds: Option<u64>,
    #[command(flatten)]
    room: RoomArgs,
    /// Simulations at once; as many as the machine has cores where it is not given. Changes no result.
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
    /// Print JSON, every cell by itself, instead of the table.
    #[arg(long)]
    json: bool,
    /// Who goes next: `promise` with different shares, floors and bounds beside every other fairness policy, and what
    /// newcomers and follow-ups get. The placement is the default where none is named.
    #[arg(long, conflicts_with = "fairness")]
    frontier: bool,
    /// Also print how every placement differs from this one, seed by seed, and whether that is more than noise.
    #[arg(long, value_name = "NAME")]
    against: Option<String>,
    /// Write a page with drawings to a file as well: no script, nothing from the network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the same JSON to a file as well.
    #[arg(long, value_name = "FILE")]
    json_file: Option<PathBuf>,
}

/// Workers, what is heard of them, and how clients behave.
#[derive(Debug, clap::Args)]
pub(super) struct RoomArgs {
    /// Workers.
    #[arg(long, value_name = "COUNT", default_value_t = Room::default().workers)]
    workers: u32,
    /// Requests that a worker runs at once.
    #[arg(long, value_name = "COUNT", default_value_t = model::Config::default().slots)]
    slots: usize,
    /// Tokens that a worker's KV memory holds.
    #[arg(long, value_name = "TOKENS", default_value_t = model::Config::default().kv_tokens)]
    kv_tokens: usize,
    /// Tokens that one step of a worker computes at most.
    #[arg(long, value_name = "TOKENS", default_value_t = model::Config::default().max_batch_tokens)]
    batch_tokens: usize,
    /// Prompt tokens that a worker computes in a second.
    #[arg(long, value_name = "TOKENS", default_value_t = model::Config::default().prefill_tokens_per_second)]
    prefill_rate: u64,
    /// Fixed time of a step, microseconds.
    #[arg(long, value_name = "US", default_value_t = model::Config::default().base_step_ns / 1_000)]
    step_us: u64,
    /// Time that each running request adds to a step, microseconds.
    #[arg(long, value_name = "US", default_value_t = model::Config::default().per_sequence_ns / 1_000)]
    sequence_us: u64,
    /// Tokens in a block of synthetic traffic; traces bring their own.
    #[arg(long, value_name = "TOKENS", default_value_t = model::Config::default().block_tokens as u32, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    block_tokens: u32,
    /// Between two looks at the workers' gauges, milliseconds; 0: nobody looks.
    #[arg(long, value_name = "MS", default_value_t = 500)]
    report_every: u64,
    /// How old what was seen is when the scheduler hears of it, milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 50)]
    staleness: u64,
    /// Workers send KV events, which are so many milliseconds old when they are heard.
    #[arg(long, value_name = "MS")]
    kv_events: Option<u64>,
    /// What happens to workers: lose:3@120, drain:3@120, restart:3@120+30 (back 30 s later), join@120.
    #[arg(long, value_name = "EVENT,..", value_delimiter = ',')]
    fleet: Vec<String>,
    /// How often a refused or failed request is sent again; after that its session ends.
    #[arg(long, value_name = "COUNT", default_value_t = Manners::default().retries)]
    retries: u32,
    /// Clients leave when no token came for so many seconds.
    #[arg(long, value_name = "SECONDS")]
    patience: Option<u64>,
    /// The longest wait in the line, seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = Room::default().max_wait.as_secs())]
    max_wait: u64,
    /// A good answer's first token comes within so many seconds,
    #[arg(long, value_name = "SECONDS", default_value_t = Slo::default().ttft)]
    slo_ttft: f64,
    /// and so many more for each thousand prompt tokens,
    #[arg(long, value_name = "SECONDS", default_value_t = Slo::default().ttft_per_thousand)]
    slo_ttft_per_thousand: f64,
    /// and each later token within so many, on average.
    #[arg(long, value_name = "SECONDS", default_value_t = Slo::default().tpot)]
    slo_tpot: f64,
    /// Requests of the first so many seconds are played but not counted.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    warm_up: u64,
}

impl RoomArgs {
    pub(super) fn room(&self) -> Result<Room, String> {
        let fleet: Result<Vec<_>, String> = self
            .fleet
            .iter()
            .map(|event| grid::fleet_event(event))
            .collect();
        let reports = (self.report_every > 0).then(|| Reports {
            every: Duration::from_millis(self.report_every),
            delay: Duration::from_millis(self.staleness),
        });
        Ok(Room {
            workers: self.workers,
            engine: model::Config {
                block_tokens: self.block_tokens as usize,
                kv_tokens: self.kv_tokens,
                slots: self.slots.max(1),
                max_batch_tokens: self.batch_tokens.max(1),
                prefill_tokens_per_second: self.prefill_rate.max(1),
                base_step_ns: self.step_us.saturating_mul(1_000),
                per_sequence_ns: self.sequence_us.saturating_mul(1_000),
                ..model::Config::default()
            },
            reports,
            kv_events: self.kv_events.map(Duration::from_millis),
            fleet: fleet?,
            fleet_shares: Vec::new(),
            manners: Manners {
                retries: self.retries,
                patience: self.patience.map(Duration::from_secs),
            },
            slo: Slo {
                ttft: self.slo_ttft,
                ttft_per_thousand: self.slo_ttft_per_thousand,
                tpot: self.slo_tpot,
            },
            warm_up: Duration::from_secs(self.warm_up),
            max_wait: Duration::from_secs(self.max_wait),
        })
    }
}

impl GridArgs {
    fn axes(&self) -> Result<Axes, String> {
        let named: Vec<String> = if self.placement.is_empty() && self.frontier {
            vec![PolicyConfig::default().name().to_owned()]
        } else if self.placement.is_empty() {
            PolicyConfig::NAMES
                .iter()
                .map(|name| (*name).to_owned())
                .collect()
        } else {
            self.placement.clone()
        };
        let placements: Result<Vec<_>, String> = named
            .into_iter()
            .map(|spec| Ok((spec.clone(), grid::placement(&spec)?)))
            .collect();
        let fairness = if self.frontier {
            grid::frontier()
        } else {
            self.fairness.clone()
        };
        let fairness: Result<Vec<_>, String> = (fairness.iter())
            .map(|spec| Ok((spec.clone(), grid::fairness(spec)?)))
            .collect();
        let loads = if self.load.is_empty() {
            vec![None]
        } else {
            self.load.iter().copied().map(Some).collect()
        };
        let seeds = match self.seeds {
            Some(count) => (1..=count.max(1)).collect(),
            None => self.seed.clone(),
        };
        Ok(Axes {
            placements: placements?,
            fairness: fairness?,
            loads,
            seeds,
        })
    }
}

pub(super) fn run(args: &GridArgs) -> Result<String, String> {
    if args.workloads {
        return Ok(kinds());
    }
    let mut room = args.room.room()?;
    let axes = args.axes()?;
    checked(args, &axes)?;
    let what = match &args.trace {
        Some(path) => path.display().to_string(),
        None => args.workload.clone(),
    };
    let cells = match &args.trace {
        Some(path) => {
            let trace = Trace::read(path, args)?;
            play(
                &|seed, factor| trace.plan(seed, factor),
                &room,
                &axes,
                args.threads,
            )?
        }
        None => {
            let generator = workload::named(&args.workload)?;
            room.fleet_shares = generator.fleet(&EngineKind::Batch(room.engine.clone()));
            let block_tokens = args.room.block_tokens;
            let source = |seed, factor| generator.plan(block_tokens, seed, factor);
            play(&source, &room, &axes, args.threads)?
        }
    };
    let as_json = || format!("{:#}\n", json!({ "workload": what, "cells": cells }));
    let write = |path: &PathBuf, text: String| {
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    if let Some(path) = &args.json_file {
        write(path, as_json())?;
    }
    if let Some(path) = &args.html {
        let mut command: Vec<String> = std::env::args().collect();
        if let Some(name) = command.first_mut() {
            "maitred".clone_into(name);
        }
        write(path, report::page(&what, &command.join(" "), &cells))?;
    }
    Ok(if args.json {
        as_json()
    } else if args.frontier {
        format!("{}\n{FRONTIER_LEGEND}", grid::frontier_table(&cells))
    } else {
        let against = args.against.as_ref();
        let paired = against.map(|name| format!("{}\n", grid::paired_table(&cells, name)));
        format!("{}\n{}{LEGEND}", table(&cells), paired.unwrap_or_default())
    })
}

/// A trace that is played.
struct Trace {
    reader: PlanReader,
    block_tokens: u32,
}

impl Trace {
    fn read(path: &Path, args: &GridArgs) -> Result<Self, String> {
        let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let mut reader = args.arrivals.reader();
        let lines = trace::open(path).map_err(|error| told(&error))?;
        let reading = args.reading.reading();
        let format = args.reading.format;
        let (_, block_tokens) = trace::read(lines, format, &reading, &mut |row| reader.take(row))
            .map_err(|error| told(&error))?;
        if reader.left_out() > 0 {
            let _ = writeln!(
                std::io::stderr(),
                "{} requests are left out",
                reader.left_out()
            );
        }
        Ok(Self {
            reader,
            block_tokens,
        })
    }

    fn plan(&self, seed: u64, factor: f64) -> Plan {
        let mut plan = self.reader.plan(self.block_tokens, seed);
        plan.stretch(1.0 / factor);
        plan
    }
}

/// The placement that others are compared with must be among them.
fn checked(args: &GridArgs, axes: &Axes) -> Result<(), String> {
    match &args.against {
        Some(name) if !axes.placements.iter().any(|(known, _)| known == name) => Err(format!(
            "--against {name}: must be one of the placements that are played"
        )),
        _ => Ok(()),
    }
}

fn play(
    source: &grid::Source<'_>,
    room: &Room,
    axes: &Axes,
    threads: Option<usize>,
) -> Result<Vec<Cell>, String> {
    let threads = threads
        .or_else(|| std::thread::available_parallelism().ok().map(usize::from))
        .unwrap_or(1);
    let progress = Progress::new(axes.cells());
    progress.show(0, "");
    let watch = |done: usize, _: usize, cell: &Cell| {
        let what = format!(
            "{} {} at load {:.2}",
            cell.placement, cell.fairness, cell.load
        );
        progress.show(done, &what);
    };
    let cells = grid::play(source, room, axes, threads, &watch).map_err(|error| error.to_string());
    progress.clear();
    cells
}

fn kinds() -> String {
    let mut text = Vec::new();
    for (name, what) in KINDS {
        // A vector takes all that is written.
        let _ = writeln!(text, "{name}: {what}");
        if let Ok(mut generator) = workload::named(name) {
            let options: Vec<String> = (generator.options().iter())
                .map(|(option, value)| format!("{option}={value}"))
                .collect();
            let _ = writeln!(text, "    {}", options.join(" "));
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}
