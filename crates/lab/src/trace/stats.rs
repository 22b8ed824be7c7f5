//! What a trace is like: counts, lengths, ideal reuse, load shape.

use std::collections::HashMap;

use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;
use serde::Serialize;

use super::Row;

/// Quantiles of a list of numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Lengths {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Lengths {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let at = |q| crate::quantile::of_sorted(&values, q);
        Some(Self {
            mean: values.iter().sum::<f64>() / values.len() as f64,
            p50: at(0.5)?,
            p90: at(0.9)?,
            p99: at(0.99)?,
            max: *values.last()?,
        })
    }
}

/// How arrivals are spread over time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Shape {
    /// From the first to the last, seconds.
    pub seconds: f64,
    /// Requests a second.
    pub per_second: f64,
    /// Coefficient of variation of the gaps; 1 is Poisson.
    pub gap_cv: Option<f64>,
    /// The fullest second, ten seconds, minute over the mean one.
    pub peaks: [f64; 3],
    /// Variance over mean of the counts of seconds, ten seconds, minutes; 1 is Poisson.
    pub fano: [f64; 3],
}

/// Reuse that an unbounded cache shared by all would see: of input tokens, those in leading blocks that an earlier
/// request had. Output is not in it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Reuse {
    /// Input tokens looked at.
    pub tokens: u64,
    /// Share of them that was there.
    pub share: f64,
    /// Of that, the share that the same session had sent.
    pub intra: f64,
    /// Of that, the share that only others had sent.
    pub cross: f64,
    /// Share of requests that found something.
    pub requests: f64,
    /// Different blocks.
    pub blocks: usize,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stats {
    /// The format's name.
    pub format: &'static str,
    /// Tokens in a block.
    pub block_tokens: u32,
    /// Requests.
    pub requests: u64,
    /// Sessions; a request without one counts as one.
    pub sessions: u64,
    /// Of them, those that others called into being.
    pub called: u64,
    /// Sessions are inferred, not told.
    pub sessions_inferred: bool,
    /// Tenants.
    pub tenants: usize,
    /// Lengths are estimated from bytes.
    pub lengths_estimated: bool,
    /// All input tokens.
    pub input_tokens: u64,
    /// All output tokens.
    pub output_tokens: u64,
    /// Input tokens of a request.
    pub input: Option<Lengths>,
    /// Output tokens.
    pub output: Option<Lengths>,
    /// Requests of a session.
    pub turns: Option<Lengths>,
    /// Seconds between an answer and the next request of its session, where the trace says.
    pub pauses: Option<Lengths>,
    /// None: the trace says nothing of prefixes.
    pub reuse: Option<Reuse>,
    /// None: the trace says nothing of times.
    pub shape: Option<Shape>,
}

/// Takes rows in the order of the trace. Holds a few bytes a request, and each different block once.
#[derive(Debug, Default)]
pub struct StatsReader {
    requests: u64,
    loose: u64,
    called: u64,
    inferred: bool,
    estimated: bool,
    tenants: std::collections::HashSet<u64>,
    turns: HashMap<u64, u32>,
    inputs: Vec<u32>,
    outputs: Vec<u32>,
    pauses: Vec<f32>,
    times: Vec<f64>,
    blind: bool,
    seen: Seen,
}

/// Who sent which block first, and who else sent it.
#[derive(Debug, Default)]
struct Seen {
    first: hashbrown::HashMap<u64, u64, FxBuildHasher>,
    others: HashSet<(u64, u64), FxBuildHasher>,
    tokens: u64,
    hit: u64,
    intra: u64,
    requests: u64,
}

impl Seen {
    fn take(&mut self, row: &Row, session: u64) {
        let blocks = row.blocks();
        let (mut seen, mut intra, mut leading) = (0_u64, 0_u64, true);
        for id in row.ids() {
            let first = *self.first.entry(id).or_insert_with(|| {
                leading = false;
                session
            });
            let own = first == session || !self.others.insert((session, id));
            if leading {
                seen += 1;
                intra += u64::from(own);
            }
        }
        let input = u64::from(row.input);
        // Where the last block is not full, it has what is left of the input.
        let tokens = |count: u64| {
            let whole = count * u64::from(row.block);
            if count == blocks {
                whole.min(input)
            } else {
                whole
            }
        };
        self.tokens += input;
        self.hit += tokens(seen);
        // What the same session had is a beginning as well.
        self.intra += tokens(intra).min(tokens(seen));
        self.requests += u64::from(seen > 0);
    }
}

impl StatsReader {
    /// Takes one row.
    pub fn take(&mut self, row: &Row) {
        let session = row.session.unwrap_or_else(|| {
            self.loose += 1;
            // No session has such a number: readers count from 0, or hash.
            u64::MAX - self.loose
        });
        let turns = self.turns.entry(session).or_default();
        *turns += 1;
        self.called += u64::from(*turns == 1 && row.called_by.is_some());
        if *turns > 1
            && let Some(pause) = row.pause
        {
            self.pauses.push(pause as f32);
        }
        self.requests += 1;
        self.inferred |= row.inferred;
        self.estimated |= row.estimated;
        self.blind |= row.blind;
        self.tenants.insert(row.tenant);
        self.inputs.push(row.input);
        self.outputs.push(row.output);
        self.times.extend(row.at);
        self.seen.take(row, session);
    }

