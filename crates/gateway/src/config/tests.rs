#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::{AllowRule, Config, DEFAULT_POLICY, EngineChoice, Flags, PoolSettings, Problem, check};
use maitred_core::place::PolicyConfig;
use maitred_engine::EngineKind;
use std::time::Duration;

const FULL: &str = "\
listen: 127.0.0.1:9000
admin: 127.0.0.1:9001
threads: 2
strict: true
limits: { body_max_bytes: 1MiB, header_max_bytes: 8192, headers_max: 64 }
timeouts: { connect: 500ms, first_byte: 30s, idle: 10, total: 2m, header_read: 5s }
trusted_proxies: [10.0.0.0/8]
cors_origins: ['*']
session_header: [X-Session, x-chat-id]
records: { dir: records, rotate_bytes: 1MiB, keep_files: 3, buffer: 100 }
pools:
  - name: chat
    model: llama
    aliases: [gpt-4o]
    policy: least_load
    attempts: 2
    probe: { interval: 1s, failures: 5 }
    breaker: { faults: 4, open: 20s }
    slots: 8
    workers:
      - http://127.0.0.1:8000
      - url: http://h:1/base/
        name: second
        slots: 2
        engine: vllm
        api_key: s3cret
        kv_events: { endpoint: 'tcp://h:5557', replay: 'tcp://h:5657', topic: kv, ranks: 2, rank_header: true }
  - name: other
    model: qwen
";

#[test]
fn reads_everything() {
    let config = check(FULL).unwrap();
    assert_eq!(config.listen.port(), 9_000);
    assert_eq!(config.limits.body_max_bytes, 1 << 20);
    assert_eq!(config.timeouts.header_read, Duration::from_secs(5));
    assert!(matches!(
        config.trusted_proxies[0],
        AllowRule::Range { prefix: 8, .. }
    ));
    let chat = &config.pools[0];
    assert_eq!(
        [chat.model.clone().unwrap(), chat.aliases[0].clone()],
        ["llama", "gpt-4o"]
    );
    assert_eq!(config.session_headers, ["x-session", "x-chat-id"]);
    assert_eq!(chat.upstream_model.as_deref(), Some("llama"));
    assert_eq!(chat.core.attempts, 2);
    assert_eq!(chat.core.probes.failures, 5);
    assert_eq!(chat.core.breaker.open, Duration::from_secs(20));
    assert_eq!(config.timeouts.total, Duration::from_secs(120));
    assert_eq!(chat.workers[0].name, "127.0.0.1:8000");
    assert_eq!(chat.workers[0].seats.slots, Some(8));
    let second = &chat.workers[1];
    assert_eq!(second.name, "second");
    assert_eq!(second.seats.slots, Some(2));
    assert_eq!(second.engine, EngineChoice::Kind(EngineKind::Vllm));
    assert_eq!(second.api_key.as_ref().unwrap().reveal(), "s3cret");
    let events = second.kv_events.as_ref().unwrap().of_rank(1).unwrap();
    assert_eq!(events.endpoint.to_string(), "tcp://h:5558");
    assert_eq!(events.replay.unwrap().to_string(), "tcp://h:5658");
    assert_eq!(config.timeouts.connect, Duration::from_millis(500));
    assert_eq!(config.timeouts.idle, Duration::from_secs(10));
}

/// The commented file in the documentation names every setting with its default.
#[test]
fn the_documented_defaults_are_the_defaults() {
    let documented = check(include_str!("../../../../docs/maitred.yaml")).unwrap();
    let mut plain = Config::default();
    let mut pool = PoolSettings::named("default");
    pool.workers
        .push(pool.worker("http://127.0.0.1:8000").unwrap());
    plain.pools.push(pool);
    assert_eq!(documented.show(), plain.show());
    assert_eq!(plain.show()["pools"][0]["policy"], DEFAULT_POLICY);
}

#[test]
fn shows_no_secret() {
    let mut text = FULL.to_owned();
    text.push_str("admin_token: t0ken\n");
    let shown = check(&text).unwrap().show().to_string();
    assert!(
        !shown.contains("s3cret") && !shown.contains("t0ken"),
        "{shown}"
    );
    assert!(shown.contains("\"admin_token\":\"[redacted]\""), "{shown}");
}

