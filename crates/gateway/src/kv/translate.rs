//! From the engine's words to the core's: whose chain a block is of, in which tier and cache it lies.

use maitred_core::prefix::observed::{self as core, Group, Tier};
use maitred_wire::kv::{
    EngineHash, Extra, ExtraKey, GroupKind, KvBatch, KvEvent, Medium, Removed, Stored,
};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::Xxh3;

/// Cache groups of one source that are remembered.
const GROUPS_MAX: usize = 64;

/// The seed of the chains under this adapter (None: the model itself) and cache salt.
pub type Seeds = dyn Fn(Option<&str>, Option<&str>) -> u64 + Send + Sync;

/// What must be remembered of one source to understand it.
#[derive(Clone, Debug, Default)]
pub struct Translator {
    /// Groups that said what they keep. Removals only name the group.
    groups: BTreeMap<u32, Group>,
    /// All requests have salts, so that a block without a word of them is nobody's.
    salted: bool,
    /// Such blocks came: what the source holds is not known by its events.
    silent: bool,
}

impl Translator {
    /// Of a source whose requests all have salts.
    #[must_use]
    pub fn salted() -> Self {
        Self {
            salted: true,
            ..Self::default()
        }
    }

    /// Whether the source stores blocks without saying their salts, although they have some.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.silent
    }

    /// The same events in the core's words. Blocks that are named without their tokens are left out:
    /// nobody could find them.
    pub fn translate(&mut self, batch: KvBatch, seeds: &Seeds) -> core::KvBatch {
        let events = batch.events.into_iter().filter_map(|event| match event {
            KvEvent::Stored(stored) => self.stored(stored, seeds).map(core::KvEvent::Stored),
            KvEvent::Removed(removed) => Some(core::KvEvent::Removed(self.removed(removed))),
            KvEvent::Cleared => Some(core::KvEvent::Cleared),
        });
        core::KvBatch {
            events: events.collect(),
        }
    }

    fn stored(&mut self, stored: Stored, seeds: &Seeds) -> Option<core::Stored> {
        drop(stored.blocks()?);
        if self.salted && !stored.says_extra {
            self.silent = true;
            return None;
        }
        let (tier, known) = tier(stored.medium, stored.remote);
        let mut group = match stored.kind {
            GroupKind::Full => Group::Main,
            GroupKind::Unsaid => unsaid(stored.group),
            GroupKind::Window | GroupKind::State | GroupKind::Other => Group::Other,
        };
        if let Some(number) = stored.group
            && (self.groups.len() < GROUPS_MAX || self.groups.contains_key(&number))
        {
            self.groups.insert(number, group);
        }
        if !known {
            group = Group::Other;
        }
        let extra = extra(&stored);
        // An adapter without a name cannot be asked for by one; it must not pass for the model itself.
        let numbered = || stored.lora_id.map(|id| format!("adapter number {id}"));
        let adapter = match &stored.lora_name {
            Some(name) => Some(name.to_string()),
            None => numbered(),
        };
        Some(core::Stored {
            root_seed: seeds(adapter.as_deref(), stored.salt()),
            extra,
            parent: stored.parent.map(|parent| parent.0),
            block_size: stored.block_size,
            hashes: names(stored.hashes),
            tokens: stored.token_ids,
            tier,
            group,
        })
    }

    fn removed(&self, removed: Removed) -> core::Removed {
        let (tier, known) = tier(removed.medium, removed.remote);
        let learnt = removed.group.and_then(|number| self.groups.get(&number));
        let group = learnt.copied().unwrap_or_else(|| unsaid(removed.group));
        core::Removed {
            hashes: names(removed.hashes),
            tier,
            remaining: removed.remaining,
            group: if known { group } else { Group::Other },
        }
    }
}

/// Engines with one group need not say what it keeps, and it is number 0.
fn unsaid(group: Option<u32>) -> Group {
    match group {
        None | Some(0) => Group::Main,
        Some(_) => Group::Other,
    }
}

/// The tier, and whether the place is one that we know.
fn tier(medium: Medium, remote: bool) -> (Tier, bool) {
    match medium {
        Medium::Other => (Tier::Disk, false),
        _ if remote => (Tier::Disk, true),
        Medium::Device => (Tier::Device, true),
        Medium::Host => (Tier::Host, true),
        Medium::Disk | Medium::Shared => (Tier::Disk, true),
    }
}

fn names(hashes: Vec<EngineHash>) -> Vec<u64> {
    hashes.into_iter().map(|hash| hash.0).collect()
}

/// The keys of each block that has any, hashed; the salt is in the seed.
fn extra(stored: &Stored) -> Vec<(u32, u64)> {
    let mut hashed = Vec::new();
    let salted = stored.salt().is_some();
    let last_text = stored.extra.iter().rposition(|extra| {
        extra.block == 0 && matches!(extra.key, ExtraKey::Text(_) | ExtraKey::Salt(_))
    });
    let keys: Vec<&Extra> = stored
        .extra
        .iter()
        .enumerate()
        .filter(|(place, _)| !(salted && Some(*place) == last_text))
        .map(|(_, extra)| extra)
        .collect();
    for keys in keys.chunk_by(|a, b| a.block == b.block) {
        let Some(first) = keys.first() else {
            continue;
        };
        let Some(name) = stored.hashes.get(first.block as usize) else {
            continue;
        };
        let mut hasher = Xxh3::new();
        for extra in keys {
            write(&extra.key, *name, &mut hasher);
        }
        hashed.push((first.block, hasher.digest()));
    }
    hashed
}

