//! The slow, obvious reference of what is known: for every rank its life, its state and what waits, straight from the
//! tables of docs/freshness.md, over the [`Model`] of blocks. It shares nothing with kvtide but the vocabulary.

mod dynamo;
mod engine;
mod index;

use std::collections::BTreeMap;

use kvtide_radix::{Copies, Event, Rank, RankSettings, Tier};

use crate::{
    Model,
    vectors::{BLOCK_SIZE, BatchSpec, EventSpec, Expected, Kind, State, Step, StreamSpec, prompt, rank},
};
use dynamo::Publisher;
use index::AskedIndex;

/// One stream's ranks.
pub struct Fleet {
    stream: StreamSpec,
    now_ms: u64,
    blocks: Model,
    ranks: BTreeMap<Rank, Known>,
    publishers: BTreeMap<u64, Publisher>,
    asked: Option<Asked>,
    asked_index: Option<AskedIndex>,
    /// It is proven that frames arrive.
    followed: bool,
    looked_ms: u64,
    /// When a frame came of which nobody knows whose it was.
    doubted_ms: Option<u64>,
}

/// What is known of a rank.
#[derive(Default)]
struct Known {
    /// None: unknown.
    state: Option<State>,
    generation: u64,
    last: Option<u64>,
    missing: u64,
    lower_tier_used: bool,
    last_event_ms: Option<u64>,
    /// What was lost before then has shown.
    in_order_ms: Option<u64>,
    verified_ms: Option<u64>,
    /// The last batch taken, whole.
    last_batch: Option<BatchSpec>,
    /// When the newest batch was published and taken.
    newest: Option<(u64, u64)>,
    /// How much had ever had to wait for a parent or a name, and when.
    parked: Vec<(u64, u64)>,
    /// Since when it waits for an answer, and what has come meanwhile, and when.
    recovery: Option<(u64, Vec<(u64, BatchSpec)>)>,
    /// It waits for what its worker tells.
    awaits_index: bool,
    /// It waits though nothing is known to be missing.
    unproven: bool,
    /// How often the connection was made anew.
    connections: u64,
    /// Publishers that spoke for it, and when: the last one that was in charge stands last.
    publishers: Vec<(u64, u64)>,
    changed_ms: u64,
    conflict: bool,
    /// Frames that did not decode since the last event.
    unreadable: u64,
}

/// A question to an engine.
struct Asked {
    generation: u64,
    last_batch: Option<BatchSpec>,
    connections: u64,
    at_ms: u64,
}

impl Known {
    /// It is known that nothing was published so far.
    fn is_silent(&self) -> bool {
        self.state == Some(State::Complete) && self.last_event_ms.is_none()
    }
}

impl Fleet {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(stream: &StreamSpec) -> Fleet {
        let blocks = Model::new(BLOCK_SIZE, stream.parked_blocks.unwrap_or(65_536));
        let (ranks, publishers) = (BTreeMap::new(), BTreeMap::new());
        Fleet {
            stream: stream.clone(),
            now_ms: 0,
            blocks,
            ranks,
            publishers,
            asked: None,
            asked_index: None,
            followed: false,
            looked_ms: 0,
            doubted_ms: None,
        }
    }

    /// Plays one step.
    pub fn play(&mut self, step: &Step) {
        match step {
            Step::Batch(batch) => self.batch(batch),
            Step::Ask => self.ask(),
            Step::Answer(batches) => self.answer(batches),
            Step::Frame(frame) => self.frame(frame),
            Step::UnreadableFrame { publisher } => self.unreadable_frame(*publisher),
            Step::Announce(announced) => self.announce(*announced),
            Step::Withdraw { publisher } => self.withdraw(*publisher),
            Step::AskIndex { publisher, wanted } => {
                let got = self.ask_index(*publisher);
                assert_eq!(got, *wanted, "the reference wants that of publisher {publisher}");
            }
            Step::Index(answer) => self.index(answer),
            Step::Events { worker, first_id, events } => self.events(rank(*worker), *first_id, events),
            Step::Verify { ago, doubted_ago } => {
                self.verify(self.now_ms - ago, doubted_ago.map(|ago| self.now_ms - ago));
            }
            Step::Reconnected => self.reconnected(),
            Step::Wait(ms) => {
                self.now_ms += ms;
                self.frames_overdue();
                self.answers_overdue();
                self.indexes_overdue();
                self.expire();
            }
            Step::Expect(_) => {}
        }
    }

