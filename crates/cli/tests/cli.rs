//! The binary's own words: exit codes and what is printed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn maitred(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_maitred"))
        .args(arguments)
        .output()
        .unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A file that is gone with the value.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("maitred-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn check_points_at_line_and_field() {
    let file = Scratch::new("bad.yaml", "listen: nowhere\npools:\n  - polcy: pin\n");
    let output = maitred(&["check", file.path()]);
    assert_eq!(output.status.code(), Some(1));
    let path = file.path();
    assert_eq!(
        out(&output),
        format!(
            "{path}:1:9: listen: must be an address with a port, such as 127.0.0.1:8080\n\
             {path}:3:5: pools[0].polcy: unknown field; did you mean `policy`?\n"
        )
    );
}

#[test]
fn check_says_that_a_file_is_good() {
    let file = Scratch::new("good.yaml", "pools: [{ workers: ['http://127.0.0.1:1'] }]");
    let output = maitred(&["check", file.path()]);
    assert!(output.status.success());
    assert!(out(&output).ends_with("good (pools 1, workers 1)\n"));
    assert!(!maitred(&["check", "/nowhere/at/all"]).status.success());
}

#[test]
fn serve_refuses_wrong_flags_by_name() {
    let output = maitred(&["serve", "--worker", "nowhere", "--policy", "sesion"]);
    assert_eq!(output.status.code(), Some(1));
    let words = err(&output);
    assert!(words.contains("--worker: `nowhere`"), "{words}");
    assert!(words.contains("--policy: unknown policy `sesion`; did you mean `session`?"));
}

