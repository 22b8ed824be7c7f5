//! `vtc`: the virtual token counter.

use crate::place::{OptionError, OptionValue, number};

/// The settings of `vtc`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What a prompt token counts.
    pub input: f64,
    /// What a token of the answer counts.
    pub output: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            input: 1.0,
            output: 2.0,
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
            "input_weight" => self.input = number(value, 0.0, 1e3, "a number from 0 to 1000")?,
            "output_weight" => self.output = number(value, 0.0, 1e3, "a number from 0 to 1000")?,
            _ => {
                return Err(OptionError::UnknownOption(&[
                    "input_weight",
                    "output_weight",
                ]));
            }
        }
        Ok(())
    }
}
