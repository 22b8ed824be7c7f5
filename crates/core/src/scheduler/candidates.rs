//! Who could take a request, and which of them does.

use super::request::{Hold, Request};
use super::{LostResponse, Scheduler};
use crate::decision::{Belief, PredictionSource, Reason};
use crate::ids::WorkerId;
use crate::limits::LINE_SCAN_MAX;
use crate::line::PASSES_MAX;
use crate::line::ticket::Standing;
use crate::place::{Answer, Candidate, Question};
use crate::pool::ratio::leading_tokens;
use crate::pool::worker::Worker;
use crate::prefix::{Matches, Sightings};
use crate::time::Nanos;
use alloc::vec::Vec;
use core::time::Duration;

/// Buffers that are reused, so that a decision does not allocate per candidate.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) matches: Matches,
    pub(super) sightings: Sightings,
    /// Everyone who could take the request, and the policy's scores.
    pub(super) candidates: Vec<Candidate>,
    pub(super) scores: Vec<f64>,
    /// Those of them with a seat, by index, and as the policy gets them.
    seated: Vec<u32>,
    seated_candidates: Vec<Candidate>,
    seated_scores: Vec<f64>,
}

/// A candidate that was chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pick {
    /// Index into the scratch's candidates.
    pub(super) index: usize,
    pub(super) reason: Reason,
    /// The generator's state before the policy was asked.
    pub(super) seed: u64,
}

/// What is to become of a request now.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verdict {
    /// It takes a seat.
    Sit(Pick),
    /// It holds for this worker until then.
    Hold { worker: WorkerId, until: Nanos },
    /// Somebody could take it, but has no seat.
    NoSeat,
    /// Nobody could take it.
    NoWorker,
    /// The worker that holds the response it continues is gone, and the pool refuses such.
    Lost,
}

pub(super) enum Pin {
    None,
    On(WorkerId),
    /// Its worker lives, but takes no work for the moment.
    Away(WorkerId),
    Lost,
}

impl Scheduler {
    /// The joint rule: the policy's choice if it has a seat; else hold for it; else the policy's
    /// choice among those with a seat.
    pub(super) fn choose(&mut self, request: &Request, now: Nanos) -> Verdict {
        let seed = self.rng.state();
        match self.pin(request, now) {
            Pin::On(worker) => return self.choose_pinned(request, worker, seed, now),
            Pin::Away(_) => return Verdict::NoSeat,
            Pin::Lost if self.config.lost_response == LostResponse::Refuse => {
                return Verdict::Lost;
            }
            Pin::Lost | Pin::None => {}
        }
        self.gather(request, None, now);
        if self.scratch.candidates.is_empty() {
            return Verdict::NoWorker;
        }
        let hold_until = match request.hold {
            Hold::Fresh => None,
            Hold::Holding { until, .. } => Some(until),
            Hold::Spent => return self.choose_seated(request, seed, now),
        };
        let answer = self.ask(request, now);
        let Some(choice) = self.scratch.candidates.get(answer.choice) else {
            return Verdict::NoSeat;
        };
        if choice.seat {
            return Verdict::Sit(Pick {
                index: answer.choice,
                reason: answer.reason,
                seed,
            });
        }
        let until = hold_until.unwrap_or(now + self.hold_for(request, answer.hold));
        if until > now && !answer.hold.is_zero() {
            return Verdict::Hold {
                worker: choice.worker,
                until,
            };
        }
        self.choose_seated(request, seed, now)
    }

    /// How long it holds. While others ask for the seats that it passes up, none of them stands
    /// idle for it, and it holds for as long as the pool allows.
    fn hold_for(&self, request: &Request, wanted: Duration) -> Duration {
        let most = self.config.hold_max;
        let class = self.line.class(request.ticket.class);
        if class.is_some_and(|class| class.others_ask(&request.ticket)) {
            return most;
        }
        wanted.min(most)
    }

    fn choose_pinned(
        &mut self,
        request: &Request,
        worker: WorkerId,
        seed: u64,
        now: Nanos,
    ) -> Verdict {
        self.gather(request, Some(worker), now);
        self.scratch.scores.clear();
        self.scratch.scores.push(f64::NAN);
        match self.scratch.candidates.first() {
            Some(candidate) if candidate.seat => Verdict::Sit(Pick {
                index: 0,
                reason: Reason::Pinned,
                seed,
            }),
            _ => Verdict::NoSeat,
        }
    }

