//! What became of each token of a prompt, as the scheduler tells when it was served.
use super::{Table, config, first, long_guest, slots};
use crate::decision::Decision;
use crate::input::{Effect, Input};
use crate::miss::{Ancestor, Misses, Moved};
use crate::place::PolicyConfig;
use crate::pool::FleetChange;
use crate::request::{Arrival, Usage};
use alloc::boxed::Box;
use core::time::Duration;

/// Turns of one session, 10 blocks (160 tokens) and then 12 (192).
fn turn(id: u64, turn: u32, blocks: u64) -> Arrival {
    Arrival {
        turn,
        ..long_guest(id, 1, blocks)
    }
}

fn decided(table: &mut Table, guest: Arrival) -> Box<Decision> {
    let effects = table.send(Input::Arrive(Box::new(guest)));
    let mut decisions = effects.into_iter().filter_map(|effect| match effect {
        Effect::Dispatch(decision) => Some(decision),
        _ => None,
    });
    decisions.next().unwrap()
}

impl Table {
    fn served(&mut self, id: u64, prompt: u32, cached: Option<u32>) -> Misses {
        let usage = Usage {
            prompt_tokens: Some(prompt),
            cached_tokens: cached,
            output_tokens: Some(1),
        };
        self.send(Input::Finished {
            attempt: first(id),
            usage,
            served: true,
        });
        self.accounts.pop().unwrap()
    }
}

fn table() -> Table {
    let session = PolicyConfig::named("session").unwrap();
    let config = super::PoolConfig {
        policy: session,
        ..config()
    };
    Table::new(config, 2, slots(4))
}

#[test]
fn a_follow_up_at_home_lost_what_was_evicted() {
    let mut table = table();
    let home = decided(&mut table, turn(1, 1, 10)).worker;
    let told = table.served(1, 160, Some(0));
    assert_eq!((told.new, told.ancestor, told.total()), (160, None, 160));
    assert_eq!(decided(&mut table, turn(2, 2, 12)).worker, home);
    let told = table.at(1.0).served(2, 192, Some(48));
    let expected = Misses {
        cached: 48,
        evicted: 112,
        new: 32,
        ancestor: Some(Ancestor {
            common: 160,
            worker: home,
        }),
        ..Misses::default()
    };
    assert_eq!(told, expected);
}

#[test]
fn a_follow_up_whose_home_drains_was_moved_for_that() {
    let mut table = table();
    let home = decided(&mut table, turn(1, 1, 10)).worker;
    table.served(1, 160, Some(0));
    table.send(Input::Fleet(FleetChange::Drain(home, None)));
    let decision = decided(&mut table, turn(2, 2, 12));
    assert_ne!(decision.worker, home);
    // One that takes no work is no candidate: nobody could have stayed.
    assert_eq!(decision.stay, None);
    let told = table.at(1.0).served(2, 192, Some(0));
    assert_eq!((told.moved, told.moved_why), (160, Some(Moved::Draining)));
    assert_eq!(told.ancestor.unwrap().worker, home);
}

#[test]
fn what_staying_would_have_cost_is_told_where_somebody_warmer_was_left() {
    let round = super::PoolConfig {
        policy: PolicyConfig::named("round_robin").unwrap(),
        ..config()
    };
    let mut table = Table::new(round, 2, slots(1));
    let warm = decided(&mut table, turn(1, 1, 10)).worker;
    table.served(1, 160, Some(0));
    let decision = decided(&mut table, turn(2, 2, 12));
    assert_ne!(decision.worker, warm, "its turn in the rotation");
    let stay = decision.stay.unwrap();
    assert_eq!((stay.worker, stay.matched_tokens), (warm, 160));
    // 32 new tokens there, 192 here, and nobody else in either place.
    let there = stay.first_token_expected.unwrap();
    assert!(there > Duration::ZERO && there < decision.first_token_expected.unwrap());
    let told = table.at(1.0).served(2, 192, Some(0));
    assert_eq!((told.moved, told.moved_why), (160, Some(Moved::Policy)));
}

#[test]
fn what_is_not_served_has_no_account() {
    let mut table = table();
    decided(&mut table, turn(1, 1, 10));
    table.send(Input::Finished {
        attempt: first(1),
        usage: Usage::default(),
        served: false,
    });
    assert!(table.accounts.is_empty());
}
