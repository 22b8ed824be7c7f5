//! Chat while the fleet changes: a third of the way a replica restarts, half of the way one is lost for good, and at
//! two thirds another joins, cold.

use std::time::Duration;

use super::Generator;
use super::chat::Chat;
use crate::plan::Plan;
use crate::sim::{EngineKind, FleetEvent};

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Loss {
    chat: Chat,
    /// Seconds until the restarted replica is back.
    down: f64,
}

impl Default for Loss {
    fn default() -> Self {
        Self {
            chat: Chat::default(),
            down: 20.0,
        }
    }
}

impl Generator for Loss {
    fn options(&mut self) -> Vec<(&'static str, &mut f64)> {
        let mut options = self.chat.options();
        options.push(("down", &mut self.down));
        options
    }

    fn plan(&self, block_tokens: u32, seed: u64, factor: f64) -> Plan {
        self.chat.plan(block_tokens, seed, factor)
    }

    fn fleet(&self, worker: &EngineKind) -> Vec<(f64, FleetEvent)> {
        let down = Duration::from_secs_f64(self.down);
        vec![
            (1.0 / 3.0, FleetEvent::Restart(0, down)),
            (0.5, FleetEvent::Lose(1)),
            (2.0 / 3.0, FleetEvent::Join(worker.clone())),
        ]
    }
}
