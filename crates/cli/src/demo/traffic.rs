//! The demo's clients: what each of them will say, wholly drawn from a seed before anything is sent.
//!
//! Texts mean nothing; their lengths, what they share and who keeps a conversation are what matters. Lengths are in
//! the engine's tokens, four bytes each.

use std::time::Duration;

use maitred_core::rng::{Rng, mix};

/// Bytes of one token of the simulated engine.
const TOKEN_BYTES: usize = 4;
/// Tokens of the opening that all coding agents share.
const AGENT_OPENING: usize = 4_096;
/// Shared instructions; the k-th is asked for in proportion to 1/k.
const INSTRUCTIONS: usize = 12;

/// What a client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A long conversation that grows by tool results, on an opening all agents share.
    Agent,
    /// A conversation of short messages.
    Chat,
    /// Single questions under one of a few long instructions; no conversation, no key.
    Caller,
}

/// How many clients of each kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mix {
    /// Coding agents.
    pub(crate) agents: usize,
    /// Chats.
    pub(crate) chats: usize,
    /// Callers of shared instructions.
    pub(crate) callers: usize,
}

impl Mix {
    /// The kind of every client.
    pub(crate) fn kinds(self) -> impl Iterator<Item = Kind> {
        let of = |kind, count| std::iter::repeat_n(kind, count);
        of(Kind::Agent, self.agents)
            .chain(of(Kind::Chat, self.chats))
            .chain(of(Kind::Caller, self.callers))
    }

    /// The load in words.
    pub(crate) fn describe(self) -> String {
        format!(
            "{} clients, each sending its next request when the last one is answered and a pause is over:\n  \
             {} coding agents (a 4k-token opening they share, then 6-14 turns with 0.3-1.8k tokens of tool results),\n  \
             {} chats (3-10 turns of 20-150 tokens), {} callers of {INSTRUCTIONS} shared instructions (0.6-2.4k tokens, \
             Zipf)",
            self.agents + self.chats + self.callers,
            self.agents,
            self.chats,
            self.callers,
        )
    }
}

/// One conversation as its client will hold it.
#[derive(Debug)]
pub(crate) struct Conversation {
    /// The system message.
    pub(crate) system: String,
    /// The name its client sends for it; callers send none.
    pub(crate) key: Option<String>,
    /// In order.
    pub(crate) turns: Vec<Turn>,
}

/// One turn of a conversation.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Pause before it.
    pub(crate) pause: Duration,
    /// What is sent.
    pub(crate) text: String,
    /// Tokens of the reply.
    pub(crate) reply_tokens: usize,
}

/// One client's script: the same for the same seed, whatever happens to its requests.
#[derive(Debug)]
pub(crate) struct Script {
    kind: Kind,
    seed: u64,
    client: usize,
    conversations: usize,
}

impl Script {
    /// The script of client number `client`.
    pub(crate) fn new(seed: u64, client: usize, kind: Kind) -> Self {
        Self {
            kind,
            seed,
            client,
            conversations: 0,
        }
    }

    /// What it does.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The next conversation; there is always one more.
    pub(crate) fn next_conversation(&mut self) -> Conversation {
        let serial = self.conversations;
        self.conversations += 1;
        let mut rng = Rng::new(mix(
            self.seed ^ mix((self.client as u64) << 32 | serial as u64)
        ));
        let key = format!("{:016x}", rng.next_u64());
        // Clients do not all start at once, nor in the middle of a conversation.
        let spread = if serial == 0 { 2_000 } else { 0 };
        let mut conversation = match self.kind {
            Kind::Agent => {
                let turns = between(&mut rng, 6, 14);
                Conversation {
                    system: self.shared("agent", 0, AGENT_OPENING),
                    key: Some(key),
                    turns: (0..turns)
                        .map(|_| turn(&mut rng, (300, 1_800), (30, 120), (300, 1_500)))
                        .collect(),
                }
            }
            Kind::Chat => {
                let turns = between(&mut rng, 3, 10);
                Conversation {
                    system: self.shared("chat", 0, 60),
                    key: Some(key),
                    turns: (0..turns)
                        .map(|_| turn(&mut rng, (20, 150), (60, 160), (1_000, 4_000)))
                        .collect(),
                }
            }
            Kind::Caller => {
                let instruction = zipf(&mut rng, INSTRUCTIONS);
                let tokens = 600 + 1_800 * (instruction * 5 % INSTRUCTIONS) / (INSTRUCTIONS - 1);
                Conversation {
                    system: self.shared("instruction", instruction, tokens),
                    key: None,
                    turns: vec![turn(&mut rng, (50, 250), (8, 48), (200, 1_000))],
                }
            }
        };
        if let Some(first) = conversation.turns.first_mut() {
            first.pause += Duration::from_millis(between(&mut rng, 0, spread) as u64);
        }
        conversation
    }

