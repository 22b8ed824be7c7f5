//! The session key: ordered sources, of which the first that says something counts.

use crate::harness::HARNESS_HEADERS;
use crate::identify::Context;
use maitred_core::ids::SessionKey;
use maitred_core::request::KeySource;
use maitred_wire::RequestHead;
use maitred_wire::json::{self, Value};
use std::borrow::Cow;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Nesting up to which JSON within a metadata string is read.
const INNER_DEPTH_MAX: usize = 8;

/// Fields of `metadata` that name a conversation, in order.
const METADATA_FIELDS: [&str; 6] = [
    "session_id",
    "conversation_id",
    "thread_id",
    "chat_id",
    "sessionId",
    "conversationId",
];

/// The hash (with `seed`) of the value by which the client names its session, and where that
/// stands. Blank values are absent. Request ids are never looked at.
pub(crate) fn explicit(
    head: &RequestHead<'_>,
    context: &Context<'_>,
    seed: u64,
) -> Option<(SessionKey, KeySource)> {
    let key = |text: &str| SessionKey(xxh3_64_with_seed(text.as_bytes(), seed));
    let header = |names: &[&str]| {
        let mut values = names.iter().filter_map(|name| (context.header)(name));
        let value = values.find(|value| !value.trim().is_empty())?;
        Some(key(value.trim()))
    };
    let body = |value: Option<Cow<'_, str>>| Some(key(&value?));
    // In order; what is not asked is not read.
    let sources: [(&dyn Fn() -> Option<SessionKey>, KeySource); 6] = [
        (&|| header(context.session_headers), KeySource::Header),
        (&|| header(&HARNESS_HEADERS), KeySource::HarnessHeader),
        (
            &|| body(named(&head.value("prompt_cache_key")?)),
            KeySource::PromptCacheKey,
        ),
        (
            &|| body(named(&head.value("session_params")?.get("session_id")?)),
            KeySource::SessionParams,
        ),
        (&|| body(conversation(head)), KeySource::Conversation),
        (&|| body(metadata(head)), KeySource::Metadata),
    ];
    sources
        .iter()
        .find_map(|(read, source)| Some((read()?, *source)))
}

/// A string or number that is not blank.
fn named<'a>(value: &Value<'_, 'a>) -> Option<Cow<'a, str>> {
    let text = match value.string() {
        Some(Cow::Borrowed(text)) => Cow::Borrowed(text.trim()),
        Some(Cow::Owned(text)) => Cow::Owned(text.trim().to_owned()),
        None => {
            let raw = core::str::from_utf8(value.raw()).ok()?;
            let number = raw.starts_with(|c: char| c == '-' || c.is_ascii_digit());
            Cow::Borrowed(number.then_some(raw)?)
        }
    };
    (!text.is_empty()).then_some(text)
}

fn conversation<'a>(head: &RequestHead<'a>) -> Option<Cow<'a, str>> {
    let value = head.value("conversation")?;
    match value.get("id") {
        Some(id) => named(&id),
        None => named(&value),
    }
}

fn metadata<'a>(head: &RequestHead<'a>) -> Option<Cow<'a, str>> {
    let value = head.value("metadata")?;
    let field = |name: &&str| named(&value.get(name)?);
    METADATA_FIELDS
        .iter()
        .find_map(field)
        .or_else(|| session_of_user(named(&value.get("user_id")?)?))
}

/// The session part of Claude Code's `user_id`: `user_.._account_.._session_UUID`, or (later
/// versions) JSON with a `session_id`. A user alone is no session.
fn session_of_user(user: Cow<'_, str>) -> Option<Cow<'_, str>> {
    const MARK: &str = "_session_";
    if user.starts_with('{') {
        let long = json::check(user.as_bytes(), INNER_DEPTH_MAX).ok()?;
        let session = Value::document(user.as_bytes(), &long).get("session_id")?;
        return Some(Cow::Owned(named(&session)?.into_owned()));
    }
    let at = user.rfind(MARK)? + MARK.len();
    if at == user.len() {
        return None;
    }
    Some(match user {
        Cow::Borrowed(user) => Cow::Borrowed(&user[at..]),
        Cow::Owned(user) => Cow::Owned(user[at..].to_owned()),
    })
}
