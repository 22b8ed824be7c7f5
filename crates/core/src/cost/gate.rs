//! The evidence gate: affinity must pay.
//!
//! Over a window of a minute ([`PARTS`] of [`PART_SECONDS`]) two sums are kept, over the answers whose engine says what it
//! found in its cache:
//! - saved: the seconds that computing the tokens it found would have taken;
//! - cost: the seconds by which the worker that affinity chose was busier than the least busy one
//!   when it was chosen, and what the request held for it.
//!
//! While saved is less than cost, requests are placed by load alone, but for one in [`PROBE_SHARE`],
//! which is placed as ever: what those saved and cost says whether affinity pays again. So the state
//! follows the traffic both ways, and nobody has to set a threshold. The window, the share and the
//! least numbers of answers are how much evidence is asked for, not where the line is.

use crate::rng::Rng;
use crate::time::Nanos;

/// Parts of the window; the oldest part leaves as a whole.
const PARTS: usize = 12;

/// Seconds in one part.
const PART_SECONDS: u64 = 5;

/// One request in so many is placed by affinity while it does not pay.
const PROBE_SHARE: usize = 16;

/// Answers in the window before affinity steps back.
const ANSWERS_MIN: u32 = 32;

/// Probes in the window before it returns.
const PROBES_MIN: u32 = 8;

/// Whether affinity is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GateState {
    /// It pays, or nothing says that it does not.
    Pays,
    /// It did not pay: requests are placed by load, but for the probes.
    SteppedBack,
}

impl GateState {
    /// The name used in records, metrics and the admin API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pays => "pays",
            Self::SteppedBack => "stepped_back",
        }
    }
}

/// What a window showed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evidence {
    /// Whether affinity is followed.
    pub state: GateState,
    /// How long the state has stood, seconds.
    pub since_seconds: f64,
    /// Seconds saved in the window by what was found in caches.
    pub saved_seconds: f64,
    /// Seconds that affinity cost in the window.
    pub cost_seconds: f64,
    /// Answers in the window that say what was found.
    pub answers: u32,
    /// Changes of the state, ever.
    pub changes: u32,
    /// Seconds saved since the start.
    pub saved_total: f64,
    /// Seconds that affinity cost since the start.
    pub cost_total: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    saved: f64,
    cost: f64,
    answers: u32,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    parts: [Sum; PARTS],
    newest: u64,
    state: GateState,
    since: Nanos,
    changes: u32,
    saved: f64,
    cost: f64,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            parts: [Sum::default(); PARTS],
            newest: 0,
            state: GateState::Pays,
            since: Nanos::default(),
            changes: 0,
            saved: 0.0,
            cost: 0.0,
        }
    }

    /// Whether affinity is followed for the next request.
    pub(crate) fn follows(&self, rng: &mut Rng) -> bool {
        self.state == GateState::Pays || rng.below(PROBE_SHARE) == 0
    }

    /// An answer came to a request for which affinity was followed or not (`followed`), whose
    /// choice cost so much and whose cached tokens saved so much.
    pub(crate) fn answered(&mut self, followed: bool, saved: f64, cost: f64, now: Nanos) {
        self.pass(now);
        self.saved += saved;
        self.cost += cost;
        if followed {
            let part = &mut self.parts[(self.newest % PARTS as u64) as usize];
            part.saved += saved;
            part.cost += cost;
            part.answers += 1;
        }
    }

    pub(crate) fn evidence(&self, now: Nanos) -> Evidence {
        let sum = self.sum();
        Evidence {
            state: self.state,
            since_seconds: now.since(self.since).as_secs_f64(),
            saved_seconds: sum.saved,
            cost_seconds: sum.cost,
            answers: sum.answers,
            changes: self.changes,
            saved_total: self.saved,
            cost_total: self.cost,
        }
    }

    fn sum(&self) -> Sum {
        let mut all = Sum::default();
        for part in &self.parts {
            all.saved += part.saved;
            all.cost += part.cost;
            all.answers += part.answers;
        }
        all
    }

    /// Time passed: when a part is over, the window is judged.
    fn pass(&mut self, now: Nanos) {
        let part = now.0 / (PART_SECONDS * 1_000_000_000);
        if part <= self.newest {
            return;
        }
        let sum = self.sum();
        let pays = sum.saved >= sum.cost;
        let state = match self.state {
            GateState::Pays if !pays && sum.answers >= ANSWERS_MIN => GateState::SteppedBack,
            GateState::SteppedBack if pays && sum.answers >= PROBES_MIN => GateState::Pays,
            state => state,
        };
        let changed = state != self.state;
        for passed in (self.newest + 1..=part).rev().take(PARTS) {
            self.parts[(passed % PARTS as u64) as usize] = Sum::default();
        }
        self.newest = part;
        if changed {
            // What was so before the change is no evidence of what is so after it.
            self.parts = [Sum::default(); PARTS];
            self.state = state;
            self.since = now;
            self.changes = self.changes.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ANSWERS_MIN, Gate, GateState, PART_SECONDS, PARTS, PROBE_SHARE};
    use crate::rng::Rng;
    use crate::time::Nanos;

    fn at(seconds: u64) -> Nanos {
        Nanos(seconds * 1_000_000_000)
    }

    /// An answer each second from `from` on, each of which saved and cost so much.
    fn answers(gate: &mut Gate, from: u64, count: u64, saved: f64, cost: f64) {
        for second in from..from + count {
            gate.answered(true, saved, cost, at(second));
        }
    }

    #[test]
    fn it_steps_back_while_it_does_not_pay_and_returns() {
        let mut gate = Gate::new();
        let mut rng = Rng::new(1);
        answers(&mut gate, 0, 60, 0.2, 0.1);
        assert_eq!(gate.evidence(at(60)).state, GateState::Pays);
        // 59 s of it are in the window at most, 0.1 s each; 0.3 s are lost with each from now on.
        answers(&mut gate, 60, 60, 0.0, 0.2);
        let evidence = gate.evidence(at(120));
        assert_eq!(evidence.state, GateState::SteppedBack);
        assert!((evidence.saved_total - 12.0).abs() < 1e-9);
        assert!((evidence.cost_total - 18.0).abs() < 1e-9);
        let followed = (0..1_600).filter(|_| gate.follows(&mut rng)).count();
        let share = 1_600 / PROBE_SHARE;
        assert!((share / 2..share * 2).contains(&followed), "{followed}");
        answers(&mut gate, 120, 60, 0.3, 0.1);
        assert_eq!(gate.evidence(at(180)).state, GateState::Pays);
        assert_eq!(gate.evidence(at(180)).changes, 2);
    }

    #[test]
    fn little_evidence_changes_nothing() {
        let mut gate = Gate::new();
        answers(&mut gate, 0, u64::from(ANSWERS_MIN) - 1, 0.0, 1.0);
        gate.answered(true, 0.0, 1.0, at(2 * PARTS as u64 * PART_SECONDS));
        assert_eq!(gate.evidence(at(200)).state, GateState::Pays);
        assert_eq!(
            gate.evidence(at(200)).answers,
            1,
            "the rest is out of the window"
        );
    }

    #[test]
    fn what_was_placed_by_load_is_no_evidence_of_affinity() {
        let mut gate = Gate::new();
        for second in 0..100 {
            gate.answered(false, 0.0, 1.0, at(second));
        }
        let evidence = gate.evidence(at(100));
        assert_eq!((evidence.state, evidence.answers), (GateState::Pays, 0));
        assert!((evidence.cost_total - 100.0).abs() < 1e-9);
    }
}
