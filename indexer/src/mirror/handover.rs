//! What is missing here and another kvtide may have seen. Of a publisher's ranks what they hold stays as it was, and its frames
//! wait, until another kvtide has told what they hold behind the missing ones, or nobody has in time. How ranks of engines wait
//! is in `unkept.rs`.

use std::collections::BTreeSet;

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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Part {
    /// What one of Dynamo's publishers feeds.
    Publisher(u64),
    /// One rank of an engine.
    Rank(Rank),
}

/// A worker that was asked for what its index holds has so long to answer.
const ANSWER_MS: u64 = 60_000;

/// What is missing of a publisher.
#[derive(Clone)]
pub(super) struct Missing {
    /// The stream of its ranks.
    pub(super) source: Source,
    /// The last frame that is; none where it is only not known whether any is.
    pub(super) up_to: Option<u64>,
    /// The last frame that had been taken by then.
    seen: Option<u64>,
    pub(super) since_ms: u64,
    until_ms: u64,
    /// The ranks that wait for it.
    ranks: BTreeSet<Rank>,
    /// The worker's latest events have not helped.
    pub(super) wants_all: bool,
    /// The worker was asked, and has answered or failed to.
    heard: bool,
    /// Another kvtide has told what it knows, and only the worker can tell whether that is all.
    told_by_peer: bool,
}

impl Missing {
    fn new(source: Source, seen: Option<u64>, ranks: BTreeSet<Rank>, now_ms: u64) -> Missing {
        let (up_to, until_ms) = (None, now_ms + PATIENCE_MS);
        let [wants_all, heard, told_by_peer] = [false; 3];
        Missing { source, up_to, seen, since_ms: now_ms, until_ms, ranks, wants_all, heard, told_by_peer }
    }

    /// What a publisher has published before it was announced. Nothing waits for it.
    pub(super) fn of_announced(source: Source, seen: Option<u64>, rank: Rank, now_ms: u64) -> Missing {
        Missing { until_ms: u64::MAX, ..Missing::new(source, seen, BTreeSet::from([rank]), now_ms) }
    }

    /// What may have been lost of a publisher.
    pub(super) fn of_doubted(source: Source, seen: Option<u64>, rank: Rank, now_ms: u64) -> Missing {
        Missing::new(source, seen, BTreeSet::from([rank]), now_ms)
    }

    /// Whether other kvtides can be asked for it.
    pub(super) fn asks_peers(&self) -> bool {
        self.source.has_peers && !self.told_by_peer
    }

    /// The worker is asked: its answer has its own time.
    pub(super) fn ask(&mut self, now_ms: u64) {
        self.until_ms = self.until_ms.max(now_ms + ANSWER_MS);
    }

    /// The worker has answered, or has failed to.
    pub(super) fn hear(&mut self) {
        self.heard = true;
        if self.until_ms < u64::MAX {
            self.until_ms = self.since_ms + PATIENCE_MS;
        }
    }

    pub(super) fn is_unheard(&self) -> bool {
        !self.heard
    }

    /// Whether nothing of it is missed any more, once frames up to `last` were taken.
    fn is_over(&self, last: Option<u64>) -> bool {
        match self.up_to {
            Some(up_to) => last >= Some(up_to),
            None => last > self.seen,
        }
    }

    /// Ranks have gone. Whether nobody waits any more.
    pub(super) fn forget(&mut self, gone: &[Rank]) -> bool {
        self.ranks.retain(|rank| !gone.contains(rank));
        self.ranks.is_empty()
    }
}

