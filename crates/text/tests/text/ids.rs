//! Ids equal those of the Hugging Face tokenizers: cut, remembered and by the fast encoder, over
//! public texts; and a model's way from a request to its chain.

use crate::data;
use maitred_text::model::in_tokens;
use maitred_text::template::WallTime;
use maitred_text::{Context, Cutting, Identified, ModelFiles, TextModel, TextOptions, identify};
use maitred_wire::{Endpoint, head};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::OnceLock;

/// Bytes of requests that the short run takes from each file.
const SHORT_BYTES: usize = 50_000;

const MODELS: [&str; 2] = ["qwen3", "gpt-oss"];

fn load(name: &str) -> Option<TextModel> {
    let root = data(&format!("tokenizers/{name}"))?;
    let folder = tempfile::tempdir().unwrap();
    let packed = std::fs::read(root.join("tokenizer.json.zst")).unwrap();
    let tokenizer = folder.path().join("tokenizer.json");
    std::fs::write(&tokenizer, zstd::decode_all(&packed[..]).unwrap()).unwrap();
    let files = ModelFiles {
        directory: Some(root),
        tokenizer: Some(tokenizer),
        ..ModelFiles::default()
    };
    Some(TextModel::load(&files, TextOptions::default()).unwrap())
}

/// The models, loaded once for all tests of a process.
fn models() -> impl Iterator<Item = (&'static str, &'static TextModel)> {
    static LOADED: OnceLock<Vec<Option<TextModel>>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| MODELS.iter().map(|name| load(name)).collect());
    MODELS
        .into_iter()
        .zip(loaded)
        .filter_map(|(name, model)| Some((name, model.as_ref()?)))
}

fn lines(name: &str) -> Vec<Value> {
    let Some(path) = data(&format!("text/{name}")) else {
        return Vec::new();
    };
    let mut bytes = std::fs::read(&path).unwrap();
    if name.ends_with(".zst") {
        bytes = zstd::decode_all(&bytes[..]).unwrap();
    }
    let text = String::from_utf8(bytes).unwrap();
    let parse = |line: &str| serde_json::from_str(line).unwrap();
    text.lines().map(parse).collect()
}

/// Endpoint and body of every request of every text, file by file.
fn requests() -> Vec<Vec<(Endpoint, String)>> {
    let chat = |body: Value| (Endpoint::Chat, body.to_string());
    let agentperf = lines("agentperf-requests.jsonl.zst").into_iter();
    let agentperf = agentperf
        .map(|r| chat(json!({"messages": r["messages"], "tools": r["tools"]})))
        .collect();
    let prompt = |r: Value| {
        (
            Endpoint::Completions,
            json!({"prompt": r["input"]}).to_string(),
        )
    };
    let swe = lines("lmcache-miniswe-requests.jsonl.zst");
    let magentic = lines("lmcache-magentic-requests.jsonl.zst");
    let questions = lines("mtbench-questions.jsonl").into_iter();
    let questions = questions.map(|q| {
        chat(json!({"messages": [
            {"role": "user", "content": q["turns"][0]},
            {"role": "assistant", "content": q["turns"][1]},
            {"role": "user", "content": q["turns"][1]},
        ]}))
    });
    vec![
        agentperf,
        swe.into_iter().map(prompt).collect(),
        magentic.into_iter().map(prompt).collect(),
        questions.collect(),
        airline(),
    ]
}

/// Each assistant message of a dialogue is the answer to a request with all before it.
fn airline() -> Vec<(Endpoint, String)> {
    let tools = data("text/taubench-airline-tools.json").map(|path| {
        let tools: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        tools
    });
    let mut found = Vec::new();
    for dialogue in lines("taubench-airline-gpt4o-sessions.jsonl.zst") {
        let messages = dialogue["messages"].as_array().unwrap();
        for (at, message) in messages.iter().enumerate() {
            if message["role"] == "assistant" {
                let body = json!({"messages": messages[..at], "tools": tools});
                found.push((Endpoint::Chat, body.to_string()));
            }
        }
    }
    found
}

