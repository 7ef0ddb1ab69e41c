//! A mirror written down, and one that goes on where another has stopped: everything of a rank stays as it was, and counts
//! as `recovering` until its stream proves that it goes on.

use kvtide_events::Cursor;
use kvtide_radix::{Dump, DumpError, Knowledge, Rank, RankSettings, RestoreError, Watermark, Window};
use serde::{Deserialize, Serialize};

use super::{
    Mirror, Source,
    claims::Claims,
    dynamo::{Publisher, ToldByIndex},
    handover::{Part, Told},
    rank::RankStream,
    replay::Recovery,
};

/// A rank that was written down waits for so long for its stream to go on; then it is forgotten.
pub(super) const PATIENCE_MS: u64 = 60_000;

/// A scope's mirror.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct SavedMirror {
    /// What its ranks hold.
    dump: Dump,
    /// Where their streams stand, in the order of the dump.
    streams: Vec<SavedStream>,
    publishers: Vec<SavedPublisher>,
}

/// Where a rank's stream stands.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct SavedStream {
    /// The name of the stream; none for a rank that is only registered.
    name: Option<String>,
    pub(super) knowledge: Knowledge,
    pub(super) last: Option<u64>,
    pub(super) lower_tier_used: bool,
    /// Dynamo: who publishes.
    publisher: Option<u64>,
    /// Engines: what tells the last batch from another of its number, and when the newest one was published.
    pub(super) last_digest: u64,
    pub(super) newest_published_at_ms: u64,
    pub(super) windows: Vec<Window>,
}

/// Where a publisher's frames stand.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct SavedPublisher {
    pub(super) id: u64,
    pub(super) last: Option<u64>,
    pub(super) whole: bool,
    pub(super) last_published_at_ms: u64,
    pub(super) told: Option<ToldByIndex>,
}

/// A stream that ranks of a saved mirror may belong to.
pub(crate) struct KnownStream {
    pub(crate) source: Source,
    pub(crate) settings: RankSettings,
}

impl SavedMirror {
    /// Whether ranks of the stream of that name are in it.
    pub(crate) fn has_stream(&self, name: &str) -> bool {
        self.streams.iter().any(|stream| stream.name.as_deref() == Some(name))
    }

    /// Where a publisher's frames stood.
    pub(super) fn publisher(&self, id: u64) -> Option<&SavedPublisher> {
        self.publishers.iter().find(|publisher| publisher.id == id)
    }

    /// The ranks that a publisher feeds.
    pub(super) fn ranks_of(&self, publisher: u64) -> impl Iterator<Item = Told<'_>> {
        self.told().filter(move |told| told.stream.publisher == Some(publisher))
    }

    /// One rank.
    pub(super) fn rank(&self, rank: Rank) -> Option<Told<'_>> {
        self.told().find(|told| told.dumped.rank == rank)
    }

    fn told(&self) -> impl Iterator<Item = Told<'_>> {
        let streams = self.streams.iter().zip(&self.dump.ranks).enumerate();
        streams.map(|(number, (stream, dumped))| Told { stream, dumped, dump: &self.dump, number })
    }

    /// Whether this can be what was written.
    pub(crate) fn check(&self) -> Result<(), DumpError> {
        self.dump.check()
    }

    /// How many ranks it has.
    pub(crate) fn ranks(&self) -> usize {
        self.dump.ranks.len()
    }
}