    /// Asks the policy again, among those with a seat. Scores of the others stay as they were.
    fn choose_seated(&mut self, request: &Request, seed: u64, now: Nanos) -> Verdict {
        let Scratch {
            candidates,
            scores,
            seated,
            seated_candidates,
            ..
        } = &mut self.scratch;
        seated.clear();
        seated_candidates.clear();
        for (index, candidate) in candidates.iter().enumerate() {
            if candidate.seat {
                seated.push(index as u32);
                seated_candidates.push(*candidate);
            }
        }
        if seated.is_empty() {
            return Verdict::NoSeat;
        }
        scores.resize(candidates.len(), f64::NAN);
        let answer = self.ask_seated(request, now);
        let Scratch {
            scores,
            seated,
            seated_scores,
            ..
        } = &mut self.scratch;
        for (index, score) in seated.iter().zip(seated_scores.iter()) {
            if let Some(place) = scores.get_mut(*index as usize) {
                *place = *score;
            }
        }
        let Some(index) = seated.get(answer.choice) else {
            return Verdict::NoSeat;
        };
        Verdict::Sit(Pick {
            index: *index as usize,
            reason: answer.reason,
            seed,
        })
    }

    fn ask(&mut self, request: &Request, now: Nanos) -> Answer {
        let home = request.guest.session.and_then(|k| self.homes.get(k, now));
        let opening = request.guest.opening;
        let opening_home = opening.and_then(|k| self.openings.get(k, now));
        let rates = self.rates(now);
        let waiting = self.line.len() as u32;
        let Scratch {
            candidates, scores, ..
        } = &mut self.scratch;
        scores.clear();
        scores.resize(candidates.len(), f64::NAN);
        let question = Question {
            guest: &request.guest,
            prompt_tokens: request.prompt_tokens,
            home,
            opening_home,
            candidates,
            waiting,
            rates,
            follows: request.follows,
            now,
        };
        let answer = self.policy.place(&question, scores, &mut self.rng);
        debug_assert!(answer.choice < candidates.len(), "no such candidate");
        answer
    }

    fn ask_seated(&mut self, request: &Request, now: Nanos) -> Answer {
        let swap = |scratch: &mut Scratch| {
            core::mem::swap(&mut scratch.candidates, &mut scratch.seated_candidates);
            core::mem::swap(&mut scratch.scores, &mut scratch.seated_scores);
        };
        swap(&mut self.scratch);
        let answer = self.ask(request, now);
        swap(&mut self.scratch);
        answer
    }

    /// Fills the scratch with those who could take the request: takes work, lists the model, did
    /// not fail it. Where there is none, those whose probes fail although nobody was refused: the
    /// last worker is never removed by probes alone.
    pub(super) fn gather(&mut self, request: &Request, only: Option<WorkerId>, now: Nanos) {
        let mut scratch = core::mem::take(&mut self.scratch);
        self.look_up(request, &mut scratch, now);
        scratch.candidates.clear();
        let kept = self.kept_free(request, now);
        let tiers: [fn(&Worker, Nanos) -> bool; 2] = [
            |worker, now| worker.health.takes_work(now),
            |worker, now| worker.health.last_resort(now),
        ];
        for takes in tiers {
            for worker in self.fleet.iter() {
                let asked = only.is_none_or(|id| id == worker.id);
                if asked && takes(worker, now) && could_take(worker, request) {
                    let belief = self.belief(worker, request, &scratch, now);
                    let mut candidate = self.candidate(worker, request, belief, now);
                    candidate.seat &= kept != Some(worker.id);
                    scratch.candidates.push(candidate);
                }
            }
            if !scratch.candidates.is_empty() {
                break;
            }
        }
        self.scratch = scratch;
    }

    /// Prompt tokens that one of those who could take it is believed to hold, at most.
    pub(super) fn matched_most(&mut self, request: &Request, now: Nanos) -> u32 {
        let mut scratch = core::mem::take(&mut self.scratch);
        self.look_up(request, &mut scratch, now);
        let most = |takes: fn(&Worker, Nanos) -> bool| {
            let workers = self.fleet.iter();
            let workers = workers.filter(|w| takes(w, now) && could_take(w, request));
            let blocks = workers.map(|w| self.belief(w, request, &scratch, now).blocks);
            blocks.max()
        };
        let blocks = most(|worker, now| worker.health.takes_work(now))
            .or_else(|| most(|worker, now| worker.health.last_resort(now)))
            .unwrap_or(0);
        self.scratch = scratch;
        leading_tokens(&request.guest, request.prompt_tokens, blocks, &self.config)
    }

    /// The worker that is kept free of newcomers for one who was passed too often: that with the
    /// least open prefill. Its prefill ends, so that wait is bounded.
    fn kept_free(&self, newcomer: &Request, now: Nanos) -> Option<WorkerId> {
        let overdue = self
            .line
            .unfit
            .iter()
            .take(LINE_SCAN_MAX)
            .take_while(|place| **place < newcomer.ticket.place)
            .filter_map(|place| self.requests.get(&self.line.get(*place)?))
            .find(|waiting| {
                waiting.no_worker_until.is_none()
                    && waiting.guest.previous_response.is_none()
                    && waiting.ticket.standing != Standing::Holding
                    && self.line.passes(&waiting.ticket) >= PASSES_MAX
            })?;
        self.fleet
            .iter()
            .filter(|worker| worker.health.takes_work(now) && could_take(worker, overdue))
            .min_by_key(|worker| (worker.ledger.prefill_tokens, worker.ledger.running))
            .map(|worker| worker.id)
    }

