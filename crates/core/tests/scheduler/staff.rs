//! A worker of the model: what it may be sent, and when it has room for anybody.

use maitred_core::ids::TenantId;
use maitred_core::pool::{Availability, RequestLimits};
use maitred_core::scheduler::WorkerView;
use maitred_core::{Decision, Nanos, WorkerId};

/// Tokens: more than all requests of a run have together.
pub(crate) const AMPLE: u64 = 1_000_000;

/// A worker as the model knows it.
pub(crate) struct Staff {
    pub(crate) id: WorkerId,
    pub(crate) slots: Option<u32>,
    pub(crate) prefill: Option<u64>,
    /// Tokens its KV cache holds, as configured and as its engine says.
    pub(crate) kv: Option<u64>,
    pub(crate) kv_told: Option<u64>,
    pub(crate) draining: bool,
    pub(crate) full_until: Nanos,
    pub(crate) lists_all: bool,
    /// Polls it said it has and that no dispatch took; None: it does not pull.
    pub(crate) polls: Option<u32>,
    pub(crate) limits: RequestLimits,
}

impl Staff {
    /// Holds a dispatch against what the worker takes at all.
    pub(crate) fn may_take(&self, plain: bool, tenant: u64, decision: &Decision, output: u32) {
        let limits = &self.limits;
        assert!(plain || !limits.plain_only, "not a plain one");
        assert!(limits.tenants.is_empty() || limits.tenants.contains(&TenantId(tenant)));
        assert!(limits.output_max.is_none_or(|most| output <= most));
        let context = decision.prompt_tokens + output;
        assert!(limits.context_max.is_none_or(|most| context <= most));
        assert!(!self.draining, "no new work on a draining worker");
    }

    /// Holds a dispatch against what the worker has room for, beside `running` requests that
    /// compute `computed` tokens.
    pub(crate) fn has_room(&self, decision: &Decision, running: u32, computed: u64) {
        assert!(self.slots.is_none_or(|slots| running < slots), "no slot");
        let chosen = &decision.candidates[0];
        assert_eq!((chosen.worker, chosen.seat), (self.id, true));
        assert!(decision.predicted_cached_tokens <= decision.prompt_tokens);
        assert!(decision.candidates_count as usize >= decision.candidates.len());
        let need = need(decision);
        if let Some(prefill) = self.prefill {
            let open = chosen.prefill_tokens;
            assert!(open == 0 || open + need <= prefill, "no prefill");
        }
        if let Some(kv) = self.kv.or(self.kv_told) {
            assert!(
                running == 0 || computed + need <= kv,
                "no room in its cache"
            );
        }
    }

    /// Whether nothing bounds it: whoever may go anywhere can go here, now.
    pub(crate) fn takes_anything(&self, view: &WorkerView, now: Nanos) -> bool {
        let kv = self.kv.or(self.kv_told);
        view.availability == Availability::Ready
            && self.slots.is_none()
            && self.prefill.is_none()
            && (view.running == 0 || kv.is_none_or(|kv| kv >= AMPLE))
            && self.lists_all
            && self.polls != Some(0)
            && self.limits == RequestLimits::default()
            && self.full_until <= now
    }
}

/// Uncached prompt tokens of a dispatch.
pub(crate) fn need(decision: &Decision) -> u64 {
    u64::from(decision.prompt_tokens - decision.predicted_cached_tokens)
}
