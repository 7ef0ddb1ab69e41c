//! Events that were received and are not yet visible, by rank.

use std::sync::Arc;

use hashbrown::HashMap;
use kvtide_events::Frame;
use kvtide_radix::Rank;
use parking_lot::Mutex;

/// How many events of each rank are on their way.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    counts: Mutex<HashMap<Rank, u64>>,
}

/// Events of messages. They are pending until this is dropped.
#[derive(Debug)]
pub(crate) struct PendingEvents {
    pending: Arc<Pending>,
    /// A rank may stand here more than once: what is added for each is taken away for each.
    events: Vec<(Rank, u64)>,
}

impl Pending {
    /// Counts the events of messages.
    pub(crate) fn add(self: &Arc<Self>, events: Vec<(Rank, u64)>) -> PendingEvents {
        let mut counts = self.counts.lock();
        for &(rank, count) in &events {
            *counts.entry(rank).or_insert(0) += count;
        }
        drop(counts);
        PendingEvents { pending: Arc::clone(self), events }
    }

    /// All counts as they are now. Ranks of which nothing is pending are left out.
    pub(crate) fn counts(&self) -> HashMap<Rank, u64> {
        self.counts.lock().clone()
    }
}

/// How many events of a frame are about which rank.
pub(crate) fn counts_of(frame: &Frame) -> impl Iterator<Item = (Rank, u64)> {
    frame.events_by_rank().map(|(rank, events)| (rank, events.len() as u64))
}

impl Drop for PendingEvents {
    fn drop(&mut self) {
        let mut counts = self.pending.counts.lock();
        for (rank, events) in &self.events {
            if let Some(pending) = counts.get_mut(rank) {
                *pending -= events;
                if *pending == 0 {
                    counts.remove(rank);
                }
            }
        }
    }
}
