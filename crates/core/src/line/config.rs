//! Which fairness, with which options: names and values as configuration files give them.

use super::{dlpm, las, promise, turn_priority, vtc};
use crate::place::{OptionError, OptionValue};

/// Which fairness policy, with its options.
#[derive(Clone, Debug, PartialEq)]
pub enum FairnessConfig {
    /// See `fcfs.rs`.
    Fcfs,
    /// See `round_robin.rs`.
    RoundRobin,
    /// See `las.rs`.
    Las(las::Options),
    /// See `turn_priority.rs`.
    TurnPriority(turn_priority::Options),
    /// See `vtc.rs`.
    Vtc(vtc::Options),
    /// See `dlpm.rs`.
    Dlpm(dlpm::Options),
    /// See `promise.rs`.
    Promise(promise::Options),
}

impl Default for FairnessConfig {
    fn default() -> Self {
        Self::Promise(promise::Options::default())
    }
}

impl FairnessConfig {
    /// Every fairness policy's config name.
    pub const NAMES: &'static [&'static str] = &[
        "fcfs",
        "round_robin",
        "las",
        "turn_priority",
        "vtc",
        "dlpm",
        "promise",
    ];

    /// The one of that name with its defaults.
    ///
    /// # Errors
    /// [`OptionError::UnknownFairness`].
    pub fn named(name: &str) -> Result<Self, OptionError> {
        Ok(match name {
            "fcfs" => Self::Fcfs,
            "round_robin" => Self::RoundRobin,
            "las" => Self::Las(las::Options::default()),
            "turn_priority" => Self::TurnPriority(turn_priority::Options::default()),
            "vtc" => Self::Vtc(vtc::Options::default()),
            "dlpm" => Self::Dlpm(dlpm::Options::default()),
            "promise" => Self::Promise(promise::Options::default()),
            _ => return Err(OptionError::UnknownFairness),
        })
    }

    /// The config name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Fcfs => "fcfs",
            Self::RoundRobin => "round_robin",
            Self::Las(_) => "las",
            Self::TurnPriority(_) => "turn_priority",
            Self::Vtc(_) => "vtc",
            Self::Dlpm(_) => "dlpm",
            Self::Promise(_) => "promise",
        }
    }

    /// Sets one option.
    ///
    /// # Errors
    /// [`OptionError::UnknownOption`] or [`OptionError::BadValue`]; nothing is changed then.
    pub fn set(&mut self, option: &str, value: OptionValue<'_>) -> Result<(), OptionError> {
        match self {
            Self::Fcfs | Self::RoundRobin => Err(OptionError::UnknownOption(&[])),
            Self::Las(options) => options.set(option, value),
            Self::TurnPriority(options) => options.set(option, value),
            Self::Vtc(options) => options.set(option, value),
            Self::Dlpm(options) => options.set(option, value),
            Self::Promise(options) => options.set(option, value),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{FairnessConfig, OptionError, OptionValue};
    use alloc::string::ToString;

    #[test]
    fn every_name_makes_its_policy() {
        for name in FairnessConfig::NAMES {
            assert_eq!(FairnessConfig::named(name).unwrap().name(), *name);
        }
        assert_eq!(FairnessConfig::default().name(), "promise");
        let error = FairnessConfig::named("fifo").unwrap_err();
        assert!(error.to_string().contains("turn_priority, vtc"));
    }

    #[test]
    fn options_are_taken_checked_and_named() {
        let good: &[(&str, &str, f64)] = &[
            ("las", "service_weight", 0.5),
            ("las", "age_weight", 0.5),
            ("las", "half_life_seconds", 30.0),
            ("turn_priority", "aging_per_second", 0.5),
            ("vtc", "input_weight", 2.0),
            ("vtc", "output_weight", 3.0),
            ("dlpm", "quantum_tokens", 512.0),
            ("promise", "new_share", 0.3),
            ("promise", "new_share_floor", 0.1),
            ("promise", "start_within_seconds", 5.0),
            ("promise", "continue_within_seconds", 20.0),
            ("promise", "max_passes", 4.0),
            ("promise", "quantile", 0.5),
        ];
        for (policy, option, value) in good {
            let mut config = FairnessConfig::named(policy).unwrap();
            config.set(option, OptionValue::Number(*value)).unwrap();
            let plain = FairnessConfig::named(policy).unwrap();
            assert_ne!(config, plain, "{policy} {option}");
            for bad in [
                OptionValue::Number(-1.0),
                OptionValue::Number(f64::NAN),
                OptionValue::Text("2"),
            ] {
                let before = config.clone();
                let error = config.set(option, bad).unwrap_err();
                assert!(matches!(error, OptionError::BadValue(_)));
                assert_eq!(config, before);
            }
        }
        let mut config = FairnessConfig::Fcfs;
        let error = config.set("x", OptionValue::Flag(true)).unwrap_err();
        assert_eq!(error, OptionError::UnknownOption(&[]));
        // The floor is never above the share.
        let mut config = FairnessConfig::default();
        let error = config.set("new_share_floor", OptionValue::Number(0.5));
        assert!(error.is_err());
    }
}
