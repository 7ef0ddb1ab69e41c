//! What a worker's own index tells: Dynamo's workers keep their latest events, and an index of what they hold, and can be asked
//! for either.
//!
//! Events that follow the last one taken leave a rank as it was. What the index holds is a lower bound: it is not of one moment,
//! and has lost what stands behind a block that was removed.

use kvtide_events::RouterEvent;
use kvtide_radix::{Knowledge, Life, Rank, Update};

use super::{Applied, Mirror, Part, Source, dynamo::fed_by, handover::Missing, rank::RankStream};

/// Other kvtides have so long to tell before the worker is asked.
const PEERS_FIRST_MS: u64 = 1000;

/// What to ask a worker's own index for. The answer goes to [`Indexer::apply_index`](crate::Indexer::apply_index).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexRequest {
    /// The publisher whose worker it is.
    pub publisher_id: u64,
    /// The rank.
    pub rank: Rank,
    /// The first event that is wanted; none: only the whole index helps.
    pub first_event_id: Option<u64>,
    /// The last event that had been taken.
    taken: Option<u64>,
    life: Life,
    asked_at_ms: u64,
}

/// What a worker's own index answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IndexAnswer {
    /// Events in their order, from the first that was asked for up to the newest that it has taken. It may leave out what
    /// stands in front of a clear.
    Events {
        /// The events.
        events: Vec<RouterEvent>,
        /// The number of the newest.
        last_event_id: u64,
    },
    /// What it holds, and what came of it.
    Dump {
        /// Stores, and perhaps changes behind them, whose numbers mean nothing.
        holds: Vec<RouterEvent>,
        /// Events up to this one are in it, and perhaps later ones.
        last_event_id: u64,
        /// The events behind that one, up to the newest that it had taken once the stores were told: with these, nothing of what
        /// the stores may have been ahead is left.
        behind: Vec<RouterEvent>,
    },
    /// It has taken nothing newer than this.
    Nothing {
        /// The number of its newest event.
        last_event_id: u64,
    },
    /// It does not answer, or cannot.
    Failed,
}

/// An answer that fits what is known.
enum Fitting {
    Events {
        events: Vec<RouterEvent>,
        last: u64,
        /// Events in front of the first were left out, since it is a clear.
        cut: bool,
    },
    Dump {
        holds: Vec<RouterEvent>,
        last: u64,
        behind: Vec<RouterEvent>,
    },
}

impl Mirror {
    /// Publishers whose workers' own indexes can tell what is missing here.
    pub(crate) fn wanted_indexes(&self) -> Vec<Part> {
        let now_ms = self.clock.steady_ms();
        let wants = |missing: &Missing| {
            let peers_had_time = !missing.asks_peers() || missing.since_ms + PEERS_FIRST_MS <= now_ms;
            // What was published before the bus was followed may stand behind the answer.
            peers_had_time && self.followed.contains(&missing.source.id)
        };
        let publishers = self.publishers.iter().filter(|(_, publisher)| publisher.keeps_index());
        let wanted = publishers.filter(|(_, publisher)| publisher.missing.as_ref().is_some_and(wants));
        wanted.map(|(&id, _)| Part::Publisher(id)).collect()
    }

    /// What to ask a publisher's worker for now, if something is missing of it. Its ranks wait for the answer.
    pub(crate) fn index_request(&mut self, id: u64) -> Option<IndexRequest> {
        let asked_at_ms = self.clock.steady_ms();
        let publisher = self.publishers.get_mut(&id)?;
        let rank = publisher.announced.filter(|announced| announced.keeps_index)?.rank;
        let missing = publisher.missing.as_mut()?;
        let stream = fed_by(&mut self.ranks, rank, id)?;
        missing.ask(asked_at_ms);
        let (taken, life) = (stream.cursor.last(), stream.life());
        let next = taken.map_or(1, |last| last.saturating_add(1));
        let first_event_id = (!missing.wants_all).then_some(next);
        Some(IndexRequest { publisher_id: id, rank, first_event_id, taken, life, asked_at_ms })
    }

