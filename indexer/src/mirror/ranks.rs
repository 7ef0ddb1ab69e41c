//! The ranks of a scope: who is known, who feeds whom, and who has gone.

use std::collections::BTreeSet;

use hashbrown::HashMap;
use kvtide_radix::{Life, Rank, RankSettings, RanksFull, Update};

use super::{Mirror, Refusal, Source, rank::RankStream};

/// Ranks that have gone of which the last life is remembered.
const GONE: usize = 65_536;

/// All ranks that are known.
#[derive(Default)]
pub(super) struct Ranks {
    streams: HashMap<Rank, RankStream>,
    /// In which life ranks were that have gone: they come back in another.
    gone: HashMap<Rank, Life>,
}

impl Ranks {
    /// The stream of a rank that `source` feeds. The rank joins if it is new.
    pub(super) fn claim(
        &mut self,
        update: &mut Update<'_>,
        rank: Rank,
        source: Source,
        settings: impl FnOnce() -> RankSettings,
    ) -> Result<&mut RankStream, Refusal> {
        match self.streams.get(&rank).map(|stream| stream.source) {
            Some(feeds) if feeds.id == source.id => {}
            Some(feeds) if !feeds.is_nobody() => return Err(Refusal::OtherSource),
            new_or_registered => {
                // One that is only registered joins again, with the settings of whoever feeds it.
                if new_or_registered.is_some() {
                    self.leave(update, rank);
                }
                self.join(update, rank, source, settings()).map_err(|RanksFull { .. }| Refusal::NoRoom)?;
            }
        }
        self.streams.get_mut(&rank).ok_or(Refusal::NoRoom)
    }

    fn join(
        &mut self,
        update: &mut Update<'_>,
        rank: Rank,
        source: Source,
        settings: RankSettings,
    ) -> Result<(), RanksFull> {
        let windows = settings.windows.clone();
        let slot = update.join(rank, settings)?;
        let life = self.gone.remove(&rank).unwrap_or_default();
        self.streams.insert(rank, RankStream::new(slot, source, life, windows));
        Ok(())
    }

    /// Whether another source feeds the rank, so that nothing is to be published.
    pub(super) fn is_refused(&self, rank: Rank, source: Source) -> bool {
        let other = |stream: &RankStream| !stream.source.is_nobody() && stream.source.id != source.id;
        self.streams.get(&rank).is_some_and(other)
    }

    pub(super) fn get(&self, rank: Rank) -> Option<&RankStream> {
        self.streams.get(&rank)
    }

    /// Makes a rank known that has joined.
    pub(super) fn insert(&mut self, rank: Rank, stream: RankStream) {
        self.streams.insert(rank, stream);
    }

    /// The ranks that a publisher feeds now.
    pub(super) fn of_publisher(&self, publisher: u64) -> impl Iterator<Item = Rank> {
        let its = self.streams.iter().filter(move |(_, stream)| stream.claims.is_current(publisher));
        its.map(|(&rank, _)| rank)
    }

    pub(super) fn get_mut(&mut self, rank: Rank) -> Option<&mut RankStream> {
        self.streams.get_mut(&rank)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Rank, &RankStream)> {
        self.streams.iter().map(|(&rank, stream)| (rank, stream))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut RankStream> {
        self.streams.values_mut()
    }

    /// The ranks that a source feeds.
    pub(super) fn of(&self, source: Source) -> impl Iterator<Item = (Rank, &RankStream)> {
        self.iter().filter(move |(_, stream)| stream.source.id == source.id)
    }

    /// The same, to be changed.
    pub(super) fn of_mut(&mut self, source: Source) -> impl Iterator<Item = &mut RankStream> {
        self.iter_mut().filter(move |stream| stream.source.id == source.id)
    }

    fn leave(&mut self, update: &mut Update<'_>, rank: Rank) {
        let Some(stream) = self.streams.remove(&rank) else { return };
        update.leave(stream.slot);
        if self.gone.len() >= GONE {
            self.gone.clear();
        }
        self.gone.insert(rank, stream.life());
    }
}

impl Mirror {
    /// Makes a rank known of which nothing has come yet. Whether it was new.
    pub(crate) fn register(&mut self, rank: Rank) -> Result<bool, RanksFull> {
        if self.ranks.streams.contains_key(&rank) {
            return Ok(false);
        }
        let ranks = &mut self.ranks;
        let settings = RankSettings::default();
        self.writer.update(|update| ranks.join(update, rank, Source::NOBODY, settings))?;
        Ok(true)
    }

    /// Lets all ranks of a worker go, or one, and with them their blocks. Returns how many these were.
    pub(crate) fn remove(&mut self, worker_id: u64, dp_rank: Option<u32>) -> usize {
        let chosen = |rank: &Rank| {
            rank.worker_id == worker_id && dp_rank.is_none_or(|dp_rank| rank.dp_rank == dp_rank)
        };
        self.remove_where(|rank, _| chosen(&rank))
    }

    /// Lets all ranks go that a source feeds, and remembers nothing of it. Returns how many these were.
    pub(crate) fn remove_source(&mut self, source: Source) -> usize {
        self.doubted_ms.remove(&source.id);
        self.remove_where(|_, stream| stream.source.id == source.id)
    }

    /// Lets those ranks of a source go that are not among these. Returns how many went.
    pub(crate) fn remove_others(&mut self, source: Source, these: &BTreeSet<Rank>) -> usize {
        self.remove_where(|rank, stream| stream.source.id == source.id && !these.contains(&rank))
    }

    /// Lets all ranks go.
    pub(crate) fn remove_all(&mut self) {
        self.remove_where(|_, _| true);
    }

    /// Lets those ranks go from which nothing has come for so long. Returns how many these were.
    pub(crate) fn remove_silent(&mut self, after_ms: u64) -> usize {
        let now_ms = self.clock.steady_ms();
        self.remove_where(|_, stream| stream.heard_ms().is_some_and(|heard| heard + after_ms <= now_ms))
    }

    fn remove_where(&mut self, is_it: impl Fn(Rank, &RankStream) -> bool) -> usize {
        let ranks = &mut self.ranks;
        let these = ranks.streams.iter().filter(|(rank, stream)| is_it(**rank, stream));
        let these: Vec<Rank> = these.map(|(&rank, _)| rank).collect();
        if !these.is_empty() {
            self.writer.update(|update| these.iter().for_each(|&rank| ranks.leave(update, rank)));
            self.forget_waiting(&these);
        }
        these.len()
    }

    /// What waits of publishers which feed only ranks that have gone does not bring these back.
    fn forget_waiting(&mut self, gone: &[Rank]) {
        let waiting: Vec<u64> = self.early.publishers().collect();
        for id in waiting {
            let named = self.early.ranks_of(id);
            let stays =
                |rank: &Rank| self.ranks.get(*rank).is_some_and(|stream| stream.claims.is_current(id));
            if named.iter().any(|rank| gone.contains(rank)) && !named.iter().any(stays) {
                self.early.forget(id);
            }
        }
        for publisher in self.publishers.values_mut() {
            publisher.forget(gone);
        }
    }
}
