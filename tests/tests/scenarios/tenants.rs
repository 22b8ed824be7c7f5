//! Keys, claims and prompts of tenants in the real binary.

use crate::{chat, serve_file};
use maitred_tests::{Gate, Process, Script, Step, Worker, json_answer};
use serde_json::json;

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

/// Who went when: the tenant of each request in the order of dispatch, while both tenants wait. One
/// has 200 requests waiting, the other two conversations that go on as soon as they are answered.
async fn two_against_two_hundred(minted: bool, weight: u32) -> (Vec<char>, Vec<(char, f64)>) {
    const MANY: usize = 200;
    const WATCHED: usize = 60;
    let gate = Gate::new();
    let mut held = vec![Step::Wait(gate.clone())];
    held.extend(json_answer(200, "{}"));
    let worker = Worker::start(held).await;
    let keys = tempfile::tempdir().unwrap();
    let [many, two] = ["many", "two"].map(|name| {
        let path = keys.path().join(name);
        std::fs::write(&path, name).unwrap();
        path.display().to_string()
    });
    let text = format!(
        "tenants:\n  - {{ name: many, key_file: '{many}' }}\n  - {{ name: two, key_file: '{two}', weight: {weight} }}\n\
         pools:\n  - {{ name: p, policy: least_load, slots: 1, workers: [{{ url: '{}', assume_ready: true }}] }}\n",
        worker.url()
    );
    let served = serve_file(&text, 1).await;
    // Follow-ups, so that all are in one line; those of the many are longer.
    let ask = |tenant: &str, session: &str, number: usize| {
        let repeat = if tenant == "many" { 100 } else { 20 };
        let message = |role: &str, text: &str| json!({ "role": role, "content": text });
        let opening = format!(
            "{tenant} {session} {number:03} {}",
            "and so on ".repeat(repeat)
        );
        let messages = [
            message("user", &opening),
            message("assistant", "a"),
            message("user", "b"),
        ];
        let body = json!({ "model": "m", "max_tokens": 8, "messages": messages }).to_string();
        let (bearer, id) = (
            format!("Bearer {tenant}"),
            format!("{tenant}-{session}-{number}"),
        );
        let headers = [
            ("authorization", bearer.as_str()),
            ("x-session-id", session),
            ("x-request-id", id.as_str()),
        ];
        maitred_tests::request("POST", CHAT, &headers, body)
    };
    let mut waiting = Vec::new();
    for number in 0..=MANY {
        let session = if minted {
            format!("{number:03}")
        } else {
            "one".to_owned()
        };
        let mut client = served.client().await;
        client.send(ask("many", &session, number)).await;
        waiting.push(client);
        if number == 0 {
            gate.wait_for_waiting(1).await;
        }
    }
    crate::fleet::wait_for_line(&served, MANY).await;
    let mut returning = Vec::new();
    // Each has a request waiting while it has one that sits: the tenant always waits.
    for (session, half) in [("a", 0), ("b", 0), ("a", MANY), ("b", MANY)] {
        let mut client = served.client().await;
        let first = ask("two", session, half);
        let asks = (half + 1..half + MANY)
            .map(|number| ask("two", session, number))
            .collect::<Vec<_>>();
        client.send(first).await;
        returning.push(tokio::spawn(async move {
            for ask in asks {
                assert_eq!(client.read_response().await.status(), 200);
                client.send(ask).await;
            }
        }));
    }
    crate::fleet::wait_for_line(&served, MANY + 4).await;
    let tenant = |id: &str| if id.starts_with("many") { 'm' } else { 't' };
    let ids = || -> Vec<String> {
        let requests = worker.requests();
        let id = |r: &maitred_tests::Recorded| r.header("x-request-id").unwrap().to_owned();
        requests.iter().skip(1).map(id).collect()
    };
    for step in 1..=WATCHED {
        gate.admit(1);
        maitred_tests::eventually("the next one sits", || ids().len() == step).await;
        // Of those who come back one may sit; all wait else.
        let ids = ids();
        let sat = ids.iter().filter(|id| tenant(id) == 'm').count();
        let sits = usize::from(ids.last().is_some_and(|id| tenant(id) == 't'));
        crate::fleet::wait_for_line(&served, MANY - sat + 4 - sits).await;
    }
    gate.open();
    for mut client in waiting {
        assert_eq!(client.read_response().await.status(), 200);
    }
    let ids: Vec<String> = ids().into_iter().take(WATCHED).collect();
    let charges = || -> Vec<Option<f64>> {
        let records = served.records();
        let of = |id: &String| records.iter().find(|r| r["request_id"] == *id.as_str());
        ids.iter().map(|id| of(id)?["charge"].as_f64()).collect()
    };
    maitred_tests::eventually("all are recorded", || charges().iter().all(Option::is_some)).await;
    let charged = ids.iter().zip(charges());
    let charged = charged.map(|(id, charge)| (tenant(id), charge.unwrap()));
    (ids.iter().map(|id| tenant(id)).collect(), charged.collect())
}

/// Taking turns by requests, or by sessions, gave most of the service to whoever sent most, or made up
/// most names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_sessions_and_minted_ids_gain_nothing_against_two() {
    for weight in [1, 3] {
        let (order, charged) = two_against_two_hundred(true, weight).await;
        let (unminted, _) = two_against_two_hundred(false, weight).await;
        assert_eq!(
            order, unminted,
            "weight {weight}: names made up change nothing"
        );
        let weighted = |tenant, charge: f64| match tenant {
            'm' => charge,
            _ => -charge / f64::from(weight),
        };
        let largest = charged.iter().map(|(t, c)| weighted(*t, *c).abs());
        let largest = largest.fold(0.0, f64::max);
        let mut ahead = 0.0;
        for (at, (tenant, charge)) in charged.iter().enumerate() {
            ahead += weighted(*tenant, *charge);
            assert!(
                f64::abs(ahead) <= largest + 1e-6,
                "{at}: {ahead}, {largest}, {charged:?}"
            );
        }
        let many = order.iter().filter(|tenant| **tenant == 'm').count();
        assert!((5..55).contains(&many), "both are served: {order:?}");
    }
}
