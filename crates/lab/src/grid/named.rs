//! Policies and fleet events as people write them on a command line.

use std::time::Duration;

use maitred_core::line::FairnessConfig;
use maitred_core::place::{OptionError, OptionValue, PolicyConfig};
use maitred_core::time::Nanos;

use crate::sim::{EngineKind, FleetEvent, Service};

fn options(
    spec: &str,
    mut set: impl FnMut(&str, OptionValue<'_>) -> Result<(), OptionError>,
) -> Result<(), String> {
    for part in spec.split(':').skip(1) {
        let wrong = |error: &dyn std::fmt::Display| format!("{spec}: {part}: {error}");
        let (option, text) =
            (part.split_once('=')).ok_or_else(|| wrong(&"must be option=value"))?;
        let value = match (text.parse(), text) {
            (Ok(number), _) => OptionValue::Number(number),
            (_, "true") => OptionValue::Flag(true),
            (_, "false") => OptionValue::Flag(false),
            _ => OptionValue::Text(text),
        };
        set(option, value).map_err(|error| wrong(&error))?;
    }
    Ok(())
}

fn name(spec: &str) -> &str {
    spec.split(':').next().unwrap_or_default()
}

/// `session`, or with options `cache_aware:cache_threshold=0.5`.
///
/// # Errors
/// No such policy or option, or a value that it does not take.
pub fn placement(spec: &str) -> Result<PolicyConfig, String> {
    let mut config = PolicyConfig::named(name(spec)).map_err(|error| format!("{spec}: {error}"))?;
    options(spec, |option, value| config.set(option, value))?;
    Ok(config)
}

/// `promise`, or with options `promise:new_share=0.3`.
///
/// # Errors
/// As [`placement`].
pub fn fairness(spec: &str) -> Result<FairnessConfig, String> {
    let mut config =
        FairnessConfig::named(name(spec)).map_err(|error| format!("{spec}: {error}"))?;
    options(spec, |option, value| config.set(option, value))?;
    Ok(config)
}

/// `lose:3@120` (worker 3, at 120 s), `drain:3@120`, `restart:3@120+30` (back 30 s later), `join@120`.
///
/// # Errors
/// Says what it should look like.
pub fn fleet_event(spec: &str) -> Result<(Nanos, FleetEvent), String> {
    let form = "must be lose:WORKER@SECONDS, drain:WORKER@SECONDS, restart:WORKER@SECONDS+SECONDS or join@SECONDS";
    let wrong = || format!("{spec}: {form}");
    let seconds = |text: &str| -> Result<Duration, String> {
        let value: f64 = text.parse().map_err(|_| wrong())?;
        Duration::try_from_secs_f64(value).map_err(|_| wrong())
    };
    let (what, when) = spec.split_once('@').ok_or_else(wrong)?;
    let (at, down) = match when.split_once('+') {
        Some((at, down)) => (seconds(at)?, Some(seconds(down)?)),
        None => (seconds(when)?, None),
    };
    let (kind, worker) = match what.split_once(':') {
        Some((kind, worker)) => (kind, Some(worker.parse().map_err(|_| wrong())?)),
        None => (what, None),
    };
    let event = match (kind, worker, down) {
        ("lose", Some(worker), None) => FleetEvent::Lose(worker),
        ("drain", Some(worker), None) => FleetEvent::Drain(worker),
        ("restart", Some(worker), Some(down)) => FleetEvent::Restart(worker, down),
        // What joins is one more of the others: the grid puts it in.
        ("join", None, None) => FleetEvent::Join(EngineKind::Seats {
            slots: 1,
            service: Service::Fixed(Duration::ZERO),
            block_tokens: 1,
            kv_tokens: 0,
        }),
        _ => return Err(wrong()),
    };
    Ok((Nanos::default() + at, event))
}
