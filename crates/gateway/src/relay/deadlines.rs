//! Until when an attempt is waited for.

use crate::attempt::Guest;
use crate::config::Timeouts;
use maitred_core::request::Failure;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// The deadlines of one request: to the first data, between data, and in all. One timer serves
/// them all, and is moved only when it fires too early.
pub(crate) struct Deadlines {
    sleep: Pin<Box<Sleep>>,
    armed: Instant,
    due: Instant,
    phase: Failure,
    idle: Duration,
    total: Option<Instant>,
}

impl Deadlines {
    /// The clock runs from the request's arrival.
    pub(crate) fn new(timeouts: &Timeouts, arrived: Instant) -> Self {
        let total = (!timeouts.total.is_zero()).then(|| arrived + timeouts.total);
        let due = Instant::now() + timeouts.first_byte;
        let armed = total.map_or(due, |t| t.min(due));
        Self {
            sleep: Box::pin(tokio::time::sleep_until(armed)),
            armed,
            due,
            phase: Failure::FirstByteTimeout,
            idle: timeouts.idle,
            total,
        }
    }

    /// Another attempt begins to wait for its first data.
    pub(crate) fn first_byte(&mut self, limit: Duration) {
        self.due = Instant::now() + limit;
        self.phase = Failure::FirstByteTimeout;
    }

    /// Data came.
    pub(crate) fn data(&mut self, now: Instant) {
        self.due = now + self.idle;
        self.phase = Failure::IdleTimeout;
    }

    /// Ready with the limit that was passed.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        let nearest = self.total.map_or(self.due, |t| t.min(self.due));
        if nearest < self.armed {
            self.armed = nearest;
            self.sleep.as_mut().reset(nearest);
        }
        loop {
            if self.sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let now = Instant::now();
            if self.total.is_some_and(|t| t <= now) {
                return Poll::Ready(Failure::TotalTimeout);
            }
            if self.due <= now {
                return Poll::Ready(self.phase);
            }
            self.armed = nearest;
            self.sleep.as_mut().reset(nearest);
        }
    }
}

/// Waits for `work` while the attempt is neither aborted nor late.
pub(crate) async fn within<T>(
    guest: &mut Guest,
    deadlines: &mut Deadlines,
    work: impl Future<Output = T>,
) -> Result<T, Cut> {
    let mut work = std::pin::pin!(work);
    poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Ok(done));
        }
        guest.tell();
        if guest.poll_aborted(cx).is_ready() {
            return Poll::Ready(Err(Cut::Aborted));
        }
        deadlines.poll(cx).map(|failure| Err(Cut::Late(failure)))
    })
    .await
}

/// Why an attempt was cut off from our side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Its worker was removed.
    Aborted,
    /// A limit of time.
    Late(Failure),
}
