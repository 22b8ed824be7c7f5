//! Polls: a worker waits for a request.

use super::broker::Member;
use super::line::Line;
use super::work::Job;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Polls of one worker at once, whatever it says of its slots.
const POLLS_MAX: u32 = 256;
/// How long a poll that was promised to a request waits for it beyond its own time.
const PROMISED_WAIT: Duration = Duration::from_secs(5);

/// Waits for a request; None: there was none in that time, or the worker is not there any more.
pub(super) async fn next(member: &Arc<Member>, line: &Line, wait: Duration) -> Option<Job> {
    let (send, mut receive) = oneshot::channel();
    let Some(poll) = Poll::open(member, send) else {
        // At once it would ask again at once.
        tokio::time::sleep(wait).await;
        return None;
    };
    let job = match tokio::time::timeout(wait, &mut receive).await {
        Ok(job) => job.ok(),
        Err(_) if poll.withdraw() => None,
        // Its turn came at that very moment.
        Err(_) => {
            let job = tokio::time::timeout(PROMISED_WAIT, receive).await;
            job.ok().and_then(Result::ok)
        }
    };
    // A job that is dropped here goes to another at once.
    job.filter(|_| line.is_open())
}

/// An open poll; dropping it closes it, whatever became of the worker's connection.
struct Poll {
    member: Arc<Member>,
    number: u64,
}

impl Poll {
    fn open(member: &Arc<Member>, send: oneshot::Sender<Job>) -> Option<Self> {
        let number = member.desk.number();
        let mut send = Some(send);
        let mut full = false;
        member.poll(|| match send.take() {
            Some(send) if member.desk.open_polls() < POLLS_MAX => member.desk.wait(number, send),
            _ => {
                full = true;
                member.desk.open_polls()
            }
        });
        (!full).then(|| Self {
            member: Arc::clone(member),
            number,
        })
    }

    /// Whether it was still open.
    fn withdraw(&self) -> bool {
        let member = &self.member;
        let mut was_open = false;
        member.poll(|| {
            let (open, left) = member.desk.withdraw(self.number);
            was_open = open;
            left
        });
        was_open
    }
}

impl Drop for Poll {
    fn drop(&mut self) {
        self.withdraw();
    }
}
