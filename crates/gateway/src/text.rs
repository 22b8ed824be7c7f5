//! A pool's text side at run time: its template and tokenizer, and who may use them how much.

use maitred_text::TextModel;
use maitred_text::model::LoadError;
use maitred_text::template::WallTime;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The longest wait for a place to tokenise; then the request stays on byte identity.
const WAIT_MAX: Duration = Duration::from_millis(200);
/// Requests that may wait, for each place.
const WAITING_PER_PLACE: usize = 8;
/// Bytes that the fast encoder may tokenise on a data thread (some 40 ns each), and the reference
/// (about 1 us each).
const INLINE_FAST: usize = 16 << 10;
const INLINE_REFERENCE: usize = 1 << 10;

/// Places for tokenising off the data threads: one per core, for all pools.
pub struct Places {
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
    waiting_max: usize,
}

impl Places {
    /// So many at once.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self {
            free: Arc::new(Semaphore::new(count)),
            waiting: AtomicUsize::new(0),
            waiting_max: count * WAITING_PER_PLACE,
        }
    }

    /// The places themselves.
    #[must_use]
    pub fn free(&self) -> &Arc<Semaphore> {
        &self.free
    }

    /// Requests that wait for one.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// A place, soon; None: too many want one.
    pub(crate) async fn take(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = Arc::clone(&self.free).try_acquire_owned() {
            return Some(place);
        }
        let waiting = Waiting::begin(&self.waiting);
        if waiting.before >= self.waiting_max {
            return None;
        }
        let place = tokio::time::timeout(WAIT_MAX, Arc::clone(&self.free).acquire_owned());
        place.await.ok()?.ok()
    }
}

/// Counts one who waits, until it does no more (it may leave).
struct Waiting<'a> {
    count: &'a AtomicUsize,
    before: usize,
}

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        let before = count.fetch_add(1, Ordering::Relaxed);
        Self { count, before }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A pool's template and tokenizer.
pub struct PoolText {
    /// Both of them, and what they did.
    pub model: TextModel,
    /// Where large texts are tokenised.
    pub places: Arc<Places>,
    utc_offset_seconds: i32,
}

impl PoolText {
    /// Reads the files: takes seconds.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn load(
        settings: &crate::config::IdentitySettings,
        places: &Arc<Places>,
    ) -> Result<Self, LoadError> {
        Ok(Self {
            model: TextModel::load(&settings.files, settings.options)?,
            places: Arc::clone(places),
            utc_offset_seconds: settings.utc_offset_seconds,
        })
    }

    /// The engines' local time.
    pub(crate) fn now(&self) -> WallTime {
        let unix = i64::try_from(crate::attempt::unix_ms() / 1_000).unwrap_or_default();
        WallTime {
            unix_seconds: unix,
            offset_seconds: self.utc_offset_seconds,
        }
    }

    /// Bytes that may be tokenised on a data thread.
    pub(crate) fn inline_max(&self) -> usize {
        match self.model.encoder() {
            "fastokens" => INLINE_FAST,
            _ => INLINE_REFERENCE,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{Places, WAITING_PER_PLACE};
    use std::sync::Arc;

    #[tokio::test(start_paused = true)]
    async fn who_waits_too_long_or_behind_too_many_gets_no_place() {
        let places = Arc::new(Places::new(1));
        let held = places.take().await.unwrap();
        assert!(places.take().await.is_none(), "too long");
        assert_eq!(places.waiting(), 0);
        let mut line = Vec::new();
        for _ in 0..WAITING_PER_PLACE {
            let places = Arc::clone(&places);
            line.push(tokio::spawn(async move { places.take().await.is_some() }));
        }
        while places.waiting() < WAITING_PER_PLACE {
            tokio::task::yield_now().await;
        }
        let start = tokio::time::Instant::now();
        assert!(places.take().await.is_none(), "behind too many");
        assert_eq!(start.elapsed(), std::time::Duration::ZERO);
        // Who leaves gives its place in the line back.
        line.pop().unwrap().abort();
        while places.waiting() >= WAITING_PER_PLACE {
            tokio::task::yield_now().await;
        }
        drop(held);
        for one in line {
            assert!(one.await.unwrap());
        }
        assert_eq!(
            (places.waiting(), places.free().available_permits()),
            (0, 1)
        );
    }
}
