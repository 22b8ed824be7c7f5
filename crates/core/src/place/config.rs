//! Which policy, with which options: names and values as configuration files give them.

use super::{
    Policy, adaptive, cache_aware, chwbl, dualmap, dynamo_cost, least_load, lmetric, pin,
    power_of_two, preble, random, round_robin, scenario, session, smetric, soft_affinity,
    sticky_until_saturated,
};
use crate::line::FairnessConfig;
use alloc::boxed::Box;
use core::time::Duration;

/// A setting's value as a configuration file gives it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptionValue<'a> {
    /// A number; durations are in seconds (`*_seconds`).
    Number(f64),
    /// Text.
    Text(&'a str),
    /// true or false.
    Flag(bool),
}

/// Why a policy's name or option was not taken.
#[derive(Clone, Debug, PartialEq)]
pub enum OptionError {
    /// No such policy; the known names are in [`PolicyConfig::NAMES`].
    UnknownPolicy,
    /// No such fairness policy; the known names are in [`FairnessConfig::NAMES`].
    UnknownFairness,
    /// The policy has no such option; its own are listed.
    UnknownOption(&'static [&'static str]),
    /// The value is of the wrong kind or out of its range, which is said.
    BadValue(&'static str),
}

impl core::fmt::Display for OptionError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::UnknownPolicy => {
                f.write_str("no such policy; known are ")?;
                list(f, PolicyConfig::NAMES)
            }
            Self::UnknownFairness => {
                f.write_str("no such fairness policy; known are ")?;
                list(f, FairnessConfig::NAMES)
            }
            Self::UnknownOption([]) => f.write_str("the policy has no options"),
            Self::UnknownOption(names) => {
                f.write_str("no such option; the policy has ")?;
                list(f, names)
            }
            Self::BadValue(allowed) => write!(f, "must be {allowed}"),
        }
    }
}

impl core::error::Error for OptionError {}

fn list(f: &mut core::fmt::Formatter<'_>, names: &[&str]) -> core::fmt::Result {
    for (index, name) in names.iter().enumerate() {
        if index > 0 {
            f.write_str(", ")?;
        }
        f.write_str(name)?;
    }
    Ok(())
}

/// Which policy, with its options.
#[derive(Clone, Debug, PartialEq)]
pub enum PolicyConfig {
    /// See `adaptive.rs`.
    Adaptive,
    /// See `random.rs`.
    Random,
    /// See `round_robin.rs`.
    RoundRobin,
    /// See `least_load.rs`.
    LeastLoad,
    /// See `power_of_two.rs`.
    PowerOfTwo,
    /// See `session.rs`.
    Session(session::Options),
    /// See `scenario.rs`.
    Scenario(scenario::Options),
    /// See `pin.rs`.
    Pin(pin::Options),
    /// See `soft_affinity.rs`.
    SoftAffinity(soft_affinity::Options),
    /// See `cache_aware.rs`.
    CacheAware(cache_aware::Options),
    /// See `chwbl.rs`.
    Chwbl(chwbl::Options),
    /// See `lmetric.rs`.
    LMetric,
    /// See `sticky_until_saturated.rs`.
    StickyUntilSaturated(sticky_until_saturated::Options),
    /// See `dynamo_cost.rs`.
    DynamoCost(dynamo_cost::Options),
    /// See `smetric.rs`.
    SMetric(smetric::Options),
    /// See `dualmap.rs`.
    DualMap(dualmap::Options),
    /// See `preble.rs`.
    Preble(preble::Options),
}

/// `session`, until a better one exists.
impl Default for PolicyConfig {
    fn default() -> Self {
        Self::Session(session::Options::default())
    }
}