    /// How many ranks are announced of which something is missing that their worker has not been heard about yet.
    pub(crate) fn unheard_indexes(&self) -> usize {
        let publishers = self.publishers.values().filter(|publisher| publisher.keeps_index());
        publishers.filter(|publisher| publisher.missing.as_ref().is_some_and(Missing::is_unheard)).count()
    }

    /// Goes on with what a worker's own index has answered, and then with the frames that have waited, each as one version.
    /// None, and nothing has changed, unless it tells what is missing here, of the same life, or that this has ended.
    pub(crate) fn apply_index(
        &mut self,
        request: IndexRequest,
        answer: IndexAnswer,
    ) -> Option<(u32, Applied)> {
        let IndexRequest { publisher_id: id, rank, taken, life, asked_at_ms, .. } = request;
        let times = self.times(None);
        let publisher = self.publishers.get_mut(&id)?;
        let missing = publisher.missing.as_mut()?;
        let source = missing.source;
        missing.hear();
        let stream = fed_by(&mut self.ranks, rank, id).filter(|stream| stream.life() == life)?;
        if answer.newest().is_some_and(|newest| Some(newest) < taken) {
            return self.await_another(id, rank).map(|applied| (source.id, applied));
        }
        let last = stream.cursor.last();
        // Frames about others cannot go on with what is told of one.
        let named = self.early.ranks_of(id);
        let alone = publisher.ranks.iter().chain(&named).all(|other| *other == rank);
        let first = self.early.first(id).and_then(|early| early.frame.events.first());
        let waits = first.map(|event| event.event_id);
        let answered = answer != IndexAnswer::Failed;
        let fitting = answer.fit(rank, last).filter(|fitting| alone && fitting.reaches(waits));
        let Some(fitting) = fitting else {
            missing.wants_all |= answered;
            return None;
        };
        let (mut applied, told_up_to) = (Applied::default(), fitting.last());
        let frames = missing.up_to;
        let under_way_ms = times.steady_ms.saturating_sub(asked_at_ms);
        publisher.go_on_behind(frames, told_up_to, times.wall_ms.saturating_sub(under_way_ms));
        publisher.ranks.insert(rank);
        self.writer.update(|update| {
            stream.take_index(update, fitting, &mut applied);
            stream.prove(asked_at_ms, times, told_up_to > last.unwrap_or(0));
            stream.mark_told(update, times);
        });
        self.take_those_in_turn(id, &mut applied);
        Some((source.id, applied))
    }

    /// A worker has taken less than had come of it: it is another process under the same id, and what has come was not its.
    fn await_another(&mut self, id: u64, rank: Rank) -> Option<Applied> {
        let now_ms = self.clock.steady_ms();
        let (publisher, stream) = (self.publishers.get_mut(&id)?, fed_by(&mut self.ranks, rank, id)?);
        let mut missing = Missing::of_announced(stream.source, None, rank, now_ms);
        missing.hear();
        publisher.start_again();
        publisher.missing = Some(missing);
        self.early.forget(id);
        self.writer.update(|update| stream.await_life(update));
        Some(Applied::default())
    }

    /// Where something may have been lost since a rank's newest event, its worker is asked.
    pub(super) fn doubt_announced(&mut self, source: Source, doubted_ms: u64) -> Applied {
        let mut applied = Applied::default();
        let now_ms = self.clock.steady_ms();
        for (&id, publisher) in &mut self.publishers {
            let Some(announced) = publisher.announced.filter(|announced| announced.keeps_index) else {
                continue;
            };
            let stream = fed_by(&mut self.ranks, announced.rank, id);
            let Some(stream) = stream.filter(|stream| stream.source.id == source.id) else { continue };
            if publisher.missing.is_some() || stream.is_unbegun() || stream.was_in_order_since(doubted_ms) {
                continue;
            }
            let seen = publisher.frames.last();
            publisher.missing = Some(Missing::of_doubted(source, seen, announced.rank, now_ms));
            self.writer.update(|update| stream.wait_for_peers(update));
            applied.recoveries += 1;
        }
        applied
    }
}