    /// Sums up.
    #[must_use]
    pub fn finish(mut self, format: super::Format, block_tokens: u32) -> Stats {
        let wide = |values: &[u32]| values.iter().map(|value| f64::from(*value)).collect();
        let sum = |values: &[u32]| values.iter().map(|value| u64::from(*value)).sum();
        let seen = &self.seen;
        let part = |part: u64, whole: u64| {
            if whole == 0 {
                0.0
            } else {
                part as f64 / whole as f64
            }
        };
        let reuse = (!self.blind && self.requests > 0).then(|| Reuse {
            tokens: seen.tokens,
            share: part(seen.hit, seen.tokens),
            intra: part(seen.intra, seen.hit),
            cross: part(seen.hit - seen.intra, seen.hit),
            requests: part(seen.requests, self.requests),
            blocks: seen.first.len(),
        });
        self.times.sort_unstable_by(f64::total_cmp);
        Stats {
            format: format.name(),
            block_tokens,
            requests: self.requests,
            sessions: self.turns.len() as u64,
            called: self.called,
            sessions_inferred: self.inferred,
            tenants: self.tenants.len(),
            lengths_estimated: self.estimated,
            input_tokens: sum(&self.inputs),
            output_tokens: sum(&self.outputs),
            input: Lengths::of(wide(&self.inputs)),
            output: Lengths::of(wide(&self.outputs)),
            turns: Lengths::of(self.turns.values().map(|turns| f64::from(*turns)).collect()),
            pauses: Lengths::of(self.pauses.iter().map(|pause| f64::from(*pause)).collect()),
            reuse,
            shape: shape(&self.times),
        }
    }
}

fn shape(times: &[f64]) -> Option<Shape> {
    let (first, last) = (*times.first()?, *times.last()?);
    let seconds = last - first;
    if seconds <= 0.0 {
        return None;
    }
    let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let mut peaks = [0.0; 3];
    let mut fano = [0.0; 3];
    for (place, width) in [1.0, 10.0, 60.0].into_iter().enumerate() {
        let mut counts = vec![0.0; (seconds / width) as usize + 1];
        for at in times {
            counts[((at - first) / width) as usize] += 1.0;
        }
        let (mean, variance) = moments(&counts);
        peaks[place] = counts.iter().copied().fold(0.0, f64::max) / mean;
        fano[place] = variance / mean;
    }
    let (mean, variance) = moments(&gaps);
    Some(Shape {
        seconds,
        per_second: times.len() as f64 / seconds,
        gap_cv: (mean > 0.0).then(|| variance.sqrt() / mean),
        peaks,
        fano,
    })
}

fn moments(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, squares / count)
}

impl std::fmt::Display for Stats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let note = |flag: bool, text: &'static str| if flag { text } else { "" };
        writeln!(
            f,
            "{} format, blocks of {} tokens{}",
            self.format,
            self.block_tokens,
            note(self.lengths_estimated, ", lengths estimated from bytes")
        )?;
        writeln!(
            f,
            "requests      {}, in {} sessions{}{}",
            self.requests,
            self.sessions,
            note(self.sessions_inferred, " (inferred)"),
            if self.called > 0 {
                format!(", {} of them sub-agents", self.called)
            } else {
                String::new()
            }
        )?;
        let lengths = [
            ("input tokens", self.input, 0),
            ("output tokens", self.output, 0),
            ("turns", self.turns, 2),
            ("pause s", self.pauses, 1),
        ];
        for (name, lengths, digits) in lengths {
            let Some(l) = lengths else {
                continue;
            };
            writeln!(
                f,
                "{name:<13} mean {:.digits$}, p50 {:.0}, p90 {:.0}, p99 {:.0}, max {:.0}",
                l.mean, l.p50, l.p90, l.p99, l.max
            )?;
        }
        match &self.reuse {
            Some(reuse) => writeln!(
                f,
                "ideal reuse   {:.1} % of {} input tokens ({:.1} % from the same session, {:.1} % from others); \
                 {:.1} % of requests; {} blocks",
                reuse.share * 100.0,
                reuse.tokens,
                reuse.intra * 100.0,
                reuse.cross * 100.0,
                reuse.requests * 100.0,
                reuse.blocks
            )?,
            None => writeln!(
                f,
                "ideal reuse   unknown: the trace says nothing of prefixes"
            )?,
        }
        match &self.shape {
            Some(shape) => writeln!(
                f,
                "load          {:.0} s, {:.3}/s, gaps' CV {}, peak over mean {:.1} (1 s), {:.1} (10 s), {:.1} (60 s), \
                 variance over mean {:.1}, {:.1}, {:.1}",
                shape.seconds,
                shape.per_second,
                shape.gap_cv.map_or("-".to_owned(), |cv| format!("{cv:.2}")),
                shape.peaks[0],
                shape.peaks[1],
                shape.peaks[2],
                shape.fano[0],
                shape.fano[1],
                shape.fano[2]
            ),
            None => writeln!(f, "load          unknown: the trace says nothing of times"),
        }
    }
}
