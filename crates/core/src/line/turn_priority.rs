//! `turn_priority`: deep conversations first.

use crate::place::{OptionError, OptionValue, number};

/// The settings of `turn_priority`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Turns that one second of waiting is worth.
    pub aging: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self { aging: 0.05 }
    }
}

impl Options {
    /// Sets one option.
    ///
    /// # Errors
    /// [`OptionError::UnknownOption`] or [`OptionError::BadValue`].
    pub fn set(&mut self, option: &str, value: OptionValue<'_>) -> Result<(), OptionError> {
        match option {
            "aging_per_second" => self.aging = number(value, 0.0, 1e3, "a number from 0 to 1000")?,
            _ => return Err(OptionError::UnknownOption(&["aging_per_second"])),
        }
        Ok(())
    }
}
