use super::{Book, Guest, Want};
use crate::ids::TenantId;
use crate::time::Nanos;
use alloc::vec::Vec;
use core::time::Duration;

fn at(seconds: u64) -> Nanos {
    Nanos(seconds * 1_000_000_000)
}

fn guest(tenant: u64, caller: u64) -> Guest {
    Guest {
        tenant: TenantId(tenant),
        caller,
        session: caller,
    }
}

/// Books for somebody who would be let in after 5 s, in a line that takes that long for a start.
fn book(book: &mut Book, guest: Guest, each: f64, now: u64) -> Option<u64> {
    let want = Want {
        charge: 1_000.0,
        first: Duration::from_secs(5),
        each: Duration::from_secs_f64(each),
        whole: true,
        within: Duration::from_secs(10),
    };
    let start = book.book(guest, want, |_| true, at(now))?;
    book.check().unwrap();
    Some(start.since(at(now)).as_secs())
}

#[test]
fn slots_follow_each_other_and_who_asks_again_is_told_the_same() {
    let mut own = Book::default();
    // 40 s for a start, and a quarter more.
    for (caller, told) in [(1, 5), (2, 55), (3, 105), (2, 55), (1, 5)] {
        assert_eq!(book(&mut own, guest(0, caller), 40.0, 0), Some(told));
    }
    assert_eq!(book(&mut own, guest(0, 2), 40.0, 45), Some(10));
    let kept = own.kept(at(4));
    assert_eq!(
        (kept.now, kept.next.map(|next| next.start)),
        (0.0, Some(at(5)))
    );
    let kept = own.kept(at(5));
    assert_eq!(
        (kept.now, kept.next.map(|next| next.start)),
        (1_000.0, Some(at(55)))
    );
    // It came: what was kept for it is free.
    own.admitted(guest(0, 1), at(6));
    let kept = own.kept(at(6));
    assert_eq!(
        (kept.now, kept.next.map(|next| next.start)),
        (0.0, Some(at(55)))
    );
    // The slot is taken all the same.
    assert_eq!(book(&mut own, guest(0, 4), 40.0, 0), Some(155));
    assert_eq!(own.place(guest(0, 1)), None);
    own.check().unwrap();
}

#[test]
fn a_place_is_kept_for_three_seconds() {
    let mut own = Book::default();
    book(&mut own, guest(0, 1), 40.0, 0);
    own.expire(at(8));
    assert_eq!(own.place(guest(0, 1)).unwrap().start, at(5));
    own.expire(at(9));
    assert_eq!(own.place(guest(0, 1)), None);
    assert_eq!(own.kept(at(9)).now, 0.0);
    own.check().unwrap();
}

#[test]
fn where_few_come_again_more_are_told_the_same_time() {
    let mut own = Book::default();
    assert_eq!(own.show_rate(), 1.0);
    for caller in 0..20 {
        book(&mut own, guest(0, caller), 40.0, 0);
    }
    own.expire(at(1_200));
    // 1 over 1 and the sum of 0.98^n for n below 20.
    assert!((own.show_rate() - 1.0 / 17.62).abs() < 1e-3);
    // And once more, the rest of them: 1 over 1 and the sum for n below 30.
    for caller in 30..40 {
        book(&mut own, guest(0, caller), 40.0, 1_200);
    }
    own.expire(at(1_800));
    assert!((own.show_rate() - 1.0 / 23.73).abs() < 1e-3);
    // floor(0.05 / 0.0421) = 1 more.
    for (caller, told) in [(100, 5), (101, 5), (102, 55), (103, 55), (104, 105)] {
        assert_eq!(book(&mut own, guest(0, caller), 40.0, 2_000), Some(told));
    }
    // There is room for one start, whoever of the two comes.
    assert_eq!(own.kept(at(2_005)).now, 1_000.0);
    own.admitted(guest(0, 100), at(2_005));
    assert_eq!(own.kept(at(2_005)).now, 0.0);
    // (1 + 1) over (22.73 x 0.98 + 1 + 1).
    assert!((own.show_rate() - 2.0 / 24.27).abs() < 1e-3);
}

#[test]
fn a_fast_line_takes_many_in_a_second() {
    let mut own = Book::default();
    // 80 ms for a start, and a quarter more: ten a second.
    for caller in 0..10 {
        assert_eq!(book(&mut own, guest(0, caller), 0.08, 0), Some(5));
    }
    assert_eq!(book(&mut own, guest(0, 10), 0.08, 0), Some(6));
    assert_eq!(own.kept(at(5)).now, 10_000.0);
}

#[test]
fn minted_sessions_of_one_caller_do_not_crowd_others_out() {
    let mut own = Book::default();
    let minted = |session| Guest {
        session,
        ..guest(0, 1)
    };
    let told: Vec<_> = (0..20)
        .map(|n| book(&mut own, minted(n), 40.0, 0))
        .collect();
    assert_eq!(told.iter().flatten().count(), 8);
    assert_eq!(told[7..9], [Some(355), None]);
    assert_eq!(book(&mut own, guest(0, 2), 40.0, 0), Some(405));
}

#[test]
fn a_tenant_with_less_gets_a_place_in_a_full_slot() {
    let mut own = Book::default();
    for caller in 0..10 {
        book(&mut own, guest(0, caller), 40.0, 0);
    }
    assert_eq!(book(&mut own, guest(1, 100), 40.0, 0), Some(5));
    assert_eq!(book(&mut own, guest(1, 101), 40.0, 0), Some(55));
    assert_eq!(book(&mut own, guest(0, 10), 40.0, 0), Some(505));
}

#[test]
fn beyond_an_hour_nothing_is_promised() {
    let mut own = Book::default();
    let told = [1, 2, 3, 4].map(|caller| book(&mut own, guest(0, caller), 1_000.0, 0));
    assert_eq!(told, [Some(5), Some(1_255), Some(2_505), None]);
}

#[test]
fn a_slot_begins_when_a_seat_is_near() {
    let mut own = Book::default();
    let want = Want {
        charge: 1_000.0,
        first: Duration::from_secs(5),
        each: Duration::from_secs(8),
        whole: true,
        within: Duration::from_secs(10),
    };
    // A seat is near in the second half of every 20 s.
    let good = |time: Nanos| time.since(at(0)).as_secs() % 20 >= 10;
    for (caller, told) in [(1, 10), (2, 30), (3, 50)] {
        let start = own.book(guest(0, caller), want, good, at(0));
        assert_eq!(start, Some(at(told)));
    }
    // 10 s each: one more fits in between where that is said to be good.
    let start = own.book(guest(0, 4), want, |_| true, at(0));
    assert_eq!(start, Some(at(20)));
}
