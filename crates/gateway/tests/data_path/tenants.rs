//! Who the caller is, and what keeps callers apart.

use super::{CHAT, PATH, at_rest, attempts, client, pool, room, soon};
use maitred_core::line::Band;
use maitred_core::place::PolicyConfig;
use maitred_engine::EngineKind;
use maitred_gateway::config::{
    Anonymous, Config, EngineChoice, Isolation, IsolationSettings, KeySource, Secret,
    TenantSettings, check, digest_of,
};
use maitred_gateway::{Running, tenant_id};
use maitred_tests::{Gate, Response, Script, Step, Worker, eventually, json_answer};
use serde_json::Value;

pub(crate) fn tenant(name: &str, key: &str) -> TenantSettings {
    TenantSettings {
        name: name.to_owned(),
        keys: vec![KeySource::Digest(digest_of(key.as_bytes()))],
        band: None,
        terms: Default::default(),
    }
}

fn with_tenants(config: &mut Config) {
    config.tenants = vec![tenant("a", "key-a"), tenant("b", "key-b")];
}

fn isolated(config: &mut Config) {
    with_tenants(config);
    config.salt_secret = Some(Secret::new("a secret of the house"));
    config.pools[0].isolation = IsolationSettings {
        mode: Isolation::Tenant,
        inject_cache_salt: true,
    };
}

async fn ask(running: &Running, path: &str, headers: &[(&str, &str)], body: &str) -> Response {
    let mut all = vec![("host", "x"), ("content-type", "application/json")];
    all.extend_from_slice(headers);
    let request = maitred_tests::request("POST", path, &all, body);
    soon(client(running).await.exchange(&request)).await
}

#[tokio::test]
async fn a_key_is_needed_and_must_be_known() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], with_tenants).await;
    let good: &[&[(&str, &str)]] = &[
        &[("authorization", "Bearer key-a")],
        &[("authorization", "bearer key-a")],
        &[("x-api-key", "key-b")],
        &[("authorization", ""), ("api-key", "key-b")],
    ];
    for headers in good {
        assert_eq!(ask(&running, PATH, headers, CHAT).await.status(), 200);
    }
    let bad: &[(&[(&str, &str)], &str)] = &[
        (&[], "key-required"),
        (&[("authorization", "Bearer ")], "key-required"),
        (&[("authorization", "Bearer key-c")], "invalid-key"),
        (
            &[("x-api-key", "key-a "), ("authorization", "key-")],
            "invalid-key",
        ),
        // Nobody said that a header is believed.
        (&[("x-tenant", "a")], "key-required"),
    ];
    for path in [PATH, "/v1/messages", "/v1/unknown"] {
        for (headers, code) in bad {
            let answer = ask(&running, path, headers, CHAT).await;
            assert_eq!(answer.status(), 401);
            assert_eq!(answer.head.header("x-maitred-reason"), Some(*code));
            let error = &answer.json()["error"];
            assert_eq!(error["type"], "authentication_error");
            assert_eq!(answer.json()["type"] == "error", path == "/v1/messages");
        }
    }
    let mut models = client(&running).await;
    models
        .send("GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
        .await;
    assert_eq!(models.read_response().await.status(), 401);
    let mut health = client(&running).await;
    health.send("GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert_eq!(health.read_response().await.status(), 200);
    assert_eq!(worker.count(), good.len());
    at_rest(&running).await;
}

#[tokio::test]
async fn records_name_tenants_and_not_what_callers_claim() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |config| {
        with_tenants(config);
        config.anonymous = Some(Anonymous::Allow);
        config.tenant_header = Some("x-tenant".to_owned());
        // Nobody who connects here.
        config.trusted_proxies = check("trusted_proxies: [10.0.0.0/8]\npools: [{}]")
            .unwrap()
            .trusted_proxies;
    })
    .await;
    type Claim<'a> = (&'a str, &'a [(&'a str, &'a str)], u64);
    let claims: [Claim<'_>; 3] = [
        (
            "r-a",
            &[("authorization", "Bearer key-a"), ("x-tenant", "b")],
            tenant_id("a").0,
        ),
        ("r-none", &[("x-tenant", "b")], 0),
        ("r-plain", &[], 0),
    ];
    for (id, headers, tenant) in claims {
        let mut all = vec![("x-request-id", id)];
        all.extend_from_slice(headers);
        assert_eq!(ask(&running, PATH, &all, CHAT).await.status(), 200);
        assert_eq!(attempts(&running, id, 1).await[0].tenant, tenant);
    }
    let requests = worker.requests();
    assert!(requests.iter().all(|r| r.header("x-tenant").is_none()));
}

