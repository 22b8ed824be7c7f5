//! The invariants, verified; for tests and the simulator.

use super::Index;
use super::holdings::Holding;
use crate::prefix::slab::NONE;
use alloc::format;
use alloc::string::String;
use alloc::vec;

/// The first thing that is not as it must be.
fn hold(good: bool, what: impl Fn() -> String) -> Result<(), String> {
    if good { Ok(()) } else { Err(what()) }
}

impl Index {
    /// Verifies every invariant. Costs a pass over everything.
    ///
    /// # Errors
    /// What is broken.
    pub fn check(&self) -> Result<(), String> {
        self.check_nodes()?;
        self.check_workers()?;
        self.check_bytes()
    }

    fn check_nodes(&self) -> Result<(), String> {
        hold(self.openings.len() == self.nodes.len(), || {
            format!(
                "{} openings, {} nodes",
                self.openings.len(),
                self.nodes.len()
            )
        })?;
        let places = self.nodes.iter().map(|(place, _)| place).max();
        let mut children = vec![0_u32; places.map_or(0, |place| place as usize + 1)];
        let mut holders = 0;
        for (place, node) in self.nodes.iter() {
            let say = |what| move || format!("node {place}: {what}");
            let first = node.run.first().copied().ok_or_else(say("empty run"))?;
            hold(
                self.child(node.parent, first) == Some(place),
                say("is not found under its first hash"),
            )?;
            let deepest = node.holders.iter().map(|h| h.depth).max().unwrap_or(0);
            hold(
                deepest as usize == node.run.len(),
                say("its run is not as long as its deepest holder's part"),
            )?;
            hold(
                node.holders.is_sorted_by(|a, b| a.slot < b.slot),
                say("holders not in order of their slots"),
            )?;
            for holder in &node.holders {
                let holding = self.holdings[holder.holding];
                hold(holder.depth > 0, say("a holder of nothing"))?;
                hold(
                    (holding.node, holding.slot) == (place, holder.slot),
                    say("a holder's holding is another's"),
                )?;
                self.check_above(place, holding)
                    .map_err(|e| format!("node {place}: {e}"))?;
            }
            holders += node.holders.len();
            if node.parent != NONE {
                children[node.parent as usize] += 1;
            }
        }
        hold(holders == self.holdings.len(), || {
            format!("{holders} holders, {} holdings", self.holdings.len())
        })?;
        for (place, node) in self.nodes.iter() {
            hold(node.children == children[place as usize], || {
                format!("node {place}: {} children counted", node.children)
            })?;
        }
        Ok(())
    }

    /// Who holds any of a child holds all of its parent's run.
    fn check_above(&self, node: u32, holding: Holding) -> Result<(), String> {
        let parent = self.nodes[node].parent;
        if parent == NONE {
            return hold(holding.above == NONE, || {
                String::from("something above the root")
            });
        }
        let above = self.nodes[parent].holder(holding.slot);
        let whole = self.nodes[parent].run.len();
        hold(
            above.is_some_and(|a| a.holding == holding.above && a.depth as usize == whole),
            || format!("slot {} does not hold all above it", holding.slot),
        )
    }

    fn check_workers(&self) -> Result<(), String> {
        let places = self.holdings.iter().map(|(place, _)| place).max();
        // In the order of use: when a holding came, from 1.
        let mut order = vec![0_u64; places.map_or(0, |place| place as usize + 1)];
        let mut below = order.clone();
        let mut time = 0;
        for (slot, worker) in (0_u32..).zip(&self.workers) {
            let say = |what| move || format!("slot {slot}: {what}");
            let (mut at, mut before, mut count, mut blocks) = (worker.oldest, NONE, 0, 0);
            while at != NONE {
                let holding = self.holdings[at];
                time += 1;
                hold(order[at as usize] == 0, say("listed twice"))?;
                order[at as usize] = time;
                hold(holding.slot == slot, say("lists another's holding"))?;
                hold(holding.older == before, say("order of use is torn"))?;
                if holding.above != NONE {
                    below[holding.above as usize] += 1;
                    let above = order[holding.above as usize];
                    hold(above == 0, say("a holding is older than one below it"))?;
                }
                count += 1;
                blocks += u64::from(self.depth(at));
                (before, at) = (at, holding.newer);
            }
            hold(worker.newest == before, say("its newest is not its newest"))?;
            hold(worker.holdings == count, say("holdings miscounted"))?;
            hold(worker.blocks == blocks, say("blocks miscounted"))?;
            hold(worker.blocks <= worker.capacity, say("over its capacity"))?;
        }
        for (place, holding) in self.holdings.iter() {
            let say = |what| move || format!("holding {place}: {what}");
            hold(order[place as usize] > 0, say("in no order of use"))?;
            let (mut at, mut left, mut count) = (holding.below, NONE, 0);
            while at != NONE && count <= below[place as usize] {
                let child = self.holdings[at];
                hold(child.above == place, say("lists another's as below it"))?;
                hold(child.left == left, say("its list is torn"))?;
                count += 1;
                (left, at) = (at, child.right);
            }
            hold(
                count == below[place as usize],
                say("not all below it are listed"),
            )?;
        }
        Ok(())
    }

    fn check_bytes(&self) -> Result<(), String> {
        let runs: usize = self.nodes.iter().map(|(_, node)| node.run_bytes()).sum();
        hold(runs == self.run_bytes, || {
            format!("runs take {runs} bytes, counted {}", self.run_bytes)
        })?;
        let holders: usize = self.nodes.iter().map(|(_, node)| node.holder_bytes()).sum();
        hold(holders == self.holder_bytes, || {
            format!(
                "holders take {holders} bytes, counted {}",
                self.holder_bytes
            )
        })?;
        hold(self.bytes() <= self.bytes_max, || {
            format!("{} bytes, of {} allowed", self.bytes(), self.bytes_max)
        })
    }
}
