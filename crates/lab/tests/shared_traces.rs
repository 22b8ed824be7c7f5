//! Public traces: what we read of them is what others counted in them. Skipped where they are not there.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

use std::path::PathBuf;

use maitred_lab::trace::{Format, Reading, Row, Stats, StatsReader, open, read};
use serde_json::Value;

fn file(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/data")
        .join(name);
    let there = path.exists();
    if !there {
        println!("skipped: {name} is not there");
    }
    there.then_some(path)
}

fn expected(trace: &str) -> Value {
    let path = file("stats.json").unwrap();
    let all: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    all["traces"][trace].clone()
}

fn each(name: &str, reading: &Reading, take: &mut dyn FnMut(Row)) -> Option<(Format, u32)> {
    let lines = open(&file(name)?).unwrap();
    let read = read(lines, None, reading, &mut |row| {
        take(row);
        Ok(())
    });
    Some(read.unwrap())
}

fn stats(name: &str, reading: &Reading) -> Option<Stats> {
    let mut reader = StatsReader::default();
    let (format, block) = each(name, reading, &mut |row| reader.take(&row))?;
    Some(reader.finish(format, block))
}

fn close(what: &str, found: f64, wanted: &Value, within: f64) {
    let wanted = wanted
        .as_f64()
        .unwrap_or_else(|| panic!("{what} is not stated"));
    assert!(
        (found - wanted).abs() <= within,
        "{what}: {found}, stated {wanted}"
    );
}

#[test]
fn mooncake_is_as_stated() {
    let Some(stats) = stats(
        "traces/mooncake-conversation-first45min.jsonl.zst",
        &Reading::default(),
    ) else {
        return;
    };
    let stated = expected("mooncake-conversation");
    close("requests", stats.requests as f64, &stated["requests"], 0.0);
    close(
        "input",
        stats.input_tokens as f64,
        &stated["input_tokens"],
        0.0,
    );
    close("sessions", stats.sessions as f64, &stated["sessions"], 0.0);
    close(
        "output",
        stats.output.unwrap().mean,
        &stated["out_mean"],
        0.1,
    );
    let reuse = stats.reuse.unwrap();
    close("reuse", reuse.share, &stated["ideal_reuse"], 0.001);
    close("intra", reuse.intra, &stated["intra_share_of_reuse"], 0.005);
    close("hits", reuse.requests, &stated["requests_with_hit"], 0.001);
    close("blocks", reuse.blocks as f64, &stated["unique_blocks"], 0.0);
    close(
        "rate",
        stats.shape.unwrap().per_second,
        &stated["mean_rps"],
        0.01,
    );
}

#[test]
fn ragpulse_is_as_stated() {
    let parts = file("traces/ragpulse-first5days-components.jsonl.zst");
    let reading = Reading {
        parts,
        ..Reading::default()
    };
    let Some(stats) = stats("traces/ragpulse-first5days.jsonl.zst", &reading) else {
        return;
    };
    let stated = expected("ragpulse");
    close("requests", stats.requests as f64, &stated["requests"], 0.0);
    close("sessions", stats.sessions as f64, &stated["sessions"], 0.0);
    close("input", stats.input.unwrap().mean, &stated["in_mean"], 0.1);
    // Stated by whole parts, here by blocks of 16 tokens.
    close(
        "reuse",
        stats.reuse.unwrap().share,
        &stated["ideal_reuse"],
        0.01,
    );
    close(
        "gaps",
        stats.shape.unwrap().gap_cv.unwrap(),
        &stated["interarrival_cv"],
        0.01,
    );
}

#[test]
fn azure_is_as_stated() {
    for (name, trace) in [("code", "azure2023-code"), ("conv", "azure2023-conv")] {
        let file = format!("traces/azure2023-{name}.csv.zst");
        let Some(stats) = stats(&file, &Reading::default()) else {
            return;
        };
        let stated = expected(trace);
        close("requests", stats.requests as f64, &stated["requests"], 0.0);
        close("input", stats.input.unwrap().mean, &stated["in_mean"], 0.1);
        let shape = stats.shape.unwrap();
        close("seconds", shape.seconds, &stated["duration_s"], 0.1);
        close(
            "gaps",
            shape.gap_cv.unwrap(),
            &stated["interarrival_cv"],
            0.01,
        );
        close("peak", shape.peaks[2], &stated["peak_to_mean_60s"], 0.1);
    }
}

#[test]
fn block_sessions_are_as_stated() {
    // Every row, without the reuse: that is a quarter of a billion look-ups.
    let (mut requests, mut input, mut output, mut blocks) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut sessions = std::collections::HashSet::new();
    let mut called = std::collections::HashSet::new();
    let Some((format, block)) = each(
        "traces/claude-code-sessions.jsonl.zst",
        &Reading::default(),
        &mut |row| {
            requests += 1;
            input += u64::from(row.input);
            output += u64::from(row.output);
            blocks += row.blocks();
            sessions.insert(row.session);
            called.extend(row.called_by.map(|_| row.session));
        },
    ) else {
        return;
    };
    let stated = expected("claude-code-sessions");
    assert_eq!((format, block), (Format::Blocks, 64));
    close("requests", requests as f64, &stated["requests"], 0.0);
    close("input", input as f64, &stated["input_tokens"], 0.0);
    close("output", output as f64, &stated["output_tokens"], 0.0);
    close("blocks", blocks as f64, &stated["blocks"], 0.0);
    close("sub-agents", called.len() as f64, &stated["subagents"], 0.0);
    close(
        "sessions",
        (sessions.len() - called.len()) as f64,
        &stated["sessions"],
        0.0,
    );
}

/// Lengths are by bytes here and by a tokenizer there: shares are near, counts of requests equal.
#[test]
fn texts_are_as_stated() {
    let cases = [
        (
            "text/agentperf-requests.jsonl.zst",
            "agentperf",
            Format::OpenAi,
        ),
        (
            "text/lmcache-miniswe-requests.jsonl.zst",
            "lmcache-miniswe",
            Format::Prompts,
        ),
        (
            "text/lmcache-magentic-requests.jsonl.zst",
            "lmcache-magentic",
            Format::Prompts,
        ),
        (
            "text/taubench-airline-gpt4o-sessions.jsonl.zst",
            "taubench-airline-gpt4o",
            Format::Dialogues,
        ),
    ];
    for (name, trace, format) in cases {
        let reading = Reading {
            tools: file("text/taubench-airline-tools.json"),
            ..Reading::default()
        };
        let Some(stats) = stats(name, &reading) else {
            return;
        };
        let stated = expected(trace);
        assert_eq!(stats.format, format.name());
        close(trace, stats.requests as f64, &stated["requests"], 0.0);
        close(trace, stats.sessions as f64, &stated["sessions"], 0.0);
        close(
            trace,
            stats.reuse.unwrap().share,
            &stated["ideal_reuse"],
            0.03,
        );
    }
}