/// Renders, tokenises both ways and compares; what is rendered, in bytes.
fn compare(name: &str, model: &TextModel, endpoint: Endpoint, body: &str) -> usize {
    let head = head::parse(endpoint, body.as_bytes(), 128).unwrap();
    let now = WallTime::default();
    let rendered = model.templates().render(endpoint, &head, now, 1 << 26);
    let rendered = rendered.unwrap_or_else(|e| panic!("{name}: {e:?}: {body:.300}"));
    let special = rendered.add_special_tokens;
    let text = rendered.text.into_text();
    let right = model.tokenizer().reference_ids(&text, special).unwrap();
    let plan = model.plan(endpoint, &head, now).unwrap();
    let ids = model.ids(plan).unwrap();
    assert_eq!(ids.to_vec(), right, "{name}: {body:.300}");
    let cutting = Cutting {
        scope: 3,
        token_block: 16,
    };
    let plan = model.plan_chain(endpoint, &head, now, cutting).unwrap();
    let found = model.chain(plan).unwrap();
    let chained = in_tokens(Identified::unread(0), &ids, 3, 16);
    assert_eq!(found.chain, chained.chain, "{name}: {body:.300}");
    assert_eq!(found.leading, chained.leading);
    text.len()
}

fn compare_all(bytes_max: usize, step: usize) {
    for (name, model) in models() {
        assert_eq!(model.encoder(), "fastokens", "{name}");
        assert_eq!(model.whole_reason(), None, "{name}");
        for requests in requests() {
            let (mut bytes, mut count) = (0, 0);
            for (endpoint, body) in &requests {
                if bytes > bytes_max {
                    break;
                }
                bytes += compare(name, model, *endpoint, body);
                count += 1;
            }
            eprintln!("{name}: {count} requests, {bytes} bytes rendered, ids equal");
        }
        let (mut bytes, mut count) = (0, 0);
        // Not one after another: those of one template are much alike.
        for text in crate::renderings::all().into_iter().step_by(step) {
            let tokenizer = model.tokenizer();
            let right = tokenizer.reference_ids(&text, false).unwrap();
            bytes += text.len();
            count += 1;
            let ids = tokenizer
                .finish(tokenizer.plan(text, false))
                .unwrap()
                .to_vec();
            assert_eq!(ids, right, "{name}");
        }
        eprintln!("{name}: {count} renderings of templates, {bytes} bytes, ids equal");
        let counts = model.counts();
        assert_eq!(counts.tokenizer.mismatches, 0);
        eprintln!("{name}: {counts:?}");
    }
}

/// One test: loading the tokenizers takes longer than using them.
#[test]
fn ids_are_those_of_the_reference() {
    compare_all(SHORT_BYTES, 101);
    a_next_turn_extends_the_chain_and_costs_its_new_text();
    what_is_not_tokenised_is_counted();
    pieces_give_the_ids_of_the_whole();
    conversations_give_the_ids_of_the_whole();
}

#[test]
#[ignore = "all texts: minutes; in release"]
fn ids_are_those_of_the_reference_on_all_texts() {
    compare_all(usize::MAX, 1);
}

fn context(scope: u64) -> Context<'static> {
    Context {
        scope,
        tenant: 1,
        client_scope: 0,
        pool: 2,
        block_bytes: 64,
        token_block: 16,
        session_headers: &[],
        scenario_header: "x-scenario",
        header: &|_| None,
    }
}

