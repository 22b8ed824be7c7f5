//! What became of jobs that are over: so that a worker that answers late, or again, is told so.

use super::work::Loss;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// For how long an ended job is remembered.
const REMEMBERED: Duration = Duration::from_secs(20 * 60);
/// Most that are remembered; of more, the oldest are forgotten.
const REMEMBERED_MAX: usize = 16_384;

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Its answer was taken.
    Answered,
    /// The worker gave it back.
    Faulted,
    /// It was taken from the worker.
    Lost,
    /// Its client left.
    Cancelled,
}

impl End {
    pub(super) fn of(why: Loss) -> Self {
        match why {
            Loss::Faulted => Self::Faulted,
            _ => Self::Lost,
        }
    }
}

#[derive(Default)]
struct Ended {
    by_job: HashMap<String, End>,
    order: VecDeque<(Instant, String)>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Past(Mutex<Ended>);

impl Past {
    /// A job is over. The first word counts.
    pub(crate) fn note(&self, job: &str, end: End) {
        self.note_at(job, end, Instant::now());
    }

    fn note_at(&self, job: &str, end: End, now: Instant) {
        let mut ended = self.0.lock();
        while let Some((at, _)) = ended.order.front()
            && (ended.order.len() >= REMEMBERED_MAX
                || now.saturating_duration_since(*at) > REMEMBERED)
        {
            if let Some((_, old)) = ended.order.pop_front() {
                ended.by_job.remove(&old);
            }
        }
        if !ended.by_job.contains_key(job) {
            ended.by_job.insert(job.to_owned(), end);
            ended.order.push_back((now, job.to_owned()));
        }
    }

    /// How it ended; None: it never was, or it is long ago.
    pub(crate) fn of(&self, job: &str) -> Option<End> {
        self.0.lock().by_job.get(job).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::{End, Past, REMEMBERED, REMEMBERED_MAX};
    use std::time::{Duration, Instant};

    #[test]
    fn the_first_word_counts_and_memory_is_bounded_in_time_and_number() {
        let past = Past::default();
        let start = Instant::now();
        past.note_at("a", End::Lost, start);
        past.note_at("a", End::Answered, start);
        assert_eq!((past.of("a"), past.of("b")), (Some(End::Lost), None));
        past.note_at("b", End::Answered, start + REMEMBERED);
        assert_eq!(past.of("a"), Some(End::Lost));
        past.note_at(
            "c",
            End::Answered,
            start + REMEMBERED + Duration::from_nanos(1),
        );
        assert_eq!((past.of("a"), past.of("b")), (None, Some(End::Answered)));
        for n in 0..REMEMBERED_MAX {
            past.note_at(&format!("x{n}"), End::Faulted, start + REMEMBERED);
        }
        assert_eq!(past.of("c"), None);
        assert_eq!(past.of("x0"), Some(End::Faulted));
        assert_eq!(past.0.lock().by_job.len(), REMEMBERED_MAX);
    }
}
