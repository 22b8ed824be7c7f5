//! Chat whose arrivals come in bursts: for a while many times the usual rate, then the usual one again.

use maitred_core::time::Nanos;

use super::Generator;
use super::chat::Chat;
use super::draw::{pause, stream};
use crate::plan::{Plan, PlanBuilder};

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Burst {
    chat: Chat,
    /// The rate in a burst over the rate outside.
    times: f64,
    /// Seconds from the beginning of a burst to the beginning of the next.
    every: f64,
    /// Seconds that a burst lasts.
    length: f64,
}

impl Default for Burst {
    fn default() -> Self {
        Self {
            chat: Chat::default(),
            times: 10.0,
            every: 60.0,
            length: 5.0,
        }
    }
}

impl Generator for Burst {
    fn options(&mut self) -> Vec<(&'static str, &mut f64)> {
        let mut options = self.chat.options();
        options.extend([
            ("times", &mut self.times),
            ("every", &mut self.every),
            ("length", &mut self.length),
        ]);
        options
    }

    fn plan(&self, block_tokens: u32, seed: u64, factor: f64) -> Plan {
        let mut builder = PlanBuilder::new(block_tokens);
        let mut rng = stream(seed, 1, 0);
        // The rate outside is such that the mean is `rate`.
        let share = (self.length / self.every.max(1e-9)).min(1.0);
        let quiet = self.chat.rate * factor / (1.0 + share * (self.times - 1.0)).max(1e-9);
        let most = (quiet * self.times.max(1.0)).max(1e-9);
        let mut at = Nanos::default();
        self.chat.write(&mut builder, seed, factor, || {
            // Thinning: draws at the highest rate, of which those outside a burst are kept with the ratio's chance.
            loop {
                at = at + pause(&mut rng, 1.0 / most);
                let seconds = at.0 as f64 / 1e9;
                let inside = seconds.rem_euclid(self.every.max(1e-9)) < self.length;
                let rate = if inside { quiet * self.times } else { quiet };
                if rng.unit() * most < rate.max(1e-9) {
                    return at;
                }
            }
        });
        builder.finish()
    }
}
