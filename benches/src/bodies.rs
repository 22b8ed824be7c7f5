//! The requests of the load: chat bodies with a text of their own, generated up front.

use std::fmt::Write as _;

/// Length of each part of a body that is rewritten before each use, in bytes.
const NONCE_LEN: usize = 16;
/// Turns of a generated conversation.
const TURNS: usize = 4;

/// One request: head and body in one buffer, ready to be written.
#[derive(Debug, Clone)]
pub(crate) struct Prepared {
    bytes: Vec<u8>,
    nonces_at: Vec<usize>,
}

impl Prepared {
    /// The bytes to write, with the text made distinct by `nonce`.
    pub(crate) fn bytes(&mut self, nonce: u64) -> &[u8] {
        let text = format!("{nonce:016x}");
        for at in &self.nonces_at {
            self.bytes[*at..*at + NONCE_LEN].copy_from_slice(text.as_bytes());
        }
        &self.bytes
    }
}

/// Requests to be sent in this order with one nonce: a single request or a growing conversation.
pub(crate) type Talk = Vec<Prepared>;

/// What the requests of a case look like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Mean size of a body in bytes.
    pub(crate) size: usize,
    /// Tokens asked for; the chunks of a stream.
    pub(crate) max_tokens: usize,
    /// Whether the answer is streamed.
    pub(crate) stream: bool,
    /// Whether all are the next turns of conversations said before: an answer and a question, together
    /// a sixteenth of the size, are new in each use, and nothing else.
    pub(crate) next_turn: bool,
}

/// About `count` requests: half of them alone, half in conversations of [`TURNS`] turns in which
/// each body repeats the one before and grows, from 0.81 to 1.19 of the size. Next turns are all alone.
pub(crate) fn generate(shape: Shape, count: usize, seed: u64) -> Vec<Talk> {
    let mut words = Words { state: seed | 1 };
    let mut talks = Vec::new();
    if shape.next_turn {
        talks.extend((0..count).map(|_| vec![next_turn(shape, &mut words)]));
        return talks;
    }
    let mut made = 0;
    while made < count {
        let turns = if made % (2 * TURNS) < TURNS { TURNS } else { 1 };
        talks.push(talk(shape, turns, &mut words));
        made += turns;
    }
    talks
}

