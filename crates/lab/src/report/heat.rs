//! Requests on each worker over time, the fuller the darker.

use std::fmt::Write as _;

use crate::grid::Timeline;

const WIDTH: f64 = 480.0;
const LEFT: f64 = 24.0;
const ROW: f64 = 12.0;

/// `top` is the fullest cell of all drawings that stand side by side.
pub(super) fn svg(timeline: &Timeline, top: f32) -> String {
    let height = ROW * timeline.running.len() as f64;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {}\" role=img>", height + 18.0);
    let bins = timeline.running.first().map_or(0, Vec::len);
    let width = (WIDTH - LEFT) / bins.max(1) as f64;
    for (worker, row) in timeline.running.iter().enumerate() {
        let y = ROW * worker as f64;
        let _ = write!(svg, "<text x=0 y={:.1}>{worker}</text>", y + ROW - 2.0);
        for (place, cell) in row.iter().enumerate().filter(|(_, cell)| **cell > 0.0) {
            let _ = write!(
                svg,
                "<rect x={:.1} y={y:.1} width={width:.1} height={:.1} fill=\"hsl(215 70% 50%)\" opacity={:.2} />",
                LEFT + width * place as f64,
                ROW - 1.0,
                (cell / top.max(1e-6)).min(1.0),
            );
        }
    }
    let seconds = timeline.bin_seconds * bins as f64;
    let _ = write!(
        svg,
        "<text x={LEFT} y={y:.1}>0 s</text><text x={WIDTH} y={y:.1} text-anchor=end>{seconds:.0} s</text></svg>",
        y = height + 14.0
    );
    svg
}

/// The fullest cell.
pub(super) fn top(timeline: &Timeline) -> f32 {
    timeline
        .running
        .iter()
        .flatten()
        .copied()
        .fold(0.0, f32::max)
}
