//! Tenants that wait in one line.

use maitred_core::ids::{FlowKey, RequestId, TenantId};
use maitred_core::pool::{FleetChange, RequestLimits, Seats, WorkerSpec};
use maitred_core::request::{Identity, KeySource, Usage};
use maitred_core::scheduler::PoolConfig;
use maitred_core::{Arrival, AttemptId, Effect, Input, Nanos, Scheduler};
use std::collections::VecDeque;

struct Bar {
    scheduler: Scheduler,
    now: u64,
    next: u64,
    running: VecDeque<AttemptId>,
    /// What each tenant was charged.
    served: [f64; 2],
}

fn prompt(request: u64) -> u32 {
    100 + (request * 37 % 400) as u32
}

impl Bar {
    fn new(slots: u32) -> Self {
        let mut bar = Self {
            scheduler: Scheduler::new(PoolConfig::default(), 1).unwrap(),
            now: 0,
            next: 0,
            running: VecDeque::new(),
            served: [0.0; 2],
        };
        let id = bar.scheduler.next_worker_id();
        let spec = WorkerSpec {
            identity: 1,
            seats: Seats {
                slots: Some(slots),
                ..Seats::default()
            },
            models: Vec::new(),
            assume_ready: true,
            pulls: false,
            limits: RequestLimits::default(),
        };
        bar.send(Input::Fleet(FleetChange::Add(id, spec)));
        bar
    }

    fn send(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.scheduler.handle(Nanos(self.now), input, &mut effects);
        for effect in effects {
            if let Effect::Dispatch(decision) = effect {
                let id = decision.attempt.request.0;
                self.served[(id & 1) as usize] += decision.queueing.charge as f64;
                self.running.push_back(decision.attempt);
            }
        }
    }

    /// A follow-up; even ids are the first tenant's, odd ones the second's.
    fn arrive(&mut self, tenant: u64, flow: Option<u64>) {
        let request = RequestId(self.next * 2 + tenant);
        self.next += 1;
        self.send(Input::Arrive(Box::new(Arrival {
            request,
            tenant: TenantId(tenant),
            flow: flow.map(|flow| FlowKey(flow << 1 | tenant)),
            session: None,
            session_source: KeySource::None,
            opening: None,
            scenario: None,
            leading: None,
            previous_response: None,
            model: None,
            turn: 2,
            identity: Identity::Bytes,
            scope: 0,
            chain: Vec::new(),
            prompt_bytes: 0,
            body_bytes: 0,
            prompt_tokens: Some(prompt(self.next)),
            max_tokens: Some(0),
            extra_prompts: 0,
            reads_cache: true,
            deadline: None,
            retryable: true,
            streams: true,
            plain: false,
        })));
    }

    fn finish(&mut self) {
        self.now += 100_000_000;
        let attempt = self.running.pop_front().expect("somebody sits");
        self.send(Input::Finished {
            attempt,
            usage: Usage::default(),
            served: true,
        });
    }

    /// 200 sessions against 2 for 400 services; what the tenants got, and the largest difference.
    fn contest(minted: bool) -> ([f64; 2], f64) {
        let mut bar = Self::new(8);
        for _ in 0..8 {
            bar.arrive(0, Some(0));
        }
        for session in 0..200 {
            bar.arrive(0, (!minted).then_some(session));
        }
        for session in 0..2 {
            for _ in 0..2 {
                bar.arrive(1, Some(session));
            }
        }
        let start = bar.served;
        let mut most = 0.0_f64;
        for n in 0..400_u64 {
            bar.finish();
            // Whoever was served comes back; both always wait.
            bar.arrive(0, (!minted).then_some(n % 200));
            bar.arrive(1, Some(n & 1));
            let got = [0, 1].map(|t: usize| bar.served[t] - start[t]);
            most = most.max((got[0] - got[1]).abs());
        }
        ([0, 1].map(|t: usize| bar.served[t] - start[t]), most)
    }
}

#[test]
fn many_sessions_get_no_more_than_few_and_minted_ids_gain_nothing() {
    let (named, apart) = Bar::contest(false);
    assert!(apart <= 2.0 * 500.0, "one charge and one more: {apart}");
    let (minted, apart) = Bar::contest(true);
    assert!(apart <= 2.0 * 500.0, "{apart}");
    for got in [named, minted] {
        assert!(got[0] <= got[1] + 500.0, "{got:?}");
    }
}