fn talk(shape: Shape, turns: usize, words: &mut Words) -> Talk {
    let mut messages = String::new();
    let mut prepared = Vec::with_capacity(turns);
    for turn in 0..turns {
        // In sixteenths of the size: 13, 15, 17, 19 for four turns, 16 for a single request.
        let sixteenths = if turns == 1 { 16 } else { 13 + 2 * turn };
        let wanted = (shape.size * sixteenths / 16).saturating_sub(160);
        if turn == 0 {
            let nonce = "0".repeat(NONCE_LEN);
            let _ = write!(messages, r#"{{"role":"system","content":"Case {nonce}. "#);
            words.fill(&mut messages, wanted / 3);
            messages.push_str(r#""}"#);
        } else {
            messages.push_str(r#",{"role":"assistant","content":""#);
            words.fill(&mut messages, shape.size / 32);
            messages.push_str(r#""}"#);
        }
        messages.push_str(r#",{"role":"user","content":""#);
        let rest = wanted.saturating_sub(messages.len());
        words.fill(&mut messages, rest);
        messages.push_str(r#""}"#);
        prepared.push(request(shape, &messages));
    }
    prepared
}

fn next_turn(shape: Shape, words: &mut Words) -> Prepared {
    let new = shape.size / 32;
    let old = (shape.size - 2 * new) / 6;
    let mut messages = String::from(r#"{"role":"system","content":""#);
    words.fill(&mut messages, old);
    messages.push_str(r#""}"#);
    for (n, role) in ["user", "assistant"].iter().cycle().take(7).enumerate() {
        let _ = write!(messages, r#",{{"role":"{role}","content":""#);
        let is_new = n >= 5;
        if is_new {
            let _ = write!(messages, "Case {}. ", "0".repeat(NONCE_LEN));
        }
        words.fill(&mut messages, if is_new { new } else { old });
        messages.push_str(r#""}"#);
    }
    request(shape, &messages)
}

fn request(shape: Shape, messages: &str) -> Prepared {
    let Shape {
        max_tokens, stream, ..
    } = shape;
    let body = format!(
        r#"{{"model":"{MODEL}","temperature":0.7,"max_tokens":{max_tokens},"stream":{stream},"messages":[{messages}]}}"#
    );
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\naccept: application/json\r\n\
         user-agent: maitred-bench\r\nauthorization: Bearer bench-key\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let bytes = [head.as_bytes(), body.as_bytes()].concat();
    let nonces_at = memchr::memmem::find_iter(&bytes, b"Case 0").map(|at| at + 5);
    Prepared {
        nonces_at: nonces_at.collect(),
        bytes,
    }
}

/// The model name of the engines under the bench.
pub(crate) const MODEL: &str = "bench";

/// Text of pseudo-random words, with the escapes and punctuation that chat text has.
struct Words {
    state: u64,
}

const VOCABULARY: [&str; 32] = [
    "the", "order", "was", "placed", "before", "noon", "and", "customer", "asked", "whether",
    "delivery", "could", "still", "change", "since", "address", "on", "file", "is", "old",
    "please", "check", "table", "seven", "return", "value", "function", "parse", "error", "line",
    "größe", "naïve",
];

impl Words {
    fn next(&mut self) -> u64 {
        // xorshift64: the text only has to differ, quickly and the same on each run.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    fn fill(&mut self, out: &mut String, count: usize) {
        let end = out.len() + count;
        while out.len() < end {
            let number = self.next();
            out.push_str(VOCABULARY[(number % 32) as usize]);
            match number >> 59 {
                0 => out.push_str(".\\n\\n"),
                1 => out.push_str(", \\\"quoted\\\" "),
                2 => {
                    let _ = write!(out, " {} ", number >> 40 & 0xffff);
                }
                _ => out.push(' '),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn body(request: &mut Prepared, nonce: u64) -> serde_json::Value {
        let bytes = request.bytes(nonce);
        let at = memchr::memmem::find(bytes, b"\r\n\r\n").unwrap() + 4;
        serde_json::from_slice(&bytes[at..]).unwrap()
    }

    #[test]
    fn bodies_are_json_of_about_the_size_and_turns_extend_each_other() {
        let shape = Shape {
            size: 32 * 1024,
            max_tokens: 1,
            stream: false,
            next_turn: false,
        };
        let mut talks = generate(shape, 64, 7);
        let sizes: Vec<usize> = talks.iter().flatten().map(|one| one.bytes.len()).collect();
        let mean = sizes.iter().sum::<usize>() / sizes.len();
        assert!((30_000..36_000).contains(&mean), "mean {mean}");
        let conversation = talks.iter_mut().find(|talk| talk.len() == TURNS).unwrap();
        let before = body(&mut conversation[0], 5)["messages"]
            .as_array()
            .unwrap()
            .clone();
        let after = body(&mut conversation[1], 5)["messages"]
            .as_array()
            .unwrap()
            .clone();
        assert_eq!(before[..], after[..before.len()]);
        assert!(
            before[0]["content"]
                .as_str()
                .unwrap()
                .contains("0000000000000005")
        );
    }
    #[test]
    fn next_turns_differ_in_their_answer_and_question_alone() {
        let shape = Shape {
            size: 32 * 1024,
            max_tokens: 1,
            stream: false,
            next_turn: true,
        };
        let mut talks = generate(shape, 3, 7);
        assert_eq!(talks.len(), 3);
        let one = &mut talks[1][0];
        assert!((31_000..36_000).contains(&one.bytes.len()));
        let first = body(one, 1)["messages"].as_array().unwrap().clone();
        let second = body(one, 2)["messages"].as_array().unwrap().clone();
        let old = first.len() - 2;
        assert_eq!(first[..old], second[..old]);
        for (at, role) in [(old, "assistant"), (old + 1, "user")] {
            assert_eq!(first[at]["role"], role);
            assert_ne!(first[at], second[at]);
        }
    }
}
