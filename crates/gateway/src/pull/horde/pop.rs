//! `POST /api/v2/generate/text/pop`: a worker asks for a job.

use super::check::Faults;
use super::{ASK_MAX, Wrong, read, token, worker_name};
use crate::metrics::Popped;
use crate::pull::broker::{Ask, Broker, Refused};
use crate::pull::desk::Speaks;
use crate::pull::line::Line;
use crate::pull::routes::{self, Reply};
use crate::pull::waiting;
use crate::pull::work::{Job, Said, Work};
use http::{HeaderMap, StatusCode};
use hyper::body::Incoming;
use maitred_core::pool::RequestLimits;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Characters of a name; the rest is cut.
const NAME_MAX: usize = 100;
/// Characters of a program's name that are kept: some workers let it grow without end.
const AGENT_MAX: usize = 120;
/// What a worker that does not say so takes, in tokens.
const CONTEXT_DEFAULT: u32 = 2_048;
const OUTPUT_DEFAULT: u32 = 512;
const MODELS_MAX: usize = 256;

/// What a worker says of itself.
struct Pop {
    name: String,
    models: Vec<String>,
    output_max: u32,
    context_max: u32,
    threads: u32,
    agent: Option<String>,
}

fn check(body: &Map<String, Value>) -> Result<Pop, Wrong> {
    let mut faults = Faults::default();
    let name = faults.text(body, "name", usize::MAX);
    let models = faults.texts(body, "models", (3, 255));
    let output = faults.whole(body, "max_length", (1, i64::from(u32::MAX)));
    let context = faults.whole(body, "max_context_length", (1, i64::from(u32::MAX)));
    let threads = faults.whole(body, "threads", (1, 50));
    // Some workers lengthen it at every reload; what is too long is not refused but cut.
    let agent = faults.text(body, "bridge_agent", usize::MAX);
    let preferred = faults.texts(body, "priority_usernames", (0, usize::MAX));
    faults.texts(body, "softprompts", (0, usize::MAX));
    faults.whole(body, "amount", (1, 20));
    for flag in ["nsfw", "require_upfront_kudos", "extra_slow_worker"] {
        faults.flag(body, flag);
    }
    if faults.found.is_empty() {
        // What must be there is looked for when what is there is right.
        if name.is_none() {
            faults.missing("name", "the JSON body");
        }
        if models.as_ref().is_some_and(Vec::is_empty) {
            let message = json!("[] is too short");
            faults.found.insert("models".to_owned(), message);
        }
        if models.as_ref().is_some_and(|m| m.len() > MODELS_MAX) {
            let message = json!(format!("has more than {MODELS_MAX} models"));
            faults.found.insert("models".to_owned(), message);
        }
    }
    if !faults.found.is_empty() {
        return Err(Wrong::invalid(faults.found));
    }
    if preferred.is_some_and(|names| names.iter().any(|name| !name.contains('#'))) {
        return Err(Wrong::new(
            StatusCode::BAD_REQUEST,
            "InvalidPriorityUsername",
            "A name in priority_usernames must have the form alias#number.",
        ));
    }
    let name: String = name.unwrap_or_default().chars().take(NAME_MAX).collect();
    if name.trim().is_empty() {
        return Err(Wrong::new(
            StatusCode::BAD_REQUEST,
            "BadRequest",
            "The worker's name must not be empty.",
        ));
    }
    Ok(Pop {
        name,
        models: models.unwrap_or_default(),
        output_max: output.unwrap_or(OUTPUT_DEFAULT),
        context_max: context.unwrap_or(CONTEXT_DEFAULT),
        threads: threads.unwrap_or(1),
        agent: agent.map(|agent| agent.chars().take(AGENT_MAX).collect()),
    })
}