#[tokio::test]
async fn a_trusted_proxy_names_the_tenant() {
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |config| {
        with_tenants(config);
        config.tenant_header = Some("x-tenant".to_owned());
        config.trusted_proxies = check("trusted_proxies: [127.0.0.0/8]\npools: [{}]")
            .unwrap()
            .trusted_proxies;
    })
    .await;
    for name in ["b", "somebody-else"] {
        let headers = [("x-request-id", name), ("x-tenant", name)];
        assert_eq!(ask(&running, PATH, &headers, CHAT).await.status(), 200);
        assert_eq!(
            attempts(&running, name, 1).await[0].tenant,
            tenant_id(name).0
        );
    }
    let answer = ask(&running, PATH, &[("x-tenant", "no name!")], CHAT).await;
    assert_eq!(
        answer.head.header("x-maitred-reason"),
        Some("invalid-tenant")
    );
    assert_eq!(ask(&running, PATH, &[], CHAT).await.status(), 401);
    let requests = worker.requests();
    assert!(requests.iter().all(|r| r.header("x-tenant").is_none()));
}

fn long_chat(salt: &str) -> String {
    let text = "the same words for everybody ".repeat(40);
    format!(
        r#"{{"model":"m", "messages":[{{"role":"user","content":"{text}"}}]{salt} , "x": 1.0}}"#
    )
}

fn salt_of(worker: &Worker, number: usize) -> String {
    let body = worker.requests()[number].json();
    body["cache_salt"].as_str().expect("a salt").to_owned()
}