/// Text, line, field, part of the message.
const CASES: &[(&str, u32, &str, &str)] = &[
    (
        "listne: 127.0.0.1:1\npools: [{}]",
        1,
        "listne",
        "did you mean `listen`?",
    ),
    (
        "pools: [{}]\nlisten: here",
        2,
        "listen",
        "address with a port",
    ),
    (
        "pools: [{}]\nthreads: two",
        2,
        "threads",
        "must be a whole number, but is a text",
    ),
    ("pools: [{}]\nthreads: 9999", 2, "threads", "0 to 1024"),
    (
        "strict: yes please\npools: [{}]",
        1,
        "strict",
        "true or false",
    ),
    (
        "pools:\n  - workers:\n      - url: http://h:1\n        kv_events: h:5557",
        4,
        "pools[0].workers[0].kv_events",
        "tcp://host:port",
    ),
    (
        "pools:\n  - workers:\n      - url: http://h:1\n        kv_events: { endpoint: 'tcp://*:5557', mode: bind }",
        4,
        "pools[0].workers[0].kv_events.endpoint",
        "a `topic` must tell",
    ),
    (
        "pools:\n  - workers:\n      - url: http://h:1\n        kv_events: { endpoint: 'tcp://*:5557' }",
        4,
        "pools[0].workers[0].kv_events.endpoint",
        "`*` is no address",
    ),
    (
        "pools:\n  - workers:\n      - url: http://h:1\n        kv_events: { endpoint: 'tcp://h:65530', ranks: 8 }",
        4,
        "pools[0].workers[0].kv_events.endpoint",
        "above 65535",
    ),
    ("listen: 127.0.0.1:1", 1, "pools", "at least one pool"),
    ("pools: []", 1, "pools", "at least one pool"),
    ("pools: {}", 1, "pools", "a list of pools"),
    (
        "pools:\n  - polcy: x",
        2,
        "pools[0].polcy",
        "did you mean `policy`?",
    ),
    (
        "pools:\n  - policy: least_laod",
        2,
        "pools[0].policy",
        "did you mean `least_load`?",
    ),
    ("pools:\n  - policy: zzz", 2, "pools[0].policy", "known: "),
    (
        "pools:\n  - policy:\n      name: least_load\n      zeal: 3",
        4,
        "pools[0].policy.zeal",
        "no options",
    ),
    (
        "pools:\n  - policy: { zeal: 3 }",
        2,
        "pools[0].policy.name",
        "which policy",
    ),
    ("pools:\n  - attempts: 0", 2, "pools[0].attempts", "1 to 8"),
    ("pools:\n  - attempts: -1", 2, "pools[0].attempts", "1 to 8"),
    (
        "pools:\n  - block_bytes: 8",
        2,
        "pools[0].block_bytes",
        "16 to 4096",
    ),
    (
        "pools:\n  - breaker:\n      faults: 0",
        3,
        "pools[0].breaker.faults",
        "1 to",
    ),
    (
        "pools:\n  - max_wait: 0",
        2,
        "pools[0].max_wait",
        "more than zero",
    ),
    (
        "pools:\n  - max_wait: soon",
        2,
        "pools[0].max_wait",
        "a duration such as",
    ),
    (
        "pools:\n  - workers:\n    - 127.0.0.1:1",
        3,
        "pools[0].workers[0]",
        "URL",
    ),
    (
        "pools:\n  - workers:\n    - https://h:1",
        3,
        "pools[0].workers[0]",
        "http://",
    ),
    (
        "pools:\n  - workers:\n    - http://h:99999",
        3,
        "pools[0].workers[0]",
        "1 to 65535",
    ),
    (
        "pools:\n  - workers:\n    - http://h:1/v1/",
        3,
        "pools[0].workers[0]",
        "must not end in /v1",
    ),
    (
        "listen: 127.0.0.1:80\nadmin: 127.0.0.1:80\npools: [{}]",
        2,
        "admin",
        "another address",
    ),
    (
        "pools:\n  - workers:\n    - http://h:1\n    - http://h:1",
        4,
        "pools[0].workers[1]",
        "there already",
    ),
    (
        "pools:\n  - workers:\n    - name: a",
        3,
        "pools[0].workers[0].url",
        "is missing",
    ),
    (
        "pools:\n  - workers:\n    - url: http://h:1\n      slots: 0",
        4,
        "pools[0].workers[0].slots",
        "1 to",
    ),
    (
        "pools:\n  - workers:\n    - url: http://h:1\n      engine: vlm",
        4,
        "pools[0].workers[0].engine",
        "known: auto, vllm",
    ),
    (
        "pools:\n  - workers:\n    - { url: 'http://h:1', name: a b }",
        3,
        "pools[0].workers[0].name",
        "letters, digits",
    ),
    (
        "pools:\n  - {name: a, model: m}\n  - {name: a, model: n}",
        3,
        "pools[1].name",
        "there already",
    ),
    (
        "pools:\n  - {name: a, model: m}\n  - {name: b, model: n, aliases: [m]}",
        3,
        "pools[1].aliases",
        "there already",
    ),
    (
        "pools:\n  - {name: a, model: m}\n  - {name: b}",
        3,
        "pools[1].model",
        "several pools",
    ),
    (
        "pools:\n  - aliases: [m]",
        2,
        "pools[0].aliases",
        "need a `model`",
    ),
    ("admin: 0.0.0.0:1\npools: [{}]", 1, "admin", "admin_token"),
    (
        "worker_allow: [10.0.0.0/99]\npools: [{}]",
        1,
        "worker_allow[0]",
        "10.0.0.0/8",
    ),
    (
        "cors_origins: [example.org]\npools: [{}]",
        1,
        "cors_origins[0]",
        "an origin",
    ),
    (
        "session_header: 'a b'\npools: [{}]",
        1,
        "session_header",
        "header's name",
    ),
    (
        "records:\n  rotate_bytes: 64XB\npools: [{}]",
        2,
        "records.rotate_bytes",
        "64MiB",
    ),
    (
        "limits:\n  headers_max: 1\npools: [{}]",
        2,
        "limits.headers_max",
        "8 to 10000",
    ),
    (
        "pools:\n  - probe: { path: health }",
        2,
        "pools[0].probe.path",
        "/health",
    ),
    (
        "pools:\n  - probe: soon",
        2,
        "pools[0].probe",
        "must be a mapping",
    ),
    (
        "listen: 127.0.0.1:1\nlisten: 127.0.0.1:2\npools: [{}]",
        2,
        "",
        "duplicate",
    ),
    ("pools: [{}\nlisten: x", 2, "", ""),
    ("- a list", 1, "", "must be a mapping"),
    ("", 1, "pools", "is missing"),
];