    /// A text that every client with the same `seed` knows.
    fn shared(&self, what: &str, number: usize, tokens: usize) -> String {
        let named = what
            .bytes()
            .fold(number as u64, |hash, byte| mix(hash ^ u64::from(byte)));
        prose(&mut Rng::new(mix(self.seed ^ named)), tokens)
    }
}

fn turn(
    rng: &mut Rng,
    text: (usize, usize),
    reply: (usize, usize),
    pause_ms: (usize, usize),
) -> Turn {
    let tokens = between(rng, text.0, text.1);
    Turn {
        pause: Duration::from_millis(between(rng, pause_ms.0, pause_ms.1) as u64),
        text: prose(rng, tokens),
        reply_tokens: between(rng, reply.0, reply.1),
    }
}

/// From `low` to `high`, both included.
fn between(rng: &mut Rng, low: usize, high: usize) -> usize {
    low + rng.below(high - low + 1)
}

/// A rank below `count`, rank k in proportion to 1 / (k + 1).
fn zipf(rng: &mut Rng, count: usize) -> usize {
    let total: f64 = (1..=count).map(|k| 1.0 / k as f64).sum();
    let mut left = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64 * total;
    for rank in 0..count {
        left -= 1.0 / (rank + 1) as f64;
        if left < 0.0 {
            return rank;
        }
    }
    count - 1
}

/// Words, `tokens` tokens of them.
fn prose(rng: &mut Rng, tokens: usize) -> String {
    const WORDS: [&str; 24] = [
        "table", "guest", "seat", "menu", "kitchen", "waiter", "order", "course", "bread", "glass",
        "wine", "host", "door", "queue", "plate", "spoon", "candle", "bill", "coat", "corner",
        "window", "music", "evening", "chef",
    ];
    let bytes = tokens * TOKEN_BYTES;
    let mut text = String::with_capacity(bytes + 8);
    while text.len() < bytes {
        text.push_str(WORDS[rng.below(WORDS.len())]);
        text.push(' ');
    }
    text.truncate(bytes);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_follows_from_its_seed() {
        for kind in [Kind::Agent, Kind::Chat, Kind::Caller] {
            let (mut a, mut b, mut c) = (
                Script::new(1, 5, kind),
                Script::new(1, 5, kind),
                Script::new(1, 6, kind),
            );
            for _ in 0..3 {
                let (a, b, c) = (
                    a.next_conversation(),
                    b.next_conversation(),
                    c.next_conversation(),
                );
                assert_eq!(format!("{a:?}"), format!("{b:?}"));
                assert_ne!(a.turns[0].text, c.turns[0].text);
            }
        }
    }

    #[test]
    fn agents_share_their_opening() {
        let mut one = Script::new(1, 0, Kind::Agent);
        let mut two = Script::new(1, 1, Kind::Agent);
        let opening = one.next_conversation().system;
        assert_eq!(opening.len(), AGENT_OPENING * TOKEN_BYTES);
        assert_eq!(opening, two.next_conversation().system);
    }

    #[test]
    fn low_ranks_are_asked_for_more() {
        let mut rng = Rng::new(3);
        let mut counts = [0; 4];
        for _ in 0..2_500 {
            counts[zipf(&mut rng, 4)] += 1;
        }
        // In proportion to 1, 1/2, 1/3, 1/4: 1,200, 600, 400, 300.
        assert!(
            counts[0] > counts[1] && counts[1] > counts[2] && counts[2] > counts[3],
            "{counts:?}"
        );
    }
}
