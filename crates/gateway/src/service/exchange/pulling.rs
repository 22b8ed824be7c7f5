//! Attempts on workers that pull.

use super::{Tried, Try, respond};
use crate::attempt::{Guest, unix_ms};
use crate::headers::{clean_response, passing};
use crate::pull::{Answer, Bounds, Claim, Desk, Loss, Prompt, Pulled, Speaks, Work};
use crate::relay::{Deadlines, RelayBody, Source, settle, within};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use maitred_core::request::{Failure, Identity, Usage};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Losses in silence after which a request is given to nobody any more.
const SILENCES_MAX: u8 = 2;

impl Try<'_> {
    /// Hands the request to the poll of a worker that pulls, and waits for its answer.
    pub(super) async fn ask(
        &self,
        desk: &Arc<Desk>,
        guest: &mut Guest,
        deadlines: &mut Deadlines,
        body: &Bytes,
    ) -> Tried {
        match desk.speaks {
            Speaks::Maitred => {
                let work = self.work(body);
                match self.hand_over(desk, guest, deadlines, work).await {
                    Ok((answer, claim)) => self.relay(guest, deadlines, answer, claim).await,
                    Err(tried) => tried,
                }
            }
            Speaks::Horde => self.complete(desk, guest, deadlines, body).await,
        }
    }

    fn work(&self, body: &Bytes) -> Work {
        let out = self.outbound(body);
        Work::Request {
            method: out.method.as_str().to_owned(),
            target: out.passing.target.to_string(),
            headers: passing(&out),
            body: body.clone(),
        }
    }

    /// The worker's answer, as soon as there is one.
    async fn hand_over(
        &self,
        desk: &Arc<Desk>,
        guest: &mut Guest,
        deadlines: &mut Deadlines,
        work: Work,
    ) -> Result<(Answer, Claim), Tried> {
        let attempt = guest.decision().map(|decision| decision.attempt);
        let Some(mut claim) = attempt.and_then(|attempt| desk.claim(attempt, work)) else {
            // It waited no more when it was its turn.
            return Err(self.lost(guest, Loss::NotTaken));
        };
        guest.sent();
        match within(guest, deadlines, &mut claim.answer).await {
            Ok(Ok(answer)) => Ok((answer, claim)),
            Ok(Err(_)) => Err(self.lost(guest, claim.loss())),
            Err(cut) => Err(self.cut(guest, cut, None)),
        }
    }

    /// The job is lost before a byte of it reached the client: another worker gets it, of those that were lost in
    /// silence once.
    pub(super) fn lost(&self, guest: &mut Guest, why: Loss) -> Tried {
        let failure = match why.is_silence() {
            true => Failure::FirstByteTimeout,
            false => Failure::Reset,
        };
        let again =
            !why.is_silence() || self.silences.fetch_add(1, Ordering::Relaxed) + 1 < SILENCES_MAX;
        tracing::info!(worker = %self.upstream.name, cause = why.as_str(), again, "job lost");
        guest.lost(why, again);
        if again {
            guest.retry(failure, None, None);
            return Tried::Again(None);
        }
        guest.failed(failure, None, Usage::default());
        self.over(failure, None)
    }

    /// Hands the answer on as it comes.
    async fn relay(
        &self,
        guest: &mut Guest,
        deadlines: &mut Deadlines,
        answer: Answer,
        claim: Claim,
    ) -> Tried {
        guest.life(std::time::Instant::now());
        let (status, mut headers) = (answer.status, answer.headers.clone());
        clean_response(&mut headers);
        let pulled = Pulled::new(answer, claim);
        let source = Source::pulled(pulled, Arc::clone(&self.upstream), self.shard.index);
        if status.is_success() {
            guest.accepted();
            self.succeed(guest, deadlines, status, headers, source)
                .await
        } else {
            self.decline(guest, deadlines, status, headers, source)
                .await
        }
    }

    /// Has a plain worker complete the request's prompt, and makes an answer of its text.
    async fn complete(
        &self,
        desk: &Arc<Desk>,
        guest: &mut Guest,
        deadlines: &mut Deadlines,
        body: &Bytes,
    ) -> Tried {
        let Some(Prompt {
            payload,
            model,
            reply,
        }) = self.prompt(desk, guest, body)
        else {
            // Against expectation: somebody else will be able to.
            if let Some(decision) = guest.decision() {
                desk.decline(decision.attempt);
            }
            return self.lost(guest, Loss::NotTaken);
        };
        // Its whole answer comes at once, at its end; how long that may take, the desk knows.
        if let Some(pull) = &self.shard.gateway.config.pull {
            deadlines.first_byte(pull.horde.ttl * 2);
        }
        let work = Work::Prompt { payload, model };
        let (answer, claim) = match self.hand_over(desk, guest, deadlines, work).await {
            Ok(answered) => answered,
            Err(tried) => return tried,
        };
        guest.life(std::time::Instant::now());
        guest.accepted();
        guest.first_token();
        let text = String::from_utf8_lossy(&answer.begun);
        let tokens = guest.pool().text.clone();
        let tokens = tokens.as_ref().map(|text| &text.model);
        let created = unix_ms() / 1_000;
        let written = reply.write(&claim.id, created, &text, answer.filtered, tokens);
        settle(guest, &written.facts, answer.status.as_u16());
        // Nobody waits for the word: the worker's connection is gone, its text is here.
        let _ = answer.done.send(());
        let mut headers = HeaderMap::new();
        let kind = HeaderValue::from_static(written.content_type);
        headers.insert(CONTENT_TYPE, kind);
        Tried::Whole(respond(
            answer.status,
            headers,
            RelayBody::whole(written.body),
        ))
    }

    fn prompt(&self, desk: &Desk, guest: &Guest, body: &Bytes) -> Option<Prompt> {
        let decision = guest.decision()?;
        let limits = desk.said.lock().limits.clone();
        let bounds = Bounds {
            context_max: limits.context_max?,
            output_max: limits.output_max?,
            prompt_tokens: decision.prompt_tokens,
            exact: decision.identity == Identity::Tokens,
        };
        let depth = self.shard.gateway.config.limits.json_depth_max;
        let text = guest.pool().text.as_deref();
        Prompt::read(guest.endpoint(), body, depth, text, bounds)
    }
}
