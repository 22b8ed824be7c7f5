//! The cases of the bench and how one is measured.

use std::time::Duration;

use crate::bodies::{Shape, Talk, generate};
use crate::load::{Pace, drive};
use crate::process::{cpu_time, resident};
use crate::targets::{MAITRED, TOKENS, Target};

/// Connections of the closed loop.
const CONNECTIONS: usize = 16;
/// Connections of the streams, which mostly wait for the engine's next chunk.
const STREAMS: usize = 32;

/// Most memory for the bodies of a case.
const BODIES_MAX_BYTES: usize = 64 << 20;

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    /// Requests of each round and target.
    pub(crate) count: usize,
    /// Connections.
    connections: usize,
    /// Requests per second over all connections; a closed loop where there is none.
    rate: Option<f64>,
    /// Whose CPU time per request is held against whose in the same round.
    pub(crate) versus: Versus,
    /// Most CPU time per request, as a multiple of the other's; none: no target.
    pub(crate) ratio_most: Option<f64>,
}

/// The name of one target, measured against another's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Versus {
    pub(crate) own: &'static str,
    pub(crate) base: &'static str,
}

const NGINX: Versus = Versus {
    own: MAITRED,
    base: "nginx",
};

const fn chat(size: usize) -> Shape {
    Shape {
        size,
        max_tokens: 1,
        stream: false,
        next_turn: false,
    }
}

/// The cases, each size under two loads with the same target: at a rate at which a proxy wakes up for
/// nearly each request, as it does in front of real engines, and in a closed loop, where it finds
/// several requests at each wake-up.
pub(crate) const CASES: [Case; 7] = [
    paced("1 KiB chat, 1000/s", 1 << 10, 1_000.0, 2.2),
    paced("32 KiB chat, 500/s", 32 << 10, 500.0, 3.0),
    paced("256 KiB chat, 150/s", 256 << 10, 150.0, 2.5),
    Case {
        name: "stream of 64 chunks",
        shape: Shape {
            size: 1024,
            max_tokens: 64,
            stream: true,
            next_turn: false,
        },
        count: 1_500,
        connections: STREAMS,
        rate: None,
        versus: NGINX,
        ratio_most: Some(1.5),
    },
    saturated("1 KiB chat, closed loop", 1 << 10, 20_000, 2.2),
    saturated("32 KiB chat, closed loop", 32 << 10, 10_000, 3.0),
    saturated("256 KiB chat, closed loop", 256 << 10, 2_000, 2.5),
];

/// Prompts known by their tokens against prompts known by their bytes, both through the gateway.
pub(crate) const IDENTITY: [Case; 2] = [
    in_tokens(paced("32 KiB next turn, 500/s", 32 << 10, 500.0, 2.0)),
    in_tokens(saturated(
        "32 KiB next turn, closed loop",
        32 << 10,
        10_000,
        2.0,
    )),
];

/// So many conversations take turns that each comes back while its texts are remembered.
const CONVERSATIONS: usize = 64;

const fn in_tokens(case: Case) -> Case {
    Case {
        shape: Shape {
            next_turn: true,
            ..case.shape
        },
        versus: Versus {
            own: TOKENS,
            base: MAITRED,
        },
        ..case
    }
}

const fn saturated(name: &'static str, size: usize, count: usize, ratio_most: f64) -> Case {
    Case {
        name,
        shape: chat(size),
        count,
        connections: CONNECTIONS,
        rate: None,
        versus: NGINX,
        ratio_most: Some(ratio_most),
    }
}

/// Four seconds a round.
const fn paced(name: &'static str, size: usize, rate: f64, ratio_most: f64) -> Case {
    Case {
        rate: Some(rate),
        ..saturated(name, size, rate as usize * 4, ratio_most)
    }
}

/// What one round of one target gave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// CPU time of the proxy per request in milliseconds; none for the engines themselves.
    pub(crate) cpu_ms: Option<f64>,
    /// Median of the whole time in milliseconds.
    pub(crate) p50_ms: f64,
    /// Requests per second.
    pub(crate) rate: f64,
    /// Chunks per answer.
    pub(crate) chunks: f64,
}

/// All samples of a case: `samples[target][round]`.
pub(crate) type Samples = Vec<Vec<Sample>>;

