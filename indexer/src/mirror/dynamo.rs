//! Dynamo's frames: a publisher is a life of a rank, its frames are numbered, and so are its events.

use std::collections::BTreeSet;

use kvtide_events::{Cursor, CutFrame, Frame, Step};
use kvtide_radix::{Rank, RankSettings, Update};
use serde::{Deserialize, Serialize};

use super::{
    Announced, Applied, Mirror, Refusal, Source, Times, claims::Claim, early::EarlyFrame, handover::Missing,
    rank::RankStream, ranks::Ranks, saved::SavedPublisher,
};

/// Publishers that are remembered before those are let go to which no rank belongs now.
const PUBLISHERS: usize = 65_536;

/// Where a publisher's frames stand.
#[derive(Default)]
pub(crate) struct Publisher {
    pub(super) frames: Cursor,
    /// Every frame from number 0 on has been seen.
    whole: bool,
    pub(super) last_published_at_ms: u64,
    /// Frames behind the last one taken that came but did not decode. Their holes are made already.
    unreadable: u64,
    /// Ranks that it has fed. It may have lost them to another publisher since.
    pub(super) ranks: BTreeSet<Rank>,
    /// What is missing that another kvtide may have seen, or its worker can tell.
    pub(super) missing: Option<Missing>,
    /// What discovery says of it.
    pub(super) announced: Option<Announced>,
    /// What its worker's own index has told last.
    told: Option<ToldByIndex>,
}

/// What a worker's own index has told: frames that were published before it was asked are in it, and later ones go on behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct ToldByIndex {
    /// The last event of it: a frame that goes on behind it is in turn, whatever its number.
    up_to: u64,
    /// By the wall, when the worker was asked: what is published later may be another life's.
    at_ms: u64,
    /// The last frame that had been taken then: those up to it were not told, they had come.
    taken_before: Option<u64>,
}

/// A frame, and how it stands to its publisher's ones before it.
struct Incoming<'a> {
    frame: &'a Frame,
    source: Source,
    times: Times,
    /// Frames missing in front of it.
    lost: u64,
    /// Every frame from number 0 on has been seen.
    whole: bool,
    /// The one rank that it may be about, if that is known.
    only: Option<Rank>,
}

/// How a frame's number continues its publisher's.
enum Continuity {
    /// After so many lost frames, mostly none.
    Behind { lost: u64 },
    /// The same publisher again, from its beginning: its ranks begin a new life.
    Restarted,
    /// Taken before.
    Repeated,
    /// A number that was taken before, and yet published later than all that was: the publisher has started again, and its
    /// beginning was missed.
    Contradicted,
    /// Others must come first.
    Early,
}

impl Mirror {
    /// Applies a frame in its turn, and then those that have waited for it. One that came ahead of its turn waits, and
    /// nothing is applied yet.
    pub(crate) fn apply_frame(&mut self, source: Source, frame: Frame, bytes: usize) -> Applied {
        let arrived_ms = self.steady_ms();
        let publisher = frame.publisher_id;
        let incoming = EarlyFrame { source, frame, bytes, arrived_ms, pending: None };
        if self.is_unannounced(source, publisher) {
            return self.hold(incoming);
        }
        let mut applied = Applied::default();
        self.make_room_for(publisher);
        let state = self.publishers.entry(publisher).or_default();
        let missing = state.missing.clone();
        match state.stands(&incoming.frame) {
            Continuity::Early => {
                // Without room to wait, what is missing in front of it is lost at once.
                if let Some(early) = self.early.park(incoming, &self.pending) {
                    self.apply_in_turn(early, &mut applied);
                }
                while let Some(first) = self.early.crowded(publisher)
                    && !self.want(source, publisher, first - 1, &mut applied)
                    && let Some(early) = self.early.take_first(publisher)
                {
                    self.apply_in_turn(early, &mut applied);
                }
                if self.early.is_full(publisher)
                    && let Some((_, given_up)) = self.give_up_on(publisher)
                {
                    applied.add(given_up);
                }
            }
            Continuity::Restarted => {
                self.early.forget(publisher);
                self.apply_in_turn(incoming, &mut applied);
            }
            Continuity::Contradicted => {
                self.forget_former(publisher, incoming.frame.published_at_ms);
                self.apply_in_turn(incoming, &mut applied);
            }
            Continuity::Behind { .. } => {
                if incoming.frame.sequence == 0 {
                    self.forget_former(publisher, incoming.frame.published_at_ms);
                }
                self.apply_in_turn(incoming, &mut applied);
            }
            Continuity::Repeated => self.apply_in_turn(incoming, &mut applied),
        }
        if let Some(missing) = missing {
            self.look_for_missing(publisher, missing, &mut applied);
        }
        applied
    }