impl Mirror {
    /// Everything that another process needs to go on, or a part of it. `name_of` says what a source's stream is called.
    pub(crate) fn save(
        &mut self,
        part: Option<Part>,
        name_of: impl Fn(u32) -> Option<String>,
    ) -> SavedMirror {
        let Mirror { writer, ranks, publishers, .. } = self;
        let fed = |rank, publisher| ranks.get(rank).is_some_and(|stream| stream.claims.is_current(publisher));
        let dump = writer.dump(|rank| match part {
            None => true,
            Some(Part::Publisher(publisher)) => fed(rank, publisher),
            Some(Part::Rank(one)) => rank == one,
        });
        let publishers =
            publishers.iter().filter(|(id, _)| part.is_none_or(|part| part == Part::Publisher(**id)));
        let stream = |rank: Rank| ranks.get(rank).map(|stream| stream.save(&name_of));
        SavedMirror {
            streams: dump.ranks.iter().filter_map(|dumped| stream(dumped.rank)).collect(),
            publishers: publishers.map(|(&id, publisher)| publisher.save(id)).collect(),
            dump,
        }
    }

    /// Goes on where another has stopped. Ranks whose stream `known` does not know are left out. Returns how many go on.
    ///
    /// # Errors
    /// [`RestoreError`]. Nothing has changed then.
    pub(crate) fn restore(
        &mut self,
        saved: &SavedMirror,
        known: impl Fn(&str, Rank) -> Option<KnownStream>,
    ) -> Result<usize, RestoreError> {
        let now_ms = self.clock.steady_ms();
        let streams = saved.streams.iter().zip(&saved.dump.ranks);
        let known: Vec<_> =
            streams.map(|(stream, dumped)| known(stream.name.as_deref()?, dumped.rank)).collect();
        let settings = |number: usize| match known.get(number) {
            Some(Some(known)) => known.settings.clone(),
            Some(None) | None => RankSettings::default(),
        };
        let ranks = &mut self.ranks;
        let restored = self.writer.update(|update| {
            let slots = update.restore(&saved.dump, settings)?;
            let mut restored = 0;
            for (number, slot) in slots.into_iter().enumerate() {
                let (dumped, stream) = (&saved.dump.ranks[number], saved.streams.get(number));
                let (Some(stream), Some(Some(known))) = (stream, known.get(number)) else {
                    update.leave(slot);
                    continue;
                };
                let windows = known.settings.windows.clone();
                let mut rank = RankStream::new(slot, known.source, dumped.watermark.life, windows);
                rank.restore(stream, &dumped.watermark, now_ms);
                update.set_windows(slot, rank.all_windows());
                rank.show(update);
                ranks.insert(dumped.rank, rank);
                restored += 1;
            }
            Ok::<_, RestoreError>(restored)
        })?;
        for publisher in &saved.publishers {
            let ranks = self.ranks.of_publisher(publisher.id);
            self.publishers.insert(publisher.id, Publisher::restored(publisher, ranks));
        }
        Ok(restored)
    }
}

impl RankStream {
    fn save(&self, name_of: impl Fn(u32) -> Option<String>) -> SavedStream {
        SavedStream {
            name: name_of(self.source.id),
            knowledge: self.knowledge(),
            last: self.cursor.last(),
            lower_tier_used: self.lower_tier_used(),
            publisher: self.claims.current(),
            last_digest: self.last_digest,
            newest_published_at_ms: self.newest_batch.published_at_ms,
            windows: self.windows.clone(),
        }
    }

    fn restore(&mut self, saved: &SavedStream, watermark: &Watermark, now_ms: u64) {
        let SavedStream { knowledge, last, lower_tier_used, publisher, .. } = *saved;
        self.cursor = Cursor::at(last);
        // Of one that two have claimed, whoever speaks next begins a new life.
        let in_charge = publisher.filter(|_| knowledge != Knowledge::Unknown);
        self.claims = in_charge.map_or_else(Claims::default, |publisher| Claims::of(publisher, now_ms));
        self.last_digest = saved.last_digest;
        self.newest_batch.published_at_ms = saved.newest_published_at_ms;
        self.windows.clone_from(&saved.windows);
        self.restore_watermark(knowledge, watermark, lower_tier_used, now_ms);
        if knowledge != Knowledge::Unknown {
            self.recovery = Some(Recovery::of_saved(now_ms));
        }
    }
}
