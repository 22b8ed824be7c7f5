//! What is shown of the line: no wait is left out because it has not ended.

use super::*;
use crate::ids::ModelKey;
use crate::line::{LineKind, LineView, LinesView};

fn promising() -> PoolConfig {
    PoolConfig {
        fairness: crate::line::FairnessConfig::default(),
        ..config()
    }
}

/// 100 tokens of prompt and 50 of answer: a charge of 200.
fn of(tenant: u64, turn: u32, id: u64) -> Arrival {
    Arrival {
        tenant: TenantId(tenant),
        turn,
        prompt_tokens: Some(100),
        max_tokens: Some(50),
        ..guest(id)
    }
}

fn line(view: &LinesView, line: LineKind) -> &LineView {
    view.lines.iter().find(|l| l.line == line).unwrap()
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn those_who_still_wait_count_and_the_shares_are_those_of_contested_seats() {
    let mut table = Table::new(promising(), 1, slots(1));
    table.seat(of(1, 1, 1));
    table.at(1.0).arrive(of(1, 1, 2));
    table.at(2.0).arrive(of(2, 2, 3));
    table.at(4.0).arrive(of(2, 1, 4));

    let view = table.scheduler.lines(Nanos(10_000_000_000));
    let (new, returning) = (line(&view, LineKind::New), line(&view, LineKind::Returning));
    assert_eq!((new.waiting, returning.waiting), (2, 1));
    assert_eq!((new.waited, returning.waited), (secs(9 + 6), secs(8)));
    assert_eq!(new.oldest, Some(secs(9)));
    assert_eq!(returning.oldest, Some(secs(8)));
    assert_eq!((new.overdue, new.promises_broken), (0, 0), "promised: 10 s");
    assert_eq!((new.share, new.share_floor), (Some(0.2), Some(0.05)));
    assert_eq!(returning.share_floor, Some(0.8));
    // Nobody who waits was served, and nothing is known of the time it takes.
    assert_eq!((view.jain_service, view.jain_slowdown), (None, None));
    assert_eq!(view.service_seconds, None);
    let view = table.scheduler.lines(Nanos(12_000_000_000));
    let new = line(&view, LineKind::New);
    assert_eq!((new.overdue, new.promises_broken), (1, 0), "11 s and 8 s");

    // The follow-up goes first: 200 / 0.8 is less than 200 / 0.2.
    assert_eq!(
        only_dispatch(table.at(20.0).finish(first(1))).attempt,
        first(3)
    );
    let view = table.scheduler.lines(Nanos(20_000_000_000));
    let (new, returning) = (line(&view, LineKind::New), line(&view, LineKind::Returning));
    assert_eq!((new.dispatched_charge, new.contested_charge), (200, 0));
    assert_eq!(returning.contested_charge, 200, "while newcomers waited");
    assert_eq!(view.service_seconds, Some(20.0));
    // Of the two who wait, the second got 200 and the first nothing since they do.
    assert_eq!(view.jain_service, Some(0.5));
    // The first: 20 s of service without a wait, and 19 s waited: (1 + 19/20 + 1) / 2. The second:
    // 16 s waited: 16/20 + 1.
    let slowdown = |tenant: u64| {
        let all = view.tenants.iter();
        let mut own = all.filter(|t| t.tenant == TenantId(tenant));
        own.next().unwrap().slowdown.unwrap()
    };
    assert!((slowdown(1) - 1.475).abs() < 1e-9, "{}", slowdown(1));
    assert!((slowdown(2) - 1.8).abs() < 1e-9, "{}", slowdown(2));
    let jain = 3.275_f64.powi(2) / (2.0 * (1.475_f64.powi(2) + 1.8_f64.powi(2)));
    assert!((view.jain_slowdown.unwrap() - jain).abs() < 1e-9);

    // 10 s of service: the mean of late moves a sixteenth of the way.
    table.at(30.0).finish(first(3));
    let view = table.scheduler.lines(table.now);
    assert_eq!(view.service_seconds, Some(19.375));
    let new = line(&view, LineKind::New);
    assert_eq!(new.promises_broken, 1, "it started after 26 s or 29 s");
    assert_eq!(
        (new.overdue, new.waiting),
        (1, 1),
        "so long waits the other"
    );
    assert_eq!(new.contested_charge, 0, "no follow-up waited");
    assert_eq!(new.waited, new.oldest.unwrap());

    // Who leaves is out of every sum at once.
    for id in [2, 4] {
        table.send(Input::Cancel(RequestId(id)));
    }
    let view = table.scheduler.lines(table.now);
    let new = line(&view, LineKind::New);
    assert_eq!((new.waiting, new.waited, new.overdue), (0, secs(0), 0));
    assert_eq!((new.bytes, new.charge, new.oldest), (0, 0, None));
    assert_eq!((view.tenants_waiting, view.classes.len()), (0, 0));
}

/// Only the class in which most waited had a prediction, and it stood for all.
#[test]
fn each_set_of_workers_has_a_prediction_of_its_own() {
    let mut table = Table::new(promising(), 2, slots(1));
    for (worker, model) in [(0, 1), (1, 2)] {
        let models = FleetChange::Models(table.workers[worker], [ModelKey(model)].into());
        table.send(Input::Fleet(models));
    }
    let wants = |id: u64, model: u64| Arrival {
        model: Some(ModelKey(model)),
        ..of(1, 2, id)
    };
    // A seat every 2 s for the first model, every 8 s for the second; each time one more waits.
    let (mut slow, mut fast) = (1, 2);
    for id in [1, 3, 5] {
        table.arrive(wants(id, 2));
    }
    for id in [2, 4, 6] {
        table.arrive(wants(id, 1));
    }
    let mut next = [7, 8];
    for second in (2..=80_u32).step_by(2) {
        table.at(f64::from(second));
        table.finish(first(fast));
        fast += 2;
        table.arrive(wants(next[1], 1));
        next[1] += 2;
        if second % 8 == 0 {
            table.finish(first(slow));
            slow += 2;
            table.arrive(wants(next[0], 2));
            next[0] += 2;
        }
    }
    let view = table.scheduler.lines(table.now);
    let start = |worker: usize| {
        let own = view.classes.iter();
        let mut own = own.filter(|c| c.workers == [table.workers[worker]]);
        let class = own.next().unwrap();
        assert_eq!(class.waiting, 2);
        let of_line = |(_, line, start): &(u16, LineKind, Option<Duration>)| {
            (*line == LineKind::Returning).then(|| start.unwrap().as_secs())
        };
        class.starts.iter().find_map(of_line).unwrap()
    };
    // Two wait before it: the third gap from now ends with its own start.
    assert_eq!((start(0), start(1)), (6, 24));
}