impl PolicyConfig {
    /// Every policy's config name.
    pub const NAMES: &'static [&'static str] = &[
        "adaptive",
        "random",
        "round_robin",
        "least_load",
        "power_of_two",
        "session",
        "scenario",
        "pin",
        "soft_affinity",
        "cache_aware",
        "chwbl",
        "lmetric",
        "sticky_until_saturated",
        "dynamo_cost",
        "smetric",
        "dualmap",
        "preble",
    ];

    /// The policy of that name with its defaults.
    ///
    /// # Errors
    /// [`OptionError::UnknownPolicy`].
    pub fn named(name: &str) -> Result<Self, OptionError> {
        Ok(match name {
            "adaptive" => Self::Adaptive,
            "random" => Self::Random,
            "round_robin" => Self::RoundRobin,
            "least_load" => Self::LeastLoad,
            "power_of_two" => Self::PowerOfTwo,
            "session" => Self::Session(session::Options::default()),
            "scenario" => Self::Scenario(scenario::Options::default()),
            "pin" => Self::Pin(pin::Options::default()),
            "soft_affinity" => Self::SoftAffinity(soft_affinity::Options::default()),
            "cache_aware" => Self::CacheAware(cache_aware::Options::default()),
            "chwbl" => Self::Chwbl(chwbl::Options::default()),
            "lmetric" => Self::LMetric,
            "sticky_until_saturated" => {
                Self::StickyUntilSaturated(sticky_until_saturated::Options::default())
            }
            "dynamo_cost" => Self::DynamoCost(dynamo_cost::Options::default()),
            "smetric" => Self::SMetric(smetric::Options::default()),
            "dualmap" => Self::DualMap(dualmap::Options::default()),
            "preble" => Self::Preble(preble::Options::default()),
            _ => return Err(OptionError::UnknownPolicy),
        })
    }

    /// The config name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Random => "random",
            Self::RoundRobin => "round_robin",
            Self::LeastLoad => "least_load",
            Self::PowerOfTwo => "power_of_two",
            Self::Session(_) => "session",
            Self::Scenario(_) => "scenario",
            Self::Pin(_) => "pin",
            Self::SoftAffinity(_) => "soft_affinity",
            Self::CacheAware(_) => "cache_aware",
            Self::Chwbl(_) => "chwbl",
            Self::LMetric => "lmetric",
            Self::StickyUntilSaturated(_) => "sticky_until_saturated",
            Self::DynamoCost(_) => "dynamo_cost",
            Self::SMetric(_) => "smetric",
            Self::DualMap(_) => "dualmap",
            Self::Preble(_) => "preble",
        }
    }

    /// Sets one option.
    ///
    /// # Errors
    /// [`OptionError::UnknownOption`] or [`OptionError::BadValue`]; nothing is changed then.
    pub fn set(&mut self, option: &str, value: OptionValue<'_>) -> Result<(), OptionError> {
        match self {
            Self::Adaptive
            | Self::Random
            | Self::RoundRobin
            | Self::LeastLoad
            | Self::PowerOfTwo
            | Self::LMetric => Err(OptionError::UnknownOption(&[])),
            Self::Session(options) => options.set(option, value),
            Self::Scenario(options) => options.set(option, value),
            Self::Pin(options) => options.set(option, value),
            Self::SoftAffinity(options) => options.set(option, value),
            Self::CacheAware(options) => options.set(option, value),
            Self::Chwbl(options) => options.set(option, value),
            Self::StickyUntilSaturated(options) => options.set(option, value),
            Self::DynamoCost(options) => options.set(option, value),
            Self::SMetric(options) => options.set(option, value),
            Self::DualMap(options) => options.set(option, value),
            Self::Preble(options) => options.set(option, value),
        }
    }

    /// The policy itself, with fresh state.
    #[must_use]
    pub fn build(&self) -> Box<dyn Policy> {
        match self {
            Self::Adaptive => Box::new(adaptive::Adaptive::default()),
            Self::Random => Box::new(random::Random),
            Self::RoundRobin => Box::new(round_robin::RoundRobin::default()),
            Self::LeastLoad => Box::new(least_load::LeastLoad),
            Self::PowerOfTwo => Box::new(power_of_two::PowerOfTwo),
            Self::Session(o) => Box::new(session::Session::new(o.clone())),
            Self::Scenario(o) => Box::new(scenario::Scenario::new(o.clone())),
            Self::Pin(o) => Box::new(pin::Pin::new(o.clone())),
            Self::SoftAffinity(o) => Box::new(soft_affinity::SoftAffinity::new(o.clone())),
            Self::CacheAware(o) => Box::new(cache_aware::CacheAware::new(o.clone())),
            Self::Chwbl(o) => Box::new(chwbl::Chwbl::new(o.clone())),
            Self::LMetric => Box::new(lmetric::LMetric),
            Self::StickyUntilSaturated(o) => {
                Box::new(sticky_until_saturated::StickyUntilSaturated::new(o.clone()))
            }
            Self::SMetric(o) => Box::new(smetric::SMetric::new(o.clone())),
            Self::DualMap(o) => Box::new(dualmap::DualMap::new(o.clone())),
            Self::Preble(o) => Box::new(preble::Preble::new(o.clone())),
            Self::DynamoCost(o) => Box::new(dynamo_cost::DynamoCost::new(o.clone())),
        }
    }
}

/// A number from `low` to `high`; `allowed` says so in words.
pub(crate) fn number(
    value: OptionValue<'_>,
    low: f64,
    high: f64,
    allowed: &'static str,
) -> Result<f64, OptionError> {
    match value {
        OptionValue::Number(n) if (low..=high).contains(&n) => Ok(n),
        _ => Err(OptionError::BadValue(allowed)),
    }
}

