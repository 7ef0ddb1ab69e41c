//! Frames that came ahead of their turn. They wait a moment for the ones in front of them, which a bus of several
//! servers may deliver late; then what is missing is lost, or others are asked for it (`handover.rs`).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kvtide_events::Frame;
use kvtide_radix::Rank;

use super::{Source, WAITING, WAITING_BYTES};
use crate::pending::PendingEvents;

/// So long an early frame waits.
const WAIT_MS: u64 = 200;
/// So many frames of a publisher wait for a late one; one more, and what is missing in front of them will not come.
const FRAMES: usize = 64;
/// Frames of so many publishers wait; those of others do not.
const PUBLISHERS: usize = 4096;

/// A frame that waits, or that has waited and is due.
pub(super) struct EarlyFrame {
    pub(super) source: Source,
    pub(super) frame: Frame,
    /// As it came.
    pub(super) bytes: usize,
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

    /// The number of the publisher's first frame, if more wait than for a late one.
    pub(super) fn crowded(&self, publisher: u64) -> Option<u64> {
        let frames = self.publishers.get(&publisher).filter(|frames| frames.len() > FRAMES)?;
        frames.first_key_value().map(|(&first, _)| first)
    }

    /// Whether more of a publisher waits than may be, whatever it waits for.
    pub(super) fn is_full(&self, publisher: u64) -> bool {
        let full = |frames: &BTreeMap<u64, EarlyFrame>| {
            // Of few frames none is large enough to matter.
            frames.len() > FRAMES
                && (frames.len() > WAITING
                    || frames.values().map(|early| early.bytes).sum::<usize>() > WAITING_BYTES)
        };
        self.publishers.get(&publisher).is_some_and(full)
    }

    /// Some publisher that is asked for, of which a frame has waited long enough; its stream, and its first frame's number.
    pub(super) fn due(&self, now_ms: u64, asked_for: impl Fn(u64) -> bool) -> Option<(u64, Source, u64)> {
        let due = |early: &EarlyFrame| early.arrived_ms + WAIT_MS <= now_ms;
        let mut publishers = self.publishers.iter();
        let (&id, frames) = publishers.find(|(id, frames)| asked_for(**id) && frames.values().any(due))?;
        let (&first, early) = frames.first_key_value()?;
        Some((id, early.source, first))
    }

    /// Takes out the publisher's first frame.
    pub(super) fn take_first(&mut self, publisher: u64) -> Option<EarlyFrame> {
        let (&first, _) = self.publishers.get(&publisher)?.first_key_value()?;
        self.take(publisher, first)
    }

    /// The number of the publisher's last frame.
    pub(super) fn last(&self, publisher: u64) -> Option<u64> {
        self.publishers.get(&publisher)?.last_key_value().map(|(&last, _)| last)
    }

    /// The ranks that the publisher's frames are about.
    pub(super) fn ranks_of(&self, publisher: u64) -> BTreeSet<Rank> {
        let frames = self.publishers.get(&publisher).into_iter().flat_map(BTreeMap::values);
        frames.flat_map(|early| early.frame.events.iter().map(|event| event.rank)).collect()
    }

    /// Drops what is taken otherwise: frames up to that number, or of before that time.
    pub(super) fn drop_taken(&mut self, publisher: u64, last: Option<u64>, published_at_ms: u64) {
        let Some(frames) = self.publishers.get_mut(&publisher) else { return };
        frames.retain(|&number, early| Some(number) > last && early.frame.published_at_ms >= published_at_ms);
        if frames.is_empty() {
            self.publishers.remove(&publisher);
        }
    }

    /// Forgets what waits of a publisher that has started again.
    pub(super) fn forget(&mut self, publisher: u64) {
        self.publishers.remove(&publisher);
    }
}