    /// Applies what has waited long enough for frames in front of it, which are lost now, unless others can be asked for
    /// them. Returns what that did, by source.
    pub(super) fn apply_due(&mut self) -> Vec<(u32, Applied)> {
        let now_ms = self.clock.steady_ms();
        let mut all = Vec::new();
        let may_give_up = |mirror: &Mirror, id| {
            let source = mirror.early.first(id).map(|early| early.source);
            !mirror.is_wanted(id) && source.is_some_and(|source| !mirror.is_unannounced(source, id))
        };
        while let Some((id, source, first)) = self.early.due(now_ms, |id| may_give_up(self, id)) {
            let mut applied = Applied::default();
            if !self.want(source, id, first - 1, &mut applied)
                && let Some(early) = self.early.take_first(id)
            {
                self.apply_in_turn(early, &mut applied);
            }
            all.push((source.id, applied));
        }
        all
    }

    /// Applies what has waited of a publisher and does not have to any more.
    pub(super) fn take_those_in_turn(&mut self, id: u64, applied: &mut Applied) {
        while let Some(early) = self.early.first(id)
            && let Some(publisher) = self.publishers.get(&id)
            && !matches!(publisher.stands(&early.frame), Continuity::Early)
            && let Some(first) = self.early.take_first(id)
        {
            self.apply_in_turn(first, applied);
        }
    }

    /// Applies a frame, whatever is missing in front of it, and those that follow it without a gap.
    pub(super) fn apply_in_turn(&mut self, first: EarlyFrame, applied: &mut Applied) {
        let (publisher, mut sequence) = (first.frame.publisher_id, first.frame.sequence);
        let mut next = Some(first);
        while let Some(EarlyFrame { source, frame, arrived_ms, pending, .. }) = next {
            self.apply_one(source, &frame, arrived_ms, applied);
            if self.now.is_some() {
                self.to_be_seen.extend(pending);
            }
            sequence = sequence.saturating_add(1);
            next = self.early.take(publisher, sequence);
        }
    }

    fn apply_one(&mut self, source: Source, frame: &Frame, arrived_ms: u64, applied: &mut Applied) {
        // A frame that has waited is as old as its arrival: who is late is judged by that.
        let times = Times { steady_ms: arrived_ms, ..self.times(Some(frame.published_at_ms)) };
        let all_refused = !frame.events.is_empty()
            && frame.events_by_rank().all(|(rank, _)| self.ranks.is_refused(rank, source));
        let publisher = self.publishers.entry(frame.publisher_id).or_default();
        let (lost, restarted) = match publisher.take(frame) {
            Continuity::Behind { lost } => (lost, false),
            Continuity::Restarted => (0, true),
            Continuity::Early | Continuity::Repeated => {
                applied.repeated += 1;
                return;
            }
            Continuity::Contradicted => {
                applied.repeated += 1;
                publisher.whole = false;
                publisher.last_published_at_ms = frame.published_at_ms;
                applied.add(self.lose_ranks(frame.publisher_id, |stream, update, applied| {
                    stream.hole(update, 1, applied);
                }));
                return;
            }
        };
        if all_refused && lost == 0 && !restarted {
            applied.refuse(Refusal::OtherSource, frame.events.len());
            return;
        }
        let only = publisher.announced.map(|announced| announced.rank);
        let incoming = Incoming { frame, source, times, lost, whole: publisher.whole, only };
        let ranks = &mut self.ranks;
        self.writer.update(|update| {
            if restarted {
                for &rank in &publisher.ranks {
                    if let Some(stream) = fed_by(ranks, rank, frame.publisher_id) {
                        stream.begin_life(update, true, applied);
                        stream.mark(update, times);
                    }
                }
            }
            incoming.feed(&mut publisher.ranks, ranks, update, applied);
        });
    }

    /// A frame came that does not decode. If it says whose it was, it is missing to that publisher's ranks at once;
    /// else the publisher's next frame shows it.
    pub(crate) fn lose_frame(&mut self, source: Source, cut: Option<CutFrame>) -> Applied {
        let mut applied = Applied::default();
        let known = cut.and_then(|cut| Some((cut, self.publishers.get(&cut.publisher_id)?)));
        let Some((CutFrame { publisher_id: id, sequence }, publisher)) = known else {
            // It may have been anybody's of this stream: no proof counts before something comes in order.
            self.doubted_ms.insert(source.id, self.steady_ms());
            return applied;
        };
        let is_here = |number| {
            let waits = self.early.numbers_of(id).any(|(other, _)| other == number);
            waits || Some(number) <= publisher.frames.last()
        };
        match sequence {
            Some(number) if is_here(number) => applied.repeated += 1,
            Some(number) if self.want(source, id, number, &mut applied) => {}
            Some(_) | None => applied.add(self.lose_frames(id, 1)),
        }
        applied
    }