/// Two record files, one of them cut off in its last line.
#[test]
fn report_counts_what_it_cannot_read_and_writes_a_page() {
    let record = maitred_records::AttemptRecord {
        request_id: "one".into(),
        attempt: 1,
        prompt_tokens: Some(100),
        cached_tokens: Some(60),
        misses: Some(maitred_records::MissRecord {
            evicted: 40,
            ..Default::default()
        }),
        outcome: maitred_records::Outcome::Served,
        ..maitred_records::AttemptRecord::default()
    };
    let line = serde_json::to_string(&record).unwrap();
    let whole = Scratch::new("whole.jsonl", &format!("{line}\n"));
    let half = line.len() / 2;
    let other = line.replace("\"one\"", "\"two\"");
    let cut = Scratch::new("cut.jsonl", &format!("{other}\n\n{}", &line[..half]));
    let html = Scratch::new("page.html", "");
    let arguments = ["report", whole.path(), cut.path(), "--html", html.path()];
    let output = maitred(&arguments);
    assert!(output.status.success(), "{}", err(&output));
    let told = out(&output);
    assert!(told.contains("1 lines are no records"), "{told}");
    assert!(told.contains(&format!("{}:3: EOF", cut.path())), "{told}");
    assert!(told.contains("2 records, 0 duplicates left out"), "{told}");
    let page = std::fs::read_to_string(html.path()).unwrap();
    assert!(page.contains("evicted 40.0 %, 80 tokens"));
    let output = maitred(&["report", whole.path(), cut.path(), "--json"]);
    let told: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!(told["unreadable_lines"], 1);
    assert_eq!(told["review"]["all"]["causes"]["evicted"], 80);
    let output = maitred(&["report", "nowhere.jsonl"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("nowhere.jsonl"), "{}", err(&output));
}

#[test]
fn explain_reads_record_files() {
    let record = maitred_records::AttemptRecord {
        request_id: "req-9".into(),
        attempt: 1,
        pool: "chat".into(),
        worker: Some("w1".into()),
        reason: Some("warmest".into()),
        ..maitred_records::AttemptRecord::default()
    };
    let file = Scratch::new("records.jsonl", &serde_json::to_string(&record).unwrap());
    let output = maitred(&["explain", "req-9", "--records", file.path()]);
    assert!(output.status.success(), "{}", err(&output));
    let words = "went to w1 because it holds the longest beginning of the prompt";
    assert!(out(&output).contains(words), "{}", out(&output));
    let output = maitred(&["explain", "req-8", "--records", file.path()]);
    assert!(!output.status.success());
    assert!(err(&output).contains("no record of request `req-8`"));
    assert!(Path::new(file.path()).exists());
}

#[test]
fn serve_greets_and_ends_on_sigterm() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_maitred"))
        .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .args(["--worker", "http://127.0.0.1:9", "--policy", "least_load"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines: Vec<String> = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .take(3)
        .map(Result::unwrap)
        .collect();
    assert!(lines[0].starts_with("maitred serves http://127.0.0.1:"));
    assert_eq!(
        lines[1],
        "pool default: whatever model its workers list, policy least_load, fairness promise, workers 1"
    );
    assert_eq!(lines[2], "  127.0.0.1:9 at http://127.0.0.1:9");
    let admin = lines[0].rsplit("admin http://").next().unwrap().to_owned();
    let explained = maitred(&["explain", "none", "--admin", &format!("http://{admin}")]);
    assert!(err(&explained).contains("request `none` is not known"));
    let kill = Command::new("kill").arg(child.id().to_string()).status();
    assert!(kill.unwrap().success());
    assert!(child.wait().unwrap().success());
}

#[test]
fn simulate_puts_policies_beside_each_other() {
    let arguments = |last: &'static str| {
        let mut all = "simulate starvation --policies fcfs,las --load 0.5 --newcomers 200 --seed 3"
            .split(' ')
            .collect::<Vec<_>>();
        all.push(last);
        maitred(&all)
    };
    let output = arguments("--json");
    assert!(output.status.success(), "{}", err(&output));
    let said: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
    let rows = said["starvation"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["policy"].as_str()).collect();
    assert_eq!(names, [Some("fcfs"), Some("las")]);
    // Half of what the slots can take: everybody starts.
    for row in rows {
        assert_eq!(row["sums"]["started"], row["sums"]["newcomers"]);
    }
    assert_eq!(out(&output), out(&arguments("--json")));

    let output = maitred(&["simulate", "starvation", "--policies", "fifo"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("fifo: no such"), "{}", err(&output));
}

#[test]
fn simulate_plays_a_grid() {
    let grid = |more: &[&str]| {
        let mut all =
            "simulate --workload chat:sessions=8 --workers 2 --seeds 2 --placement session,random"
                .split(' ')
                .collect::<Vec<_>>();
        all.extend(more);
        maitred(&all)
    };
    let output = grid(&[]);
    assert!(output.status.success(), "{}", err(&output));
    let text = out(&output);
    let rows = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(
        (rows("placement"), rows("session "), rows("random ")),
        (1, 1, 1),
        "{text}"
    );
    let json: serde_json::Value = serde_json::from_slice(&grid(&["--json"]).stdout).unwrap();
    assert_eq!(json["cells"].as_array().map(Vec::len), Some(4));
    for (wrong, problem) in [
        ("--placement=nowhere", "no such policy"),
        ("--fleet=burn:1@3", "must be lose:WORKER@SECONDS"),
        ("--workload=nothing", "no such workload"),
    ] {
        let output = maitred(&["simulate", wrong]);
        assert_eq!(output.status.code(), Some(1));
        assert!(err(&output).contains(problem), "{}", err(&output));
    }
    assert!(out(&maitred(&["simulate", "--workloads"])).contains("agents: coding agents"));
}

#[test]
fn traces_are_made_looked_at_converted_and_played() {
    let made = Scratch::new("made.jsonl", "");
    let output = maitred(&[
        "trace",
        "generate",
        "agents:sessions=5:turns=4",
        "-o",
        made.path(),
    ]);
    assert!(output.status.success(), "{}", err(&output));
    let stats = |path: &str| {
        let output = maitred(&["trace", "stats", path, "--json"]);
        assert!(output.status.success(), "{}", err(&output));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let own = stats(made.path());
    assert_eq!(own["format"], "maitred");
    assert!(own["reuse"]["share"].as_f64().unwrap() > 0.5, "{own}");
    let other = Scratch::new("other.jsonl", "");
    let convert = [
        "trace",
        "convert",
        made.path(),
        "--to",
        "bailian",
        "-o",
        other.path(),
    ];
    assert!(maitred(&convert).status.success());
    let bailian = stats(other.path());
    assert_eq!(bailian["format"], "bailian");
    assert_eq!(bailian["input_tokens"], own["input_tokens"]);
    let page = Scratch::new("page.html", "");
    let played = maitred(&[
        "simulate",
        "--trace",
        other.path(),
        "--placement=session,random",
        "--workers=2",
        "--html",
        page.path(),
    ]);
    assert!(played.status.success(), "{}", err(&played));
    let requests = own["requests"].to_string();
    let row = out(&played)
        .lines()
        .find(|line| line.starts_with("session "))
        .unwrap()
        .to_owned();
    assert_eq!(
        row.split_whitespace().nth(3),
        Some(requests.as_str()),
        "{row}"
    );
    let page = std::fs::read_to_string(page.path()).unwrap();
    assert!(page.contains("<svg") && page.contains("maitred simulate --trace"));
    let broken = Scratch::new(
        "broken.jsonl",
        "{\"maitred_trace\":1,\"block_tokens\":16}\n{\"in\":5}\n",
    );
    let output = maitred(&["trace", "stats", broken.path()]);
    assert_eq!(output.status.code(), Some(1));
    let path = broken.path();
    assert_eq!(
        err(&output),
        format!("maitred trace: {path}: line 2: out: is missing\n")
    );
}

#[test]
fn fit_says_what_it_lacks() {
    let empty = Scratch::new("records.jsonl", "");
    let output = maitred(&["fit", empty.path()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err(&output).contains("only 0 served records"),
        "{}",
        err(&output)
    );
}

#[test]
fn a_frontier_has_a_row_for_each_way_to_go_next() {
    let played = maitred(&[
        "simulate",
        "--frontier",
        "--workload=whale:whale=2:depth=2:newcomers=3",
        "--workers=1",
    ]);
    assert!(played.status.success(), "{}", err(&played));
    let text = out(&played);
    assert!(text.starts_with("fairness"), "{text}");
    for row in [
        "promise ",
        "promise:new_share=0.05:new_share_floor=0.05",
        "fcfs ",
        "turn_priority ",
    ] {
        assert!(
            text.lines().any(|line| line.starts_with(row)),
            "{row}: {text}"
        );
    }
}

#[test]
fn a_key_is_hashed_and_not_shown() {
    let hash = |key: &str| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_maitred"))
            .arg("hash-key")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), key.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n";
    // With and without the line end that `echo` adds.
    assert_eq!(out(&hash("abc")), digest);
    assert_eq!(out(&hash("abc\n")), digest);
    let nothing = hash(" ");
    assert!(!nothing.status.success());
    assert!(err(&nothing).contains("standard input"));
}
