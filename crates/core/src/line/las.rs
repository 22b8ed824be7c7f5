//! `las`: least attained service first.

use crate::place::{OptionError, OptionValue, number, seconds};
use core::time::Duration;

/// The settings of `las`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Weight of the attained service; 0 to 1.
    pub service_weight: f64,
    /// Weight of the wait of the oldest request; 0 to 1.
    pub age_weight: f64,
    /// After so long, half of the service is forgotten.
    pub half_life: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            service_weight: 0.8,
            age_weight: 0.2,
            half_life: Duration::from_secs(60),
        }
    }
}

impl Options {
    /// Sets one option.
    ///
    /// # Errors
    /// [`OptionError::UnknownOption`] or [`OptionError::BadValue`].
    pub fn set(&mut self, option: &str, value: OptionValue<'_>) -> Result<(), OptionError> {
        match option {
            "service_weight" => {
                self.service_weight = number(value, 0.0, 1.0, "a number from 0 to 1")?;
            }
            "age_weight" => self.age_weight = number(value, 0.0, 1.0, "a number from 0 to 1")?,
            "half_life_seconds" => self.half_life = seconds(value)?,
            _ => {
                return Err(OptionError::UnknownOption(&[
                    "service_weight",
                    "age_weight",
                    "half_life_seconds",
                ]));
            }
        }
        Ok(())
    }
}
