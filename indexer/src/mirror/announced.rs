//! Publishers that a discovery announces: it says who feeds which rank, and who has gone. Where it names two for one rank, it
//! does not tell which of them lives; their frames do (`claims.rs`).

use std::collections::{BTreeSet, HashMap};

use kvtide_radix::{Rank, RankSettings};

use super::{
    Applied, Mirror, Refusal, Source, dynamo::fed_by, early::EarlyFrame, handover::Missing,
    replay::PATIENCE_MS,
};

/// A publisher that lives, as discovery says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announced {
    /// The publisher, one life of its rank.
    pub publisher_id: u64,
    /// The rank that it feeds, and no other.
    pub rank: Rank,
    /// Its worker keeps an index of its own and can be [asked](crate::Indexer::wanted_indexes) for it.
    pub keeps_index: bool,
}

/// Who is announced for which rank.
#[derive(Default)]
pub(super) struct Announcements {
    by_rank: HashMap<Rank, BTreeSet<u64>>,
}

impl Announcements {
    fn add(&mut self, rank: Rank, publisher: u64) {
        self.by_rank.entry(rank).or_default().insert(publisher);
    }

    fn remove(&mut self, rank: Rank, publisher: u64) {
        if let Some(publishers) = self.by_rank.get_mut(&rank) {
            publishers.remove(&publisher);
            if publishers.is_empty() {
                self.by_rank.remove(&rank);
            }
        }
    }

    /// The one publisher of a rank, if it is one.
    fn only(&self, rank: Rank) -> Option<u64> {
        let publishers = self.by_rank.get(&rank).filter(|publishers| publishers.len() == 1)?;
        publishers.first().copied()
    }
}

impl Mirror {
    /// A publisher lives. Its rank is known from now on, and is its alone if no other is announced for it.
    pub(crate) fn announce(&mut self, source: Source, announced: Announced) -> Result<Applied, Refusal> {
        let Announced { publisher_id: id, rank, .. } = announced;
        let ranks = &mut self.ranks;
        self.writer.update(|update| ranks.claim(update, rank, source, RankSettings::default).map(|_| ()))?;
        self.make_room_for(id);
        let before = self.publishers.entry(id).or_default().announced.replace(announced);
        if let Some(before) = before.filter(|before| before.rank != rank) {
            self.announcements.remove(before.rank, id);
        }
        self.announcements.add(rank, id);
        self.settle(rank);
        let mut applied = Applied::default();
        self.take_those_in_turn(id, &mut applied);
        Ok(applied)
    }

    /// A rank is one of the stream's, whether or not anything has come of it.
    pub(crate) fn expect(&mut self, source: Source, rank: Rank) -> Result<(), Refusal> {
        if self.ranks.get(rank).is_some_and(|stream| stream.source.id == source.id) {
            return Ok(());
        }
        let ranks = &mut self.ranks;
        self.writer.update(|update| ranks.claim(update, rank, source, RankSettings::default).map(|_| ()))
    }

    /// A publisher has gone: what its rank held is not known any more, and its frames say nothing.
    pub(crate) fn withdraw(&mut self, id: u64) {
        let Some(announced) = self.publishers.get(&id).and_then(|publisher| publisher.announced) else {
            return;
        };
        self.publishers.remove(&id);
        self.early.forget(id);
        self.announcements.remove(announced.rank, id);
        let ranks = &mut self.ranks;
        if let Some(stream) = fed_by(ranks, announced.rank, id) {
            stream.claims.end();
            self.writer.update(|update| stream.await_life(update));
        }
        self.settle(announced.rank);
    }

    /// Where discovery names one publisher for a rank, the rank is its.
    fn settle(&mut self, rank: Rank) {
        let now_ms = self.clock.steady_ms();
        let Some(only) = self.announcements.only(rank) else { return };
        let Some(stream) = self.ranks.get_mut(rank) else { return };
        if stream.claims.settle(only, now_ms) {
            self.writer.update(|update| stream.await_life(update));
        }
        let (source, unproven) = (stream.source, stream.is_unbegun() || stream.is_recovering());
        let Some(publisher) = self.publishers.get_mut(&only).filter(|_| unproven) else { return };
        if publisher.keeps_index() && publisher.missing.is_none() {
            publisher.missing = Some(Missing::of_announced(source, publisher.frames.last(), rank, now_ms));
        }
    }

    /// Whether a publisher's frames count for nothing before it is announced.
    pub(super) fn is_unannounced(&self, source: Source, id: u64) -> bool {
        source.announced && self.publishers.get(&id).is_none_or(|publisher| publisher.announced.is_none())
    }

    /// Lets the frame of a publisher wait that is not announced yet.
    pub(super) fn hold(&mut self, incoming: EarlyFrame) -> Applied {
        let mut applied = Applied::default();
        let id = incoming.frame.publisher_id;
        if let Some(refused) = self.early.park(incoming, &self.pending) {
            applied.refuse(Refusal::OtherSource, refused.frame.events.len());
        }
        if self.early.is_full(id) {
            applied.refuse(Refusal::OtherSource, self.early.forget(id));
        }
        applied
    }

    /// Drops frames of publishers that were not announced in time. Returns what that did, by source.
    pub(super) fn drop_unannounced(&mut self) -> Vec<(u32, Applied)> {
        let now_ms = self.clock.steady_ms();
        let overdue = self.early.overdue(now_ms, PATIENCE_MS);
        let unannounced = overdue.filter_map(|id| {
            let source = self.early.first(id)?.source;
            self.is_unannounced(source, id).then_some((id, source))
        });
        let unannounced: Vec<(u64, Source)> = unannounced.collect();
        let drop = |(id, source): (u64, Source)| {
            let mut applied = Applied::default();
            applied.refuse(Refusal::OtherSource, self.early.forget(id));
            (source.id, applied)
        };
        unannounced.into_iter().map(drop).collect()
    }
}
