//! Every prompt token of every served request has one cause or was cached, exactly, whatever happens to
//! the engines; and the cause is the one that it was.
use std::time::Duration;

use serde_json::{Value, json};

use crate::kv::Place;
use crate::{Served, serve_file};

const CAUSES: [&str; 7] = [
    "new",
    "diverged",
    "scope",
    "moved",
    "evicted",
    "restarted",
    "unknown",
];

/// One conversation: what it has said so far.
struct Talk {
    name: String,
    messages: Vec<Value>,
    salt: Option<&'static str>,
}

impl Talk {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            messages: vec![json!({"role": "system", "content": text(name, 40)})],
            salt: None,
        }
    }

    /// The next turn: asked, answered, and the answer remembered. Its record.
    async fn turn(&mut self, served: &Served) -> Value {
        let number = self.messages.len();
        let words = text(&format!("{} {number}", self.name), 30);
        self.messages
            .push(json!({"role": "user", "content": words}));
        let mut body = json!({"model": "m", "messages": self.messages, "max_tokens": 4});
        if let Some(salt) = self.salt {
            body["cache_salt"] = salt.into();
        }
        let headers = [("x-session-id", self.name.as_str())];
        let asked =
            maitred_tests::request("POST", "/v1/chat/completions", &headers, body.to_string());
        let before = served.records().len();
        let answer = served.client().await.exchange(&asked).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let said = answer.json()["choices"][0]["message"]["content"].clone();
        self.messages
            .push(json!({"role": "assistant", "content": said}));
        maitred_tests::eventually("the record", || served.records().len() > before).await;
        let record = served.records().pop().unwrap();
        exact(&record);
        record
    }
}

/// Words that no other seed has.
fn text(seed: &str, words: usize) -> String {
    let word = |n: usize| format!("{seed} word{n}");
    (0..words).map(word).collect::<Vec<_>>().join(", ")
}

fn number(record: &Value, pointer: &str) -> u64 {
    record.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

fn cause(record: &Value, name: &str) -> u64 {
    number(record, &format!("/misses/{name}"))
}

fn exact(record: &Value) {
    assert_eq!(record["outcome"], "served", "{record}");
    let causes: u64 = CAUSES.iter().map(|name| cause(record, name)).sum();
    let cached = record["cached_tokens"].as_u64().expect("the engine says");
    let prompt = record["prompt_tokens"].as_u64().expect("the engine says");
    assert_eq!(causes + cached, prompt, "{record}");
}

/// The cause of all that an ancestor had, which is most of the prompt; nothing has another cause.
fn only(record: &Value, name: &str) {
    for other in CAUSES.iter().filter(|c| **c != "new" && **c != name) {
        assert_eq!(cause(record, other), 0, "{name}: {record}");
    }
    let prompt = number(record, "/prompt_tokens");
    assert!(cause(record, name) * 2 > prompt, "{name}: {record}");
}

async fn two_engines(places: [&Place; 2]) -> Served {
    let workers: String = places.iter().map(|place| place.worker(true)).collect();
    let probe = "{ interval: 100ms, interval_down: 50ms, timeout: 500ms, failures: 2 }";
    serve_file(
        &format!(
            "pools:\n  - name: p\n    model: m\n    policy: session\n    probe: {probe}\n    workers:\n{workers}"
        ),
        2,
    )
    .await
}

/// Where a record's attempt went, as the admin API names it.
fn worker(record: &Value) -> String {
    record["worker"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn causes_and_cached_tokens_are_the_prompt_through_every_change() {
    let places = [Place::any(), Place::any()];
    let mut engines = [places[0].engine(&[]).await, places[1].engine(&[]).await];
    let served = two_engines([&places[0], &places[1]]).await;
    let names: Vec<String> = served
        .workers()
        .await
        .iter()
        .map(|worker| worker["name"].as_str().unwrap().to_owned())
        .collect();

    let mut talk = Talk::new("first");
    let record = talk.turn(&served).await;
    assert_eq!(cause(&record, "new"), number(&record, "/prompt_tokens"));
    let record = talk.turn(&served).await;
    assert!(number(&record, "/cached_tokens") > 0, "{record}");
    let kept = CAUSES.iter().filter(|c| **c != "new");
    let lost: u64 = kept.map(|name| cause(&record, name)).sum();
    assert_eq!(lost, 0, "all that was there was found: {record}");

    // Its beginning changes.
    talk.messages[0] = json!({"role": "system", "content": text("altered", 40)});
    let record = talk.turn(&served).await;
    only(&record, "diverged");

    // It is the same for another cache.
    talk.salt = Some("pepper");
    let record = talk.turn(&served).await;
    only(&record, "scope");

    // Others come until its blocks are gone: the cache holds 1024 tokens.
    let mut guest = Talk::new("patient");
    let record = guest.turn(&served).await;
    let home = worker(&record);
    for n in 0..16 {
        let _ = Talk::new(&format!("passer-by {n}")).turn(&served).await;
    }
    let record = guest.turn(&served).await;
    assert_eq!(worker(&record), home);
    only(&record, "evicted");

    // Its engine is started anew.
    let at = names.iter().position(|name| *name == home).unwrap();
    engines[at].kill().await.unwrap();
    engines[at] = places[at].engine(&[]).await;
    maitred_tests::within("its new life to be seen", async {
        while served.workers().await[at]["epoch"] == 0 || served.ready_workers().await < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let record = guest.turn(&served).await;
    assert_eq!(worker(&record), home);
    only(&record, "restarted");

    // It may not go there any more.
    let drained = served
        .admin_send("POST", &format!("/workers/{home}/drain"), "")
        .await;
    assert!(drained.status() < 300, "{}", drained.text());
    let record = guest.turn(&served).await;
    assert_ne!(worker(&record), home);
    only(&record, "moved");
    assert_eq!(record["misses"]["moved_why"], "draining");
    assert_eq!(record["misses"]["ancestor_worker"], home.as_str());

    // The same sums in the metrics, and a story that has the number.
    let sum = served.metric("maitred_miss_tokens_total").await
        + served.metric("maitred_cached_tokens_total").await;
    assert_eq!(sum, served.metric("maitred_prompt_tokens_total").await);
    let id = record["request_id"].as_str().unwrap();
    let told = served.admin_get(&format!("/explain/{id}")).await.json();
    let story = told["story"].as_str().unwrap();
    let moved = cause(&record, "moved");
    assert!(
        story.contains(&format!("{moved} had been computed before on {home}")),
        "{story}"
    );
    assert!(story.contains("draining"), "{story}");
}
