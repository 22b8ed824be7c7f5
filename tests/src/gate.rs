use std::sync::Arc;

use tokio::sync::watch;

/// A gate that the test opens: scripted workers wait at it instead of sleeping.
///
/// Clones are the same gate. A gate can be opened for good ([`Gate::open`]) or for a number of
/// passages ([`Gate::admit`]).
#[derive(Clone, Debug)]
pub struct Gate {
    passes: Arc<watch::Sender<Passes>>,
}

#[derive(Debug, Default)]
struct Passes {
    open: bool,
    left: usize,
    waiting: usize,
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self {
            passes: Arc::new(watch::Sender::new(Passes::default())),
        }
    }

    /// Opens the gate for everybody, now and later.
    pub fn open(&self) {
        self.passes.send_modify(|passes| passes.open = true);
    }

    /// Lets `count` more through.
    pub fn admit(&self, count: usize) {
        self.passes.send_modify(|passes| passes.left += count);
    }

    /// How many wait at the gate at this moment.
    pub fn waiting(&self) -> usize {
        self.passes.borrow().waiting
    }

    /// Waits until at least `count` wait at the gate.
    pub async fn wait_for_waiting(&self, count: usize) {
        let mut changes = self.passes.subscribe();
        let name = format!("{count} waiting at a gate");
        crate::within(&name, changes.wait_for(|passes| passes.waiting >= count))
            .await
            .expect("the gate lives as long as self");
    }

    /// Waits until the gate lets this caller through.
    pub(crate) async fn pass(&self) {
        let _place = Place::take(self);
        let mut changes = self.passes.subscribe();
        loop {
            let mut through = false;
            self.passes.send_if_modified(|passes| {
                if passes.open {
                    through = true;
                } else if passes.left > 0 {
                    passes.left -= 1;
                    through = true;
                }
                false
            });
            if through {
                return;
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Keeps the count of waiting right when a waiting script is cancelled.
struct Place<'a>(&'a Gate);

impl<'a> Place<'a> {
    fn take(gate: &'a Gate) -> Self {
        gate.passes.send_modify(|passes| passes.waiting += 1);
        Self(gate)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.passes.send_modify(|passes| passes.waiting -= 1);
    }
}
