//! Our own answers: errors in the shape of the client's API, each with a stable code.

use crate::relay::RelayBody;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use maitred_core::request::{Failure, Refusal};
use maitred_wire::{Family, error};
use std::borrow::Cow;
use std::time::Duration;

/// The header that marks an answer as ours and says why.
pub(crate) const REASON: &str = "x-maitred-reason";

/// Something that keeps a request from being served, as the client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    /// The stable word: error code, `x-maitred-reason`, records.
    pub(crate) code: &'static str,
    pub(crate) message: Cow<'static, str>,
    /// The field at fault.
    pub(crate) param: Option<Cow<'static, str>>,
    pub(crate) retry_after: Option<Duration>,
    /// The connection can not be used again.
    pub(crate) close: bool,
}

impl Problem {
    pub(crate) fn new(
        status: StatusCode,
        code: &'static str,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            param: None,
            retry_after: None,
            close: false,
        }
    }

    pub(crate) fn at(mut self, param: impl Into<Cow<'static, str>>) -> Self {
        self.param = Some(param.into());
        self
    }

    pub(crate) fn closing(mut self) -> Self {
        self.close = true;
        self
    }

    /// The scheduler's refusal. `worker`: on whom the last attempt failed.
    pub(crate) fn refused(
        refusal: Refusal,
        retry_after: Option<Duration>,
        worker: Option<&str>,
    ) -> Self {
        let code = refusal.as_str();
        let busy = StatusCode::SERVICE_UNAVAILABLE;
        let mut problem = match refusal {
            Refusal::LineFull => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                code,
                "the queue is full, try again later",
            ),
            Refusal::FlowFull => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                code,
                "as much of this conversation waits as may, try again later",
            ),
            Refusal::TenantFull => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                code,
                "as many of your requests wait as may, try again later",
            ),
            Refusal::BandFull => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                code,
                "the queue of this priority is full, try again later",
            ),
            Refusal::StartTooLate => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                code,
                "a new conversation would start too late, try again later",
            ),
            Refusal::WaitExpired => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                code,
                "the request waited as long as it may, try again later",
            ),
            Refusal::NoWorkers => Self::new(busy, code, "no worker can take this request now"),
            Refusal::Closing => Self::new(busy, code, "the gateway is shutting down"),
            Refusal::ResponseLost => Self::new(
                StatusCode::NOT_FOUND,
                code,
                "the worker that holds the previous response is gone",
            )
            .at("previous_response_id"),
            Refusal::AttemptsExhausted(failure) => return Self::failed(failure, worker, None),
        };
        // Only what the line knows: a wait that was guessed would bring everybody back at once. Who
        // waited in vain learnt more than a number could say.
        if refusal != Refusal::WaitExpired {
            problem.retry_after = retry_after;
        }
        problem
    }

    /// An attempt's failure. `worker`: its name, where clients may see it; `status`: what it had
    /// answered with before it broke off.
    pub(crate) fn failed(failure: Failure, worker: Option<&str>, status: Option<u16>) -> Self {
        let status_code = match failure {
            Failure::FirstByteTimeout | Failure::IdleTimeout | Failure::TotalTimeout => {
                StatusCode::GATEWAY_TIMEOUT
            }
            Failure::Saturated => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_GATEWAY,
        };
        let what = match failure {
            Failure::Connect => "can not be reached",
            Failure::Reset => "closed the connection before it answered",
            Failure::FirstByteTimeout => "did not begin its answer in time",
            Failure::IdleTimeout => "went silent within its answer",
            Failure::TotalTimeout => "did not complete its answer in time",
            Failure::Truncated => "broke off within its answer",
            Failure::ServerError => "failed",
            Failure::Saturated => "is full",
            Failure::Protocol => "sent what is no HTTP response",
        };
        let who = worker.map_or("the worker".to_owned(), |name| format!("worker `{name}`"));
        let message = match status {
            Some(status) => format!("{who} {what} (its status was {status})"),
            None => format!("{who} {what}"),
        };
        let mut problem = Self::new(status_code, code_of(failure), message);
        if failure == Failure::Saturated {
            problem.retry_after = Some(Duration::from_secs(1));
        }
        problem
    }

    /// The answer to the client.
    pub(crate) fn response(&self, family: Family) -> Response<RelayBody> {
        let body = error::body(
            family,
            self.status.as_u16(),
            self.code,
            &self.message,
            self.param.as_deref(),
        );
        let mut response = json(self.status, body.into());
        let headers = response.headers_mut();
        headers.insert(REASON, HeaderValue::from_static(self.code));
        if let Some(wait) = self.retry_after {
            // Whole seconds, never 0: a client that reads 0 comes back at once.
            let seconds = wait.as_secs_f64().ceil().max(1.0);
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds as u64));
        }
        if self.close {
            headers.insert(http::header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// The stable code of an attempt's failure in our own errors.
pub(crate) fn code_of(failure: Failure) -> &'static str {
    match failure {
        Failure::Connect => "upstream-connect",
        Failure::Reset => "upstream-reset",
        Failure::FirstByteTimeout => "first-byte-timeout",
        Failure::IdleTimeout => "idle-timeout",
        Failure::TotalTimeout => "total-timeout",
        Failure::Truncated => "upstream-truncated",
        Failure::ServerError => "upstream-error",
        Failure::Saturated => "upstream-saturated",
        Failure::Protocol => "upstream-protocol",
    }
}

/// A JSON answer.
pub(crate) fn json(status: StatusCode, body: Bytes) -> Response<RelayBody> {
    let mut response = Response::new(RelayBody::whole(body));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::{Problem, RETRY_AFTER};
    use maitred_core::request::Refusal;
    use maitred_wire::Family;
    use std::time::Duration;

    #[test]
    fn only_what_the_line_knows_is_advised() {
        let told = |refusal, wait: Option<u64>| {
            let problem = Problem::refused(refusal, wait.map(Duration::from_secs), None);
            let response = problem.response(Family::OpenAi);
            let advice = response.headers().get(RETRY_AFTER).cloned();
            let advice = advice.and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
            (response.status().as_u16(), advice)
        };
        for full in [
            Refusal::LineFull,
            Refusal::FlowFull,
            Refusal::TenantFull,
            Refusal::BandFull,
            Refusal::StartTooLate,
        ] {
            assert_eq!(told(full, Some(5)), (429, Some(5)));
            assert_eq!(told(full, None), (429, None));
        }
        assert_eq!(told(Refusal::WaitExpired, Some(5)), (429, None));
        assert_eq!(told(Refusal::NoWorkers, None), (503, None));
        assert_eq!(told(Refusal::Closing, None), (503, None));
        assert_eq!(told(Refusal::ResponseLost, None), (404, None));
    }
}