    fn candidate(
        &self,
        worker: &Worker,
        request: &Request,
        belief: Belief,
        now: Nanos,
    ) -> Candidate {
        let (prompt, blocks) = (request.prompt_tokens, belief.blocks);
        let matched_tokens = leading_tokens(&request.guest, prompt, blocks, &self.config);
        let word = worker.fresh(now, self.config.stale_after);
        let others = word.map_or(0, |word| word.others);
        let kv_usage = word.and_then(|word| word.gauges.kv_usage).unwrap_or(0.0);
        let (prefill_tokens, _) = self.lease_tokens(request, matched_tokens);
        Candidate {
            worker: worker.id,
            identity: worker.identity,
            running: worker.ledger.running.saturating_add(others),
            prefill_tokens: worker.ledger.prefill_tokens,
            resident_tokens: worker.ledger.resident_tokens,
            kv_usage: kv_usage as f32,
            slots: worker.seats.slots.or_else(|| worker.slots_learnt(now)),
            busy: worker.meter.busy(now),
            ahead_seconds: worker.meter.ahead(now),
            decoding: worker.meter.decoding(),
            pace: worker.meter.pace(),
            reload_seconds: self.reload_seconds(request, belief),
            seat: !worker.health.saturated(now) && worker.seats_for(prefill_tokens, now),
            matched_blocks: belief.blocks,
            matched_tokens,
            sessions: self.homes.sessions(worker.id.slot),
            cache_slots: self.homes.cache_slots(worker.id.slot),
            last_cold: worker.last_cold,
        }
    }

    /// Seconds to bring back what lies in host memory or beyond.
    fn reload_seconds(&self, request: &Request, belief: Belief) -> f64 {
        if belief.source != PredictionSource::Observed || belief.device >= belief.blocks {
            return 0.0;
        }
        let tokens = |blocks: u32| {
            let (guest, prompt) = (&request.guest, request.prompt_tokens);
            u64::from(leading_tokens(guest, prompt, blocks, &self.config))
        };
        let (device, host) = (
            tokens(belief.device),
            tokens(belief.host.min(belief.blocks)),
        );
        let rates = self.costs.rates(1, Nanos::default());
        rates.reload_seconds(host.saturating_sub(device), tokens(belief.blocks) - host)
    }

    /// What a lease for the request takes on the two axes: uncached tokens until the first token,
    /// all prompts and what they may grow to until the end. Further prompts of a batch count as
    /// long as the first, and uncached.
    pub(super) fn lease_tokens(&self, request: &Request, matched_tokens: u32) -> (u64, u64) {
        let prompt = u64::from(request.prompt_tokens);
        let extra = u64::from(request.guest.extra_prompts);
        let assumed = self.config.output_tokens;
        let output = request.guest.max_tokens.map_or(assumed, |m| m.min(assumed));
        let prefill = prompt
            .saturating_sub(u64::from(matched_tokens))
            .saturating_add(prompt.saturating_mul(extra));
        let each = prompt + u64::from(output);
        let resident = each.saturating_mul(extra + 1);
        (prefill, resident)
    }

    /// Whether anybody could take it, seat or not.
    pub(super) fn has_candidate(&self, request: &Request, now: Nanos) -> bool {
        self.fleet.iter().any(|worker| {
            (worker.health.takes_work(now) || worker.health.last_resort(now))
                && could_take(worker, request)
        })
    }

    pub(super) fn pin(&self, request: &Request, now: Nanos) -> Pin {
        let Some(key) = request.guest.previous_response else {
            return Pin::None;
        };
        let Some(binding) = self.responses.get(key) else {
            return Pin::None;
        };
        let Some(worker) = self.fleet.get(binding.worker) else {
            return Pin::Lost;
        };
        if worker.epoch != binding.epoch || worker.health.draining() || !could_take(worker, request)
        {
            return Pin::Lost;
        }
        if worker.health.takes_work(now) || worker.health.last_resort(now) {
            Pin::On(worker.id)
        } else {
            Pin::Away(worker.id)
        }
    }
}

/// Whether the worker takes work and has a free slot.
pub(super) fn has_room(worker: &Worker, now: Nanos) -> bool {
    // Seats first: in a full pool that is all there is to look at.
    worker.seats_for(0, now)
        && (worker.health.takes_work(now) || worker.health.last_resort(now))
        && !worker.health.saturated(now)
}

pub(super) fn could_take(worker: &Worker, request: &Request) -> bool {
    worker.lists(request.guest.model)
        && worker.allows(&request.guest, request.prompt_tokens)
        && !request.failed.contains(&worker.id)
}
