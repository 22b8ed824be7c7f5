//! `las`: least attained service first.
//!
//! Formula: each flow that waits scores `service_weight x (1 - s) + age_weight x w`, with `s` its
//! attained service and `w` the wait of its oldest request, both scaled to 0..1 between the least
//! and the most of the flows that wait; the most goes first. Service is all prompt tokens and twice
//! those of the answer, counted when it is complete, and halves in `half_life` while the flow has
//! nothing waiting and nothing running.
//! Source: the LAS strategy of the program-aware fairness plugin of llm-d-router (2026), after
//! Autellix (Luo et al., arXiv 2502.13965).
//! Defaults: `service_weight` 0.8, `age_weight` 0.2, `half_life_seconds` 60.
//!
//! As published, every choice looks at every flow that waits: the scale changes with each, so no
//! order can be kept. It is here to be compared; on a long line it costs accordingly.

use super::LineKind;
use super::drain::Drain;
use super::order::{Ahead, Order};
use super::ticket::{Bill, OUTPUT_WEIGHT, Ticket};
use crate::place::{OptionError, OptionValue, number, seconds};
use crate::time::Nanos;
use alloc::collections::BTreeMap;
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

/// Flows whose service is remembered; beyond it those that rest are forgotten.
const FLOWS_MAX: usize = 65_536;

#[derive(Debug, Default)]
struct Flow {
    service: f64,
    /// Since when it decays: nothing waits and nothing runs.
    resting: Option<Nanos>,
    running: u32,
    /// When its requests came, by place.
    waiting: BTreeMap<u64, Nanos>,
}

#[derive(Debug)]
pub(crate) struct Las {
    options: Options,
    /// By key, so that equal scores are decided alike in every run.
    flows: BTreeMap<u64, Flow>,
    charge: f64,
}

impl Las {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            flows: BTreeMap::new(),
            charge: 0.0,
        }
    }

    fn wake(&mut self, flow: u64, now: Nanos) -> &mut Flow {
        if self.flows.len() >= FLOWS_MAX && !self.flows.contains_key(&flow) {
            self.flows.retain(|_, flow| flow.resting.is_none());
        }
        let half_life = self.options.half_life.as_secs_f64();
        let flow = self.flows.entry(flow).or_default();
        if let Some(since) = flow.resting.take()
            && half_life > 0.0
        {
            flow.service *= libm::exp2(-now.since(since).as_secs_f64() / half_life);
        }
        flow
    }
}

fn scaled(value: f64, least: f64, most: f64) -> f64 {
    if most > least {
        (value - least) / (most - least)
    } else {
        0.0
    }
}

impl Order for Las {
    fn join(&mut self, ticket: &mut Ticket) {
        let (place, arrived) = (ticket.place, ticket.arrived);
        self.wake(ticket.flow, arrived)
            .waiting
            .insert(place, arrived);
        self.charge += ticket.charge();
    }

    fn leave(&mut self, ticket: &Ticket) {
        if let Some(flow) = self.flows.get_mut(&ticket.flow)
            && flow.waiting.remove(&ticket.place).is_some()
        {
            self.charge -= ticket.charge();
            if flow.waiting.is_empty() && flow.running == 0 && flow.service <= 0.0 {
                self.flows.remove(&ticket.flow);
            }
        }
    }

    fn head(&mut self, now: Nanos, _drain: &Drain) -> Option<u64> {
        let waiting = || {
            self.flows.values().filter_map(|flow| {
                let (place, arrived) = flow.waiting.first_key_value()?;
                Some((*place, flow.service, now.since(*arrived).as_secs_f64()))
            })
        };
        let start = (f64::INFINITY, f64::NEG_INFINITY);
        let (mut service, mut age) = (start, start);
        for (_, s, w) in waiting() {
            service = (service.0.min(s), service.1.max(s));
            age = (age.0.min(w), age.1.max(w));
        }
        let score = |s: f64, w: f64| {
            self.options.service_weight * (1.0 - scaled(s, service.0, service.1))
                + self.options.age_weight * scaled(w, age.0, age.1)
        };
        waiting()
            .map(|(place, s, w)| (score(s, w), place))
            .max_by(|(a, x), (b, y)| a.total_cmp(b).then(y.cmp(x)))
            .map(|(_, place)| place)
    }

    fn served(&mut self, ticket: &Ticket, now: Nanos) {
        self.wake(ticket.flow, now).running += 1;
    }

    fn settled(&mut self, ticket: &Ticket, actual: Bill, now: Nanos) {
        let flow = self.wake(ticket.flow, now);
        flow.service += actual.prompt as f64 + OUTPUT_WEIGHT * actual.output as f64;
        flow.running = flow.running.saturating_sub(1);
        if flow.running == 0 && flow.waiting.is_empty() {
            flow.resting = Some(now);
        }
    }

    fn ahead(&self, _line: LineKind, _charge: f64, _whole: Option<bool>) -> Ahead {
        Ahead::of_charge(self.charge)
    }
}
