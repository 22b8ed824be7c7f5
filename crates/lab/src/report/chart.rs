//! Two kinds of drawings: bars for one load, lines over several.

use std::fmt::Write as _;

use super::frame::escaped;
use crate::grid::Spread;

const WIDTH: f64 = 480.0;
/// Room for names and numbers.
const LEFT: f64 = 150.0;
const RIGHT: f64 = 70.0;
const BAR: f64 = 20.0;
const HEIGHT: f64 = 220.0;
const AXIS: f64 = 44.0;

/// A colour for each place, far apart on the circle one after the other.
fn colour(place: usize) -> String {
    let hue = (place as f64 * 137.5) % 360.0;
    format!("hsl({hue:.0} 65% 52%)")
}

/// Three digits, and no more.
fn shown(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A bar for each policy, the best read first.
pub(super) struct Bars {
    pub(super) bars: Vec<(String, Spread)>,
    /// What none can exceed.
    pub(super) most: Option<f64>,
}

impl Bars {
    pub(super) fn svg(&self) -> String {
        let values = self.bars.iter().map(|(_, spread)| spread.mean);
        let top = values.chain(self.most).fold(1e-9, f64::max);
        let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * value / top;
        let height = BAR * self.bars.len() as f64;
        let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=img>");
        for (place, (name, spread)) in self.bars.iter().enumerate() {
            let y = BAR * place as f64;
            let middle = y + BAR * 0.7;
            let half = spread
                .half_width
                .map_or(String::new(), |half| format!(" ± {}", shown(half)));
            let _ = write!(
                svg,
                "<text class=name x=0 y={middle}>{}</text><rect x={LEFT} y={} width={:.1} height={} rx=3 \
                 fill=\"hsl(215 60% 55%)\"/><text x={:.1} y={middle}>{}{half}</text>",
                escaped(name),
                y + 4.0,
                (x(spread.mean) - LEFT).max(1.0),
                BAR - 8.0,
                x(spread.mean) + 6.0,
                shown(spread.mean),
            );
        }
        if let Some(most) = self.most {
            let at = x(most);
            let _ = write!(
                svg,
                "<line class=most x1={at:.1} x2={at:.1} y1=0 y2={height} />"
            );
        }
        svg.push_str("</svg>");
        svg
    }
}

/// A line for each policy, over load.
pub(super) struct Lines {
    pub(super) series: Vec<(String, Vec<(f64, f64)>)>,
    /// What none can exceed.
    pub(super) most: Vec<(f64, f64)>,
}

impl Lines {
    pub(super) fn svg(&self) -> String {
        let points = || {
            self.series
                .iter()
                .flat_map(|(_, points)| points)
                .chain(&self.most)
        };
        let top = points().map(|point| point.1).fold(1e-9, f64::max);
        let from = points().map(|point| point.0).fold(f64::INFINITY, f64::min);
        let to = points().map(|point| point.0).fold(from + 1e-9, f64::max);
        let x = |load: f64| AXIS + (WIDTH - AXIS - 10.0) * (load - from) / (to - from);
        let y = |value: f64| HEIGHT - HEIGHT * value / top;
        let legend = BAR * self.series.len().div_ceil(2) as f64;
        let mut svg = format!(
            "<svg viewBox=\"0 -8 {WIDTH} {}\" role=img>",
            HEIGHT + 40.0 + legend
        );
        for part in [0.0, 0.5, 1.0] {
            let _ = write!(
                svg,
                "<line class=rule x1={AXIS} x2={WIDTH} y1={at:.1} y2={at:.1} /><text x=0 y={:.1}>{}</text>",
                y(top * part) + 4.0,
                shown(top * part),
                at = y(top * part),
            );
        }
        let mut loads: Vec<f64> = points().map(|point| point.0).collect();
        loads.sort_by(f64::total_cmp);
        loads.dedup_by(|a, b| (*a - *b).abs() < 0.01 * (to - from));
        for load in loads {
            let _ = write!(
                svg,
                "<text x={:.1} y={} text-anchor=middle>{load:.2}</text>",
                x(load),
                HEIGHT + 16.0
            );
        }
        let path = |points: &[(f64, f64)]| {
            let steps = points.iter().enumerate().map(|(place, (load, value))| {
                let step = if place == 0 { 'M' } else { 'L' };
                format!("{step}{:.1} {:.1}", x(*load), y(*value))
            });
            steps.collect::<String>()
        };
        let _ = write!(
            svg,
            "<path class=most fill=none d=\"{}\"/>",
            path(&self.most)
        );
        for (place, (name, points)) in self.series.iter().enumerate() {
            let (column, line) = (place % 2, place / 2);
            let (left, base) = (
                AXIS + 215.0 * column as f64,
                HEIGHT + 36.0 + BAR * line as f64,
            );
            let colour = colour(place);
            let _ = write!(
                svg,
                "<g class=series><title>{name}</title><path stroke=\"{colour}\" d=\"{}\"/>\
                 <rect x={left} y={} width=12 height=4 fill=\"{colour}\"/><text class=name x={} y={base}>{name}</text>",
                path(points),
                base - 6.0,
                left + 18.0,
                name = escaped(name),
            );
            for (load, value) in points {
                let _ = write!(
                    svg,
                    "<circle cx={:.1} cy={:.1} r=3 fill=\"{colour}\"><title>{}: {} at {load:.2}</title></circle>",
                    x(*load),
                    y(*value),
                    escaped(name),
                    shown(*value),
                );
            }
            svg.push_str("</g>");
        }
        svg.push_str("</svg>");
        svg
    }
}
