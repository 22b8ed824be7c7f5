//! A request inside its pool: from arrival until every lease it had is given back.
//!
//! [`Guest`] is the guard. Whatever becomes of the request (end, error, client gone, panic), the
//! scheduler is told exactly once, because dropping it tells what was not told before.

mod record;
mod story;

pub(crate) use story::{Story, unix_ms};

use record::ms;

use crate::driver::{Ticket, Verdict};
use crate::metrics::{CancelStage, WaitEnd};
use crate::pool::Pool;
use crate::pull::Loss;
use crate::upstream::Upstream;
use maitred_core::ids::{RequestId, ResponseKey};
use maitred_core::request::{Failure, Identity, Refusal, RetryAfter, Usage};
use maitred_core::{Arrival, Decision, Input, Nanos};
use maitred_records::{AttemptRecord, Outcome};
use maitred_wire::Endpoint;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A request id for the scheduler: unique in this process.
pub(crate) fn next_request() -> RequestId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    RequestId(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// What an arrival says that its records repeat.
struct Facts {
    tenant: u64,
    session: Option<u64>,
    session_source: &'static str,
    identity: &'static str,
    turn: u32,
    prompt_bytes: u64,
    arrived: Nanos,
}

/// How far an attempt is beyond what the scheduler was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    None,
    Accepted,
    /// Says that it was accepted, too.
    FirstToken,
}

/// A request in a pool.
pub(crate) struct Guest {
    story: Story,
    pool: Arc<Pool>,
    ticket: Arc<Ticket>,
    request: RequestId,
    facts: Facts,
    decision: Option<Box<Decision>>,
    upstream: Option<Arc<Upstream>>,
    stage: CancelStage,
    first_token: Option<Nanos>,
    /// What the scheduler is to be told before anything is waited for.
    news: News,
    /// A failed attempt of which is not yet known whether another follows; apart, because it is rare.
    pending: Option<Box<(AttemptRecord, Failure)>>,
    /// How the present attempt's job was lost, where its worker pulls.
    lost: Option<Loss>,
    /// The scheduler still counts on us.
    open: bool,
}

impl Guest {
    /// Tells the scheduler of the request.
    pub(crate) fn arrive(story: Story, pool: Arc<Pool>, arrival: Box<Arrival>) -> Self {
        pool.metrics.session_key(arrival.session_source);
        let mut facts = Facts {
            tenant: arrival.tenant.0,
            session: arrival.session.map(|s| s.0),
            session_source: arrival.session_source.as_str(),
            identity: match arrival.identity {
                Identity::Bytes => "bytes",
                Identity::Tokens => "tokens",
            },
            turn: arrival.turn,
            prompt_bytes: arrival.prompt_bytes,
            arrived: Nanos::default(),
        };
        let request = arrival.request;
        let ticket;
        (ticket, facts.arrived) = pool.driver.arrive(arrival);
        Self {
            story,
            pool,
            ticket,
            request,
            facts,
            decision: None,
            upstream: None,
            stage: CancelStage::Queued,
            first_token: None,
            news: News::None,
            pending: None,
            lost: None,
            open: true,
        }
    }

    /// Waits for a seat. `Err`: there will be none.
    pub(crate) async fn seat(&mut self) -> Result<Arc<Upstream>, (Refusal, Option<RetryAfter>)> {
        loop {
            self.stage = CancelStage::Queued;
            self.ticket.waits(true);
            match self.ticket.verdict().await {
                Verdict::Dispatched(decision) => {
                    if let Some((record, failure)) = self.pending.take().map(|p| *p) {
                        self.pool.metrics.retried(failure);
                        self.story.gateway.keep(record);
                    }
                    self.pool.metrics.decided(&decision);
                    let upstream = self.pool.upstream(decision.worker);
                    self.decision = Some(decision);
                    self.lost = None;
                    self.stage = CancelStage::Connecting;
                    self.ticket.waits(false);
                    match upstream {
                        Some(upstream) => {
                            self.upstream = Some(Arc::clone(&upstream));
                            return Ok(upstream);
                        }
                        // Removed between the decision and now.
                        None => self.retry(Failure::Connect, None, None),
                    }
                }
                Verdict::Refused {
                    refusal,
                    retry_after,
                    at,
                } => {
                    self.refused(refusal, at);
                    return Err((refusal, retry_after));
                }
            }
        }
    }