    /// What is known of a worker now.
    #[must_use]
    pub fn known(&self, worker: u64) -> Expected {
        let rank = rank(worker);
        let nothing = Expected { worker, ..Expected::default() };
        let Some(known) = self.ranks.get(&rank) else { return nothing };
        let recovers = known.recovery.is_some() || known.awaits_index;
        let state = if recovers { State::Recovering } else { known.state.unwrap_or(State::Unknown) };
        let reach = self.blocks.reach(rank, &prompt()).map(|tokens| tokens / BLOCK_SIZE);
        let waiting = known.recovery.iter().flat_map(|(_, waiting)| waiting);
        let early = self.publishers.values().flat_map(|publisher| publisher.early.values());
        let early = early.flat_map(|(_, frame)| &frame.events).filter(|event| event.worker == worker);
        Expected {
            knowledge: Some(state),
            conflict: known.conflict,
            generation: known.generation,
            last: known.last,
            missing: known.missing,
            reach: (state != State::Unknown).then_some([reach[0], reach[1]]),
            pending: waiting.map(|(_, batch)| self.heard(&batch.events) as u64).sum::<u64>()
                + early.count() as u64,
            verified: known.verified_ms.map(|verified| self.now_ms - verified),
            ..nothing
        }
    }

    /// Makes a rank known, of which nothing is known yet.
    fn meet(&mut self, rank: Rank) {
        if !self.ranks.contains_key(&rank) {
            let engine = self.stream.kind == Kind::Engine;
            let copies = if engine { Copies::Counted } else { Copies::Set };
            let recent_names = if engine { 1024 } else { 0 };
            self.blocks.join(rank, RankSettings { copies, recent_names, ..RankSettings::default() });
            self.ranks.insert(rank, Known::default());
        }
    }

    fn of(&mut self, rank: Rank) -> &mut Known {
        self.ranks.get_mut(&rank).unwrap()
    }

    /// A new life: nothing of the old one is left.
    fn begin(&mut self, rank: Rank, whole: bool) {
        self.blocks.forget(rank);
        let known = self.of(rank);
        *known = Known {
            state: Some(if whole { State::Complete } else { State::Partial }),
            generation: known.generation + 1,
            recovery: known.recovery.take(),
            publishers: std::mem::take(&mut known.publishers),
            parked: std::mem::take(&mut known.parked),
            changed_ms: known.changed_ms,
            connections: known.connections,
            ..Known::default()
        };
    }

    /// Something is lost for good.
    fn hole(&mut self, rank: Rank, missing: u64) {
        let keep = self.stream.keep;
        let known = self.of(rank);
        known.missing += missing;
        if known.state.is_none() {
            return;
        }
        known.state = Some(if keep { State::Gap } else { State::Partial });
        if !keep {
            self.blocks.forget(rank);
        }
    }

    /// Nothing that is known of a rank can be trusted.
    fn lose(&mut self, rank: Rank) {
        self.blocks.forget(rank);
        self.of(rank).state = None;
    }

    fn apply(&mut self, rank: Rank, event: &EventSpec) {
        let now_ms = self.now_ms;
        let known = self.of(rank);
        known.last_event_ms = Some(now_ms);
        let Some(event) = event.event(self.stream.kind) else { return };
        let parked = self.blocks.parked_blocks(rank);
        self.blocks.apply(rank, &event);
        let names = if let Event::Stored(stored) = &event { stored.blocks.len() } else { 0 };
        let limit = self.stream.parked_blocks.unwrap_or(65_536);
        let known = self.of(rank);
        match &event {
            // More than may wait: the oldest is dropped, which the model does not count.
            Event::Stored(stored) => {
                known.lower_tier_used |= stored.layer.tier() != Tier::Gpu;
                let unplaced = stored.parent.is_some() && parked + names > limit;
                if unplaced && known.state == Some(State::Complete) {
                    self.hole(rank, 0);
                }
            }
            Event::Removed(removed) => known.lower_tier_used |= removed.layer.tier() != Tier::Gpu,
            Event::Cleared => {
                known.state = Some(if known.lower_tier_used { State::Partial } else { State::Complete });
            }
        }
    }