#[test]
fn every_problem_points_at_its_line_and_field() {
    for (text, line, field, part) in CASES {
        let problems = check(text).expect_err(text);
        let found = problems
            .iter()
            .any(|p| p.line == *line && p.field.starts_with(field) && p.message.contains(part));
        assert!(found, "{text:?} gave {problems:?}");
        assert_eq!(problems.len(), 1, "{text:?} gave {problems:?}");
    }
}

#[test]
fn all_problems_are_told_at_once_in_the_order_of_lines() {
    let text = "pools:\n  - attempts: 99\n    workers: [nowhere]\nlisten: x\nzzz: 1\n";
    let problems = check(text).expect_err("bad");
    let places: Vec<(u32, u32, &str)> = problems
        .iter()
        .map(|p| (p.line, p.column, p.field.as_str()))
        .collect();
    assert_eq!(
        places,
        [
            (2, 15, "pools[0].attempts"),
            (3, 15, "pools[0].workers[0]"),
            (4, 9, "listen"),
            (5, 1, "zzz"),
        ]
    );
    let shown = problems[0].to_string();
    assert_eq!(shown, "2:15: pools[0].attempts: must be 1 to 8");
}

/// Whatever a slip of the pen does to a file, the answer is a configuration or problems with places.
#[test]
fn no_slip_of_the_pen_goes_without_a_place() {
    let lines = FULL.lines().count() as u32;
    for (at, _) in FULL.char_indices().step_by(7) {
        for slip in [
            "",
            "\t",
            "{",
            "- ",
            "'",
            ":",
            "&a ",
            "*a ",
            "\u{0}",
            "99999999999999999999",
        ] {
            let rest = &FULL[at + usize::from(slip.is_empty())..];
            let text = format!("{}{slip}{rest}", &FULL[..at]);
            for problem in check(&text).err().into_iter().flatten() {
                assert!((1..=lines + 1).contains(&problem.line), "{text} {problem}");
                assert!(!problem.message.is_empty(), "{text}");
            }
        }
    }
}

#[test]
fn flags_alone_make_one_pool_for_any_model() {
    let flags = Flags {
        workers: vec!["http://127.0.0.1:1".into(), "http://127.0.0.1:2".into()],
        policy: Some("least_load".into()),
        ..Flags::default()
    };
    let config = flags.apply(None).unwrap();
    assert_eq!(config.pools.len(), 1);
    assert_eq!(config.pools[0].model, None);
    assert_eq!(config.pools[0].workers.len(), 2);
    assert_eq!(
        config.pools[0].core.policy,
        PolicyConfig::named("least_load").unwrap()
    );
}

#[test]
fn wrong_flags_are_named() {
    let flags = Flags {
        workers: vec!["nowhere".into(), "http://h:1".into(), "http://h:1".into()],
        policy: Some("sessoin".into()),
        admin: Some("0.0.0.0:1".parse().unwrap()),
        ..Flags::default()
    };
    let problems = flags.apply(None).expect_err("bad");
    let fields: Vec<&str> = problems.iter().map(|p| p.field.as_str()).collect();
    assert_eq!(fields, ["--admin", "--worker", "--worker", "--policy"]);
    let file: Config = check("pools: [{}]").unwrap();
    let flags = Flags {
        model: Some("m".into()),
        ..Flags::default()
    };
    let problems: Vec<Problem> = flags.apply(Some(file)).expect_err("bad");
    assert_eq!(
        problems[0].to_string(),
        "--model: cannot be combined with --config: write it into the file"
    );
}