    /// So many frames of a publisher, the next ones, are lost: a hole in each of its ranks.
    pub(super) fn lose_frames(&mut self, id: u64, lost: u64) -> Applied {
        if let Some(publisher) = self.publishers.get_mut(&id) {
            publisher.unreadable += lost;
            publisher.whole = false;
        }
        self.lose_ranks(id, |stream, update, applied| stream.lose_messages(update, lost, applied))
    }

    /// Something of a publisher is lost to all of its ranks.
    fn lose_ranks(
        &mut self,
        id: u64,
        lose: impl Fn(&mut RankStream, &mut Update<'_>, &mut Applied),
    ) -> Applied {
        let mut applied = Applied::default();
        let times = self.times(None);
        let Some(publisher) = self.publishers.get(&id) else { return applied };
        let ranks = &mut self.ranks;
        self.writer.update(|update| {
            for &rank in &publisher.ranks {
                if let Some(stream) = fed_by(ranks, rank, id) {
                    lose(stream, update, &mut applied);
                    stream.mark(update, times);
                }
            }
        });
        applied
    }

    /// Lets those publishers go to which no rank belongs, where there are very many. Who is retired stays known to
    /// the ranks.
    pub(super) fn make_room_for(&mut self, publisher_id: u64) {
        if self.publishers.len() >= PUBLISHERS && !self.publishers.contains_key(&publisher_id) {
            let ranks = &mut self.ranks;
            self.publishers.retain(|&id, publisher| {
                publisher.ranks.retain(|&rank| fed_by(ranks, rank, id).is_some());
                !publisher.ranks.is_empty() || publisher.announced.is_some()
            });
        }
    }
}

/// The stream of a rank, if it belongs to that publisher now.
pub(super) fn fed_by(ranks: &mut Ranks, rank: Rank, publisher: u64) -> Option<&mut RankStream> {
    ranks.get_mut(rank).filter(|stream| stream.claims.is_current(publisher))
}

impl Incoming<'_> {
    /// Hands each event to its rank, and notes ranks that admit any as the publisher's. What is lost is a hole in all ranks of the
    /// publisher: in front of the first event that a rank takes, if there is one.
    fn feed(
        &self,
        known: &mut BTreeSet<Rank>,
        ranks: &mut Ranks,
        update: &mut Update<'_>,
        applied: &mut Applied,
    ) {
        let mut with_hole = BTreeSet::new();
        for (rank, events) in self.frame.events_by_rank() {
            if self.only.is_some_and(|only| only != rank) {
                applied.refuse(Refusal::OtherSource, events.len());
                continue;
            }
            let stream = match ranks.claim(update, rank, self.source, RankSettings::default) {
                Ok(stream) => stream,
                Err(refusal) => {
                    applied.refuse(refusal, events.len());
                    continue;
                }
            };
            let mut is_fed = false;
            for event in events {
                let starts = self.whole && event.event_id == 1;
                if !stream.admit(update, self.frame.publisher_id, starts, self.times, applied) {
                    continue;
                }
                is_fed = true;
                let lost = if with_hole.contains(&rank) { 0 } else { self.lost };
                if !stream.advance(update, event.event_id, lost, applied) {
                    continue;
                }
                if lost > 0 {
                    with_hole.insert(rank);
                }
                match &event.change {
                    Ok(change) => stream.apply(update, change, applied),
                    Err(_) => applied.ignored += 1,
                }
            }
            if is_fed {
                stream.mark(update, self.times);
                known.insert(rank);
            }
        }
        if self.lost > 0 {
            for &rank in known.difference(&with_hole) {
                if let Some(stream) = fed_by(ranks, rank, self.frame.publisher_id) {
                    stream.hole(update, self.lost, applied);
                    stream.mark(update, self.times);
                }
            }
        }
    }
}

impl Publisher {
    pub(super) fn save(&self, id: u64) -> SavedPublisher {
        let &Publisher { whole, last_published_at_ms, told, .. } = self;
        SavedPublisher { id, last: self.frames.last(), whole, last_published_at_ms, told }
    }

    pub(super) fn restored(saved: &SavedPublisher, ranks: impl Iterator<Item = Rank>) -> Publisher {
        Publisher {
            frames: Cursor::at(saved.last),
            whole: saved.whole,
            last_published_at_ms: saved.last_published_at_ms,
            told: saved.told,
            ranks: ranks.collect(),
            ..Publisher::default()
        }
    }

    /// Ranks have gone.
    pub(super) fn forget(&mut self, gone: &[Rank]) {
        self.ranks.retain(|rank| !gone.contains(rank));
        if self.missing.as_mut().is_some_and(|missing| missing.forget(gone)) {
            self.missing = None;
        }
    }

    /// Goes on where it stands with another kvtide.
    pub(super) fn go_on(&mut self, theirs: &SavedPublisher) {
        let ranks = std::mem::take(&mut self.ranks);
        *self = Publisher { announced: self.announced, ..Publisher::restored(theirs, ranks.into_iter()) };
    }