    fn events(&mut self, rank: Rank, first_id: Option<u64>, events: &[EventSpec]) {
        self.meet(rank);
        if self.of(rank).state.is_none() {
            self.begin(rank, first_id == Some(1));
        }
        let known = self.of(rank);
        if first_id.is_none() && known.state == Some(State::Complete) {
            known.state = Some(State::Partial);
        }
        for (index, event) in (0..).zip(events) {
            if first_id.is_none_or(|first| self.take_number(rank, first + index, 0)) {
                self.apply(rank, event);
                self.of(rank).in_order_ms = Some(self.now_ms);
            }
        }
    }

    /// Takes an event's number: whether it is new. What is left out is a hole, and so are frames that are known to be
    /// lost in front of it.
    fn take_number(&mut self, rank: Rank, number: u64, lost: u64) -> bool {
        let known = self.of(rank);
        let last = known.last;
        if last.is_some_and(|last| number <= last) {
            return false;
        }
        known.last = Some(number);
        let missing = last.map_or(0, |last| number - last - 1);
        let unreadable = std::mem::take(&mut known.unreadable);
        if missing > 0 && unreadable > 0 && lost == 0 {
            // The hole is made already; it lost more than one event.
            known.missing += missing.saturating_sub(unreadable);
        } else if missing > 0 || lost > 0 {
            self.hole(rank, if missing > 0 { missing } else { lost });
        }
        true
    }

    /// Events of an engine's batch that its decoder hands on.
    fn heard(&self, events: &[EventSpec]) -> usize {
        events.iter().filter(|event| event.event(self.stream.kind).is_some()).count()
    }

    /// What waits for a parent or a name is looked at every second, and dropped when it has been seen a minute ago.
    fn expire(&mut self) {
        if self.now_ms < self.looked_ms + 1000 {
            return;
        }
        self.looked_ms = self.now_ms;
        for rank in self.ranks.keys().copied().collect::<Vec<_>>() {
            let (now_ms, arrivals) = (self.now_ms, self.blocks.arrivals(rank));
            let waiting = self.blocks.parked_blocks(rank);
            let known = self.of(rank);
            if waiting == 0 {
                known.parked.clear();
                continue;
            }
            if known.parked.last().is_none_or(|&(_, last)| last != arrivals) {
                known.parked.push((now_ms, arrivals));
            }
            let old = known.parked.iter().take_while(|&&(when, _)| when + 60_000 <= now_ms).count();
            let Some((_, before)) = known.parked.drain(..old).next_back() else { continue };
            let [blocks, names] = self.blocks.expire(rank, before);
            let complete = self.of(rank).state == Some(State::Complete);
            if blocks > 0 && complete {
                self.hole(rank, 0);
            } else if names > 0 && complete {
                self.of(rank).state = Some(State::Partial);
            }
        }
    }

    fn verify(&mut self, until_ms: u64, doubted_ms: Option<u64>) {
        let doubted_ms = doubted_ms.max(self.doubted_ms);
        let early: Vec<u64> =
            self.publishers.iter().filter(|(_, one)| !one.early.is_empty()).map(|(&id, _)| id).collect();
        for known in self.ranks.values_mut() {
            let in_charge = known.publishers.last().map(|&(id, _)| id);
            let waits = known.recovery.is_some() || known.awaits_index;
            let incomplete = in_charge.is_some_and(|id| early.contains(&id)) || waits;
            let in_order = doubted_ms.is_none_or(|doubted| known.in_order_ms > Some(doubted));
            if known.state.is_some() && !incomplete && in_order {
                known.verified_ms = known.verified_ms.max(Some(until_ms));
            }
        }
        self.followed = true;
        if let Some(doubted_ms) = doubted_ms {
            self.doubt_announced(doubted_ms);
        }
    }
}
