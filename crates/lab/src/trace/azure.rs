//! Azure's CSV of 2023: `TIMESTAMP,ContextTokens,GeneratedTokens`. It says nothing of prefixes or sessions.

use std::io::BufRead;

use super::{Lines, Row, Take, TraceError};

/// Tokens in a block, for want of any.
const BLOCK: u32 = 16;
const HEAD: &[u8] = b"TIMESTAMP,ContextTokens,GeneratedTokens";

pub(super) fn read<R: BufRead>(
    lines: &mut Lines<R>,
    mut take: Box<Take<'_>>,
) -> Result<u32, TraceError> {
    let mut first = None;
    while let Some(text) = lines.next()? {
        if text == HEAD {
            continue;
        }
        let text = String::from_utf8_lossy(text).into_owned();
        let mut cells = text.split(',');
        let mut cell =
            |name: &str| (cells.next()).ok_or_else(|| super::lines::wrong(0, name, "is missing"));
        let found = (|| {
            Ok((
                cell("TIMESTAMP")?,
                cell("ContextTokens")?,
                cell("GeneratedTokens")?,
            ))
        })();
        let (time, input, output) = found.map_err(|error| at_line(error, lines.number()))?;
        let count = |field: &str, text: &str| {
            let parsed = text.trim().parse::<u32>();
            parsed.map_err(|error| lines.wrong(field, error.to_string()))
        };
        let seconds = seconds(time)
            .ok_or_else(|| lines.wrong("TIMESTAMP", "must be YYYY-MM-DD HH:MM:SS.FFFFFFF"))?;
        let begun = *first.get_or_insert(seconds);
        take(Row {
            line: lines.number(),
            at: Some(seconds - begun),
            input: count("ContextTokens", input)?,
            output: count("GeneratedTokens", output)?,
            blind: true,
            block: BLOCK,
            ..Row::default()
        })?;
    }
    Ok(BLOCK)
}

fn at_line(error: TraceError, number: u64) -> TraceError {
    match error {
        TraceError::Line { field, problem, .. } => TraceError::Line {
            line: number,
            field,
            problem,
        },
        other => other,
    }
}

/// Seconds since 1970 of `2023-11-16 18:17:03.9799600`.
fn seconds(text: &str) -> Option<f64> {
    let (date, time) = text.trim().split_once([' ', 'T'])?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.trim_end_matches('Z').splitn(3, ':');
    let hour: i64 = time.next()?.parse().ok()?;
    let minute: i64 = time.next()?.parse().ok()?;
    let second: f64 = time.next()?.parse().ok()?;
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days from civil (Hinnant): March first, so that a leap day is the last.
    let shifted = if month <= 2 { year - 1 } else { year };
    let era = shifted.div_euclid(400);
    let of_era = shifted.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Some((days * 86_400 + hour * 3_600 + minute * 60) as f64 + second)
}
