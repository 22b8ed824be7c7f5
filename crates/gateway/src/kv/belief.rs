//! What is observed goes to the scheduler.

use super::translate::{Seeds, Translator};
use super::{Doubt, KvSink, Source};
use crate::driver::Driver;
use maitred_core::Input;
use maitred_core::limits::KV_BLOCKS_AT_ONCE;
use maitred_core::prefix::KvState;
use maitred_wire::kv::KvBatch;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Tells a pool's scheduler what its workers hold.
pub struct Belief {
    driver: Arc<Driver>,
    seeds: Box<Seeds>,
    translators: Mutex<HashMap<Source, Translator>>,
    salted: bool,
}

impl Belief {
    /// `seeds` must give what requests of the pool begin their token chains with.
    #[must_use]
    pub fn new(driver: Arc<Driver>, seeds: Box<Seeds>) -> Self {
        Self {
            driver,
            seeds,
            translators: Mutex::default(),
            salted: false,
        }
    }

    /// Of a pool that gives every request a salt. What engines hold that do not say salts in their
    /// events is predicted from our own dispatches, as if there were no events.
    #[must_use]
    pub fn salted(mut self, salted: bool) -> Self {
        self.salted = salted;
        self
    }

    fn is_silent(&self, source: Source) -> bool {
        let translators = self.translators.lock();
        translators.get(&source).is_some_and(Translator::is_silent)
    }

    fn state(&self, source: Source, state: KvState) {
        self.driver.handle(Input::KvState {
            worker: source.worker,
            rank: source.rank,
            state,
        });
    }
}

impl KvSink for Belief {
    fn batch(&self, source: Source, batch: KvBatch) {
        let was_silent = self.is_silent(source);
        let translated = {
            let mut translators = self.translators.lock();
            // Earlier lives of a worker's slot say nothing any more.
            if !translators.contains_key(&source) {
                let slot = source.worker.slot;
                translators
                    .retain(|known, _| known.worker.slot != slot || known.worker == source.worker);
            }
            let translator = translators.entry(source).or_insert_with(|| {
                if self.salted {
                    Translator::salted()
                } else {
                    Translator::default()
                }
            });
            translator.translate(batch, &*self.seeds)
        };
        if !was_silent && self.is_silent(source) {
            self.state(source, KvState::Uncertain);
        }
        for part in translated.split(KV_BLOCKS_AT_ONCE) {
            self.driver.handle(Input::KvEvents {
                worker: source.worker,
                rank: source.rank,
                batch: Box::new(part),
            });
        }
    }

    fn uncertain(&self, source: Source, _doubt: Doubt) {
        self.state(source, KvState::Uncertain);
    }

    fn certain(&self, source: Source) {
        if !self.is_silent(source) {
            self.state(source, KvState::Live);
        }
    }

    fn restarted(&self, source: Source) {
        self.state(source, KvState::Restarted);
        if self.is_silent(source) {
            self.state(source, KvState::Uncertain);
        }
    }
}
