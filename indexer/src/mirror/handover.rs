//! A publisher of which frames are missing that another kvtide may have seen: what its ranks hold stays as it was, and its
//! frames wait, until another kvtide has told what they hold behind the missing ones, or nobody has in time.

use kvtide_radix::{Dump, DumpedRank, Knowledge, Rank, RankSettings, Update};

use super::{
    Applied, Mirror, Source, Times,
    claims::Claims,
    dynamo::fed_by,
    rank::RankStream,
    replay::{PATIENCE_MS, Recovery},
    saved::{SavedMirror, SavedStream},
};

/// A part of what is known, of which something is missing to whoever asks another kvtide for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Part {
    /// What one of Dynamo's publishers feeds.
    Publisher(u64),
    /// One rank of an engine.
    Rank(Rank),
}

/// What is missing of a publisher.
#[derive(Clone, Copy)]
pub(super) struct Missing {
    /// The stream of its ranks.
    source: Source,
    /// The last frame that is.
    up_to: u64,
    until_ms: u64,
}

impl Missing {
    pub(super) fn up_to(self) -> u64 {
        self.up_to
    }
}

impl Mirror {
    /// Parts of which something is missing that another kvtide may have seen.
    pub(crate) fn wanted(&self) -> Vec<Part> {
        let now_ms = self.clock.steady_ms();
        let publishers = self.publishers.iter().filter(|(_, publisher)| publisher.missing.is_some());
        let ranks = self.ranks.iter().filter(|(_, stream)| stream.wants_a_peer(now_ms));
        let publishers = publishers.map(|(&id, _)| Part::Publisher(id));
        publishers.chain(ranks.map(|(rank, _)| Part::Rank(rank))).collect()
    }

    /// Goes on with what another kvtide has told, as one version. None, and nothing has changed, unless it has seen what is
    /// missing here, in the same life.
    pub(crate) fn take_over(&mut self, part: Part, saved: &SavedMirror) -> Option<(u32, Applied)> {
        match part {
            Part::Publisher(id) => self.take_over_publisher(id, saved),
            Part::Rank(rank) => self.take_over_rank(rank, saved),
        }
    }

    /// Whether a publisher's frames wait for what another kvtide has to tell.
    pub(super) fn is_wanted(&self, publisher: u64) -> bool {
        self.publishers.get(&publisher).is_some_and(|publisher| publisher.missing.is_some())
    }

    /// Frames are missing up to that one. Its ranks wait, if others can be asked and no other publisher has fed them;
    /// whether they do.
    pub(super) fn want(&mut self, source: Source, id: u64, up_to: u64, applied: &mut Applied) -> bool {
        let Some(publisher) = self.publishers.get_mut(&id).filter(|_| source.has_peers) else { return false };
        let new = publisher.ranks.is_empty();
        let named = if new { self.early.ranks_of(id) } else { publisher.ranks.clone() };
        let fed = |rank: &Rank| self.ranks.get(*rank).and_then(|stream| stream.claims.current());
        if named.is_empty() || (new && named.iter().any(|rank| fed(rank).is_some())) {
            return false;
        }
        if publisher.missing.is_none() {
            applied.recoveries += 1;
        }
        let until_ms = self.clock.steady_ms() + PATIENCE_MS;
        let until_ms = publisher.missing.map_or(until_ms, |missing| missing.until_ms);
        publisher.missing = Some(Missing { source, up_to, until_ms });
        let ranks = &mut self.ranks;
        self.writer.update(|update| {
            for rank in named {
                match ranks.claim(update, rank, source, RankSettings::default) {
                    Ok(stream) if new || stream.claims.is_current(id) => stream.wait_for_peers(update),
                    Ok(_) => {}
                    Err(refusal) => applied.refuse(refusal, 1),
                }
            }
        });
        true
    }

    /// Frames have come that were missing: whether all have.
    pub(super) fn look_for_missing(&mut self, id: u64) {
        let Some(publisher) = self.publishers.get_mut(&id) else { return };
        let Some(missing) = publisher.missing else { return };
        let whole = publisher.frames.last() >= Some(missing.up_to);
        if whole {
            publisher.missing = None;
        }
        let (ranks, of_publisher) = (&mut self.ranks, &publisher.ranks);
        self.writer.update(|update| {
            for &rank in of_publisher {
                match fed_by(ranks, rank, id) {
                    Some(stream) if whole => stream.end_waiting_for_peers(update),
                    Some(stream) => stream.wait_for_peers(update),
                    None => {}
                }
            }
        });
    }

