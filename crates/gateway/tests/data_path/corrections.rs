//! What an answer says of its cached tokens corrects what is believed of the worker that gave it.

use super::{PATH, attempts, client, room, soon};
use maitred_core::place::PolicyConfig;
use maitred_gateway::Running;
use maitred_gateway::config::Config;
use maitred_records::AttemptRecord;
use maitred_tests::{Client, Script, Worker, json_answer, sse_event, stream_answer};
use serde_json::{Value, json};
use std::sync::Arc;

/// Tokens that all prompts here have in common, and those of a question and its frame. Token ids: what
/// is believed can be told to the block.
const COMMON: u32 = 8_000;
const QUESTION: u32 = 805;
const PROMPT: u32 = COMMON + QUESTION;
/// Those of a prompt's whole blocks.
const WHOLE: u32 = PROMPT - 5;

fn prompt(question: u32) -> Vec<u32> {
    let ids = (0..COMMON).map(|n| n * 7 % 50_000);
    ids.chain((0..QUESTION).map(|n| 50_000 + 1_000 * question + n))
        .collect()
}

fn in_turns(config: &mut Config) {
    config.pools[0].core.policy = PolicyConfig::named("round_robin").unwrap();
}

fn usage(details: &str) -> String {
    format!(
        r#"{{"choices":[],"usage":{{"prompt_tokens":{PROMPT},"completion_tokens":1{details}}}}}"#
    )
}

fn cached(tokens: u32) -> String {
    format!(r#","prompt_tokens_details":{{"cached_tokens":{tokens}}}"#)
}

struct Asked<'a> {
    running: &'a Running,
    count: u32,
}

impl Asked<'_> {
    async fn ask(&mut self, question: u32) -> Arc<AttemptRecord> {
        let (status, record) = self.put(question).await;
        assert_eq!(status, 200);
        record
    }

    async fn refused(&mut self, question: u32) -> Arc<AttemptRecord> {
        let (status, record) = self.put(question).await;
        assert!(status >= 400);
        record
    }

    async fn put(&mut self, question: u32) -> (u16, Arc<AttemptRecord>) {
        self.count += 1;
        let id = format!("r{}", self.count);
        let headers = [
            ("content-type", "application/json"),
            ("x-request-id", id.as_str()),
        ];
        let body = json!({"model": "m", "prompt": prompt(question)}).to_string();
        let request = maitred_tests::request("POST", "/v1/completions", &headers, body);
        let answer = soon(client(self.running).await.exchange(&request)).await;
        let record = attempts(self.running, &id, 1).await.remove(0);
        (answer.status(), record)
    }
}

/// Tokens of the prompt that its worker and the other one were believed to hold.
fn believed(record: &AttemptRecord) -> (u32, u32) {
    let of = |own: bool| {
        let mut all = record.candidates.iter();
        let found = all.find(|c| (Some(&c.worker) == record.worker.as_ref()) == own);
        found.unwrap().matched_tokens
    };
    (of(true), of(false))
}