impl IndexAnswer {
    /// The newest event that the worker has taken, if it says so.
    fn newest(&self) -> Option<u64> {
        match self {
            IndexAnswer::Events { last_event_id, .. } | IndexAnswer::Nothing { last_event_id } => {
                Some(*last_event_id)
            }
            IndexAnswer::Dump { last_event_id, behind, .. } => {
                Some(behind.last().map_or(*last_event_id, |event| event.event_id))
            }
            IndexAnswer::Failed => None,
        }
    }

    /// The answer, if it is about the rank and goes on behind the event that was taken last.
    fn fit(self, rank: Rank, last: Option<u64>) -> Option<Fitting> {
        let newest = self.newest();
        let about_it = |events: &[RouterEvent]| events.iter().all(|event| event.rank == rank);
        match self {
            IndexAnswer::Events { events, last_event_id } => {
                let numbers = events.iter().map(|event| event.event_id);
                let in_order = numbers.clone().is_sorted_by(|one, next| one.checked_add(1) == Some(*next));
                let [first, last_one] = [events.first()?, events.last()?];
                let follows = first.event_id <= last.map_or(1, |last| last.saturating_add(1));
                let cut = !follows && first.change == Ok(kvtide_radix::Event::Cleared);
                let whole = about_it(&events) && in_order && last_one.event_id == last_event_id;
                (whole && (follows || cut)).then_some(Fitting::Events { events, last: last_event_id, cut })
            }
            IndexAnswer::Dump { holds, last_event_id, behind } => {
                let newest = newest?;
                let follows =
                    (last_event_id..newest).eq(behind.iter().map(|event| event.event_id.wrapping_sub(1)));
                let newer = Some(newest) >= last && about_it(&holds) && about_it(&behind);
                (newer && follows).then_some(Fitting::Dump { holds, last: last_event_id, behind })
            }
            IndexAnswer::Nothing { last_event_id } => {
                let nothing = Fitting::Events { events: Vec::new(), last: last_event_id, cut: false };
                (Some(last_event_id) == last).then_some(nothing)
            }
            IndexAnswer::Failed => None,
        }
    }
}

impl Fitting {
    fn last(&self) -> u64 {
        match self {
            Fitting::Events { last, .. } => *last,
            Fitting::Dump { last, behind, .. } => behind.last().map_or(*last, |event| event.event_id),
        }
    }

    /// Whether nothing is missing between it and the first event that waits.
    fn reaches(&self, waits: Option<u64>) -> bool {
        waits.is_none_or(|event| event <= self.last().saturating_add(1))
    }
}

impl RankStream {
    fn take_index(&mut self, update: &mut Update<'_>, told: Fitting, applied: &mut Applied) {
        let anew = self.is_unbegun();
        let newest = told.last();
        self.recovery = None;
        match told {
            Fitting::Events { events, cut, .. } => {
                if anew {
                    self.begin_life(update, !cut, applied);
                }
                if cut {
                    // What was left out may have used them.
                    self.use_lower_tiers();
                }
                let taken = self.cursor.last();
                for event in events.iter().filter(|event| Some(event.event_id) > taken) {
                    self.apply_told(update, event, applied);
                }
            }
            Fitting::Dump { holds, last, behind } => {
                if anew {
                    self.begin_life(update, false, applied);
                }
                update.forget(self.slot);
                // It had taken nothing yet: what it holds already stands behind that.
                let silent = last == 0;
                for event in holds.iter().filter(|_| !silent) {
                    self.apply_told(update, event, applied);
                }
                self.go_on_from(if silent { Knowledge::Complete } else { Knowledge::Partial }, last);
                for event in &behind {
                    self.apply_told(update, event, applied);
                }
            }
        }
        self.go_on_from(self.knowledge(), newest);
        applied.recovered += 1;
    }

    fn apply_told(&mut self, update: &mut Update<'_>, event: &RouterEvent, applied: &mut Applied) {
        match &event.change {
            Ok(change) => self.apply(update, change, applied),
            Err(_) => applied.ignored += 1,
        }
    }
}
