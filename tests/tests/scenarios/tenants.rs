//! Keys, claims and prompts of tenants in the real binary.

use crate::{chat, serve_file};
use maitred_tests::{Process, Script, Step, Worker, json_answer};

const CHAT: &str = "/v1/chat/completions";
const MARK: &str = "ZX-MARK-77";
/// What `maitred hash-key` prints for [`MARK`].
const MARK_SHA256: &str = "94cdb568364c7ff696c8054ccf376d02b3b4cdf36fec03016347738dc656afb1";

/// Prompts, header values and keys ended up in logs, most of all in those that somebody looks at
/// because something is wrong.
#[tokio::test]
async fn no_prompt_header_or_key_in_logs_at_any_level() {
    let worker = Worker::start(Script::sequence(vec![
        json_answer(200, "{}"),
        json_answer(400, "{}"),
        json_answer(503, "{}"),
        vec![Step::Reset],
    ]))
    .await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("maitred.yaml");
    let text = format!(
        "salt_secret: {MARK}-{MARK}\ntenants: [{{ name: acme, key_sha256: '{MARK_SHA256}' }}]\npools:\n  - attempts: 1\n    isolation: tenant\n    inject_cache_salt: true\n    workers: [{{ url: '{}', assume_ready: true }}]\n",
        worker.url()
    );
    std::fs::write(&file, text).unwrap();
    let records = dir.path().join("records");
    let process = Process::serve(&[
        "--config",
        file.to_str().unwrap(),
        "--records",
        records.to_str().unwrap(),
        "--log",
        "trace",
    ])
    .await;
    let key = format!("Bearer {MARK}");
    let wrong = format!("Bearer not-{MARK}");
    let broken = format!("{{\"model\":\"m\",\"messages\":[{{\"content\":\"{MARK}\"");
    let mut seen = Vec::new();
    for (key, body) in [
        (&key, chat(MARK)),
        (&key, chat(MARK)),
        (&key, chat(MARK)),
        (&key, chat(MARK)),
        (&key, broken),
        (&wrong, chat(MARK)),
    ] {
        let id = format!("r{}", seen.len());
        let headers = [
            ("authorization", key.as_str()),
            ("x-request-id", id.as_str()),
            ("x-session-id", MARK),
            ("x-other", MARK),
        ];
        let request = maitred_tests::request("POST", CHAT, &headers, body);
        let answer = process.client().await.exchange(&request).await;
        assert!(!answer.text().contains(MARK), "{}", answer.text());
        seen.push(answer.status());
        let told = process.admin_get(&format!("/explain/{id}")).await.text();
        assert!(!told.contains(MARK), "{told}");
    }
    assert_eq!(seen, [200, 400, 503, 502, 400, 401]);
    for path in ["/metrics", "/config", "/lines", "/workers", "/pools"] {
        let told = process.admin_get(path).await.text();
        assert!(
            !told.contains(MARK) && !told.contains(MARK_SHA256),
            "{told}"
        );
    }
    let written = || {
        let files = std::fs::read_dir(&records).into_iter().flatten();
        let texts = files.map(|f| std::fs::read_to_string(f.unwrap().path()).unwrap());
        texts.collect::<String>()
    };
    maitred_tests::eventually("the records", || written().lines().count() >= 6).await;
    assert!(!written().contains(MARK));
    let log = process.log();
    assert!(
        log.contains("maitred_gateway") && !log.contains(MARK),
        "{log}"
    );
}

/// A new key, or a key to be taken back, needed a restart, and every running stream died with it.
#[tokio::test]
async fn tenants_change_at_sighup_without_a_restart() {
    let gate = maitred_tests::Gate::new();
    let mut held = vec![Step::Wait(gate.clone())];
    held.extend(json_answer(200, "{}"));
    let worker = Worker::start(Script::sequence(vec![held, json_answer(200, "{}")])).await;
    let file = |tenants: &str| {
        format!(
            "tenants: [{tenants}]\npools: [{{ name: p, bands: [{{ name: fast }}], workers: [{{ url: '{}', assume_ready: true }}] }}]\n",
            worker.url()
        )
    };
    let dir = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(|key| {
        let path = dir.path().join(key);
        std::fs::write(&path, key).unwrap();
        format!("key_file: '{}'", path.display())
    });
    let served = serve_file(&file(&format!("{{ name: acme, {old}, weight: 1 }}")), 1).await;
    let ask = async |key: &str| {
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str())];
        let request = maitred_tests::request("POST", CHAT, &headers, chat("hello"));
        served.client().await.exchange(&request).await.status()
    };
    let reload = async |tenants: &str, told: &str| {
        std::fs::write(served.dir.path().join("maitred.yaml"), file(tenants)).unwrap();
        served.hang_up();
        maitred_tests::eventually(told, || served.log().contains(told)).await;
    };
    let change = async {
        gate.wait_for_waiting(1).await;
        assert_eq!(ask("new").await, 401);
        // What is wrong changes nothing.
        reload("{ name: acme, weight: -1 }", "must be more than 0").await;
        reload(
            &format!("{{ name: acme, {new}, band: fasst }}"),
            "no pool has a band `fasst`",
        )
        .await;
        assert_eq!((ask("old").await, ask("new").await), (200, 401));
        reload(
            &format!("{{ name: acme, {new}, weight: 3 }}"),
            "the tenants were read again",
        )
        .await;
        assert_eq!((ask("old").await, ask("new").await), (401, 200));
        let config = served.admin_get("/config").await.json();
        assert_eq!(config["tenants"][0]["weight"], 3.0);
        gate.open();
    };
    let (running, ()) = tokio::join!(ask("old"), change);
    assert_eq!(running, 200, "it ran through all of it");
}
