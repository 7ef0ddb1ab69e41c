//! Dynamo's frames: publishers, their numbers, and which of them a rank belongs to.

use std::collections::{BTreeMap, BTreeSet};

use kvtide_radix::Rank;

use super::{Fleet, index::Missing};
use crate::vectors::{AnnouncedSpec, FrameSpec, rank};

/// A frame waits for those in front of it for so long, and no more than so many do.
const WAIT_MS: u64 = 200;
const WAITING: usize = 64;
/// A former publisher's frames may still come for so long.
const LATE_MS: u64 = 200;
/// One that has been silent for so long has given up.
const SILENT_MS: u64 = 10_000;

/// A publisher's frames.
#[derive(Default)]
pub(super) struct Publisher {
    pub(super) last: Option<u64>,
    /// Every frame from number 0 on was taken.
    whole: bool,
    last_at: u64,
    /// Frames behind the last one that came and did not decode.
    pub(super) unreadable: u64,
    /// Frames that wait, and since when.
    pub(super) early: BTreeMap<u64, (u64, FrameSpec)>,
    pub(super) ranks: BTreeSet<Rank>,
    /// What discovery says of it.
    pub(super) announced: Option<AnnouncedSpec>,
    pub(super) missing: Option<Missing>,
    /// The last event that its worker has told.
    pub(super) told: Option<u64>,
    /// When it was asked for that.
    pub(super) told_ms: u64,
    /// The last frame that had been taken then.
    pub(super) taken_before_told: Option<u64>,
}

impl Publisher {
    /// Whether frames may still come in front of this one.
    pub(super) fn is_early(&self, frame: &FrameSpec) -> bool {
        if self.follows_told(frame) {
            return false;
        }
        match self.last {
            None => frame.sequence > 0,
            Some(last) => frame.sequence > last + 1 + self.unreadable,
        }
    }

    /// Whether the worker has told everything in front of the frame.
    fn follows_told(&self, frame: &FrameSpec) -> bool {
        let first = frame.events.first().map(|event| event.id);
        first.zip(self.told).is_some_and(|(first, told)| first <= told + 1)
    }

    /// Whether the frame was taken, and its worker has told all of it.
    fn was_told(&self, frame: &FrameSpec) -> bool {
        let last = frame.events.last().map(|event| event.id);
        let told = last.zip(self.told).is_some_and(|(last, told)| last <= told);
        told && frame.at <= self.told_ms
            && Some(frame.sequence) > self.taken_before_told
            && self.last.is_some_and(|last| frame.sequence <= last)
    }

    /// Another process under the same id.
    pub(super) fn start_again(&mut self) {
        let (ranks, announced) = (std::mem::take(&mut self.ranks), self.announced);
        *self = Publisher { ranks, announced, ..Publisher::default() };
    }

    fn starts_again(&self, frame: &FrameSpec) -> bool {
        let first = frame.sequence == 0 && frame.events.first().is_none_or(|event| event.id == 1);
        if self.last.is_some() {
            first && frame.at > self.last_at && !self.was_told(frame)
        } else {
            // Its worker has told of another event 1.
            first && self.told > Some(0) && frame.at > self.told_ms
        }
    }
}

impl Fleet {
    pub(super) fn frame(&mut self, frame: &FrameSpec) {
        let unannounced = self.is_unannounced(frame.publisher);
        let publisher = self.publishers.entry(frame.publisher).or_default();
        if unannounced {
            publisher.early.insert(frame.sequence, (self.now_ms, frame.clone()));
            return;
        }
        let missed = publisher.missing.is_some();
        self.take_or_keep(frame);
        if missed {
            self.look_for_missing(frame.publisher);
        }
    }

    fn take_or_keep(&mut self, frame: &FrameSpec) {
        let now_ms = self.now_ms;
        let publisher = self.publishers.get_mut(&frame.publisher).unwrap();
        let contradicts = publisher.last.is_some_and(|last| frame.sequence <= last)
            && frame.at > publisher.last_at
            && !publisher.was_told(frame);
        if publisher.starts_again(frame) {
            publisher.early.clear();
        } else if contradicts || (publisher.last.is_none() && frame.sequence == 0) {
            // What waits is of a life that has ended, if it was published before.
            publisher.early.retain(|_, (_, early)| early.at >= frame.at);
            if publisher.early.is_empty() {
                publisher.missing = None;
            }
        } else if publisher.is_early(frame) {
            publisher.early.insert(frame.sequence, (now_ms, frame.clone()));
            while self.publishers[&frame.publisher].early.len() > WAITING {
                let (&first, _) = self.publishers[&frame.publisher].early.first_key_value().unwrap();
                if self.want(frame.publisher, first - 1) {
                    break;
                }
                self.take_earliest(frame.publisher);
            }
            return;
        }
        self.take_frame(frame, now_ms);
        self.take_those_in_turn(frame.publisher, frame.sequence + 1);
    }

    pub(super) fn frames_overdue(&mut self) {
        let now_ms = self.now_ms;
        while let Some((&id, publisher)) = self.publishers.iter().find(|(id, publisher)| {
            let due = publisher.early.values().any(|&(since, _)| since + WAIT_MS <= now_ms);
            due && !self.waits_for_answer(**id) && !self.is_unannounced(**id)
        }) {
            let (&first, _) = publisher.early.first_key_value().unwrap();
            if !self.want(id, first - 1) {
                self.take_earliest(id);
            }
        }
    }

    pub(super) fn take_earliest(&mut self, publisher: u64) {
        let (number, (since, frame)) =
            self.publishers.get_mut(&publisher).unwrap().early.pop_first().unwrap();
        self.take_frame(&frame, since);
        self.take_those_in_turn(publisher, number + 1);
    }

