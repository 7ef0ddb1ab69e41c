//! Publishers that discovery announces, and what their workers' own indexes tell.

use kvtide_radix::Rank;

use super::{Fleet, Known, dynamo::Publisher};
use crate::vectors::{AnnouncedSpec, IndexSpec, RankEvent, State, WantedSpec, rank};

/// Whoever waits for an answer waits for so long; so do frames for an announcement.
const PATIENCE_MS: u64 = 10_000;
/// An answer that is on its way has so long.
const ANSWER_MS: u64 = 60_000;

/// What is missing of a publisher.
#[derive(Clone)]
pub(super) struct Missing {
    /// Frames up to this one; none where it is only not known whether any is.
    up_to: Option<u64>,
    /// The last frame taken before.
    seen: Option<u64>,
    since_ms: u64,
    until_ms: u64,
    wants_all: bool,
}

/// A question to a worker.
pub(super) struct AskedIndex {
    publisher: u64,
    generation: u64,
    taken: Option<u64>,
    at_ms: u64,
}

impl Publisher {
    fn keeps_index(&self) -> bool {
        self.announced.is_some_and(|announced| !announced.live_only)
    }
}

impl Fleet {
    pub(super) fn is_unannounced(&self, id: u64) -> bool {
        let announced = self.publishers.get(&id).is_some_and(|publisher| publisher.announced.is_some());
        self.stream.announced && !announced
    }

    pub(super) fn announce(&mut self, announced: AnnouncedSpec) {
        let id = announced.publisher;
        self.meet(rank(announced.worker));
        self.publishers.entry(id).or_default().announced = Some(announced);
        self.settle(announced.worker);
        self.take_what_is_in_turn(id);
    }

    fn take_what_is_in_turn(&mut self, id: u64) {
        while let Some((&number, (since, frame))) = self.publishers[&id].early.first_key_value() {
            if self.publishers[&id].is_early(frame) {
                break;
            }
            let (since, frame) = (*since, frame.clone());
            self.publishers.get_mut(&id).unwrap().early.remove(&number);
            self.take_frame(&frame, since);
            self.take_those_in_turn(id, number + 1);
        }
    }

    pub(super) fn withdraw(&mut self, id: u64) {
        if self.is_unannounced(id) {
            return;
        }
        let Some(announced) = self.publishers.remove(&id).and_then(|publisher| publisher.announced) else {
            return;
        };
        let rank = rank(announced.worker);
        if self.is_in_charge(id, rank) {
            let known = self.of(rank);
            known.publishers.clear();
            known.changed_ms = 0;
            self.await_life(rank);
        }
        self.settle(announced.worker);
    }

    fn settle(&mut self, worker: u64) {
        let of_worker =
            |publisher: &Publisher| publisher.announced.is_some_and(|announced| announced.worker == worker);
        let announced: Vec<u64> =
            self.publishers.iter().filter(|(_, one)| of_worker(one)).map(|(&id, _)| id).collect();
        let [only] = announced[..] else { return };
        let (now_ms, rank) = (self.now_ms, rank(worker));
        let known = self.of(rank);
        let current = known.publishers.last().map(|&(id, _)| id);
        if known.conflict || current.is_some_and(|current| current != only) {
            if current != Some(only) {
                known.publishers.retain(|&(id, _)| id != only);
                known.publishers.push((only, now_ms));
                known.changed_ms = now_ms;
            }
            known.conflict = false;
            self.await_life(rank);
        } else if current.is_none() {
            known.publishers.push((only, 0));
        }
        let known = self.of(rank);
        let unproven = known.state.is_none() || known.awaits_index;
        let publisher = self.publishers.get_mut(&only).unwrap();
        if unproven && publisher.keeps_index() && publisher.missing.is_none() {
            let seen = publisher.last;
            let missing =
                Missing { up_to: None, seen, since_ms: now_ms, until_ms: u64::MAX, wants_all: false };
            publisher.missing = Some(missing);
        }
    }

    /// Nothing is known of the rank's publisher yet.
    fn await_life(&mut self, rank: Rank) {
        self.blocks.forget(rank);
        let known = self.of(rank);
        *known = Known {
            generation: known.generation,
            publishers: std::mem::take(&mut known.publishers),
            parked: std::mem::take(&mut known.parked),
            changed_ms: known.changed_ms,
            ..Known::default()
        };
    }

    /// Frames are missing up to that one: whether the worker can be asked for what they said.
    pub(super) fn want(&mut self, id: u64, up_to: u64) -> bool {
        let now_ms = self.now_ms;
        let publisher = self.publishers.get_mut(&id).unwrap();
        if !publisher.keeps_index() {
            return false;
        }
        if let Some(missing) = publisher.missing.as_mut().filter(|missing| missing.up_to.is_some()) {
            missing.up_to = missing.up_to.max(Some(up_to));
            return true;
        }
        let rank = rank(publisher.announced.unwrap().worker);
        if self.ranks[&rank].conflict || !self.is_in_charge(id, rank) {
            return false;
        }
        self.of(rank).awaits_index = true;
        let publisher = self.publishers.get_mut(&id).unwrap();
        publisher.missing = Some(Missing {
            up_to: Some(up_to),
            seen: publisher.last,
            since_ms: now_ms,
            until_ms: now_ms + PATIENCE_MS,
            wants_all: false,
        });
        true
    }