    /// Goes on behind frames, if any were missing, and an event that its worker has told, asked at that time.
    pub(super) fn go_on_behind(&mut self, frames: Option<u64>, up_to: u64, at_ms: u64) {
        let taken_before = self.frames.last();
        self.frames = Cursor::at(taken_before.max(frames));
        (self.unreadable, self.missing) = (0, None);
        self.told = Some(ToldByIndex { up_to, at_ms, taken_before });
    }

    /// Another process under the same id: nothing of it has been seen.
    pub(super) fn start_again(&mut self) {
        let (ranks, announced) = (std::mem::take(&mut self.ranks), self.announced);
        *self = Publisher { ranks, announced, ..Publisher::default() };
    }

    /// Whether its worker keeps an index of its own and can be asked.
    pub(super) fn keeps_index(&self) -> bool {
        self.announced.is_some_and(|announced| announced.keeps_index)
    }

    /// Whether the worker has told everything in front of a frame.
    fn follows_told(&self, frame: &Frame) -> bool {
        let first = frame.events.first().map(|event| event.event_id);
        self.told.zip(first).is_some_and(|(told, first)| first <= told.up_to.saturating_add(1))
    }

    /// Whether the worker has told all of a frame, which was published before that and had not come.
    fn was_told(&self, frame: &Frame) -> bool {
        let last = frame.events.last().map(|event| event.event_id);
        self.told.zip(last).is_some_and(|(told, last)| {
            let had_come = Some(frame.sequence) <= told.taken_before;
            last <= told.up_to && !had_come && frame.published_at_ms <= told.at_ms
        })
    }

    /// How a frame's number stands to those taken so far.
    fn stands(&self, frame: &Frame) -> Continuity {
        let starts = frame.sequence == 0 && frame.events.first().is_none_or(|event| event.event_id == 1);
        // The worker has told of an event 1, and this is a later one.
        let is_later = |told: ToldByIndex| told.up_to > 0 && frame.published_at_ms > told.at_ms;
        let starts_anew = starts && self.told.is_some_and(is_later);
        match self.frames.step(frame.sequence) {
            Step::First if starts_anew => Continuity::Restarted,
            Step::Repeat if self.was_told(frame) => Continuity::Repeated,
            Step::First | Step::Gap { .. } if self.follows_told(frame) => Continuity::Behind { lost: 0 },
            Step::First if frame.sequence > 0 => Continuity::Early,
            Step::First | Step::Next => Continuity::Behind { lost: 0 },
            Step::Repeat if starts && frame.published_at_ms > self.last_published_at_ms => {
                Continuity::Restarted
            }
            Step::Repeat if frame.published_at_ms > self.last_published_at_ms => Continuity::Contradicted,
            Step::Repeat => Continuity::Repeated,
            Step::Gap { missing } if missing > self.unreadable => Continuity::Early,
            Step::Gap { .. } => Continuity::Behind { lost: 0 },
        }
    }

    /// Takes a frame's number unless it is a repeat. What is missing in front of it is lost.
    fn take(&mut self, frame: &Frame) -> Continuity {
        let restarted = match self.stands(frame) {
            passed_over @ (Continuity::Repeated | Continuity::Contradicted) => return passed_over,
            Continuity::Restarted => {
                self.start_again();
                true
            }
            Continuity::Behind { .. } | Continuity::Early => false,
        };
        let unreadable = std::mem::take(&mut self.unreadable);
        let lost = match self.frames.take(frame.sequence) {
            Step::First => {
                self.whole = frame.sequence == 0;
                0
            }
            Step::Next | Step::Repeat => 0,
            Step::Gap { .. } if self.follows_told(frame) => 0,
            Step::Gap { missing } => {
                self.whole = false;
                missing.saturating_sub(unreadable)
            }
        };
        self.last_published_at_ms = self.last_published_at_ms.max(frame.published_at_ms);
        if restarted { Continuity::Restarted } else { Continuity::Behind { lost } }
    }
}

impl RankStream {
    /// Settles whether a publisher's event is for this rank, and whether it starts a new life.
    fn admit(
        &mut self,
        update: &mut Update<'_>,
        publisher: u64,
        starts: bool,
        times: Times,
        applied: &mut Applied,
    ) -> bool {
        match self.claims.claim(publisher, times.steady_ms, self.source.conflict_silence_ms) {
            Claim::Current if !self.is_unbegun() => true,
            Claim::Current | Claim::Successor => {
                self.begin_life(update, starts, applied);
                true
            }
            Claim::Late => {
                applied.repeated += 1;
                false
            }
            Claim::Conflicting => {
                self.lose(update);
                self.conflict();
                self.mark(update, times);
                applied.conflicting += 1;
                false
            }
        }
    }
}