    pub(super) fn take_those_in_turn(&mut self, publisher: u64, mut number: u64) {
        while let Some((since, frame)) = self.publishers.get_mut(&publisher).unwrap().early.remove(&number) {
            self.take_frame(&frame, since);
            number += 1;
        }
    }

    /// Takes a frame that came at `since`, whatever is missing in front of it.
    pub(super) fn take_frame(&mut self, frame: &FrameSpec, since: u64) {
        let publisher = self.publishers.get_mut(&frame.publisher).unwrap();
        let again = publisher.starts_again(frame);
        if again {
            publisher.start_again();
        }
        let told = publisher.follows_told(frame);
        let mut lost = match publisher.last {
            Some(last) if frame.sequence <= last => {
                if frame.at > publisher.last_at && !publisher.was_told(frame) {
                    // It has started again, and nobody knows with what.
                    (publisher.whole, publisher.last_at) = (false, frame.at);
                    for rank in publisher.ranks.clone() {
                        if self.is_in_charge(frame.publisher, rank) {
                            self.hole(rank, 1);
                        }
                    }
                }
                return;
            }
            Some(last) => frame.sequence - last - 1,
            None => {
                publisher.whole = frame.sequence == 0;
                0
            }
        };
        publisher.whole &= lost == 0;
        lost = lost.saturating_sub(std::mem::take(&mut publisher.unreadable));
        if told {
            lost = 0;
        }
        publisher.last = Some(frame.sequence);
        publisher.last_at = publisher.last_at.max(frame.at);
        let (whole, ranks) = (publisher.whole, publisher.ranks.clone());
        if again {
            for &rank in &ranks {
                if self.is_in_charge(frame.publisher, rank) {
                    self.begin(rank, true);
                }
            }
        }
        let [fed, with_hole] = self.feed(frame, (whole, lost), since);
        if lost > 0 {
            // These took no event, so that nothing else shows what was lost.
            for &rank in ranks.union(&fed).filter(|rank| !with_hole.contains(rank)) {
                if self.is_in_charge(frame.publisher, rank) {
                    self.hole(rank, lost);
                }
            }
        }
        self.publishers.get_mut(&frame.publisher).unwrap().ranks.extend(fed);
    }

    /// Hands a frame's events to their ranks. Returns those that admitted any, and those that took any. So many frames are lost in
    /// front of it.
    fn feed(&mut self, frame: &FrameSpec, (whole, lost): (bool, u64), since: u64) -> [BTreeSet<Rank>; 2] {
        let only = self.publishers[&frame.publisher].announced.map(|announced| rank(announced.worker));
        let (mut fed, mut with_hole) = (BTreeSet::new(), BTreeSet::new());
        for event in &frame.events {
            let rank = rank(event.worker);
            if only.is_some_and(|only| only != rank) {
                continue;
            }
            self.meet(rank);
            if !self.admits(rank, frame.publisher, whole && event.id == 1, since) {
                continue;
            }
            fed.insert(rank);
            let lost = if with_hole.contains(&rank) { 0 } else { lost };
            if self.take_number(rank, event.id, lost) {
                with_hole.insert(rank);
                self.apply(rank, &event.event);
                let known = self.of(rank);
                known.last_event_ms = Some(since);
                known.in_order_ms = known.in_order_ms.max(Some(since));
            }
        }
        [fed, with_hole]
    }

    pub(super) fn unreadable_frame(&mut self, publisher: Option<u64>) {
        let Some((id, known)) = publisher.and_then(|id| Some((id, self.publishers.get_mut(&id)?))) else {
            self.doubted_ms = Some(self.now_ms);
            return;
        };
        if !known.ranks.is_empty() || known.last.is_some() || known.announced.is_some() {
            self.lose_frames(id, 1);
        }
    }

    /// So many frames of a publisher, the next ones, are lost.
    pub(super) fn lose_frames(&mut self, id: u64, lost: u64) {
        let known = self.publishers.get_mut(&id).unwrap();
        known.unreadable += lost;
        known.whole = false;
        for rank in known.ranks.clone() {
            if self.is_in_charge(id, rank) {
                self.of(rank).unreadable += lost;
                self.hole(rank, lost);
            }
        }
    }

    pub(super) fn is_in_charge(&self, publisher: u64, rank: Rank) -> bool {
        self.ranks[&rank].publishers.last().is_some_and(|&(id, _)| id == publisher)
    }

    /// Whether a publisher's event counts for a rank. A publisher that was not heard before takes over.
    fn admits(&mut self, rank: Rank, publisher: u64, starts: bool, now_ms: u64) -> bool {
        let known = self.of(rank);
        let position = known.publishers.iter().position(|&(id, _)| id == publisher);
        let Some(position) = position else {
            known.publishers.push((publisher, now_ms));
            (known.changed_ms, known.conflict) = (now_ms, false);
            self.begin(rank, starts);
            return true;
        };
        let in_charge = position + 1 == known.publishers.len();
        if in_charge && !known.conflict {
            known.publishers[position].1 = now_ms;
            if known.state.is_none() {
                self.begin(rank, starts);
            }
            return true;
        }
        if !in_charge {
            known.publishers[position].1 = now_ms;
        }
        if !known.conflict && now_ms < known.changed_ms + LATE_MS {
            return false;
        }
        known.publishers[position].1 = now_ms;
        let others = known.publishers.iter().filter(|&&(id, _)| id != publisher);
        known.conflict = others.clone().any(|&(_, heard)| now_ms < heard + SILENT_MS);
        if known.conflict {
            self.lose(rank);
            return false;
        }
        let heard = known.publishers.remove(position);
        known.publishers.push(heard);
        known.changed_ms = now_ms;
        self.begin(rank, starts);
        true
    }
}