    /// Where its verdicts come from.
    pub(crate) fn ticket(&self) -> &Arc<Ticket> {
        &self.ticket
    }

    /// Which attempt it is, from 1; 0 before the first.
    pub(crate) fn number(&self) -> u8 {
        self.decision.as_ref().map_or(0, |d| d.attempt.number)
    }

    /// The decision of the present attempt.
    pub(crate) fn decision(&self) -> Option<&Decision> {
        self.decision.as_deref()
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        self.story.endpoint
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Ready once the attempt is to be aborted (its worker is removed).
    pub(crate) fn poll_aborted(&self, cx: &Context<'_>) -> Poll<()> {
        self.ticket.poll_aborted(self.number(), cx)
    }

    /// The request was sent.
    pub(crate) fn sent(&mut self) {
        self.stage = CancelStage::Waiting;
    }

    /// A good response head came.
    pub(crate) fn accepted(&mut self) {
        self.news = News::Accepted;
    }

    /// Tells the scheduler how far the attempt is. An answer that is there at once needs no such
    /// word: its end says it all.
    pub(crate) fn tell(&mut self) {
        let news = std::mem::replace(&mut self.news, News::None);
        let Some(attempt) = self.decision.as_ref().map(|d| d.attempt) else {
            return;
        };
        match news {
            News::None => {}
            News::Accepted => self.pool.driver.handle(Input::Accepted(attempt)),
            News::FirstToken => self.pool.driver.handle(Input::FirstToken(attempt)),
        }
    }

    /// The first token came; told once.
    pub(crate) fn first_token(&mut self) {
        if self.first_token.is_some() {
            return;
        }
        let now = self.pool.driver.now();
        self.first_token = Some(now);
        self.stage = CancelStage::Streaming;
        self.pool
            .metrics
            .first_token(self.facts.turn, now.since(self.facts.arrived));
        self.news = News::FirstToken;
    }

    /// Bytes came from the worker.
    pub(crate) fn life(&self, now: Instant) {
        if let Some(upstream) = &self.upstream
            && upstream.life_due(now)
        {
            self.pool
                .report(upstream.id, maitred_core::pool::Report::Bytes);
        }
    }

    /// The worker gave out an id that a later request may continue.
    pub(crate) fn responded(&self, id: &str) {
        if let Some(attempt) = self.decision.as_ref().map(|d| d.attempt) {
            let response: ResponseKey = maitred_text::response_key(self.story.owner, id);
            self.pool
                .driver
                .handle(Input::Responded { attempt, response });
        }
    }

    /// The answer is complete.
    pub(crate) fn served(&mut self, usage: Usage, status: u16) {
        let after = self.since_arrival();
        self.pool.metrics.served(self.facts.turn, after, &usage);
        if let Some(decision) = &self.decision {
            self.pool.metrics.predicted(decision, &usage);
        }
        self.end(Outcome::Served, None, Some(status), usage);
    }

    /// The worker answered with its own refusal of this very request, which is relayed.
    pub(crate) fn client_error(&mut self, status: u16) {
        self.end(Outcome::ClientError, None, Some(status), Usage::default());
    }

    /// The attempt failed and no other follows.
    pub(crate) fn failed(&mut self, failure: Failure, status: Option<u16>, usage: Usage) {
        if let Some(upstream) = &self.upstream {
            upstream.metrics.failed(failure);
        }
        self.end(Outcome::Failed, Some(failure), status, usage);
    }

    /// The worker had pulled its job, and lost it so; `again`: another one gets it.
    pub(crate) fn lost(&mut self, why: Loss, again: bool) {
        self.lost = Some(why);
        let counts = &self.story.gateway.metrics.pull;
        counts.lost(&self.pool.name, why, again);
    }

    /// The attempt failed; nothing reached the client, another worker may try.
    pub(crate) fn retry(
        &mut self,
        failure: Failure,
        status: Option<u16>,
        retry_after: Option<RetryAfter>,
    ) {
        if let Some(upstream) = &self.upstream {
            upstream.metrics.failed(failure);
        }
        let record = self.record(
            Outcome::Retried,
            Some(failure.as_str()),
            status,
            Usage::default(),
        );
        self.pending = Some(Box::new((record, failure)));
        let Some(attempt) = self.decision.as_ref().map(|d| d.attempt) else {
            return;
        };
        self.tell();
        self.first_token = None;
        self.upstream = None;
        self.pool.driver.handle(Input::Failed {
            attempt,
            failure,
            retry: true,
            retry_after,
        });
    }

    /// By which API its worker pulls.
    fn api(&self) -> Option<&'static str> {
        let desk = self.upstream.as_ref()?.desk.as_ref()?;
        Some(desk.speaks.as_str())
    }

