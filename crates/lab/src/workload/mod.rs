//! Synthetic traffic, each kind in its file with its numbers at the top. All of it follows from options and a seed.

mod agents;
mod burst;
mod chat;
mod draw;
mod loss;
mod shared;
mod talk;
#[cfg(test)]
mod tests;
mod whale;

use crate::plan::Plan;
use crate::sim::{EngineKind, FleetEvent};

/// The kinds, with a line on each.
pub const KINDS: &[(&str, &str)] = &[
    (
        "chat",
        "conversations of a few turns with time to read between them, one common instruction",
    ),
    (
        "shared",
        "many instructions of unequal popularity (Zipf), short conversations below each",
    ),
    (
        "agents",
        "coding agents: one long common opening, many turns a few seconds apart, sub-agents",
    ),
    (
        "whale",
        "one tenant with many deep conversations at once, and newcomers of others",
    ),
    ("burst", "chat whose arrivals come in bursts"),
    (
        "loss",
        "chat while replicas restart, get lost and are added",
    ),
];

/// A generator with its options; all options are numbers.
pub trait Generator {
    /// Names and places of its options.
    fn options(&mut self) -> Vec<(&'static str, &mut f64)>;

    /// The traffic. With a `factor` there is so many times more of it, over the same time: more sessions, and more of
    /// them a second.
    fn plan(&self, block_tokens: u32, seed: u64, factor: f64) -> Plan;

    /// What happens to the fleet, at which share of the plan's length.
    fn fleet(&self, _worker: &EngineKind) -> Vec<(f64, FleetEvent)> {
        Vec::new()
    }
}

/// The generator of that name; options after colons: `chat:sessions=200:turns=8`.
///
/// # Errors
/// No such kind or option, or a value that is no number of at least 0.
pub fn named(spec: &str) -> Result<Box<dyn Generator + Send + Sync>, String> {
    let mut parts = spec.split(':');
    let name = parts.next().unwrap_or_default();
    let mut generator: Box<dyn Generator + Send + Sync> = match name {
        "chat" => Box::<chat::Chat>::default(),
        "shared" => Box::<shared::Shared>::default(),
        "agents" => Box::<agents::Agents>::default(),
        "whale" => Box::<whale::Whale>::default(),
        "burst" => Box::<burst::Burst>::default(),
        "loss" => Box::<loss::Loss>::default(),
        _ => {
            let known: Vec<&str> = KINDS.iter().map(|(name, _)| *name).collect();
            return Err(format!(
                "{name}: no such workload; known are {}",
                known.join(", ")
            ));
        }
    };
    for part in parts {
        let (option, value) = (part.split_once('='))
            .ok_or_else(|| format!("{name}: {part}: must be option=value"))?;
        let value: f64 = (value.parse().ok())
            .filter(|value: &f64| value.is_finite() && *value >= 0.0)
            .ok_or_else(|| format!("{name}: {option}: must be a number of at least 0"))?;
        let mut options = generator.options();
        let Some((_, place)) = options.iter_mut().find(|(known, _)| *known == option) else {
            let known: Vec<&str> = options.iter().map(|(known, _)| *known).collect();
            return Err(format!(
                "{name}: {option}: no such option; it has {}",
                known.join(", ")
            ));
        };
        **place = value;
    }
    Ok(generator)
}