#[tokio::test]
async fn salts_keep_tenants_apart_and_all_other_bytes_as_they_were() {
    let worker = Worker::start(Script::ok()).await;
    let first = room(&[&worker], isolated).await;
    let second = room(&[&worker], isolated).await;
    let (a, b) = (
        ("authorization", "Bearer key-a"),
        ("authorization", "Bearer key-b"),
    );
    let plain = long_chat("");
    for (running, who) in [(&first, a), (&first, b), (&second, a)] {
        assert_eq!(ask(running, PATH, &[who], &plain).await.status(), 200);
    }
    let [of_a, of_b, again] = [0, 1, 2].map(|n| salt_of(&worker, n));
    assert_ne!(of_a, of_b);
    assert_eq!(of_a, again, "equal in every gateway with the secret");
    let sent = String::from_utf8(worker.requests()[0].body.clone()).unwrap();
    assert_eq!(
        sent.replace(&format!(",\"cache_salt\":\"{of_a}\""), ""),
        plain
    );
    assert!(!of_a.contains("key-a"));
    // b learnt a's salt: what it sends is hashed with what it is.
    let copied = long_chat(&format!(r#", "cache_salt" : "{of_a}""#));
    assert_eq!(ask(&first, PATH, &[b], &copied).await.status(), 200);
    let made = salt_of(&worker, 3);
    assert!(made != of_a && made != of_b);
    let sent = String::from_utf8(worker.requests()[3].body.clone()).unwrap();
    assert_eq!(sent.replace(&made, &of_a), copied);
    // A spelling that only the engine would understand, and what is no salt.
    for bad in [r#", "cache\u005fsalt": null"#, r#", "cache_salt": 7"#] {
        let answer = ask(&first, PATH, &[a], &long_chat(bad)).await;
        assert_eq!(answer.status(), 400, "{bad}");
        assert_eq!(answer.json()["error"]["param"], "cache_salt");
    }
    assert_eq!(worker.count(), 4);
}

/// What the gateway believed to be cached for each of these callers, in turn.
async fn beliefs(set: impl FnOnce(&mut Config), callers: &[(&str, &str)]) -> Vec<(u32, Value)> {
    let worker = Worker::start(Script::each(json_answer(200, "{}"))).await;
    let running = room(&[&worker], |config| {
        set(config);
        config.pools[0].core.policy = PolicyConfig::named("cache_aware").unwrap();
    })
    .await;
    let mut found = Vec::new();
    for (number, who) in callers.iter().enumerate() {
        let id = format!("r{number}");
        let headers = [("x-request-id", id.as_str()), *who];
        assert_eq!(
            ask(&running, PATH, &headers, &long_chat("")).await.status(),
            200
        );
        let record = &attempts(&running, &id, 1).await[0];
        let cached = record.predicted_cached_tokens.unwrap();
        found.push((cached, serde_json::to_value(&**record).unwrap()));
        at_rest(&running).await;
    }
    found
}

#[tokio::test]
async fn isolated_tenants_share_no_match_and_no_hash() {
    let (a, b) = (
        ("authorization", "Bearer key-a"),
        ("authorization", "Bearer key-b"),
    );
    for inject in [true, false] {
        let set = |config: &mut Config| {
            isolated(config);
            config.pools[0].isolation.inject_cache_salt = inject;
        };
        let found = beliefs(set, &[a, b, a]).await;
        assert_eq!((found[0].0, found[1].0), (0, 0), "b starts cold");
        assert!(found[2].0 > 0, "a comes back warm");
        // Hashes that are equal for equal prompts would tell one what the other asked.
        for field in ["session", "tenant"] {
            assert_ne!(found[0].1[field], found[1].1[field], "{field}");
            assert_eq!(found[0].1[field], found[2].1[field], "{field}");
        }
    }
    let shared = beliefs(with_tenants, &[a, b]).await;
    assert!(
        shared[1].0 > 0,
        "without isolation one is warmed by the other"
    );
}

#[tokio::test]
async fn of_anonymous_callers_who_knows_no_credential_shares_nothing_with_who_does() {
    let isolate = |config: &mut Config| config.pools[0].isolation.mode = Isolation::Tenant;
    let (one, two) = (
        ("authorization", "Bearer mine"),
        ("authorization", "Bearer yours"),
    );
    let found = beliefs(isolate, &[one, two, ("x-nothing", "1"), one]).await;
    assert_eq!([found[0].0, found[1].0, found[2].0], [0, 0, 0]);
    assert!(found[3].0 > 0);
    assert!(
        found
            .iter()
            .all(|(_, record)| record["tenant"] == "0000000000000000")
    );
}

/// The seed of what an engine's events say under a salt is the scope of the requests that were sent
/// with it.
#[tokio::test]
async fn requests_and_events_agree_on_the_scope() {
    let running = room(&[], |config| {
        config.pools[0].revision = Some("r1".to_owned());
    })
    .await;
    let pool_ = &running.gateway.pools[0];
    let scope = pool_.scope(None, "salt", 0);
    assert_eq!(scope, pool_.scope(Some("m"), "salt", 0));
    for other in [
        pool_.scope(None, "", 0),
        pool_.scope(None, "other", 0),
        pool_.scope(Some("adapter"), "salt", 0),
        pool_.scope(None, "salt", 1),
    ] {
        assert_ne!(other, scope);
    }
    let mut plain = pool("p", Some("m"), &[]);
    plain.isolation.mode = Isolation::Pool;
    let shared = room(&[], |config| config.pools = vec![plain]).await;
    let pool_ = &shared.gateway.pools[0];
    assert_eq!(pool_.scope(None, "salt", 0), pool_.scope(None, "", 0));
    assert_ne!(pool_.scope(None, "", 0), scope, "another revision");
}

#[tokio::test]
async fn marks_in_prompts_headers_and_credentials_are_kept_nowhere() {
    const MARK: &str = "ZX-MARK-77";
    let worker = Worker::start(Script::ok()).await;
    let running = room(&[&worker], |config| {
        with_tenants(config);
        config.tenants.push(tenant("c", MARK));
    })
    .await;
    let key = format!("Bearer {MARK}");
    let body = CHAT.replace("hello", MARK);
    for (id, key) in [
        ("kept", key.as_str()),
        ("refused", "Bearer wrong-ZX-MARK-77"),
    ] {
        let headers = [
            ("x-request-id", id),
            ("authorization", key),
            ("x-session-id", MARK),
            ("x-scenario", MARK),
            ("x-other", MARK),
        ];
        ask(&running, PATH, &headers, &body).await;
        let explained = maitred_gateway::admin::explain(&running.gateway, id);
        attempts(&running, id, 1).await;
        let explained = explained.or_else(|| maitred_gateway::admin::explain(&running.gateway, id));
        let text = explained.expect("it is remembered").to_string();
        assert!(!text.contains(MARK), "{text}");
    }
    let shown =
        running.gateway.config.show().to_string() + &format!("{:?}", running.gateway.config);
    assert!(!shown.contains(MARK) && !shown.contains("key-a"));
    let admin = running.admin.to_string();
    for path in ["/metrics", "/config", "/pools", "/workers", "/explain/kept"] {
        let headers = [("host", admin.as_str())];
        let request = maitred_tests::request("GET", path, &headers, "");
        let mut client = maitred_tests::Client::connect(running.admin).await;
        let answer = client.exchange(&request).await;
        assert!(!answer.text().contains(MARK), "{path}");
    }
}

/// The admin listener's answer.
async fn admin(running: &Running, path: &str) -> Response {
    let host = running.admin.to_string();
    let request = maitred_tests::request("GET", path, &[("host", host.as_str())], "");
    let mut client = maitred_tests::Client::connect(running.admin).await;
    soon(client.exchange(&request)).await
}

#[tokio::test]
async fn lines_show_who_waits_and_limits_keep_one_tenant_from_filling_them() {
    let gate = Gate::new();
    let mut steps = vec![Step::Wait(gate.clone())];
    steps.extend(json_answer(200, "{}"));
    let worker = Worker::start(Script::each(steps)).await;
    let running = room(&[&worker], |config| {
        with_tenants(config);
        config.tenants[0].terms.limits.requests_max = Some(2);
        config.tenants[1].band = Some("slow".to_owned());
        let band = |name: &str| Band {
            name: name.to_owned(),
            ..Band::default()
        };
        config.pools[0].core.bands = vec![band("fast"), band("slow")];
        config.pools[0].workers[0].seats.slots = Some(1);
    })
    .await;
    let send = async |key: &str, id: &str| {
        let key = format!("Bearer {key}");
        let headers = [
            ("host", "x"),
            ("authorization", key.as_str()),
            ("x-request-id", id),
        ];
        let mut client = client(&running).await;
        client
            .send(maitred_tests::request("POST", PATH, &headers, CHAT))
            .await;
        client
    };
    let mut seated = send("key-a", "seated").await;
    worker.wait_for_requests(1).await;
    let mut waiting = Vec::new();
    let pool_ = &running.gateway.pools[0];
    for (number, key) in ["key-b", "key-a", "key-a"].iter().enumerate() {
        waiting.push(send(key, &format!("w{number}")).await);
        let all = number + 1;
        eventually("it waits", || pool_.driver.read(|s| s.line_len()) == all).await;
    }
    let refused = send("key-a", "refused").await.read_response().await;
    assert_eq!(refused.status(), 429);
    let reason = refused.head.header("x-maitred-reason");
    assert_eq!(reason, Some("tenant-full"));

    let lines = admin(&running, "/lines").await.json();
    let lines = &lines["pools"][0];
    assert_eq!(lines["tenants_waiting"], 2);
    let tenants = lines["tenants"].as_array().unwrap();
    let of = |name: &str| tenants.iter().find(|t| t["name"] == name).unwrap();
    assert_eq!(
        (&of("a")["waiting"], &of("a")["band"]),
        (&2.into(), &"fast".into())
    );
    assert_eq!(
        (&of("b")["waiting"], &of("b")["band"]),
        (&1.into(), &"slow".into())
    );
    let line = |band: &str| {
        let all = lines["lines"].as_array().unwrap();
        let found = all.iter().find(|l| l["band"] == band && l["line"] == "new");
        found.unwrap().clone()
    };
    assert_eq!(line("fast")["waiting"], 2);
    assert!(line("fast")["oldest_seconds"].as_f64().unwrap() > 0.0);
    assert_eq!(line("fast")["refused_full"], 1);
    assert_eq!(line("slow")["waiting"], 1);
    let metrics = admin(&running, "/metrics").await.text();
    let shown = "maitred_line_waiting{pool=\"p\",band=\"slow\",line=\"new\"} 1";
    assert!(metrics.contains(shown), "{metrics}");

    // Who leaves is out of the line at once.
    drop(waiting.pop());
    eventually("it left", || pool_.driver.read(|s| s.line_len()) == 2).await;
    gate.open();
    assert_eq!(seated.read_response().await.status(), 200);
    for mut client in waiting {
        assert_eq!(client.read_response().await.status(), 200);
    }
    let b = &attempts(&running, "w0", 1).await[0];
    assert_eq!((b.band, b.line.as_deref()), (Some(1), Some("new")));
    assert_eq!(b.fairness.as_deref(), Some("promise"));
    assert!(b.charge.is_some_and(|charge| charge > 0));
    // The earlier band goes first, although it came later.
    let ids: Vec<_> = worker
        .requests()
        .iter()
        .map(|r| r.header("x-request-id").map(str::to_owned))
        .collect();
    assert_eq!(ids, ["seated", "w1", "w0"].map(|id| Some(id.to_owned())));
    at_rest(&running).await;
}

/// Priorities worked backwards on one engine: some serve low values first, others high ones.
#[tokio::test]
async fn each_engine_gets_the_band_the_way_round_that_it_reads_it() {
    let worker = Worker::start(Script::ok()).await;
    let body = r#"{"model":"m","priority":-5,"messages":[{"role":"user","content":"hello"}]}"#;
    let sent = async |engine, forwards| {
        let running = room(&[&worker], |config| {
            with_tenants(config);
            config.tenants[1].band = Some("batch".to_owned());
            let pool = &mut config.pools[0];
            pool.forward_priority = forwards;
            pool.core.bands = ["interactive", "batch"]
                .map(|name| Band {
                    name: name.to_owned(),
                    ..Band::default()
                })
                .into();
            pool.workers[0].engine = EngineChoice::Kind(engine);
        })
        .await;
        let before = worker.count();
        for key in ["Bearer key-a", "Bearer key-b"] {
            let headers = [("authorization", key)];
            assert_eq!(ask(&running, PATH, &headers, body).await.status(), 200);
        }
        let requests = worker.requests();
        let bodies = requests[before..].iter().map(|r| r.body.clone());
        bodies
            .map(|b| String::from_utf8(b).unwrap())
            .collect::<Vec<_>>()
    };
    let with = |value: &str| body.replace("-5", value);
    assert_eq!(sent(EngineKind::Vllm, true).await, [with("0"), with("1")]);
    assert_eq!(sent(EngineKind::Sglang, true).await, [with("1"), with("0")]);
    // An engine without priorities, and a pool that does not say so: the client's bytes.
    for (engine, forwards) in [(EngineKind::LlamaCpp, true), (EngineKind::Vllm, false)] {
        assert_eq!(sent(engine, forwards).await, [with("-5"), with("-5")]);
    }
}
