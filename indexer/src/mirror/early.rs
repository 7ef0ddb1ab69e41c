//! Frames that came ahead of their turn. They wait a moment for the ones in front of them, which a bus of several
//! servers may deliver late; then what is missing is lost.

use std::collections::{BTreeMap, HashMap};

use kvtide_events::Frame;

use super::Source;
use crate::pending::PendingEvents;

/// So long an early frame waits.
const WAIT_MS: u64 = 200;
/// So many frames of a publisher wait; one more, and what is missing in front of them is lost.
const FRAMES: usize = 64;
/// Frames of so many publishers wait; those of others do not.
const PUBLISHERS: usize = 4096;

/// A frame that waits, or that has waited and is due.
pub(super) struct EarlyFrame {
    pub(super) source: Source,
    pub(super) frame: Frame,
    pub(super) arrived_ms: u64,
    /// Its events are pending for as long as it waits.
    pub(super) pending: PendingEvents,
}

/// All frames that wait, by publisher and number.
#[derive(Default)]
pub(super) struct Early {
    publishers: HashMap<u64, BTreeMap<u64, EarlyFrame>>,
}

impl Early {
    /// Lets a frame wait. It is given back if there is no room.
    pub(super) fn park(&mut self, early: EarlyFrame) -> Option<EarlyFrame> {
        let id = early.frame.publisher_id;
        if self.publishers.len() >= PUBLISHERS && !self.publishers.contains_key(&id) {
            return Some(early);
        }
        // A repeat of one that waits replaces it.
        self.publishers.entry(id).or_default().insert(early.frame.sequence, early);
        None
    }

    /// Whether frames of the publisher wait for others.
    pub(super) fn waits_for(&self, publisher: u64) -> bool {
        self.publishers.contains_key(&publisher)
    }

    /// Takes out the publisher's frame with that number.
    pub(super) fn take(&mut self, publisher: u64, sequence: u64) -> Option<EarlyFrame> {
        let frames = self.publishers.get_mut(&publisher)?;
        let taken = frames.remove(&sequence);
        if frames.is_empty() {
            self.publishers.remove(&publisher);
        }
        taken
    }

    /// Takes out the publisher's first frame, if too many wait.
    pub(super) fn take_crowded(&mut self, publisher: u64) -> Option<EarlyFrame> {
        let frames = self.publishers.get(&publisher).filter(|frames| frames.len() > FRAMES)?;
        let (&first, _) = frames.first_key_value()?;
        self.take(publisher, first)
    }

    /// Takes out the first frame of some publisher, if one of its frames has waited long enough.
    pub(super) fn take_due(&mut self, now_ms: u64) -> Option<EarlyFrame> {
        let due = |early: &EarlyFrame| early.arrived_ms + WAIT_MS <= now_ms;
        let found = self.publishers.iter().find(|(_, frames)| frames.values().any(due));
        let (publisher, first) = found.and_then(|(&id, frames)| Some((id, *frames.first_key_value()?.0)))?;
        self.take(publisher, first)
    }

    /// Forgets what waits of a publisher that has started again.
    pub(super) fn forget(&mut self, publisher: u64) {
        self.publishers.remove(&publisher);
    }
}
