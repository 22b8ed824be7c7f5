//! Records through real files: round trip, rotation, loss.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use maitred_records::{
    AttemptRecord, CandidateRecord, Outcome, RecordSink, Records, SCHEMA, SinkSettings,
    record_files,
};
use std::path::Path;
use std::sync::Arc;

fn record(number: u64) -> AttemptRecord {
    AttemptRecord {
        time_ms: 1_700_000_000_000 + number,
        request_id: format!("req-{number}").into(),
        attempt: 1,
        tenant: u64::MAX - number,
        pool: "chat".into(),
        model: "m".into(),
        route: "/v1/chat/completions".into(),
        stream: true,
        turn: 2,
        session: Some(number),
        session_source: "header".into(),
        policy: Some("session".into()),
        reason: Some("hash".into()),
        worker: Some("w1".into()),
        candidates: vec![CandidateRecord {
            worker: "w1".into(),
            score: None,
            running: 1,
            prefill_tokens: 2,
            matched_tokens: 3,
            seat: true,
        }],
        candidates_count: 1,
        prompt_tokens: Some(100),
        cached_tokens: None,
        queue_ms: 0.25,
        ttft_ms: Some(12.5),
        e2e_ms: 100.125,
        outcome: Outcome::Served,
        status: Some(200),
        seed: 0xdead_beef_dead_beef,
        ..AttemptRecord::default()
    }
}

fn settings(dir: &Path) -> SinkSettings {
    SinkSettings {
        dir: Some(dir.to_owned()),
        ..SinkSettings::default()
    }
}

fn all(dir: &Path) -> Vec<AttemptRecord> {
    let files = record_files(dir).unwrap();
    files
        .iter()
        .flat_map(|file| Records::open(file).unwrap())
        .collect()
}

#[test]
fn what_is_written_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let sink = RecordSink::open(&settings(dir.path())).unwrap();
    let sent: Vec<AttemptRecord> = (0..100).map(record).collect();
    for record in &sent {
        sink.send(Arc::new(record.clone()));
    }
    sink.close();
    assert_eq!(all(dir.path()), sent);
    let counts = sink.counts();
    assert_eq!((counts.sent, counts.written, counts.lost), (100, 100, 0));
}

#[test]
fn a_line_is_json_with_unknown_as_null_and_hashes_as_hex() {
    let line = serde_json::to_value(record(7)).unwrap();
    assert_eq!(line["schema"], SCHEMA);
    assert_eq!(line["cached_tokens"], serde_json::Value::Null);
    assert_eq!(line["tenant"], "fffffffffffffff8");
    assert_eq!(line["seed"], "deadbeefdeadbeef");
    assert_eq!(line["outcome"], "served");
    assert_eq!(line["e2e_ms"], 100.125);
}

#[test]
fn a_record_of_another_version_is_read_as_far_as_it_goes() {
    let line = r#"{"schema":9,"time_ms":1,"request_id":"r","attempt":1,"tenant":"0","pool":"p",
        "model":"m","route":"x","stream":false,"turn":1,"session_source":"none",
        "identity":"bytes","outcome":"cancelled","later":{"a":1}}"#;
    let record: AttemptRecord = serde_json::from_str(line).unwrap();
    assert_eq!((record.schema, record.outcome), (9, Outcome::Cancelled));
    assert_eq!(record.cached_tokens, None);
}

#[test]
fn files_are_rotated_and_the_oldest_go() {
    let dir = tempfile::tempdir().unwrap();
    let small = SinkSettings {
        rotate_bytes: 1,
        keep_files: 3,
        ..settings(dir.path())
    };
    // Each life of the process begins a file of its own.
    for life in 0..5 {
        let sink = RecordSink::open(&small).unwrap();
        sink.send(Arc::new(record(life)));
        sink.close();
        assert_eq!(sink.counts().written, 1);
    }
    let files = record_files(dir.path()).unwrap();
    assert_eq!(files.len(), 3, "{files:?}");
    let kept: Vec<u64> = all(dir.path()).iter().filter_map(|r| r.session).collect();
    assert_eq!(kept, [2, 3, 4]);
}

#[test]
fn what_does_not_fit_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let tight = SinkSettings {
        buffer: 1,
        ..settings(dir.path())
    };
    let sink = RecordSink::open(&tight).unwrap();
    for number in 0..10_000 {
        sink.send(Arc::new(record(number)));
    }
    sink.close();
    let counts = sink.counts();
    assert_eq!(counts.sent, 10_000);
    assert!(counts.lost > 0, "{counts:?}");
    assert_eq!(counts.written + counts.lost, 10_000);
    assert_eq!(all(dir.path()).len() as u64, counts.written);
}

#[test]
fn a_disk_that_refuses_costs_records_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("records");
    let small = SinkSettings {
        rotate_bytes: 1,
        ..settings(&place)
    };
    let sink = RecordSink::open(&small).unwrap();
    let until = |what: &str, done: &dyn Fn() -> bool| {
        let start = std::time::Instant::now();
        while !done() {
            assert!(start.elapsed().as_secs() < 60, "waited for {what}");
            std::thread::yield_now();
        }
    };
    sink.send(Arc::new(record(1)));
    until("the first", &|| sink.counts().written == 1);
    std::fs::remove_dir_all(&place).unwrap();
    std::fs::write(&place, "in the way").unwrap();
    sink.send(Arc::new(record(2)));
    until("the loss", &|| sink.counts().lost == 1);
    std::fs::remove_file(&place).unwrap();
    sink.send(Arc::new(record(3)));
    until("the third", &|| sink.counts().written == 2);
    sink.close();
    assert_eq!(all(&place).len(), 1);
    assert_eq!(sink.counts().errors, 1);
}

#[test]
fn a_line_that_was_cut_off_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("attempts-00000001.jsonl");
    let line = serde_json::to_string(&record(1)).unwrap();
    std::fs::write(&path, format!("{line}\n\n{}", &line[..40])).unwrap();
    let mut records = Records::open(&path).unwrap();
    assert_eq!(records.by_ref().count(), 1);
    assert_eq!(records.unreadable(), 1);
}

#[test]
fn without_a_directory_records_are_counted() {
    let sink = RecordSink::open(&SinkSettings::default()).unwrap();
    sink.send(Arc::new(record(1)));
    sink.close();
    let counts = sink.counts();
    assert_eq!((counts.sent, counts.written, counts.lost), (1, 0, 0));
}

#[test]
fn a_directory_that_cannot_be_used_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = RecordSink::open(&settings(&file)).err().expect("refused");
    assert!(error.to_string().starts_with("records.dir "), "{error}");
}

/// Records went on into a file that had no name any more, and were counted as written.
#[test]
fn a_removed_directory_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("records");
    let sink = RecordSink::open(&settings(&place)).unwrap();
    sink.send(Arc::new(record(1)));
    while sink.counts().written < 1 {
        std::thread::yield_now();
    }
    std::fs::remove_dir_all(&place).unwrap();
    sink.send(Arc::new(record(2)));
    sink.close();
    assert_eq!(all(&place), [record(2)]);
    let counts = sink.counts();
    assert_eq!((counts.written, counts.lost), (2, 0));
}