    /// Nobody has told in time. Returns what that did, by source.
    pub(super) fn give_up_wanted(&mut self) -> Vec<(u32, Applied)> {
        let now_ms = self.clock.steady_ms();
        let publishers = self.publishers.iter();
        let overdue = publishers
            .filter(|(_, publisher)| publisher.missing.is_some_and(|missing| missing.until_ms <= now_ms));
        let overdue: Vec<u64> = overdue.map(|(&id, _)| id).collect();
        overdue.into_iter().filter_map(|id| self.give_up_on(id)).collect()
    }

    /// What is missing of a publisher is lost, and what has waited is applied.
    pub(super) fn give_up_on(&mut self, id: u64) -> Option<(u32, Applied)> {
        let mut applied = Applied { given_up: 1, ..Applied::default() };
        let publisher = self.publishers.get_mut(&id)?;
        let missing = publisher.missing.take()?;
        let waits = self.early.waits_for(id);
        if !waits {
            // Frames that did not decode, and none since.
            let lost = missing.up_to - publisher.frames.last().map_or(0, |last| last.min(missing.up_to));
            applied.add(self.lose_frames(id, lost));
        }
        while let Some(first) = self.early.take_first(id) {
            self.apply_in_turn(first, &mut applied);
        }
        Some((missing.source.id, applied))
    }

    /// The frames that have waited follow.
    fn take_over_publisher(&mut self, id: u64, saved: &SavedMirror) -> Option<(u32, Applied)> {
        let times = self.times(None);
        let publisher = self.publishers.get_mut(&id)?;
        let missing = publisher.missing?;
        let theirs = saved.publisher(id).filter(|theirs| {
            theirs.last >= Some(missing.up_to)
                && theirs.last_published_at_ms >= publisher.last_published_at_ms
        })?;
        let of_publisher = || saved.ranks_of(id);
        let mut applied = Applied { recovered: 1, ..Applied::default() };
        let (ranks, source) = (&mut self.ranks, missing.source);
        publisher.go_on(theirs);
        self.writer.update(|update| {
            for told in of_publisher() {
                match ranks.claim(update, told.dumped.rank, source, RankSettings::default) {
                    Ok(stream) if stream.claims.current().is_none_or(|current| current == id) => {
                        stream.take_over(update, id, &told, times, &mut applied);
                        publisher.ranks.insert(told.dumped.rank);
                    }
                    Ok(_) => {}
                    Err(refusal) => applied.refuse(refusal, 1),
                }
            }
            let told: Vec<Rank> = of_publisher().map(|told| told.dumped.rank).collect();
            for &rank in publisher.ranks.iter().filter(|rank| !told.contains(rank)) {
                if let Some(stream) = fed_by(ranks, rank, id) {
                    stream.hole(update, 1, &mut applied);
                    stream.show(update);
                }
            }
        });
        let (last, published_at_ms) = (theirs.last, theirs.last_published_at_ms);
        self.early.drop_taken(id, last, published_at_ms);
        if let Some(next) = last.and_then(|last| self.early.take(id, last + 1)) {
            self.apply_in_turn(next, &mut applied);
        }
        Some((source.id, applied))
    }
}

/// What another kvtide tells of a rank.
pub(super) struct Told<'a> {
    pub(super) stream: &'a SavedStream,
    pub(super) dumped: &'a DumpedRank,
    pub(super) dump: &'a Dump,
    /// Its number in the dump.
    pub(super) number: usize,
}

impl RankStream {
    fn wait_for_peers(&mut self, update: &mut Update<'_>) {
        if self.knowledge() != Knowledge::Unknown || self.has_had_nothing() {
            self.recovery = Some(Recovery::of_peers());
            self.show(update);
        }
    }

    fn end_waiting_for_peers(&mut self, update: &mut Update<'_>) {
        self.recovery = None;
        self.show(update);
    }

    fn take_over(
        &mut self,
        update: &mut Update<'_>,
        publisher: u64,
        told: &Told<'_>,
        times: Times,
        applied: &mut Applied,
    ) {
        if self.claims.current().is_none() {
            self.claims = Claims::of(publisher, times.steady_ms);
            self.begin_life(update, false, applied);
        }
        if !self.adopt(update, told) {
            self.hole(update, 1, applied);
        }
        self.mark(update, times);
    }

    /// Holds and knows what was told. Whether that could be: else something is lost.
    pub(super) fn adopt(&mut self, update: &mut Update<'_>, told: &Told<'_>) -> bool {
        let SavedStream { knowledge, last, lower_tier_used, .. } = *told.stream;
        let whole = update.adopt(self.slot, told.dump, told.number).is_ok_and(|outcome| outcome.dropped == 0);
        let known = matches!(knowledge, Knowledge::Complete | Knowledge::Partial);
        if whole && known {
            self.go_on(knowledge, last, lower_tier_used);
        }
        whole && known
    }
}
