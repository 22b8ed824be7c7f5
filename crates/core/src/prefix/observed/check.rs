//! The invariants, verified; for tests and the simulator.

use super::owner::CHILDREN_MAX;
use super::places::{GONE, member};
use super::{ENTRY_BYTES, Flow, KvState, Observed};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;

fn hold(good: bool, what: impl Fn() -> String) -> Result<(), String> {
    if good { Ok(()) } else { Err(what()) }
}

impl Observed {
    /// Verifies every invariant. Costs a pass over everything.
    ///
    /// # Errors
    /// What is broken.
    pub fn check(&self) -> Result<(), String> {
        let mut said: BTreeMap<u32, BTreeMap<u32, ()>> = BTreeMap::new();
        let mut flows: BTreeMap<u32, Flow> = BTreeMap::new();
        let (mut entries, mut uneven) = (0, 0);
        for (id, owner) in (0_u32..).zip(&self.owners) {
            let Some(owner) = owner else { continue };
            hold(self.ids.get(&(owner.slot, owner.rank)) == Some(&id), || {
                format!("owner {id} is not found by its worker and rank")
            })?;
            let flow = flows.entry(owner.slot).or_default();
            *flow.of(owner.state) += 1;
            hold(owner.state != KvState::Restarted, || {
                format!("owner {id} stays restarted")
            })?;
            entries += owner.len();
            uneven += owner.uneven();
            owner.check(|place, tier| {
                let fresh = said.entry(place).or_default().insert(member(id, tier), ());
                hold(fresh.is_none(), || {
                    format!("block {place} is told twice by {id}")
                })
            })?;
        }
        let known = self.owners.iter().flatten().count();
        hold(known == self.ids.len(), || {
            "owners that nobody finds".into()
        })?;
        hold((entries, uneven) == (self.entries, self.uneven), || {
            format!(
                "{entries} entries ({uneven} uneven), counted {} ({})",
                self.entries, self.uneven
            )
        })?;
        for (slot, flow) in (0_u32..).zip(&self.flows) {
            let counted = flows.get(&slot).copied().unwrap_or_default();
            hold(*flow == counted, || {
                format!("slot {slot}: {flow:?}, its ranks say {counted:?}")
            })?;
        }
        self.check_places(&said)?;
        hold(self.leaving.consistent(), || {
            "blocks that leave: counts disagree".into()
        })?;
        hold(self.parking.consistent(), || {
            "parking: lists disagree".into()
        })?;
        hold(
            self.live_bytes() <= self.bytes_max + 64 * ENTRY_BYTES,
            || {
                format!(
                    "{} bytes in use, of {} allowed",
                    self.live_bytes(),
                    self.bytes_max
                )
            },
        )
    }

    fn check_places(&self, said: &BTreeMap<u32, BTreeMap<u32, ()>>) -> Result<(), String> {
        let mut refs: BTreeMap<u32, u32> = BTreeMap::new();
        // The set of nobody is kept for ever.
        refs.insert(super::sets::EMPTY, 1);
        let mut places = 0;
        for (place, hash, set) in self.places.iter() {
            places += 1;
            *refs.entry(set).or_default() += 1;
            hold(self.places.find(hash) == Some(place), || {
                format!("block {place} is not found by its hash")
            })?;
            let members = self.places.sets.members(set);
            let agreed = said.get(&place).is_some_and(|s| s.keys().eq(members));
            hold(agreed, || {
                format!("block {place}: its holders and what they say differ")
            })?;
        }
        hold(said.len() == places, || {
            format!("{} blocks are told of, {places} kept", said.len())
        })?;
        for (set, counted) in self.places.sets.refs() {
            let real = refs.get(&set).copied().unwrap_or(0);
            hold(real == counted, || {
                format!("set {set}: {real} have it, counted {counted}")
            })?;
        }
        Ok(())
    }
}

impl super::owner::Owner {
    /// Checks what it can alone, and tells each of its blocks with the tier.
    fn check(&self, mut tell: impl FnMut(u32, u32) -> Result<(), String>) -> Result<(), String> {
        let mut children: BTreeMap<u32, u32> = BTreeMap::new();
        let mut told: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        let mut held = 0;
        for line in self.lines() {
            let say = |what| move || format!("entry {}: {what}", line.entry);
            hold(
                self.find(line.name) == Some(line.entry),
                say("is not found by its name"),
            )?;
            held += u64::from(line.tiers != 0);
            let gap = line.tiers == 0;
            hold(!gap || line.children > 0, say("a gap before nothing"))?;
            hold(gap == line.gap, say("gaps are not listed as such"))?;
            if let Some(parent) = line.parent {
                *children.entry(parent).or_default() += 1;
            }
            let tiers = if gap { 1 << GONE } else { line.tiers };
            for place in line.places {
                for tier in (0..=GONE).filter(|tier| tiers & 1 << tier != 0) {
                    *told.entry((place, tier)).or_default() += 1;
                }
            }
        }
        let more = told.values().filter(|times| **times > 1).count();
        hold(more == self.told_again(), || {
            "blocks told again are miscounted".into()
        })?;
        for ((place, tier), times) in told {
            hold(self.again(place, tier) + 1 == times, || {
                format!("block {place} is told of {times} times in tier {tier}")
            })?;
            tell(place, tier)?;
        }
        for line in self.lines() {
            let counted = children.remove(&line.entry).unwrap_or(0);
            let uncounted = line.children == CHILDREN_MAX;
            hold(line.children == counted || uncounted, || {
                format!(
                    "entry {}: {} children, {counted} name it",
                    line.entry, line.children
                )
            })?;
        }
        hold(children.is_empty(), || "a parent that is not there".into())?;
        hold(held == self.held, || {
            format!("{held} entries held, counted {}", self.held)
        })
    }
}