/// The load of this bench: bodies and the numbers that make their texts distinct.
#[derive(Debug, Default)]
pub(crate) struct Source {
    nonce: u64,
}

impl Source {
    /// CPU time per request, under a closed loop or at a rate in all, in rounds that take the
    /// targets in turn.
    pub(crate) fn cpu(
        &mut self,
        case: &Case,
        scale: f64,
        rounds: usize,
        targets: &[Target],
    ) -> Result<Samples, String> {
        let count = scaled(case.count, scale);
        // Each use of a body makes its text distinct anew, so memory can bound their number.
        let bodies = if case.shape.next_turn {
            CONVERSATIONS
        } else {
            count.min(BODIES_MAX_BYTES / case.shape.size)
        };
        let mut talks = generate(case.shape, bodies, 1 + case.count as u64);
        let mut samples: Samples = vec![Vec::new(); targets.len()];
        let warmth = Pace {
            connections: case.connections,
            count: count / 10 + 1,
            rate: None,
        };
        for target in targets {
            self.load(target, &mut talks, warmth)?;
        }
        let rate = case.rate.map(|rate| rate / case.connections as f64);
        let pace = Pace {
            count,
            rate,
            ..warmth
        };
        for round in 0..rounds {
            for step in 0..targets.len() {
                // Each round starts with another target, so that no place in the order is favoured.
                let index = (round + step) % targets.len();
                samples[index].push(self.load(&targets[index], &mut talks, pace)?);
            }
        }
        Ok(samples)
    }

    /// Latency at a low fixed rate on one connection, in rounds that take the targets in turn.
    pub(crate) fn paced(
        &mut self,
        scale: f64,
        rounds: usize,
        targets: &[Target],
    ) -> Result<Samples, String> {
        let mut talks = generate(CASES[0].shape, 1_000, 77);
        let mut samples: Samples = vec![Vec::new(); targets.len()];
        let pace = Pace {
            connections: 1,
            count: scaled(400, scale),
            rate: Some(100.0),
        };
        for round in 0..rounds {
            for step in 0..targets.len() {
                let index = (round + step) % targets.len();
                samples[index].push(self.load(&targets[index], &mut talks, pace)?);
            }
        }
        Ok(samples)
    }

    /// Growth of resident memory in bytes over `count` distinct prompts of 1 KiB.
    pub(crate) fn memory(&mut self, count: usize, target: &Target) -> Result<Growth, String> {
        let pid = target.pid.ok_or("no process")?;
        let before = resident(pid)?;
        let mut talks = generate(CASES[0].shape, 20_000, 99);
        let pace = Pace {
            connections: CONNECTIONS,
            count: count / 4,
            rate: None,
        };
        let mut steps = Vec::new();
        for _ in 0..4 {
            self.load(target, &mut talks, pace)?;
            steps.push(resident(pid)?.saturating_sub(before));
        }
        Ok(Growth { before, steps })
    }

    fn load(
        &mut self,
        target: &Target,
        talks: &mut Vec<Talk>,
        pace: Pace,
    ) -> Result<Sample, String> {
        let cpu = |target: &Target| target.pid.map(cpu_time).transpose();
        let before = cpu(target)?;
        let run = drive(target.addr, talks, pace, &mut self.nonce)?;
        let after = cpu(target)?;
        if run.other > 0 {
            return Err(format!(
                "{}: {} of {} not 200",
                target.name, run.other, pace.count
            ));
        }
        let per_request = |spent: Duration| spent.as_secs_f64() * 1e3 / run.ok as f64;
        let spent = before
            .zip(after)
            .map(|(before, after)| after.saturating_sub(before));
        Ok(Sample {
            cpu_ms: spent.map(per_request),
            p50_ms: run.latency_ms(0.5),
            rate: run.ok as f64 / run.wall.as_secs_f64(),
            chunks: run.chunks as f64 / run.ok as f64,
        })
    }
}

/// Resident memory before and its growth after each quarter of the requests.
#[derive(Debug)]
pub(crate) struct Growth {
    pub(crate) before: u64,
    pub(crate) steps: Vec<u64>,
}

fn scaled(count: usize, scale: f64) -> usize {
    ((count as f64 * scale) as usize).max(CONNECTIONS)
}
