//! Frames that came ahead of their turn. They wait a moment for the ones in front of them, which a bus of several
//! servers may deliver late; then what is missing is lost, or others are asked for it (`handover.rs`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use hashbrown::HashMap;
use kvtide_events::Frame;
use kvtide_radix::Rank;

use super::{Source, WAITING, WAITING_BYTES};
use crate::pending::{Pending, PendingEvents, counts_of};

/// So long an early frame waits.
const WAIT_MS: u64 = 200;
/// So many frames of a publisher wait for a late one; one more, and what is missing in front of them will not come.
const FRAMES: usize = 64;
/// So many bytes of all publishers' frames wait.
const BYTES: usize = 1 << 30;
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
    pub(super) pending: Option<PendingEvents>,
}

/// All frames that wait, by publisher.
#[derive(Default)]
pub(super) struct Early {
    publishers: HashMap<u64, Waiting>,
    bytes: usize,
}

/// A publisher's frames that wait.
#[derive(Default)]
struct Waiting {
    by_number: BTreeMap<u64, EarlyFrame>,
    bytes: usize,
}

impl Early {
    /// Lets a frame wait, whose events are pending meanwhile. It is given back if there is no room.
    pub(super) fn park(&mut self, mut early: EarlyFrame, pending: &Arc<Pending>) -> Option<EarlyFrame> {
        let (id, bytes) = (early.frame.publisher_id, early.bytes);
        if self.publishers.len() >= PUBLISHERS && !self.publishers.contains_key(&id) {
            return Some(early);
        }
        early.pending = Some(pending.add(counts_of(&early.frame).collect()));
        let waiting = self.publishers.entry(id).or_default();
        // A repeat of one that waits replaces it.
        let replaced = waiting.by_number.insert(early.frame.sequence, early).map_or(0, |early| early.bytes);
        waiting.bytes = waiting.bytes + bytes - replaced;
        self.bytes = self.bytes + bytes - replaced;
        None
    }

    /// Whether frames of the publisher wait for others.
    pub(super) fn waits_for(&self, publisher: u64) -> bool {
        self.publishers.contains_key(&publisher)
    }

    fn frames(&self, publisher: u64) -> impl Iterator<Item = (u64, &EarlyFrame)> {
        let frames = self.publishers.get(&publisher).into_iter().flat_map(|waiting| &waiting.by_number);
        frames.map(|(&number, early)| (number, early))
    }

    /// Takes out the publisher's frame with that number.
    pub(super) fn take(&mut self, publisher: u64, sequence: u64) -> Option<EarlyFrame> {
        let waiting = self.publishers.get_mut(&publisher)?;
        let taken = waiting.by_number.remove(&sequence)?;
        waiting.bytes -= taken.bytes;
        self.bytes -= taken.bytes;
        if waiting.by_number.is_empty() {
            self.publishers.remove(&publisher);
        }
        Some(taken)
    }

    /// The number of the publisher's first frame, if more wait than for a late one.
    pub(super) fn crowded(&self, publisher: u64) -> Option<u64> {
        let waiting = self.publishers.get(&publisher).filter(|waiting| waiting.by_number.len() > FRAMES)?;
        waiting.by_number.first_key_value().map(|(&first, _)| first)
    }

    /// Whether more of a publisher waits than may be, whatever it waits for.
    pub(super) fn is_full(&self, publisher: u64) -> bool {
        let full = |waiting: &Waiting| {
            waiting.by_number.len() > WAITING || waiting.bytes > WAITING_BYTES || self.bytes > BYTES
        };
        self.publishers.get(&publisher).is_some_and(full)
    }

    /// Some publisher of which a frame has waited long enough for late ones, and which `may_give_up`; its stream, and its first
    /// frame's number.
    pub(super) fn due(&self, now_ms: u64, may_give_up: impl Fn(u64) -> bool) -> Option<(u64, Source, u64)> {
        let mut overdue = self.overdue(now_ms, WAIT_MS);
        let id = overdue.find(|&id| may_give_up(id))?;
        let first = self.first(id)?;
        Some((id, first.source, first.frame.sequence))
    }

    /// Publishers of which a frame has waited for so long.
    pub(super) fn overdue(&self, now_ms: u64, wait_ms: u64) -> impl Iterator<Item = u64> {
        let due = move |early: &EarlyFrame| early.arrived_ms + wait_ms <= now_ms;
        let overdue = self.publishers.iter().filter(move |(_, waiting)| waiting.by_number.values().any(due));
        overdue.map(|(&id, _)| id)
    }

    /// The publisher's first frame.
    pub(super) fn first(&self, publisher: u64) -> Option<&EarlyFrame> {
        self.frames(publisher).next().map(|(_, early)| early)
    }

    /// Takes out the publisher's first frame.
    pub(super) fn take_first(&mut self, publisher: u64) -> Option<EarlyFrame> {
        let (first, _) = self.frames(publisher).next()?;
        self.take(publisher, first)
    }

    /// The ranks that the publisher's frames are about.
    pub(super) fn ranks_of(&self, publisher: u64) -> BTreeSet<Rank> {
        let frames = self.frames(publisher);
        frames.flat_map(|(_, early)| early.frame.events.iter().map(|event| event.rank)).collect()
    }

    /// The numbers of the publisher's frames, and when they were published.
    pub(super) fn numbers_of(&self, publisher: u64) -> impl Iterator<Item = (u64, u64)> {
        self.frames(publisher).map(|(number, early)| (number, early.frame.published_at_ms))
    }

    /// Drops frames up to that number.
    pub(super) fn drop_up_to(&mut self, publisher: u64, last: Option<u64>) {
        self.drop_where(publisher, |number, _| Some(number) <= last);
    }

    /// Drops frames that were published before that time.
    pub(super) fn drop_published_before(&mut self, publisher: u64, at_ms: u64) {
        self.drop_where(publisher, |_, published_at_ms| published_at_ms < at_ms);
    }

    fn drop_where(&mut self, publisher: u64, is_it: impl Fn(u64, u64) -> bool) {
        let these = self.numbers_of(publisher).filter(|&(number, at_ms)| is_it(number, at_ms));
        for number in these.map(|(number, _)| number).collect::<Vec<_>>() {
            self.take(publisher, number);
        }
    }

    /// Forgets what waits of a publisher. Returns how many events that were.
    pub(super) fn forget(&mut self, publisher: u64) -> usize {
        let events = self.frames(publisher).map(|(_, early)| early.frame.events.len()).sum();
        self.drop_where(publisher, |_, _| true);
        events
    }

    /// Publishers of which frames wait.
    pub(super) fn publishers(&self) -> impl Iterator<Item = u64> {
        self.publishers.keys().copied()
    }
}
