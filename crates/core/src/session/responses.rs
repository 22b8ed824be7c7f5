//! Which worker holds the state behind a response id that it gave out. Bounded: first in, first out.
//!
//! A binding outlives its worker, so that "the worker is gone" can be told from "never heard of it".

use crate::ids::{ResponseKey, WorkerId};
use alloc::collections::VecDeque;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Who holds the response, in which life of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    pub(crate) worker: WorkerId,
    pub(crate) epoch: u32,
}

/// All known response ids.
pub(crate) struct Responses {
    by_key: HashMap<ResponseKey, Binding, FxBuildHasher>,
    order: VecDeque<ResponseKey>,
    max: usize,
}

impl Responses {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            by_key: HashMap::with_hasher(FxBuildHasher),
            order: VecDeque::new(),
            max: max.max(1),
        }
    }

    pub(crate) fn get(&self, key: ResponseKey) -> Option<Binding> {
        self.by_key.get(&key).copied()
    }

    pub(crate) fn bind(&mut self, key: ResponseKey, binding: Binding) {
        if self.by_key.insert(key, binding).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > self.max
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_key.remove(&oldest);
        }
    }

    pub(crate) fn consistent(&self) -> bool {
        self.order.len() == self.by_key.len() && self.order.len() <= self.max
    }
}

#[cfg(test)]
mod tests {
    use super::{Binding, ResponseKey, Responses, WorkerId};

    #[test]
    fn the_oldest_goes_first() {
        let binding = |slot| Binding {
            worker: WorkerId {
                slot,
                generation: 0,
            },
            epoch: 0,
        };
        let mut responses = Responses::new(2);
        responses.bind(ResponseKey(1), binding(1));
        responses.bind(ResponseKey(2), binding(2));
        responses.bind(ResponseKey(1), binding(3));
        responses.bind(ResponseKey(3), binding(1));
        assert_eq!(responses.get(ResponseKey(1)), None);
        assert_eq!(responses.get(ResponseKey(2)), Some(binding(2)));
        assert!(responses.consistent());
    }
}
