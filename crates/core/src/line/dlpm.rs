//! `dlpm`: deficit longest prefix match.

use crate::place::{OptionError, OptionValue, number};

/// The settings of `dlpm`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Service that each client gets in a round, in tokens.
    pub quantum: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self { quantum: 2_048.0 }
    }
}

impl Options {
    /// Sets one option.
    ///
    /// # Errors
    /// [`OptionError::UnknownOption`] or [`OptionError::BadValue`].
    pub fn set(&mut self, option: &str, value: OptionValue<'_>) -> Result<(), OptionError> {
        match option {
            "quantum_tokens" => {
                self.quantum = number(value, 1.0, 1e9, "tokens from 1 to 1000000000")?;
            }
            _ => return Err(OptionError::UnknownOption(&["quantum_tokens"])),
        }
        Ok(())
    }
}