    pub(super) fn waits_for_answer(&self, id: u64) -> bool {
        let missing = self.publishers.get(&id).and_then(|publisher| publisher.missing.as_ref());
        missing.is_some_and(|missing| missing.up_to.is_some())
    }

    /// Frames have come: whether nothing is missed any more of what was.
    pub(super) fn look_for_missing(&mut self, id: u64) {
        let publisher = self.publishers.get_mut(&id).unwrap();
        let over = publisher.missing.as_ref().is_none_or(|missing| match missing.up_to {
            Some(up_to) => publisher.last >= Some(up_to),
            None => publisher.last > missing.seen,
        });
        if over {
            publisher.missing = None;
            self.end_waiting(id);
        }
    }

    fn end_waiting(&mut self, id: u64) {
        let Some(announced) = self.publishers[&id].announced else { return };
        if let Some(known) = self.ranks.get_mut(&rank(announced.worker)) {
            known.awaits_index = false;
        }
    }

    /// Where something may have been lost since a rank's newest event, its worker is asked.
    pub(super) fn doubt_announced(&mut self, doubted_ms: u64) {
        for id in self.publishers.keys().copied().collect::<Vec<_>>() {
            let (now_ms, publisher) = (self.now_ms, &self.publishers[&id]);
            let Some(announced) = publisher.announced.filter(|_| publisher.keeps_index()) else { continue };
            let (rank, missing, seen) = (rank(announced.worker), publisher.missing.is_some(), publisher.last);
            if missing || !self.is_in_charge(id, rank) {
                continue;
            }
            let known = self.of(rank);
            // In a conflict too: nothing is known then anyway.
            let unbegun = known.state.is_none() && !known.conflict;
            if unbegun || known.in_order_ms > Some(doubted_ms) {
                continue;
            }
            known.awaits_index = true;
            let until_ms = now_ms + PATIENCE_MS;
            let missing = Missing { up_to: None, seen, since_ms: now_ms, until_ms, wants_all: false };
            self.publishers.get_mut(&id).unwrap().missing = Some(missing);
        }
    }

    /// What is wanted of a publisher's worker.
    pub(super) fn ask_index(&mut self, id: u64) -> WantedSpec {
        let now_ms = self.now_ms;
        self.asked_index = None;
        if !self.followed || !self.publishers.get(&id).is_some_and(Publisher::keeps_index) {
            return WantedSpec::Nothing;
        }
        let rank = rank(self.publishers[&id].announced.unwrap().worker);
        let in_charge = self.is_in_charge(id, rank);
        let (generation, last) = (self.ranks[&rank].generation, self.ranks[&rank].last);
        let missing = self.publishers.get_mut(&id).unwrap().missing.as_mut();
        let Some(missing) = missing.filter(|_| in_charge) else { return WantedSpec::Nothing };
        missing.until_ms = missing.until_ms.max(now_ms + ANSWER_MS);
        self.asked_index = Some(AskedIndex { publisher: id, generation, taken: last, at_ms: now_ms });
        if missing.wants_all { WantedSpec::All } else { WantedSpec::From(last.map_or(1, |last| last + 1)) }
    }

    pub(super) fn index(&mut self, answer: &IndexSpec) {
        let Some(AskedIndex { publisher: id, generation, taken, at_ms }) = self.asked_index.take() else {
            return;
        };
        let Some(publisher) = self.publishers.get_mut(&id) else { return };
        let Some(missing) = &mut publisher.missing else { return };
        if missing.until_ms < u64::MAX {
            missing.until_ms = missing.since_ms + PATIENCE_MS;
        }
        let up_to = missing.up_to;
        let rank = rank(publisher.announced.unwrap().worker);
        if !self.is_in_charge(id, rank) || self.ranks[&rank].generation != generation {
            return;
        }
        if newest(answer).is_some_and(|newest| Some(newest) < taken) {
            self.await_another(id, rank);
            return;
        }
        if !self.tells(id, rank, answer) {
            let missing = self.publishers.get_mut(&id).unwrap().missing.as_mut().unwrap();
            missing.wants_all |= *answer != IndexSpec::Failed;
            return;
        }
        let told = self.take_index(rank, answer);
        let publisher = self.publishers.get_mut(&id).unwrap();
        (publisher.told_ms, publisher.taken_before_told) = (at_ms, publisher.last);
        publisher.last = publisher.last.max(up_to);
        (publisher.told, publisher.unreadable, publisher.missing) = (Some(told), 0, None);
        publisher.ranks.insert(rank);
        let known = self.of(rank);
        known.last = Some(told);
        (known.unreadable, known.awaits_index) = (0, false);
        known.verified_ms = known.verified_ms.max(Some(at_ms));
        known.in_order_ms = known.in_order_ms.max(Some(at_ms));
        self.take_what_is_in_turn(id);
    }