fn a_next_turn_extends_the_chain_and_costs_its_new_text() {
    for (name, model) in models() {
        let system = "You are a helpful assistant. ".repeat(200);
        let first = json!({"messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": "Name a colour."},
        ]});
        let second = json!({"messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": "Name a colour."},
            {"role": "assistant", "content": "Green."},
            {"role": "user", "content": "Another."},
        ]});
        let chain = |body: &Value| {
            let body = body.to_string();
            let head = head::parse(Endpoint::Chat, body.as_bytes(), 128).unwrap();
            let now = WallTime::default();
            let missing = model
                .plan(Endpoint::Chat, &head, now)
                .unwrap()
                .missing_bytes();
            let bytes = identify(Endpoint::Chat, &head, &context(7));
            let identified = model
                .identify_tokens(Endpoint::Chat, &head, &context(7), now, bytes)
                .unwrap();
            (identified, missing)
        };
        let (one, missing) = chain(&first);
        assert!(missing > 5_000, "{name}: {missing}");
        let (two, missing) = chain(&second);
        assert!(missing < 100, "{name}: {missing}");
        assert!(one.chain.len() > 60, "{name}");
        assert_eq!(
            two.chain[..one.chain.len() - 1],
            one.chain[..one.chain.len() - 1]
        );
        assert_eq!(two.chain.len(), two.prompt_tokens.unwrap() as usize / 16);
        assert_eq!((two.turn, one.turn), (2, 1));
        assert_eq!(one.session, two.session);
    }
}

fn what_is_not_tokenised_is_counted() {
    let Some((_, model)) = models().next() else {
        return;
    };
    let count = |reason: &str| {
        let counts = model.counts();
        counts.fallbacks.iter().find(|f| f.0 == reason).unwrap().1
    };
    for (endpoint, body, reason) in [
        (
            Endpoint::Chat,
            r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}]}"#,
            "media",
        ),
        (
            Endpoint::Completions,
            r#"{"prompt":[1,2,3]}"#,
            "token_prompt",
        ),
        (Endpoint::Responses, r#"{"input":"x"}"#, "endpoint"),
        (Endpoint::Chat, r#"{"messages":3}"#, "field"),
        (
            Endpoint::Chat,
            r#"{"messages":[],"chat_template":"x"}"#,
            "own_template",
        ),
    ] {
        let before = count(reason);
        let head = head::parse(endpoint, body.as_bytes(), 128).unwrap();
        let error = model
            .plan(endpoint, &head, WallTime::default())
            .err()
            .unwrap();
        assert_eq!(error.reason(), reason);
        assert_eq!(count(reason), before + 1);
    }
}

/// Pieces of text that tokenizers treat in their own ways, some of them added tokens.
const WORDS: [&str; 24] = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<think>",
    "</think>",
    "<|start|>",
    "<|message|>",
    "<|channel|>",
    "<|end|>",
    "<|return|>",
    "<|im_",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "a",
    "'s",
    "12345",
    "e\u{301}",
    "世界",
    "🙂",
    "don't",
    "<|",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    fn pieces_give_the_ids_of_the_whole(
        words in prop::collection::vec(
            prop_oneof![
                3 => prop::sample::select(WORDS.to_vec()).prop_map(str::to_owned),
                1 => "\\PC{0,12}",
            ],
            0..40,
        ),
        special in any::<bool>(),
    ) {
        let text = words.concat();
        for (name, model) in models() {
            let tokenizer = model.tokenizer();
            let right = tokenizer.reference_ids(&text, special).unwrap();
            for _ in 0..2 {
                let plan = tokenizer.plan(text.clone(), special);
                prop_assert_eq!(&tokenizer.finish(plan).unwrap().to_vec(), &right, "{}", name);
            }
        }
    }

    fn conversations_give_the_ids_of_the_whole(
        contents in prop::collection::vec(
            prop::collection::vec(
                prop_oneof![
                    4 => prop::sample::select(WORDS.to_vec()).prop_map(str::to_owned),
                    1 => Just("It is said, and said again; 世界. ".repeat(8)),
                ],
                0..8,
            ),
            1..6,
        ),
    ) {
        let roles = ["user", "assistant"].into_iter().cycle();
        let message = |(content, role): (&Vec<String>, &str)| json!({"role": role, "content": content.concat()});
        let messages: Vec<Value> = contents.iter().zip(roles).map(message).collect();
        for (name, model) in models() {
            // Each turn repeats what was said before.
            for turn in 1..=messages.len() {
                let body = json!({ "messages": messages[..turn] }).to_string();
                compare(name, model, Endpoint::Chat, &body);
            }
        }
    }
}
