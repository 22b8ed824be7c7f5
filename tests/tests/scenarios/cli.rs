//! The command line: `check` points at line and field; `serve` refuses what `check` refuses.
use maitred_tests::{run, text};

async fn check(file: &str) -> (bool, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("maitred.yaml");
    std::fs::write(&path, file).unwrap();
    let output = run(&["check", path.to_str().unwrap()]).await;
    let said = text(output.stdout) + &text(output.stderr);
    (output.status.success(), said)
}

#[tokio::test]
async fn check_accepts_a_good_file() {
    let file = "pools:\n  - name: p\n    policy: session\n    workers: [http://127.0.0.1:1]\n";
    let (good, said) = check(file).await;
    assert!(good, "{said}");
}

/// What the README shows must work as it stands.
#[tokio::test]
async fn the_examples_of_the_documents_are_good() {
    let top = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let readme = std::fs::read_to_string(format!("{top}/README.md")).unwrap();
    let example = readme
        .split("```yaml")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let reference = std::fs::read_to_string(format!("{top}/docs/maitred.yaml")).unwrap();
    for file in [example, &reference] {
        let (good, said) = check(file).await;
        assert!(good, "{said}");
    }
}

#[tokio::test]
async fn check_points_at_line_and_field() {
    let file = "\
listen: 127.0.0.1:9000
pools:
  - name: p
    polcy: session
    hold_max: soon
    workers: [http://127.0.0.1:1]
";
    let (good, said) = check(file).await;
    assert!(!good);
    for (line, field) in [(4, "polcy"), (5, "hold_max")] {
        let points = |one: &str| one.contains(&format!(":{line}")) && one.contains(field);
        assert!(said.lines().any(points), "line {line}, {field}: {said}");
    }
    assert!(said.contains("policy"), "the nearest known name: {said}");
}

#[tokio::test]
async fn serve_refuses_a_wrong_file_and_wrong_flags() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("maitred.yaml");
    std::fs::write(&path, "pools: []\n").unwrap();
    let output = run(&["serve", "--config", path.to_str().unwrap()]).await;
    assert!(!output.status.success());
    assert!(text(output.stderr).contains("pools"));
    let output = run(&["serve", "--worker", "ftp://x", "--policy", "sesion"]).await;
    assert!(!output.status.success());
    let said = text(output.stderr);
    assert!(
        said.contains("--worker") && said.contains("session"),
        "{said}"
    );
}