    /// What has come was another process's than the worker that answers.
    fn await_another(&mut self, id: u64, rank: Rank) {
        let (publisher, since_ms) = (self.publishers.get_mut(&id).unwrap(), self.now_ms);
        publisher.start_again();
        publisher.missing =
            Some(Missing { up_to: None, seen: None, since_ms, until_ms: u64::MAX, wants_all: false });
        self.await_life(rank);
    }

    /// Whether an answer says all that is missing, and can be.
    fn tells(&self, id: u64, rank: Rank, answer: &IndexSpec) -> bool {
        let last = self.ranks[&rank].last;
        let next = last.map_or(1, |last| last + 1);
        let (fits, newest) = match answer {
            IndexSpec::Events(events) => {
                let [Some(first), Some(newest)] = [events.first(), events.last()] else { return false };
                let numbers: Vec<u64> = events.iter().map(|event| event.id).collect();
                let whole = numbers == (first.id..first.id + events.len() as u64).collect::<Vec<_>>();
                let clears = first.event == crate::vectors::EventSpec::Cleared([]);
                (whole && (first.id <= next || clears), newest.id)
            }
            IndexSpec::Dump { last: held, behind, .. } => {
                let newest = behind.last().map_or(*held, |event| event.id);
                let numbers: Vec<u64> = behind.iter().map(|event| event.id).collect();
                (Some(newest) >= last && numbers == (held + 1..=newest).collect::<Vec<_>>(), newest)
            }
            IndexSpec::Nothing { last: newest } => (Some(*newest) == last, *newest),
            IndexSpec::Failed => return false,
        };
        let first = self.publishers[&id].early.first_key_value();
        let waits = first.and_then(|(_, (_, frame))| frame.events.first()).map(|event| event.id);
        fits && waits.is_none_or(|waits| waits <= newest + 1)
    }

    /// Takes what an answer tells. Returns the last event that it tells of.
    fn take_index(&mut self, rank: Rank, answer: &IndexSpec) -> u64 {
        let anew = self.ranks[&rank].state.is_none();
        match answer {
            IndexSpec::Events(events) => {
                let next = self.ranks[&rank].last.map_or(1, |last| last + 1);
                let cut = events[0].id > next;
                if anew {
                    self.begin(rank, !cut);
                }
                self.of(rank).lower_tier_used |= cut;
                for RankEvent { event, .. } in events.iter().filter(|event| event.id >= next) {
                    self.apply(rank, event);
                }
                events[events.len() - 1].id
            }
            IndexSpec::Nothing { last } => *last,
            IndexSpec::Dump { last, holds, behind } => {
                if anew {
                    self.begin(rank, false);
                }
                self.blocks.forget(rank);
                for event in holds.iter().filter(|_| *last > 0) {
                    self.apply(rank, event);
                }
                self.of(rank).state = Some(if *last == 0 { State::Complete } else { State::Partial });
                for RankEvent { event, .. } in behind {
                    self.apply(rank, event);
                }
                behind.last().map_or(*last, |event| event.id)
            }
            IndexSpec::Failed => 0,
        }
    }

    /// Nobody has told in time, or no announcement has come.
    pub(super) fn indexes_overdue(&mut self) {
        let now_ms = self.now_ms;
        for id in self.publishers.keys().copied().collect::<Vec<_>>() {
            let publisher = self.publishers.get_mut(&id).unwrap();
            if publisher.missing.as_ref().is_some_and(|missing| missing.until_ms <= now_ms) {
                let up_to = publisher.missing.take().unwrap().up_to;
                while !self.publishers[&id].early.is_empty() {
                    self.take_earliest(id);
                }
                let lost = up_to
                    .zip(self.publishers[&id].last)
                    .map_or(0, |(up_to, last)| up_to.saturating_sub(last));
                if lost > 0 {
                    self.lose_frames(id, lost);
                }
                self.end_waiting(id);
            }
            let overdue = |early: &(u64, _)| early.0 + PATIENCE_MS <= now_ms;
            if self.is_unannounced(id) && self.publishers[&id].early.values().any(overdue) {
                self.publishers.get_mut(&id).unwrap().early.clear();
            }
        }
    }
}

/// The newest event that a worker has taken.
fn newest(answer: &IndexSpec) -> Option<u64> {
    match answer {
        IndexSpec::Events(events) => events.last().map(|event| event.id),
        IndexSpec::Dump { last, behind, .. } => Some(behind.last().map_or(*last, |event| event.id)),
        IndexSpec::Nothing { last } => Some(*last),
        IndexSpec::Failed => None,
    }
}
