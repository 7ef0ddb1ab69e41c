//! What an index that is measured has to do, and who does it.

mod dynamo;
mod kv_index;
mod kvtide;
mod smg;

use std::time::{Duration, Instant};

use kvtide_radix::{BlockHash, Event, RankSettings};

pub(crate) use dynamo::{Crtc, Positional};
pub(crate) use kv_index::KvIndex;
pub(crate) use kvtide::Kvtide;
pub(crate) use smg::Smg;

/// An index of one scope, with everything that asking it again and again needs.
pub(crate) trait Contestant: Sized {
    /// An event and a block hash in the form that the index takes.
    type Event;
    type Hash: Copy;

    fn new(ranks: usize, settings: &RankSettings) -> Self;
    fn event(rank: usize, event: &Event) -> Self::Event;
    fn hash(hash: BlockHash) -> Self::Hash;

    /// Applies events and shows them to readers: at once where the index can, else one by one. An index that wants
    /// to own its events takes them.
    fn apply(&mut self, events: &mut [Self::Event]);

    /// Finds every rank's reach. Returns how many ranks have any.
    fn ask(&mut self, prompt: &[Self::Hash]) -> usize;

    /// The same as blocks a rank, by rank.
    fn reaches(&mut self, prompt: &[Self::Hash]) -> Vec<u32>;

    /// Does what the index puts off, and does in service from time to time.
    fn sweep(&mut self);

    /// Events that the index said it could not apply, in whole or in part. None if it does not say.
    fn refused(&self) -> Option<usize>;

    /// Builds an index from events, so many at once. Returns how long applying them took.
    fn build(
        ranks: usize,
        settings: &RankSettings,
        events: &mut [Self::Event],
        at_once: usize,
    ) -> (Self, Duration) {
        let mut index = Self::new(ranks, settings);
        let start = Instant::now();
        for update in events.chunks_mut(at_once) {
            index.apply(update);
        }
        let taken = start.elapsed();
        (index, taken)
    }
}