/// A whole number from 1 to 1,000,000.
pub(crate) fn whole(value: OptionValue<'_>) -> Result<u32, OptionError> {
    const ALLOWED: &str = "a whole number from 1 to 1000000";
    let n = number(value, 1.0, 1e6, ALLOWED)?;
    if libm::floor(n) < n {
        return Err(OptionError::BadValue(ALLOWED));
    }
    Ok(n as u32)
}

/// A time in seconds, up to a day.
pub(crate) fn seconds(value: OptionValue<'_>) -> Result<Duration, OptionError> {
    number(value, 0.0, 86_400.0, "seconds from 0 to 86400").map(Duration::from_secs_f64)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{OptionError, OptionValue, PolicyConfig};
    use alloc::string::ToString;
    use core::time::Duration;

    #[test]
    fn every_name_makes_its_policy() {
        for name in PolicyConfig::NAMES {
            let config = PolicyConfig::named(name).unwrap();
            assert_eq!(config.name(), *name);
            assert_eq!(config.build().name(), *name);
        }
        let error = PolicyConfig::named("roundrobin").unwrap_err();
        assert_eq!(error, OptionError::UnknownPolicy);
        let said = error.to_string();
        assert!(said.contains("soft_affinity, cache_aware, chwbl"), "{said}");
    }

    #[test]
    fn options_are_taken_checked_and_named() {
        let good: &[(&str, &str, f64)] = &[
            ("session", "bound", 1.5),
            ("session", "floor", 2.0),
            ("session", "session_floor", 3.0),
            ("session", "escape", 3.0),
            ("session", "hold_seconds", 0.25),
            ("scenario", "size", 2.0),
            ("scenario", "growth", 2.0),
            ("scenario", "half_life_seconds", 30.0),
            ("pin", "hold_seconds", 5.0),
            ("soft_affinity", "idle_seconds", 60.0),
            ("soft_affinity", "hold_seconds", 0.0),
            ("cache_aware", "cache_threshold", 0.5),
            ("cache_aware", "balance_abs_threshold", 32.0),
            ("cache_aware", "balance_rel_threshold", 1.1),
            ("chwbl", "load_factor", 1.5),
            ("chwbl", "floor", 1.0),
            ("chwbl", "replication", 64.0),
            ("sticky_until_saturated", "affinity_threshold", 0.5),
            ("sticky_until_saturated", "max_ttft_penalty_seconds", 5.0),
            ("sticky_until_saturated", "prefill_tokens_per_second", 16e3),
            ("sticky_until_saturated", "exploration", 0.01),
            ("dynamo_cost", "overlap_credit", 0.5),
            ("dynamo_cost", "prefill_scale", 2.0),
            ("dynamo_cost", "temperature", 0.5),
            ("smetric", "slo_seconds", 1.0),
            ("smetric", "slack", 0.5),
            ("smetric", "retained", 0.9),
            ("smetric", "prefill_tokens_per_second", 16e3),
            ("dualmap", "slo_seconds", 1.0),
            ("dualmap", "prefill_tokens_per_second", 16e3),
            ("preble", "window_seconds", 60.0),
            ("preble", "balance_threshold", 2.0),
        ];
        for (policy, option, value) in good {
            let mut config = PolicyConfig::named(policy).unwrap();
            config.set(option, OptionValue::Number(*value)).unwrap();
            assert_ne!(
                config,
                PolicyConfig::named(policy).unwrap(),
                "{policy} {option}"
            );
            let before = config.clone();
            for bad in [
                OptionValue::Number(-1.0),
                OptionValue::Number(f64::NAN),
                OptionValue::Number(1e12),
                OptionValue::Text("2"),
                OptionValue::Flag(true),
            ] {
                let error = config.set(option, bad).unwrap_err();
                assert!(matches!(error, OptionError::BadValue(_)));
            }
            assert_eq!(config, before);
        }
        let mut config = PolicyConfig::named("soft_affinity").unwrap();
        let error = config.set("idle", OptionValue::Number(1.0)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no such option; the policy has idle_seconds, hold_seconds"
        );
        let mut config = PolicyConfig::LeastLoad;
        let error = config.set("hold", OptionValue::Flag(true)).unwrap_err();
        assert_eq!(error.to_string(), "the policy has no options");
        assert_eq!(
            super::seconds(OptionValue::Number(1.5)),
            Ok(Duration::from_millis(1_500))
        );
        assert!(super::whole(OptionValue::Number(1.5)).is_err());
    }
}