pub(super) async fn pop(
    broker: &Broker,
    line: &Line,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Reply, Wrong> {
    let token = token(broker, headers)?;
    let object = read(headers, body, ASK_MAX).await?;
    let pop = check(&object)?;
    let ask = Ask {
        name: worker_name(&pop.name),
        shown_name: pop.name,
        speaks: Speaks::Horde,
        instance: None,
        agent: pop.agent,
        pool: None,
        models: pop.models,
        slots: Some(pop.threads),
        limits: RequestLimits {
            context_max: Some(pop.context_max),
            output_max: Some(pop.output_max),
            tenants: token.tenant_ids(),
            plain_only: true,
        },
    };
    let counts = &broker.gateway.metrics.pull;
    let refused = || counts.popped(Speaks::Horde, Popped::Refused);
    let member = match broker.join(token, &ask) {
        Ok(member) => member,
        // An error would end some workers: for these models there is never anything.
        Err(Refused::NoPool(_)) => {
            refused();
            return Ok(routes::reply(StatusCode::OK, &nothing("models")));
        }
        Err(error) => {
            refused();
            return Err(Wrong::from(&error));
        }
    };
    let maintenance = member.desk.said.lock().maintenance.clone();
    if let Some(why) = maintenance {
        refused();
        return Err(Wrong::forbidden("WorkerMaintenance", why));
    }
    if pop.threads == 1 {
        member.desk.doubt();
    }
    let job = waiting::next(&member, line, broker.settings.horde.wait).await;
    let Some(Job { id, work, handing }) = job else {
        counts.popped(Speaks::Horde, Popped::Empty);
        return Ok(routes::reply(StatusCode::OK, &nothing("")));
    };
    let Work::Prompt { payload, model } = work else {
        // Dropping it gives the request to another worker.
        return Ok(routes::reply(StatusCode::OK, &nothing("")));
    };
    counts.popped(Speaks::Horde, Popped::Job);
    let ttl = broker.settings.horde.ttl.as_secs();
    let answer = json!({
        "payload": payload,
        "id": id,
        "ids": [id],
        "model": named(&ask.models, model),
        "ttl": ttl,
        "softprompt": null,
        "skipped": {},
        "messages": [],
        "extra_source_images": null,
    });
    let said = Said::job(answer.to_string(), handing);
    Ok(routes::json_reply(StatusCode::OK, said))
}

/// The one of the worker's models that the job is for: what the client named, where the worker has
/// it under that name, else its first.
fn named(theirs: &[String], asked: Option<String>) -> Option<String> {
    match asked {
        Some(asked) if theirs.is_empty() || theirs.contains(&asked) => Some(asked),
        _ => theirs.first().cloned(),
    }
}

/// No job: only `id` says so. `skipped`: why, where there never will be one.
fn nothing(skipped: &str) -> Value {
    let mut reasons = BTreeMap::new();
    if !skipped.is_empty() {
        reasons.insert(skipped, 1);
    }
    json!({
        "payload": {
            "max_context_length": 2048,
            "max_length": 80,
            "min_p": 0.0,
            "smoothing_factor": 0.0,
            "dynatemp_range": 0.0,
            "dynatemp_exponent": 1.0,
        },
        "id": null,
        "ids": [],
        "model": null,
        "ttl": null,
        "softprompt": null,
        "skipped": reasons,
        "messages": [],
        "extra_source_images": null,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{check, json, named};
    use serde_json::Value;

    fn faults(body: Value) -> Value {
        let wrong = check(body.as_object().unwrap()).err().unwrap();
        wrong.errors.map_or(json!(wrong.rc), Value::Object)
    }

    #[test]
    fn faults_are_named_by_field() {
        for (body, expected) in [
            (
                json!({}),
                json!({"name": "Missing required parameter in the JSON body"}),
            ),
            (
                json!({"name": "w", "models": []}),
                json!({"models": "[] is too short"}),
            ),
            (
                json!({"name": null}),
                json!({"name": "None is not of type 'string'"}),
            ),
            (
                json!({"threads": 51, "nsfw": 1, "max_length": "x", "models": ["ab"]}),
                json!({
                    "threads": "51 is greater than the maximum of 50",
                    "nsfw": "1 is not of type 'boolean'",
                    "max_length": "'x' is not of type 'integer'",
                    "models": "'ab' has not 3 to 255 characters",
                }),
            ),
            (
                json!({"name": "w", "priority_usernames": ["x"]}),
                json!("InvalidPriorityUsername"),
            ),
            (json!({"name": "  "}), json!("BadRequest")),
        ] {
            assert_eq!(faults(body.clone()), expected, "{body}");
        }
    }

    #[test]
    fn what_is_not_said_has_the_hordes_defaults_and_what_grows_is_cut() {
        let body =
            json!({"name": "n".repeat(200), "bridge_agent": "~kai".repeat(1_000), "odd": {}});
        let pop = check(body.as_object().unwrap()).ok().unwrap();
        assert_eq!(pop.name.len(), 100);
        assert_eq!(pop.agent.unwrap().len(), 120);
        assert_eq!(
            (pop.context_max, pop.output_max, pop.threads),
            (2_048, 512, 1)
        );
    }

    #[test]
    fn a_job_is_for_a_model_of_the_workers() {
        let theirs = ["a/b".to_owned(), "c".to_owned()];
        assert_eq!(named(&theirs, Some("c".to_owned())).as_deref(), Some("c"));
        assert_eq!(
            named(&theirs, Some("alias".to_owned())).as_deref(),
            Some("a/b")
        );
        assert_eq!(
            named(&[], Some("alias".to_owned())).as_deref(),
            Some("alias")
        );
        assert_eq!(named(&[], None), None);
    }
}
