//! The opening of a conversation: instructions, tools, first user message; and how far it has gone.

use crate::content::{self, Section, Sink};
use crate::endpoint::Endpoint;
use crate::head::RequestHead;
use smallvec::SmallVec;

/// Raw spans of the body that make up a conversation's beginning.
#[derive(Clone, Debug, Default)]
pub struct Opening<'a> {
    /// System, developer and instruction texts before the first user message, in order; of strings
    /// the bytes between the quotes.
    pub system: SmallVec<[&'a [u8]; 4]>,
    /// The raw `tools` value.
    pub tools: Option<&'a [u8]>,
    /// The first user message's texts and other parts. Of a plain prompt, which has no messages
    /// and only grows, its first [`PROMPT_BYTES`] or [`PROMPT_TOKENS`].
    pub first_user: SmallVec<[&'a [u8]; 4]>,
    /// 1 for a first request; assistant messages in the history + 1. At least 2 where the request
    /// continues a stored response.
    pub turn: u32,
    /// Prompts in a batch request beyond the first.
    pub extra_prompts: u32,
}

/// Bytes of a plain prompt that count as its opening.
pub const PROMPT_BYTES: usize = 1024;
/// Token ids of a plain prompt that count as its opening.
pub const PROMPT_TOKENS: usize = 256;

/// The line that a coding agent puts before its instructions; a hash in it changes per request.
const ATTRIBUTION: &[u8] = b"x-anthropic-billing-header:";

impl<'a> Opening<'a> {
    /// The system texts without attribution lines at their beginning.
    pub fn steady_system(&self) -> impl Iterator<Item = &'a [u8]> {
        self.system.iter().map(|text| without_attribution(text))
    }
}

/// The text without an attribution line at its beginning. The end of the line is a line feed in its
/// escaped form, as the text stands in a JSON string.
#[must_use]
pub fn without_attribution(text: &[u8]) -> &[u8] {
    if !text.starts_with(ATTRIBUTION) {
        return text;
    }
    match memchr::memmem::find(text, b"\\n") {
        Some(end) => &text[end + 2..],
        None => &[],
    }
}

/// Collects the opening from a walk; to be fed by another [`Sink`] or alone.
#[derive(Debug)]
pub struct Collector<'a> {
    opening: Opening<'a>,
    section: Section,
    /// A user message has begun.
    user_seen: bool,
    /// The section belongs to the opening.
    within: bool,
    /// Items of one answer count once.
    items: bool,
    /// Bytes of a plain prompt that still belong to the opening.
    prompt_left: usize,
}

impl<'a> Collector<'a> {
    /// For a request of `endpoint`.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            opening: Opening {
                turn: 1,
                ..Opening::default()
            },
            section: Section::Other,
            user_seen: false,
            within: false,
            items: endpoint == Endpoint::Responses,
            prompt_left: PROMPT_BYTES,
        }
    }

    /// What was collected.
    #[must_use]
    pub fn finish(mut self, head: &RequestHead<'_>) -> Opening<'a> {
        if continues_response(head) {
            self.opening.turn = self.opening.turn.max(2);
        }
        self.opening
    }
}

/// Whether the request names a stored response that it continues.
#[must_use]
pub fn continues_response(head: &RequestHead<'_>) -> bool {
    let previous = head.value("previous_response_id");
    previous.is_some_and(|v| v.string_raw().is_some_and(|id| !id.is_empty()))
}

impl<'a> Sink<'a> for Collector<'a> {
    fn section(&mut self, section: Section) {
        self.within = match section {
            Section::System => !self.user_seen,
            Section::User | Section::Prompt => !core::mem::replace(&mut self.user_seen, true),
            Section::Tools => true,
            _ => false,
        };
        let same_answer = self.items && self.section == Section::Assistant;
        if section == Section::Assistant && !same_answer {
            self.opening.turn = self.opening.turn.saturating_add(1);
        }
        self.section = section;
    }

    fn mark(&mut self, _bytes: &'a [u8]) {}

    fn span(&mut self, bytes: &'a [u8]) {
        if !self.within {
            return;
        }
        match self.section {
            Section::System => self.opening.system.push(bytes),
            Section::Tools => self.opening.tools = Some(bytes),
            Section::User => self.opening.first_user.push(bytes),
            Section::Prompt => {
                let taken = bytes.len().min(self.prompt_left);
                self.prompt_left -= taken;
                self.opening.first_user.push(&bytes[..taken]);
            }
            _ => {}
        }
    }

    fn tokens(&mut self, raw: &'a [u8]) {
        let end = memchr::memchr_iter(b',', raw).nth(PROMPT_TOKENS - 1);
        if self.within {
            self.opening
                .first_user
                .push(&raw[..end.unwrap_or(raw.len())]);
        }
    }

    fn extra_prompts(&mut self, count: u32) {
        self.opening.extra_prompts = count;
    }
}

/// Reads the opening.
#[must_use]
pub fn read<'a>(endpoint: Endpoint, head: &RequestHead<'a>) -> Opening<'a> {
    let mut collector = Collector::new(endpoint);
    content::walk(endpoint, head, &mut collector);
    collector.finish(head)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::head::parse;

    #[test]
    fn attribution_lines_are_told_from_what_follows() {
        let of = |text: &'static str| without_attribution(text.as_bytes());
        assert_eq!(of("x-anthropic-billing-header: cch=1;"), b"");
        assert_eq!(
            of(r"x-anthropic-billing-header: cch=1;\nBe kind"),
            b"Be kind"
        );
        assert_eq!(
            of("Say x-anthropic-billing-header: a"),
            b"Say x-anthropic-billing-header: a"
        );
    }

    #[test]
    fn only_what_stands_before_the_first_answer_is_opening() {
        let body = br#"{"messages":[{"role":"system","content":"s"},{"role":"developer","content":"d"},
            {"role":"user","content":[{"type":"text","text":"u"},{"type":"image_url","image_url":"i"}]},
            {"role":"assistant","content":"a"},{"role":"system","content":"late"},
            {"role":"user","content":"v"}],"tools":[1]}"#;
        let head = parse(Endpoint::Chat, body, 128).unwrap();
        let opening = read(Endpoint::Chat, &head);
        assert_eq!(opening.system.as_slice(), [b"s", b"d"]);
        assert_eq!(opening.first_user.as_slice(), [b"u", b"i"]);
        assert_eq!(opening.tools, Some(&b"[1]"[..]));
        assert_eq!(opening.turn, 2);
    }

    #[test]
    fn a_plain_prompt_opens_with_its_beginning() {
        let body = format!("{{\"prompt\":\"{}\"}}", "x".repeat(5000));
        let head = parse(Endpoint::Completions, body.as_bytes(), 128).unwrap();
        let opening = read(Endpoint::Completions, &head);
        assert_eq!(opening.first_user[0].len(), PROMPT_BYTES);
        assert_eq!(opening.turn, 1);
    }
}
