//! Renderings equal those of Python's Jinja2, byte for byte. `reference/renderings.txt` has their
//! hashes, made by `reference/render.py`.

use crate::data;
use maitred_text::template::{Dialect, RenderError, Templates, WallTime};
use maitred_wire::{Endpoint, head};
use serde_json::Value;
use std::collections::BTreeMap;

const CASES: &str = include_str!("../reference/cases.json");
const RENDERINGS: &str = include_str!("../reference/renderings.txt");

const DOCUMENTS: &str = include_str!("../../../../docs/identity.md");

/// Templates that are not rendered here, with the reason.
const EXCEPTIONS: [&str; 1] = [
    // Joins text marked `safe` with other text: Python escapes the other text for HTML. Such a
    // template is refused here, so its requests stay on bytes.
    "llama.cpp/meetkai-functionary-medium-v3.1.jinja",
];

fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A case, and hash and length of what Python printed; None where it refused.
type Expected = (&'static str, Option<(u64, usize)>);

/// By template.
fn expected() -> BTreeMap<&'static str, Vec<Expected>> {
    let mut found = BTreeMap::<_, Vec<_>>::new();
    for line in RENDERINGS.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let printed = (words[2] != "error").then(|| {
            let hash = u64::from_str_radix(words[2], 16).unwrap();
            (hash, words[3].parse().unwrap())
        });
        found.entry(words[0]).or_default().push((words[1], printed));
    }
    found
}

fn special(cases: &Value) -> Vec<(String, String)> {
    let tokens = cases["special"].as_object().unwrap();
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    tokens.iter().map(|(k, v)| (k.clone(), text(v))).collect()
}

fn render(templates: &Templates, cases: &Value, case: &str) -> Result<String, RenderError> {
    let body = cases["cases"][case].to_string();
    let head = head::parse(Endpoint::Chat, body.as_bytes(), 128).unwrap();
    let now = WallTime {
        unix_seconds: cases["now_unix"].as_i64().unwrap(),
        offset_seconds: 0,
    };
    let rendered = templates.render(Endpoint::Chat, &head, now, 1 << 24);
    rendered.map(|r| r.text.into_text())
}

/// Every case under every template that renders it; none without the templates.
pub(crate) fn all() -> Vec<String> {
    let Some(root) = data("templates") else {
        return Vec::new();
    };
    let cases: Value = serde_json::from_str(CASES).unwrap();
    let special = special(&cases);
    let mut texts = Vec::new();
    for (name, expected) in expected() {
        let source = std::fs::read_to_string(root.join(name)).unwrap();
        let sources = [("default".to_owned(), source)];
        let dialect = Dialect::Transformers;
        if let Ok(templates) = Templates::compile(&sources, &special, dialect, 10_000_000, 1 << 20)
        {
            let rendered = expected
                .iter()
                .map(|(case, _)| render(&templates, &cases, case));
            texts.extend(rendered.flatten());
        }
    }
    texts
}

#[test]
fn templates_render_as_under_jinja2() {
    let Some(root) = data("templates") else {
        return;
    };
    let cases: Value = serde_json::from_str(CASES).unwrap();
    let special = special(&cases);
    let (mut equal, mut refused, mut lenient) = (0, 0, 0);
    let mut faults = Vec::new();
    for (name, expected) in expected() {
        let source = std::fs::read_to_string(root.join(name)).unwrap();
        let sources = [("default".to_owned(), source)];
        let dialect = Dialect::Transformers;
        let templates = match Templates::compile(&sources, &special, dialect, 10_000_000, 1 << 20) {
            Ok(templates) => templates,
            Err((_, what)) if expected.iter().any(|e| e.1.is_some()) => {
                faults.push(format!("{name}: does not compile: {what}"));
                continue;
            }
            Err(_) => continue,
        };
        for (case, printed) in expected {
            if EXCEPTIONS.contains(&name) {
                let refused = Err(RenderError::Unlike);
                assert_eq!(render(&templates, &cases, case), refused, "{name}");
                continue;
            }
            match (render(&templates, &cases, case), printed) {
                (Ok(text), Some((hash, bytes))) => {
                    if (fnv(&text), text.len()) == (hash, bytes) {
                        equal += 1;
                    } else {
                        faults.push(format!("{name} {case}: {} bytes, not {bytes}", text.len()));
                        keep(name, case, &text);
                    }
                }
                (Err(_), None) => refused += 1,
                (Err(error), Some(_)) => faults.push(format!("{name} {case}: {error:?}")),
                // The engine refuses such a request: what is believed of it is without effect.
                (Ok(_), None) => lenient += 1,
            }
        }
    }
    eprintln!("{equal} renderings equal; {refused} refused by both, {lenient} by Jinja2 only");
    assert!(faults.is_empty(), "{}\n{}", faults.len(), faults.join("\n"));
    // The documents say so, and name the exceptions.
    for said in [
        format!("{equal} are equal, {refused} are refused by both"),
        format!("| {lenient} requests of other templates |"),
        format!("`{}`", EXCEPTIONS[0]),
    ] {
        assert!(DOCUMENTS.contains(&said), "{said}");
    }
}

/// Writes a rendering that differs where `TEXT_RENDERINGS` says, to be compared.
fn keep(name: &str, case: &str, text: &str) {
    if let Ok(folder) = std::env::var("TEXT_RENDERINGS") {
        let name = format!("{}-{case}.txt", name.replace('/', "-"));
        std::fs::write(std::path::Path::new(&folder).join(name), text).unwrap();
    }
}
