//! `kv_events` of a worker: where it says what its cache holds.

use super::problem::Problem;
use super::tree::{Field, Section, Value, parse};
use maitred_zmtp::{Endpoint, EndpointError};
use serde_json::json;

/// Stands for the rank in a topic; then the ranks share the endpoint.
const RANK: &str = "{rank}";
/// Most ranks of one worker.
const RANKS_MAX: u64 = 256;

/// Who connects to whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvEventsMode {
    /// The engine waits at its endpoint, we connect.
    #[default]
    Connect,
    /// We wait at the endpoint, engines connect; the topic tells whose message it is.
    Bind,
}

/// Where a worker publishes its KV events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEventsSettings {
    /// Where it publishes (of rank 0; the ports of others count up).
    pub endpoint: Endpoint,
    /// Where it replays what it buffers (of rank 0); none: what is missed is lost.
    pub replay: Option<Endpoint>,
    /// What its topics begin with; empty: any. `{rank}` stands for the rank.
    pub topic: String,
    /// Who connects.
    pub mode: KvEventsMode,
    /// Its data-parallel ranks, each with a stream of its own.
    pub ranks: u16,
    /// A request is sent to the rank that holds its beginning. The engine must take the header, and
    /// number its ranks from 0 as the events do.
    pub rank_header: bool,
}

/// The same of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEventsPlace {
    /// Where it publishes.
    pub endpoint: Endpoint,
    /// Where it replays.
    pub replay: Option<Endpoint>,
    /// What its topics begin with.
    pub topic: String,
}

impl KvEventsSettings {
    /// Connects to this endpoint, without replay.
    #[must_use]
    pub fn at(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            replay: None,
            topic: String::new(),
            mode: KvEventsMode::Connect,
            ranks: 1,
            rank_header: false,
        }
    }

    /// Where the stream of a rank is. Each rank waits for replays at a port of its own; it publishes at
    /// one, too, unless the topic tells the ranks apart.
    ///
    /// # Errors
    /// There is no such port.
    pub fn of_rank(&self, rank: u16) -> Result<KvEventsPlace, EndpointError> {
        let apart = if self.topic.contains(RANK) { 0 } else { rank };
        Ok(KvEventsPlace {
            endpoint: self.endpoint.of_rank(apart)?,
            replay: match &self.replay {
                Some(replay) => Some(replay.of_rank(rank)?),
                None => None,
            },
            topic: self.topic.replace(RANK, &rank.to_string()),
        })
    }

    /// Reads what stands in JSON as it would stand in a file.
    ///
    /// # Errors
    /// The field (`kv_events`, or one in it), and what is wrong with it.
    pub(crate) fn from_json(value: &serde_json::Value) -> Result<Self, (String, String)> {
        let told = |problem: Problem| (problem.field, problem.message);
        let node = parse(&value.to_string()).map_err(told)?;
        let field = Field {
            path: "kv_events".to_owned(),
            node: &node,
        };
        let mut problems = Vec::new();
        let settings = read(&field, &mut problems);
        match (settings, problems.into_iter().next()) {
            (_, Some(problem)) => Err(told(problem)),
            (Some(settings), None) => Ok(settings),
            (None, None) => Err((field.path, "is missing".to_owned())),
        }
    }

    /// Where it makes us connect to.
    pub(crate) fn connects_to(&self) -> impl Iterator<Item = &Endpoint> {
        let publishes = Some(&self.endpoint).filter(|_| self.mode == KvEventsMode::Connect);
        publishes.into_iter().chain(&self.replay)
    }

    pub(super) fn show(&self) -> serde_json::Value {
        json!({
            "endpoint": self.endpoint.to_string(),
            "replay": self.replay.as_ref().map(ToString::to_string),
            "topic": self.topic,
            "mode": match self.mode {
                KvEventsMode::Connect => "connect",
                KvEventsMode::Bind => "bind",
            },
            "ranks": self.ranks,
            "rank_header": self.rank_header,
        })
    }
}

/// Reads an endpoint alone, or a mapping with one.
pub(super) fn read(field: &Field<'_>, problems: &mut Vec<Problem>) -> Option<KvEventsSettings> {
    match &field.node.value {
        Value::Null => None,
        Value::Text(_) => note(endpoint(field), problems).map(KvEventsSettings::at),
        Value::Map(_) => {
            let section = note(Section::open(field), problems)?;
            read_section(section, problems)
        }
        _ => {
            problems.push(field.wrong_kind("an endpoint or a mapping with `endpoint`"));
            None
        }
    }
}

fn read_section(mut section: Section<'_>, problems: &mut Vec<Problem>) -> Option<KvEventsSettings> {
    let Some(place) = section.take("endpoint") else {
        problems.push(section.problem("endpoint", "is missing"));
        return None;
    };
    let mut settings = KvEventsSettings::at(note(endpoint(&place), problems)?);
    section.set(problems, "replay", &mut settings.replay, |field| {
        endpoint(field).map(Some)
    });
    let topic = section.take("topic");
    if let Some(field) = &topic {
        settings.topic = note(field.text(), problems)?.to_owned();
    }
    section.set(problems, "mode", &mut settings.mode, |field| {
        match field.text()? {
            "connect" => Ok(KvEventsMode::Connect),
            "bind" => Ok(KvEventsMode::Bind),
            _ => Err(field.problem("must be connect or bind")),
        }
    });
    section.set_count(problems, "ranks", &mut settings.ranks, 1..=RANKS_MAX);
    section.set(
        problems,
        "rank_header",
        &mut settings.rank_header,
        Field::flag,
    );
    check(&settings, &place, topic.as_ref(), problems);
    section.finish(problems);
    Some(settings)
}

fn check(
    settings: &KvEventsSettings,
    place: &Field<'_>,
    topic: Option<&Field<'_>>,
    problems: &mut Vec<Problem>,
) {
    if settings.mode == KvEventsMode::Bind && settings.topic.is_empty() {
        let place = topic.unwrap_or(place);
        problems
            .push(place.problem("where engines connect to us, a `topic` must tell whose it is"));
    }
    let is_any =
        |endpoint: &Endpoint| matches!(endpoint, Endpoint::Tcp { host, .. } if host == "*");
    if settings.connects_to().any(is_any) {
        problems.push(place.problem("cannot be connected to: `*` is no address"));
    }
    if let Err(error) = settings.of_rank(settings.ranks - 1) {
        problems.push(place.problem(error.to_string()));
    }
}

fn endpoint(field: &Field<'_>) -> Result<Endpoint, Problem> {
    let text = field.text()?;
    Endpoint::parse(text).map_err(|error| field.problem(error.to_string()))
}

fn note<T>(read: Result<T, Problem>, problems: &mut Vec<Problem>) -> Option<T> {
    read.map_err(|problem| problems.push(problem)).ok()
}