impl Mirror {
    /// Parts of which something is missing that another kvtide may have seen.
    pub(crate) fn wanted(&self) -> Vec<Part> {
        let now_ms = self.clock.steady_ms();
        let asks = |missing: &Missing| missing.asks_peers();
        let publishers =
            self.publishers.iter().filter(|(_, publisher)| publisher.missing.as_ref().is_some_and(asks));
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

    /// Whether a publisher's frames wait for what another kvtide, or its worker, has to tell.
    pub(super) fn is_wanted(&self, publisher: u64) -> bool {
        let missing = self.publishers.get(&publisher).and_then(|publisher| publisher.missing.as_ref());
        missing.is_some_and(|missing| missing.up_to.is_some())
    }

    /// Frames are missing up to that one. The publisher's ranks wait, if others can be asked and no other publisher has fed
    /// them; whether they do.
    pub(super) fn want(&mut self, source: Source, id: u64, up_to: u64, applied: &mut Applied) -> bool {
        let Some(publisher) = self.publishers.get_mut(&id) else { return false };
        if !source.has_peers && !publisher.keeps_index() {
            return false;
        }
        if let Some(missing) = &mut publisher.missing
            && missing.up_to.is_some()
        {
            missing.up_to = missing.up_to.max(Some(up_to));
            return true;
        }
        let is_new = publisher.ranks.is_empty();
        let named = if is_new { self.early.ranks_of(id) } else { publisher.ranks.clone() };
        let fed = |rank: &Rank| {
            let current = self.ranks.get(*rank).and_then(|stream| stream.claims.current());
            current.is_some_and(|current| current != id)
        };
        if named.is_empty() || (is_new && named.iter().any(fed)) {
            return false;
        }
        let ranks = &mut self.ranks;
        let waiting = self.writer.update(|update| {
            let mut waiting = BTreeSet::new();
            for rank in named {
                match ranks.claim(update, rank, source, RankSettings::default) {
                    Ok(stream) if stream.claims.is_free_for(id) => {
                        stream.wait_for_peers(update);
                        waiting.insert(rank);
                    }
                    Ok(_) => {}
                    Err(refusal) => applied.refuse(refusal, 1),
                }
            }
            waiting
        });
        applied.recoveries += waiting.len() as u64;
        let missing = Missing::new(source, publisher.frames.last(), waiting, self.clock.steady_ms());
        publisher.missing = Some(Missing { up_to: Some(up_to), ..missing });
        true
    }

    /// Frames have come while others were missing: whether all have, or none is missed any more.
    pub(super) fn look_for_missing(&mut self, id: u64, before: Missing, applied: &mut Applied) {
        let Some(publisher) = self.publishers.get_mut(&id) else { return };
        let last = publisher.frames.last();
        if publisher.missing.as_ref().is_none_or(|missing| missing.is_over(last)) {
            publisher.missing = None;
            applied.recovered += self.end_waiting(before.ranks);
        }
    }

    /// Another kvtide has told what it knows, and nothing that waits shows whether that is all.
    fn wait_for_worker(&mut self, id: u64, missing: Missing) {
        let Some(publisher) = self.publishers.get_mut(&id) else { return };
        let streams = &mut self.ranks;
        self.writer.update(|update| {
            for &rank in &missing.ranks {
                if let Some(stream) = fed_by(streams, rank, id) {
                    stream.wait_for_peers(update);
                }
            }
        });
        let (seen, until_ms) = (publisher.frames.last(), self.clock.steady_ms() + PATIENCE_MS);
        publisher.missing = Some(Missing { seen, until_ms, told_by_peer: true, ..missing });
    }

    /// Ranks that still wait for peers do so no longer. Returns how many these were.
    fn end_waiting(&mut self, ranks: BTreeSet<Rank>) -> u64 {
        let streams = &mut self.ranks;
        self.writer.update(|update| {
            let mut waited = 0;
            for rank in ranks {
                if let Some(stream) = streams.get_mut(rank).filter(|stream| stream.waits_for_peers()) {
                    stream.recovery = None;
                    stream.show(update);
                    waited += 1;
                }
            }
            waited
        })
    }

    /// A publisher begins again: its frames of before, which wait, are of a life that has ended.
    pub(super) fn forget_former(&mut self, id: u64, began_at_ms: u64) {
        self.early.drop_published_before(id, began_at_ms);
        if !self.early.waits_for(id)
            && let Some(publisher) = self.publishers.get_mut(&id)
        {
            publisher.missing = None;
        }
    }

    /// Nobody has told in time. Returns what that did, by source.
    pub(super) fn give_up_wanted(&mut self) -> Vec<(u32, Applied)> {
        let now_ms = self.clock.steady_ms();
        let is_overdue = |missing: &Missing| missing.until_ms <= now_ms;
        let publishers = self.publishers.iter();
        let overdue = publishers.filter(|(_, publisher)| publisher.missing.as_ref().is_some_and(is_overdue));
        let overdue: Vec<u64> = overdue.map(|(&id, _)| id).collect();
        overdue.into_iter().filter_map(|id| self.give_up_on(id)).collect()
    }

    /// What is missing of a publisher is lost, and what has waited is applied.
    pub(super) fn give_up_on(&mut self, id: u64) -> Option<(u32, Applied)> {
        let Missing { source, up_to, ranks, .. } = self.publishers.get_mut(&id)?.missing.take()?;
        let mut applied = Applied { given_up: ranks.len() as u64, ..Applied::default() };
        while let Some(first) = self.early.take_first(id) {
            self.apply_in_turn(first, &mut applied);
        }
        // Frames that did not decode, and none behind them.
        let last = self.publishers.get(&id).and_then(|publisher| publisher.frames.last());
        let lost = up_to.zip(last).and_then(|(up_to, last)| up_to.checked_sub(last));
        if let Some(lost) = lost.filter(|&lost| lost > 0) {
            applied.add(self.lose_frames(id, lost));
        }
        self.end_waiting(ranks);
        Some((source.id, applied))
    }

    /// The frames that have waited follow.
    fn take_over_publisher(&mut self, id: u64, saved: &SavedMirror) -> Option<(u32, Applied)> {
        let times = self.times(None);
        let publisher = self.publishers.get_mut(&id)?;
        let missing = publisher.missing.clone()?;
        let Missing { source, up_to, .. } = missing;
        let has_seen = |last: Option<u64>| up_to.map_or(last > publisher.frames.last(), |_| last >= up_to);
        let theirs = saved.publisher(id).filter(|theirs| {
            has_seen(theirs.last) && theirs.last_published_at_ms >= publisher.last_published_at_ms
        })?;
        // Numbers and times agree, or it may be another life under the same id.
        let agrees = |number: u64, at_ms: u64| match Some(number) <= theirs.last {
            true => at_ms <= theirs.last_published_at_ms,
            false => at_ms >= theirs.last_published_at_ms,
        };
        if !self.early.numbers_of(id).all(|(number, at_ms)| agrees(number, at_ms)) {
            return None;
        }
        let mut applied = Applied::default();
        let streams = &mut self.ranks;
        publisher.go_on(theirs);
        self.writer.update(|update| {
            for told in saved.ranks_of(id) {
                let rank = told.dumped.rank;
                match streams.claim(update, rank, source, RankSettings::default) {
                    Ok(stream) if stream.claims.is_free_for(id) => {
                        stream.take_over(update, id, &told, times, &mut applied);
                        publisher.ranks.insert(rank);
                    }
                    Ok(_) => {}
                    Err(refusal) => applied.refuse(refusal, 1),
                }
            }
            let told: BTreeSet<Rank> = saved.ranks_of(id).map(|told| told.dumped.rank).collect();
            for &rank in publisher.ranks.difference(&told) {
                if let Some(stream) = fed_by(streams, rank, id) {
                    stream.hole(update, 1, &mut applied);
                    stream.show(update);
                }
            }
        });
        self.early.drop_up_to(id, theirs.last);
        if let Some(next) = self.early.take(id, theirs.last?.saturating_add(1)) {
            self.apply_in_turn(next, &mut applied);
        }
        if up_to.is_none() {
            self.wait_for_worker(id, missing);
        } else {
            self.end_waiting(missing.ranks);
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
    pub(super) fn wait_for_peers(&mut self, update: &mut Update<'_>) {
        self.recovery = Some(Recovery::of_peers());
        self.show(update);
    }

    fn waits_for_peers(&self) -> bool {
        self.recovery.as_ref().is_some_and(Recovery::is_of_peers)
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
        }
        if self.is_unbegun() {
            self.begin_life(update, false, applied);
        }
        if self.adopt(update, told) {
            applied.recovered += 1;
        } else {
            self.hole(update, 1, applied);
        }
        self.mark_told(update, times);
    }

    /// Holds and knows what was told. Whether that could be: else something is lost.
    pub(super) fn adopt(&mut self, update: &mut Update<'_>, told: &Told<'_>) -> bool {
        let SavedStream { knowledge, last, lower_tier_used, .. } = *told.stream;
        let whole = update.adopt(self.slot, told.dump, told.number).is_ok_and(|outcome| outcome.dropped == 0);
        let is_known = matches!(knowledge, Knowledge::Complete | Knowledge::Partial);
        if whole && is_known {
            self.go_on(knowledge, last, lower_tier_used);
        }
        whole && is_known
    }
}