#[tokio::test]
async fn an_answer_of_zero_makes_the_chain_cold_on_its_worker_only() {
    // What the third answer says, and what its worker then holds of the first question's prompt: the
    // third computed the common part again, whatever followed it there is gone.
    let forms: [(String, bool, u32); 7] = [
        (cached(0), false, COMMON),
        (cached(0), true, COMMON),
        (cached(8_000), false, WHOLE),
        (String::new(), false, WHOLE),
        (r#","prompt_tokens_details":null"#.to_owned(), true, WHOLE),
        (
            r#","prompt_tokens_details":{"cached_tokens":-1}"#.to_owned(),
            false,
            WHOLE,
        ),
        // More than the prompt has.
        (cached(PROMPT + 1), false, WHOLE),
    ];
    for (details, streamed, left) in forms {
        let cold = json_answer(200, &usage(&cached(0)));
        let said = if streamed {
            stream_answer([usage(&details).as_str()])
        } else {
            json_answer(200, &usage(&details))
        };
        let script = Script::by(move |asked| match asked.header("x-request-id") {
            Some("r3") => said.clone(),
            _ => cold.clone(),
        });
        let workers = [
            Worker::start(script.clone()).await,
            Worker::start(script).await,
        ];
        let running = room(&[&workers[0], &workers[1]], in_turns).await;
        let mut asked = Asked {
            running: &running,
            count: 0,
        };
        // Both serve the first question.
        let near = asked.ask(1).await;
        assert_eq!(believed(&near), (0, 0));
        let far = asked.ask(1).await;
        assert_eq!(believed(&far), (0, WHOLE));
        // The second goes to the one whose turn it is again: 8,000 tokens were believed.
        let second = asked.ask(2).await;
        assert_eq!(second.worker, near.worker);
        assert_eq!(believed(&second), (COMMON, COMMON), "{details}");
        assert_eq!(second.predicted_cached_tokens, Some(COMMON));
        // Asked of the other, whose belief nobody touched.
        let last = asked.ask(1).await;
        assert_eq!(last.worker, far.worker);
        assert_eq!(believed(&last), (WHOLE, left), "{details}");
    }
}

async fn metrics(running: &Running) -> String {
    let mut admin = Client::connect(running.admin).await;
    let request = maitred_tests::request("GET", "/metrics", &[("host", "127.0.0.1")], "");
    soon(admin.exchange(&request)).await.text()
}

/// The error histogram holds predicted less actual, by what the prediction went by; the unknown is no
/// error of zero.
#[tokio::test]
async fn the_errors_of_predictions_are_counted_by_their_source() {
    let answers: Vec<_> = [
        // Nothing was predicted: 0 - 0, and a worker that held more than we knew, 0 - 96.
        cached(0),
        cached(96),
        // 8,800 and 8,000 predicted.
        cached(WHOLE - 16),
        cached(COMMON),
        cached(COMMON - 800),
        String::new(),
    ]
    .iter()
    .map(|details| json_answer(200, &usage(details)))
    .collect();
    let worker = Worker::start(Script::sequence(answers)).await;
    let running = room(&[&worker], in_turns).await;
    let mut asked = Asked {
        running: &running,
        count: 0,
    };
    let mut seen = Vec::new();
    // The second prompt is another one from its first token on.
    let other = json!({"model": "m", "prompt": vec![3; PROMPT as usize]});
    for question in [1, 0, 1, 2, 3, 4] {
        let record = if question == 0 {
            asked.count += 1;
            let headers = [("x-request-id", "other")];
            let request =
                maitred_tests::request("POST", "/v1/completions", &headers, other.to_string());
            soon(client(&running).await.exchange(&request)).await;
            attempts(&running, "other", 1).await.remove(0)
        } else {
            asked.ask(question).await
        };
        let source = record.belief.as_ref().unwrap().source.to_string();
        let actual = record.cached_tokens.map(i64::from);
        seen.push((
            source,
            actual.map(|a| i64::from(record.predicted_cached_tokens.unwrap()) - a),
        ));
    }
    let none = |error| ("none".to_owned(), error);
    let predicted = |error| ("predicted".to_owned(), error);
    assert_eq!(
        seen,
        [
            none(Some(0)),
            none(Some(-96)),
            predicted(Some(16)),
            predicted(Some(0)),
            predicted(Some(800)),
            predicted(None),
        ]
    );
    let text = metrics(&running).await;
    let series = |name: &str, source: &str, le: &str| {
        format!(r#"maitred_cached_tokens_error_{name}{{{le}pool="p",source="{source}"}}"#)
    };
    for (line, value) in [
        (series("count", "none", ""), "2"),
        (series("sum", "none", ""), "-96.0"),
        (series("count", "predicted", ""), "3"),
        (series("sum", "predicted", ""), "816.0"),
        (series("unknown_total", "predicted", ""), "1"),
        (series("unknown_total", "none", ""), "0"),
        (series("count", "observed", ""), "0"),
    ] {
        assert!(
            text.contains(&format!("{line} {value}\n")),
            "{line} {value}\n{text}"
        );
    }
}

/// An answer in Anthropic's form corrects as any other.
#[tokio::test]
async fn every_family_corrects() {
    let words = "the same words for everybody ".repeat(1_200);
    let body = |question: &str| {
        json!({"model": "m", "max_tokens": 9, "system": words,
            "messages": [{"role": "user", "content": question.repeat(200)}]})
        .to_string()
    };
    let start = |read: u32| {
        format!(
            r#"{{"type":"message_start","message":{{"id":"msg_1","usage":{{"input_tokens":{},"cache_read_input_tokens":{read},"output_tokens":1}}}}}}"#,
            9_000 - read
        )
    };
    let event = |data: &str| sse_event(data);
    let answer = |read: u32| {
        let text = event(&start(read)) + &event(r#"{"type":"message_stop"}"#);
        let length = text.len().to_string();
        let headers = [
            ("content-type", "text/event-stream"),
            ("content-length", length.as_str()),
        ];
        vec![
            maitred_tests::Step::head(200, &headers),
            maitred_tests::Step::raw(text),
        ]
    };
    for (read, still) in [(0, false), (8_000, true)] {
        let worker =
            Worker::start(Script::sequence(vec![answer(0), answer(read), answer(0)])).await;
        let running = room(&[&worker], in_turns).await;
        let mut found: Vec<Value> = Vec::new();
        for (id, question) in [("a", "one "), ("b", "two "), ("c", "one ")] {
            let headers = [("x-request-id", id), ("content-type", "application/json")];
            let request = maitred_tests::request("POST", "/v1/messages", &headers, body(question));
            assert_eq!(
                soon(client(&running).await.exchange(&request))
                    .await
                    .status(),
                200
            );
            let record = attempts(&running, id, 1).await.remove(0);
            found.push(serde_json::to_value(&*record).unwrap());
        }
        assert_eq!(found[1]["cached_tokens"], read);
        assert_eq!(found[1]["prompt_tokens"], 9_000);
        let blocks = |n: usize| found[n]["belief"]["blocks"].as_u64().unwrap();
        assert!(blocks(1) > 500, "{}", blocks(1));
        // The first question's own words were believed to be there still, or not.
        assert_eq!(
            blocks(2) > blocks(1),
            still,
            "{read}: {} {}",
            blocks(2),
            blocks(1)
        );
    }
}

/// Where chats are concerned the same holds without any usage: nothing is learnt from silence.
#[tokio::test]
async fn silence_is_no_zero() {
    let worker = Worker::start(json_answer(200, r#"{"choices":[]}"#)).await;
    let running = room(&[&worker], in_turns).await;
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "x".repeat(8_000)}]});
    for n in 0..12 {
        let id = format!("s{n}");
        let headers = [("x-request-id", id.as_str())];
        let request = maitred_tests::request("POST", PATH, &headers, body.to_string());
        soon(client(&running).await.exchange(&request)).await;
        let record = attempts(&running, &id, 1).await.remove(0);
        assert_eq!(record.cached_tokens, None);
        assert_eq!(record.predicted_cached_tokens.unwrap() > 0, n > 0);
    }
}

/// The words of a refusal were taken for a first token: the refused prompt was believed to be held, its
/// conversation settled on the worker that had no room for it, and it had a time to its first token.
#[tokio::test]
async fn a_refusal_warms_no_cache_and_settles_nobody() {
    for status in [400, 429, 503, 500, 502] {
        let refusal = json_answer(status, r#"{"error":{"message":"no"}}"#);
        let worker = Worker::start(refusal).await;
        let running = room(&[&worker], |config| {
            config.pools[0].core.attempts = 1;
        })
        .await;
        let mut asked = Asked {
            running: &running,
            count: 0,
        };
        for _ in 0..2 {
            let record = asked.refused(1).await;
            assert_eq!(record.predicted_cached_tokens, Some(0), "{status}");
            assert_eq!(record.ttft_ms, None, "{status}");
        }
        let view = &running.gateway.pools[0].views()[0].view;
        assert_eq!((view.believed_blocks, view.sessions), (0, 0), "{status}");
    }
}