fn write(key: &ExtraKey, block: EngineHash, hasher: &mut Xxh3) {
    let (kind, text, number): (u8, &str, u64) = match key {
        ExtraKey::Text(text) => (1, text, 0),
        ExtraKey::Salt(text) => (2, text, 0),
        ExtraKey::Adapter(text) => (3, text, 0),
        ExtraKey::Item { id, offset } => (4, id, offset.cast_unsigned()),
        // Not understood: equal to nothing but itself.
        ExtraKey::Other => (5, "", block.0),
    };
    hasher.update(&[kind]);
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
    hasher.update(&number.to_le_bytes());
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::{Group, Tier, Translator, core};
    use maitred_wire::kv::{
        EngineHash, Extra, ExtraKey, GroupKind, KvBatch, KvEvent, Medium, Removed, Stored,
    };

    fn seeds(adapter: Option<&str>, salt: Option<&str>) -> u64 {
        1 + adapter.map_or(0, |a| a.len() as u64 * 100) + salt.map_or(0, |s| s.len() as u64 * 10)
    }

    fn stored(change: impl FnOnce(&mut Stored)) -> KvEvent {
        let mut stored = Stored {
            hashes: vec![EngineHash(1), EngineHash(2)],
            token_ids: vec![5, 6, 7, 8],
            block_size: 2,
            ..Stored::default()
        };
        change(&mut stored);
        KvEvent::Stored(stored)
    }

    fn one(translator: &mut Translator, event: KvEvent) -> Option<core::KvEvent> {
        let batch = KvBatch {
            events: vec![event],
            ..KvBatch::default()
        };
        translator.translate(batch, &seeds).events.pop()
    }

    fn as_stored(event: KvEvent) -> core::Stored {
        match one(&mut Translator::default(), event) {
            Some(core::KvEvent::Stored(stored)) => stored,
            other => panic!("{other:?}"),
        }
    }

    fn key(block: u32, key: ExtraKey) -> Extra {
        Extra { block, key }
    }

    #[test]
    fn salts_and_adapters_are_the_seed() {
        let plain = as_stored(stored(|_| {}));
        assert_eq!((plain.root_seed, plain.tier), (1, Tier::Device));
        assert_eq!((plain.hashes, plain.tokens), (vec![1, 2], vec![5, 6, 7, 8]));
        let salted = as_stored(stored(|s| {
            s.lora_name = Some("ab".into());
            s.extra = vec![key(0, ExtraKey::Text("abc".into()))];
        }));
        assert_eq!((salted.root_seed, salted.extra), (231, vec![]));
        let numbered = as_stored(stored(|s| s.lora_id = Some(3)));
        assert!(numbered.root_seed > 1);
    }

    #[test]
    fn other_keys_make_other_blocks() {
        let item = |id: &str| ExtraKey::Item {
            id: id.into(),
            offset: 1,
        };
        let of = |key: &ExtraKey| {
            let event = stored(|s| {
                s.extra = vec![Extra {
                    block: 1,
                    key: key.clone(),
                }];
            });
            let extra = as_stored(event).extra;
            assert_eq!((extra.len(), extra[0].0), (1, 1));
            extra[0].1
        };
        assert_eq!(of(&item("a")), of(&item("a")));
        assert!(of(&item("a")) != of(&item("b")));
        assert!(of(&ExtraKey::Text("a".into())) != of(&item("a")));
        // What is not understood is equal to no other block's.
        let unknown = stored(|s| {
            s.extra = vec![key(0, ExtraKey::Other), key(1, ExtraKey::Other)];
        });
        let extra = as_stored(unknown).extra;
        assert!(extra[0].1 != extra[1].1);
    }

    #[test]
    fn groups_are_learnt_from_what_they_store() {
        let mut translator = Translator::default();
        let group = |number, kind| stored(move |s| (s.group, s.kind) = (Some(number), kind));
        one(&mut translator, group(0, GroupKind::Window));
        one(&mut translator, group(1, GroupKind::Full));
        let mut removed = |number: Option<u32>| {
            let event = KvEvent::Removed(Removed {
                hashes: vec![EngineHash(1)],
                group: number,
                ..Removed::default()
            });
            match one(&mut translator, event) {
                Some(core::KvEvent::Removed(removed)) => removed.group,
                other => panic!("{other:?}"),
            }
        };
        let groups = [removed(Some(0)), removed(Some(1)), removed(Some(2))];
        assert_eq!(groups, [Group::Other, Group::Main, Group::Other]);
        assert_eq!(removed(None), Group::Main);
    }

    #[test]
    fn unknown_places_and_nameless_blocks_are_not_believed() {
        let elsewhere = as_stored(stored(|s| s.medium = Medium::Other));
        assert_eq!(elsewhere.group, Group::Other);
        let remote = as_stored(stored(|s| s.remote = true));
        assert_eq!((remote.tier, remote.group), (Tier::Disk, Group::Main));
        let nameless = stored(|s| s.token_ids.clear());
        assert_eq!(one(&mut Translator::default(), nameless), None);
    }
}
