//! One scope's mirror: the tree's writer, and for every rank where its stream stands.
//!
//! What a message does is decided in three steps: whose it is and whether it continues ([`dynamo`], [`engine`],
//! [`direct`]), what that makes of the rank ([`rank`]), and what the tree makes of its events.

mod direct;
mod dynamo;
mod engine;
mod rank;

use std::collections::{HashMap, hash_map::Entry};

use kvtide_radix::{Outcome, Rank, RankSettings, Update, Writer};

use crate::clock::Clock;
use rank::RankStream;

pub(crate) use dynamo::Publisher;

/// The writer's side of a scope.
pub(crate) struct Mirror {
    pub(crate) writer: Writer,
    ranks: HashMap<Rank, RankStream>,
    publishers: HashMap<u64, Publisher>,
    clock: Clock,
}

/// What one message did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// Events applied.
    pub events: u64,
    /// What they did to blocks.
    pub blocks: Outcome,
    /// Events passed over: of unknown types, tiers or residency.
    pub ignored: u64,
    /// Events, frames or batches that had been taken before, or came too late.
    pub repeated: u64,
    /// Holes found in a rank's stream, after each of which its blocks were forgotten.
    pub holes: u64,
    /// Events or batches that those holes lost.
    pub missing: u64,
    /// New lives begun.
    pub lives: u64,
    /// Events refused: of a rank that another source feeds, or beyond the number of ranks.
    pub refused: u64,
    /// Batches that name another data-parallel rank than their stream.
    pub other_dp_rank: u64,
}

impl Applied {
    fn add_blocks(&mut self, outcome: Outcome) {
        self.blocks.stored += outcome.stored;
        self.blocks.removed += outcome.removed;
        self.blocks.unknown += outcome.unknown;
        self.blocks.parked += outcome.parked;
        self.blocks.dropped += outcome.dropped;
    }
}

/// When a message is applied, and when it says that it was published.
#[derive(Clone, Copy)]
struct Times {
    steady_ms: u64,
    wall_ms: u64,
    published_at_ms: Option<u64>,
}

impl Mirror {
    pub(crate) fn new(writer: Writer, clock: Clock) -> Mirror {
        Mirror { writer, ranks: HashMap::new(), publishers: HashMap::new(), clock }
    }

    fn times(&self, published_at_ms: Option<u64>) -> Times {
        Times { steady_ms: self.clock.steady_ms(), wall_ms: self.clock.wall_ms(), published_at_ms }
    }
}

/// The stream of a rank that `source` feeds; joins the rank if it is new. None if another source feeds it, or if
/// there is no room for another rank.
fn claim<'a>(
    ranks: &'a mut HashMap<Rank, RankStream>,
    update: &mut Update<'_>,
    rank: Rank,
    source: u32,
    settings: impl FnOnce() -> RankSettings,
) -> Option<&'a mut RankStream> {
    let stream = match ranks.entry(rank) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(vacant) => vacant.insert(RankStream::new(update.join(rank, settings()).ok()?, source)),
    };
    Some(stream).filter(|stream| stream.source == source)
}