    fn since_arrival(&self) -> Duration {
        self.pool.driver.now().since(self.facts.arrived)
    }

    fn refused(&mut self, refusal: Refusal, at: Nanos) {
        // The scheduler has forgotten it already.
        self.open = false;
        let model = Arc::clone(&self.story.model);
        if let Some((mut record, _)) = self.pending.take().map(|p| *p) {
            record.outcome = Outcome::Failed;
            model.request(self.story.endpoint, Outcome::Failed);
            self.story.gateway.keep(record);
            return;
        }
        model.request(self.story.endpoint, Outcome::Refused);
        // Or those who never start would not be seen among those who wait.
        let (wait, metrics) = (at.since(self.facts.arrived), &self.pool.metrics);
        metrics.waited(self.facts.turn, wait, WaitEnd::Refused);
        self.decision = None;
        let mut record = self.record(Outcome::Refused, None, None, Usage::default());
        record.reason = Some(Cow::Borrowed(refusal.as_str()));
        record.queue_ms = ms(wait);
        self.story.gateway.keep(record);
    }

    fn end(
        &mut self,
        outcome: Outcome,
        failure: Option<Failure>,
        status: Option<u16>,
        usage: Usage,
    ) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        if outcome != Outcome::Served {
            self.tell();
        }
        let mut misses = None;
        if let Some(attempt) = self.decision.as_ref().map(|d| d.attempt) {
            let input = match failure {
                Some(failure) => Input::Failed {
                    attempt,
                    failure,
                    retry: false,
                    retry_after: None,
                },
                None => Input::Finished {
                    attempt,
                    usage,
                    served: outcome == Outcome::Served,
                },
            };
            misses = self.pool.driver.close(self.request, input);
        }
        self.story.model.request(self.story.endpoint, outcome);
        let mut record = self.record(outcome, failure.map(Failure::as_str), status, usage);
        if let Some(misses) = misses {
            self.pool.metrics.accounted(&misses);
            record.misses = Some(self.miss_record(&misses));
        }
        self.story.gateway.keep(record);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        self.tell();
        self.pool
            .driver
            .close(self.request, Input::Cancel(self.request));
        self.pool.metrics.cancelled(self.stage);
        let in_vain = self.decision.is_none().then(|| self.since_arrival());
        if let Some(wait) = in_vain {
            let metrics = &self.pool.metrics;
            metrics.waited(self.facts.turn, wait, WaitEnd::Left);
        }
        self.story
            .model
            .request(self.story.endpoint, Outcome::Cancelled);
        let mut record = self.record(Outcome::Cancelled, None, None, Usage::default());
        record.failure = Some(Cow::Borrowed(self.stage.as_str()));
        if let Some(wait) = in_vain {
            record.queue_ms = ms(wait);
        }
        self.story.gateway.keep(record);
    }
}
