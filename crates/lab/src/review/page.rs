//! The review as a page: self-contained, no script, nothing from the network.

use std::fmt::Write as _;

use super::tables::{summary, tables};
use super::{KINDS, PredictionErrors, Review, Sums, Table, sums};
use crate::report::frame::{self, escaped};

const WIDTH: f64 = 480.0;
const LEFT: f64 = 150.0;
const BAR: f64 = 20.0;
/// Groups that a drawing has, over all kinds.
const BARS: usize = 16;
/// Colours of what was cached and of the causes, warm to cold; the last is of what is not known.
const COLOURS: [&str; 8] = [
    "hsl(150 50% 42%)",
    "hsl(215 30% 72%)",
    "hsl(265 45% 60%)",
    "hsl(300 40% 60%)",
    "hsl(30 80% 55%)",
    "hsl(5 70% 55%)",
    "hsl(345 60% 45%)",
    "hsl(0 0% 55%)",
];

/// The page. `sources` says what was read, `more` are tables beside the review's own.
#[must_use]
pub fn page(sources: &str, review: &Review, more: &[Table]) -> String {
    let mut page = frame::head("maitred report");
    // A string takes all that is written.
    let _ = write!(
        page,
        "<h1>Where the warmth went</h1><p><code>{}</code></p>",
        escaped(sources)
    );
    for line in summary(review).lines() {
        let _ = write!(page, "<p>{}</p>", escaped(line));
    }
    let _ = write!(
        page,
        "<div class=grid><figure><h2>Prompt tokens: cached, or why not</h2><p>{}</p>{}</figure>\
         <figure><h2>Predicted less actual cached tokens</h2><p>share of answers whose error is in the range; 0 is exact</p>{}\
         </figure></div>",
        legend(),
        causes(review),
        errors(&review.all),
    );
    for table in tables(review).iter().chain(more) {
        let _ = write!(
            page,
            "<h2>{}</h2><p>{}</p>{}",
            escaped(table.title),
            escaped(table.note),
            frame::table(&table.lines)
        );
    }
    page.push_str("</html>\n");
    page
}

fn words() -> impl Iterator<Item = &'static str> {
    std::iter::once("cached").chain(sums::causes())
}

fn legend() -> String {
    let mut html = String::new();
    for (word, colour) in words().zip(COLOURS) {
        let _ = write!(html, "<b style=\"color:{colour}\">\u{25a0}</b> {word} ");
    }
    html
}

/// A bar for all and for each of the largest groups, in parts by cause.
fn causes(review: &Review) -> String {
    let mut bars: Vec<(String, &Sums)> = vec![("all".to_owned(), &review.all)];
    for kind in KINDS {
        let groups = review.by.get(kind).into_iter().flatten();
        let mut groups: Vec<(String, &Sums)> = groups
            .map(|(group, sums)| (format!("{kind} {group}"), sums))
            .collect();
        groups.sort_by(|a, b| {
            b.1.prompt_tokens
                .cmp(&a.1.prompt_tokens)
                .then(a.0.cmp(&b.0))
        });
        groups.truncate(BARS / KINDS.len());
        bars.extend(groups);
    }
    let height = BAR * bars.len() as f64;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=img>");
    for (place, (name, sums)) in bars.iter().enumerate() {
        let y = BAR * place as f64;
        let _ = write!(
            svg,
            "<text class=name x=0 y={}>{}</text>",
            y + BAR * 0.7,
            escaped(&name.chars().take(20).collect::<String>())
        );
        if sums.prompt_tokens == 0 {
            let _ = write!(svg, "<text x={LEFT} y={}>unknown</text>", y + BAR * 0.7);
        }
        let of = |word: &str| match word {
            "cached" => sums.cached_tokens,
            cause => sums.causes.get(cause).copied().unwrap_or(0),
        };
        let mut x = LEFT;
        for (word, colour) in words().zip(COLOURS) {
            let share = of(word) as f64 / sums.prompt_tokens.max(1) as f64;
            let width = (WIDTH - LEFT) * share;
            if width > 0.0 {
                let _ = write!(
                    svg,
                    "<rect x={x:.1} y={} width={width:.1} height={} fill=\"{colour}\"><title>{}: {word} {:.1} %, {} tokens</title></rect>",
                    y + 3.0,
                    BAR - 6.0,
                    escaped(name),
                    100.0 * share,
                    of(word),
                );
            }
            x += width;
        }
    }
    svg.push_str("</svg>");
    svg
}

/// Upper bounds of the ranges of errors, in tokens; beyond the last are the rest.
const RANGES: [(f64, &str); 9] = [
    (-4_096.0, "-4096 and less"),
    (-512.0, "to -512"),
    (-64.0, "to -64"),
    (-0.5, "to -1"),
    (0.5, "0"),
    (63.0, "to 63"),
    (511.0, "to 511"),
    (4_095.0, "to 4095"),
    (f64::INFINITY, "4096 and more"),
];

/// For each source the shares of answers by how far the prediction was off.
fn errors(all: &Sums) -> String {
    let mut html = String::new();
    for (source, errors) in &all.errors {
        let _ = write!(
            html,
            "<p>{}: {} answers, of {} more it is unknown</p>{}",
            escaped(source),
            errors.error.count(),
            errors.unknown,
            histogram(errors)
        );
    }
    html
}

fn histogram(errors: &PredictionErrors) -> String {
    let mut counts = [0_u64; RANGES.len()];
    for (value, count) in errors.error.bins() {
        let at = RANGES.iter().position(|(bound, _)| value <= *bound);
        if let Some(place) = at.and_then(|at| counts.get_mut(at)) {
            *place += count;
        }
    }
    let height = BAR * RANGES.len() as f64;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=img>");
    for (place, ((_, name), count)) in RANGES.iter().zip(counts).enumerate() {
        let y = BAR * place as f64;
        let share = count as f64 / errors.error.count().max(1) as f64;
        let width = (WIDTH - LEFT - 70.0) * share;
        let _ = write!(
            svg,
            "<text class=name x=0 y={base}>{name}</text><rect x={LEFT} y={} width={width:.1} height={} rx=3 \
             fill=\"hsl(215 60% 55%)\"/><text x={:.1} y={base}>{:.1} %</text>",
            y + 4.0,
            BAR - 8.0,
            LEFT + width + 6.0,
            100.0 * share,
            base = y + BAR * 0.7,
        );
    }
    svg.push_str("</svg>");
    svg
}
