//! The most that any placement could reuse of a plan.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use hashbrown::HashMap;
use maitred_core::time::Nanos;
use rustc_hash::FxBuildHasher;

use super::{Begin, Plan};

/// What each request takes where nothing is simulated yet.
const NOMINAL_TOKEN: Duration = Duration::from_millis(20);

/// Requests in the order in which they would be sent if each answer took its nominal time (20 ms a token).
pub type Order = Vec<(Nanos, u32)>;

/// See [`Order`]. Requests that nothing releases are left out.
#[must_use]
pub fn nominal_order(plan: &Plan) -> Order {
    let mut order = Vec::with_capacity(plan.requests.len());
    let mut left: Vec<u32> = Vec::with_capacity(plan.requests.len());
    let mut latest = vec![Nanos::default(); plan.requests.len()];
    let mut heap = BinaryHeap::new();
    for (at, request) in plan.requests.iter().enumerate() {
        match request.begin {
            Begin::At(time) => {
                left.push(0);
                heap.push(Reverse((time, at as u32)));
            }
            Begin::After { needs, .. } => left.push(needs.max(1)),
        }
    }
    while let Some(Reverse((time, at))) = heap.pop() {
        order.push((time, at));
        let request = &plan.requests[at as usize];
        let end = time + NOMINAL_TOKEN * request.output_tokens;
        let waiting = plan.following(at).into_iter();
        for other in waiting.chain(request.also.iter().copied()) {
            let index = other as usize;
            latest[index] = latest[index].max(end);
            if left[index] == 0 {
                continue;
            }
            left[index] -= 1;
            if left[index] == 0
                && let Begin::After {
                    pause, no_sooner, ..
                } = plan.requests[index].begin
            {
                let time = (latest[index] + pause).max(no_sooner);
                heap.push(Reverse((time, other)));
            }
        }
    }
    order
}

/// For each request, the prompt tokens in leading blocks that an earlier one had sent, and of them those that the
/// same session had: an unbounded cache, one worker, every earlier prefill done. Output blocks are not in it.
///
/// At least one prompt token is always computed, so the count is below `prompt_tokens`.
#[must_use]
pub fn ideal(plan: &Plan, order: &[(Nanos, u32)]) -> Vec<(u32, u32)> {
    // Which session sent the block last: who reuses it owns it too, from then on.
    let mut owners: HashMap<u64, u32, FxBuildHasher> = HashMap::with_hasher(FxBuildHasher);
    let mut own: HashMap<(u32, u64), (), FxBuildHasher> = HashMap::with_hasher(FxBuildHasher);
    let mut found = vec![(0_u32, 0_u32); plan.requests.len()];
    for (_, at) in order {
        let request = &plan.requests[*at as usize];
        let (mut seen, mut intra, mut leading) = (0_u32, 0_u32, true);
        for id in request.ids() {
            let first = *owners.entry(id).or_insert_with(|| {
                leading = false;
                request.session
            });
            if leading {
                seen += 1;
                let mine = first == request.session || own.contains_key(&(request.session, id));
                intra += u32::from(mine);
            }
            if first != request.session {
                own.insert((request.session, id), ());
            }
        }
        let most = request.prompt_tokens.saturating_sub(1);
        let tokens = |blocks: u32| blocks.saturating_mul(plan.block_tokens).min(most);
        found[*at as usize] = (tokens(seen), tokens(intra));
    }
    found
}
