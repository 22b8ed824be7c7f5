//! Which path does what.

use super::answer::{Answer, Fields, Wrong, json_answer, text_answer};
use super::{evidence, explain, guard, lines, pools, workers};
use crate::gateway::Gateway;
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use maitred_core::Input;
use serde_json::{Value, json};

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers one request.
pub(super) async fn answer(gateway: &Gateway, request: Request<Incoming>) -> Answer {
    let open = matches!(request.uri().path(), "/health" | "/ready");
    if !open && let Err(wrong) = guard::check(&gateway.config, request.headers()) {
        return wrong.answer();
    }
    route(gateway, request)
        .await
        .unwrap_or_else(|wrong| wrong.answer())
}

async fn route(gateway: &Gateway, request: Request<Incoming>) -> Result<Answer, Wrong> {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    let get = head.method == Method::GET || head.method == Method::HEAD;
    match path {
        "/health" if get => Ok(json_answer(StatusCode::OK, &json!({ "status": "ok" }))),
        "/ready" if get => Ok(pools::readiness(gateway)),
        "/metrics" if get => Ok(metrics(gateway)),
        "/config" if get => Ok(json_answer(StatusCode::OK, &effective_config(gateway))),
        "/pools" if get => Ok(pools::list(gateway)),
        "/lines" if get => Ok(lines::list(gateway)),
        "/evidence" if get => Ok(evidence::list(gateway)),
        "/workers" if get => Ok(workers::list(gateway)),
        "/workers" if head.method == Method::POST => {
            workers::add(gateway, Fields::read(body).await?).await
        }
        _ => named(gateway, &head.method, path, body).await,
    }
}

/// Paths with a name in them. Names may hold slashes, so they are what stands between the fixed ends.
async fn named(
    gateway: &Gateway,
    method: &Method,
    path: &str,
    body: Incoming,
) -> Result<Answer, Wrong> {
    if let Some(id) = path
        .strip_prefix("/explain/")
        .filter(|_| method == Method::GET)
    {
        let id = decoded(id)?;
        return explain(gateway, &id)
            .map(|told| json_answer(StatusCode::OK, &told))
            .ok_or_else(|| {
                Wrong::missing(format!(
                    "request `{id}` is not known; the last {} attempts are kept, each from its end on",
                    crate::recent::RECENT_MAX
                ))
            });
    }
    if let Some(rest) = path.strip_prefix("/workers/") {
        if method == Method::DELETE {
            return workers::remove(gateway, &decoded(rest)?);
        }
        if method == Method::POST {
            if let Some(name) = rest.strip_suffix("/drain") {
                return workers::drain(gateway, &decoded(name)?, Fields::read(body).await?);
            }
            if let Some(name) = rest.strip_suffix("/resume") {
                return workers::resume(gateway, &decoded(name)?);
            }
        }
    }
    let of_pool = path
        .strip_prefix("/pools/")
        .filter(|_| method == Method::PUT);
    if let Some(pool) = of_pool.and_then(|rest| rest.strip_suffix("/policy")) {
        let fields = Fields::read(body).await?;
        return pools::set(gateway, &decoded(pool)?, fields, Input::SetPolicy);
    }
    if let Some(pool) = of_pool.and_then(|rest| rest.strip_suffix("/fairness")) {
        let fields = Fields::read(body).await?;
        return pools::set(gateway, &decoded(pool)?, fields, Input::SetFairness);
    }
    Err(Wrong::missing(format!(
        "no {method} {path}; there are: GET /workers, POST /workers, POST /workers/NAME/drain, \
         POST /workers/NAME/resume, DELETE /workers/NAME, GET /pools, PUT /pools/NAME/policy, \
         PUT /pools/NAME/fairness, GET /lines, GET /evidence, GET /explain/ID, GET /config, GET /metrics, GET /health, GET /ready"
    )))
}

fn metrics(gateway: &Gateway) -> Answer {
    let text = gateway
        .metrics
        .render(&pools::rows(gateway), gateway.records.counts());
    text_answer(StatusCode::OK, OPENMETRICS, text)
}

/// The configuration with what was changed since the start.
fn effective_config(gateway: &Gateway) -> Value {
    let mut shown = gateway.config.show();
    let tenants = gateway.tenants();
    shown["tenants"] = tenants.show().clone();
    shown["anonymous"] = json!(tenants.anonymous().as_str());
    for (index, pool) in gateway.pools.iter().enumerate() {
        let (policy, fairness) = pool.driver.read(|s| {
            let config = s.config();
            (config.policy.name(), config.fairness.name())
        });
        shown["pools"][index]["policy"] = json!(policy);
        shown["pools"][index]["fairness"] = json!(fairness);
    }
    shown
}

/// Undoes percent-encoding.
fn decoded(text: &str) -> Result<String, Wrong> {
    let wrong = || Wrong::field("path", "is not percent-encoded UTF-8");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.get(..2).and_then(|d| std::str::from_utf8(d).ok());
        let byte = digits.and_then(|d| u8::from_str_radix(d, 16).ok());
        bytes.push(byte.ok_or_else(wrong)?);
        rest = rest.get(2..).unwrap_or_default();
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::decoded;

    #[test]
    fn percent_encoding_is_undone() {
        assert_eq!(decoded("h%3A1%2fx").unwrap(), "h:1/x");
        assert_eq!(decoded("plain:1/x").unwrap(), "plain:1/x");
        assert!(decoded("%zz").is_err());
        assert!(decoded("%f").is_err());
        assert!(decoded("%ff").is_err());
    }
}
