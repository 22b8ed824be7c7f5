//! The workers of a pool in dense slots; a slot's generation counts its lives.

use super::WorkerSpec;
use super::worker::Worker;
use crate::ids::WorkerId;
use crate::limits::WORKERS_MAX;
use alloc::vec::Vec;

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    worker: Option<Worker>,
}

/// All workers.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    slots: Vec<Slot>,
}

impl Fleet {
    /// The lowest free slot in its next life. With all slots taken, the id can not be added.
    pub(crate) fn next_id(&self) -> WorkerId {
        let free = self.slots.iter().position(|slot| slot.worker.is_none());
        let slot = free.unwrap_or(self.slots.len());
        WorkerId {
            slot: slot as u32,
            generation: self.slots.get(slot).map_or(0, |slot| slot.generation),
        }
    }

    /// Adds a worker; false where the id is not that of a free slot's next life.
    pub(crate) fn add(&mut self, id: WorkerId, spec: WorkerSpec) -> bool {
        let index = id.slot as usize;
        if index > self.slots.len() || index >= WORKERS_MAX {
            return false;
        }
        if index == self.slots.len() {
            self.slots.push(Slot::default());
        }
        let Some(slot) = self.slots.get_mut(index) else {
            return false;
        };
        if slot.worker.is_some() || slot.generation != id.generation {
            return false;
        }
        slot.worker = Some(Worker::new(id, spec));
        true
    }

    /// Takes a worker out; its slot's next life has another generation.
    pub(crate) fn remove(&mut self, id: WorkerId) -> Option<Worker> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        let worker = slot.worker.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        Some(worker)
    }

    pub(crate) fn get(&self, id: WorkerId) -> Option<&Worker> {
        let slot = self.slots.get(id.slot as usize)?;
        slot.worker
            .as_ref()
            .filter(|w| w.id.generation == id.generation)
    }

    pub(crate) fn get_mut(&mut self, id: WorkerId) -> Option<&mut Worker> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        slot.worker
            .as_mut()
            .filter(|w| w.id.generation == id.generation)
    }

    /// In slot order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Worker> {
        self.slots.iter().filter_map(|slot| slot.worker.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::{Fleet, WorkerSpec};
    use crate::pool::Seats;
    use alloc::vec::Vec;

    #[test]
    fn a_removed_worker_and_its_successor_are_different() {
        let spec = || WorkerSpec {
            identity: 1,
            seats: Seats::default(),
            models: Vec::new(),
            assume_ready: true,
            pulls: false,
            limits: super::super::RequestLimits::default(),
        };
        let mut fleet = Fleet::default();
        let first = fleet.next_id();
        assert!(fleet.add(first, spec()));
        assert!(!fleet.add(first, spec()), "taken");
        assert!(fleet.remove(first).is_some());
        let second = fleet.next_id();
        assert_eq!((second.slot, second.generation), (0, 1));
        assert!(!fleet.add(first, spec()), "that life is over");
        assert!(fleet.add(second, spec()));
        assert!(fleet.get(first).is_none() && fleet.get_mut(first).is_none());
        assert!(fleet.remove(first).is_none());
        assert_eq!(fleet.iter().count(), 1);
    }
}
