#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::page;
use crate::grid::{Axes, Room, fairness, placement, play};
use crate::workload::named;

fn made(loads: &[Option<f64>]) -> String {
    let axes = Axes {
        placements: ["session", "random"]
            .map(|spec| (spec.to_owned(), placement(spec).unwrap()))
            .to_vec(),
        fairness: vec![("fcfs".to_owned(), fairness("fcfs").unwrap())],
        loads: loads.to_vec(),
        seeds: vec![1, 2],
    };
    let chat = named("chat:sessions=6:rate=1").unwrap();
    let source = |seed: u64, factor: f64| chat.plan(16, seed, factor);
    let room = Room {
        workers: 2,
        ..Room::default()
    };
    let cells = play(&source, &room, &axes, 2, &|_, _, _| {}).unwrap();
    page("chat <&> more", "maitred simulate --workload chat", &cells)
}

/// Every `<svg>`, `<g>` and `<figure>` is closed, and nothing is asked of a network.
fn sound(page: &str) {
    for tag in ["svg", "g", "figure", "div", "table", "pre"] {
        let opened =
            page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    for outside in ["http:", "https:", "<script", "<link", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(
        !page.contains("NaN") && !page.contains("inf"),
        "numbers only"
    );
    assert!(page.contains("chat &lt;&amp;> more") && !page.contains("chat <&"));
}

#[test]
fn one_load_has_bars_and_several_have_lines() {
    let bars = made(&[None]);
    sound(&bars);
    assert_eq!(
        bars.matches("<svg").count(),
        7 + 2,
        "drawings, and a timeline for each policy"
    );
    assert!(bars.contains("<rect") && !bars.contains("class=series"));
    assert!(bars.contains("session fcfs") && bars.contains("random fcfs"));
    let lines = made(&[Some(0.02), Some(0.06)]);
    sound(&lines);
    assert_eq!(
        lines.matches("class=series").count(),
        14,
        "two policies, seven drawings"
    );
    assert_eq!(lines.matches("<tr>").count(), 5, "heads and four rows");
}
