//! Whether a service that has started may be asked: not before it has heard of its sources, and what it went on with from a
//! snapshot is proven or forgotten.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
};

use kvtide_radix::{Knowledge, RankState};
use parking_lot::Mutex;

use crate::Indexer;

/// What a start still waits for. Once it is over, it stays over: what is lost later, each answer says.
#[derive(Debug, Default)]
pub struct Readiness {
    awaited: Mutex<BTreeSet<String>>,
    over: AtomicBool,
}

/// Why a service is not ready.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotReady {
    /// Sources of which nothing has been heard: the bus that is not connected, engines that have not been asked.
    pub awaited: Vec<String>,
    /// Ranks of which it is not known yet whether their stream goes on, or what they have missed.
    pub recovering_ranks: usize,
    /// Ranks whose publishers are announced, and whose workers have not told yet what they hold.
    pub unheard_ranks: usize,
    /// Ranks that are known in all.
    pub known_ranks: usize,
}

impl Readiness {
    /// A source has to be heard of first, unless the start is over.
    pub fn wait_for(&self, source: &str) {
        if !self.over.load(Ordering::Relaxed) {
            self.awaited.lock().insert(source.to_owned());
        }
    }

    /// A source was heard of, or cannot be for now.
    pub fn heard_of(&self, source: &str) {
        if !self.over.load(Ordering::Relaxed) {
            self.awaited.lock().remove(source);
        }
    }

    /// Whether nothing is waited for any more.
    ///
    /// # Errors
    /// [`NotReady`]: what is.
    pub fn check(&self, indexer: &Indexer) -> Result<(), NotReady> {
        if self.over.load(Ordering::Relaxed) {
            return Ok(());
        }
        let awaited: Vec<String> = self.awaited.lock().iter().cloned().collect();
        let scopes = indexer.scopes();
        let ranks = scopes.iter().flat_map(|scope| &scope.ranks);
        let recovers = |rank: &&RankState| rank.watermark.knowledge == Knowledge::Recovering;
        let (known_ranks, recovering_ranks) = (ranks.clone().count(), ranks.filter(recovers).count());
        let unheard_ranks = indexer.unheard_indexes();
        if awaited.is_empty() && recovering_ranks == 0 && unheard_ranks == 0 {
            self.over.store(true, Ordering::Relaxed);
            return Ok(());
        }
        Err(NotReady { awaited, recovering_ranks, unheard_ranks, known_ranks })
    }
}
