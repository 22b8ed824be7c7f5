//! `promise`: a new conversation starts within a stated time, and what was started goes on.

use crate::place::{OptionError, OptionValue, number, seconds, whole};
use core::time::Duration;

/// The settings of `promise`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The share of the dispatched charge that first turns get while both lines wait.
    pub new_share: f64,
    /// The same while follow-ups wait longer than `continue_within`.
    pub new_share_floor: f64,
    /// A first turn that would start later is refused at the door.
    pub start_within: Duration,
    /// The wait of follow-ups up to which first turns get their whole share.
    pub continue_within: Duration,
    /// How often a follow-up may be passed by a warm one.
    pub max_passes: u32,
    /// The quantile of measured drain times that predictions go by; 0.5 to 0.99.
    pub quantile: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            new_share: 0.2,
            new_share_floor: 0.05,
            start_within: Duration::from_secs(10),
            continue_within: Duration::from_secs(30),
            max_passes: 8,
            quantile: 0.9,
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
            "new_share" => {
                self.new_share = number(
                    value,
                    self.new_share_floor,
                    0.9,
                    "a share from new_share_floor to 0.9",
                )?;
            }
            "new_share_floor" => {
                self.new_share_floor = number(
                    value,
                    0.01,
                    self.new_share,
                    "a share from 0.01 to new_share",
                )?;
            }
            "start_within_seconds" => self.start_within = seconds(value)?,
            "continue_within_seconds" => self.continue_within = seconds(value)?,
            "max_passes" => self.max_passes = whole(value)?,
            "quantile" => self.quantile = number(value, 0.5, 0.99, "a share from 0.5 to 0.99")?,
            _ => {
                return Err(OptionError::UnknownOption(&[
                    "new_share",
                    "new_share_floor",
                    "start_within_seconds",
                    "continue_within_seconds",
                    "max_passes",
                    "quantile",
                ]));
            }
        }
        Ok(())
    }
}
