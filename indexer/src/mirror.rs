//! One scope's mirror: the tree's writer, and for every rank where its stream stands.
//!
//! What a message does is decided in three steps: whose it is and whether it continues ([`dynamo`], [`engine`],
//! [`direct`]), what that makes of the rank ([`rank`], [`replay`]), and what the tree makes of its events.

mod announced;
mod claims;
mod direct;
mod dynamo;
mod early;
mod engine;
mod expiry;
mod handover;
mod rank;
mod ranks;
mod replay;
mod saved;
mod source;
mod unkept;
mod worker_index;

use std::{collections::HashSet, sync::Arc};

use hashbrown::HashMap;
use kvtide_radix::{Outcome, Writer};

use crate::{
    clock::Clock,
    pending::{Pending, PendingEvents},
};
use announced::Announcements;
use early::Early;
use ranks::Ranks;

pub use announced::Announced;
pub(crate) use dynamo::Publisher;
pub(crate) use engine::LiveBatch;
pub use handover::Part;
pub use replay::ReplayRequest;
pub(crate) use replay::ReplayedBatch;
pub(crate) use saved::{KnownStream, SavedMirror};
pub(crate) use source::Source;
pub use worker_index::{IndexAnswer, IndexRequest};

/// What is applied together is to be seen after so long, and others have the mirror.
const TOGETHER_MS: u64 = 1;

/// So many messages of a rank or publisher wait for what is missing in front of them, and so many bytes of them; one more,
/// and it is lost.
const WAITING: usize = 16_384;
const WAITING_BYTES: usize = 256 << 20;

/// The writer's side of a scope.
pub(crate) struct Mirror {
    pub(crate) writer: Writer,
    ranks: Ranks,
    publishers: HashMap<u64, Publisher>,
    early: Early,
    /// Whatever waits counts there.
    pending: Arc<Pending>,
    announcements: Announcements,
    /// Sources of which it is proven that their messages arrive.
    followed: HashSet<u32>,
    clock: Clock,
    /// The time of what is applied together, and what has waited and is pending until that is seen.
    now: Option<Now>,
    to_be_seen: Vec<PendingEvents>,
    /// When something of a source was lost of which nobody knows whose it was.
    doubted_ms: HashMap<u32, u64>,
    /// When it was last looked for what has waited too long.
    looked_ms: u64,
}

/// What messages did.
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
    /// Events refused, a message without any as one: of a rank that another source feeds.
    pub refused: u64,
    /// Events refused: of a further rank, where there are as many as may be.
    pub crowded: u64,
    /// Events refused: of a publisher that claims a rank while another live one does.
    pub conflicting: u64,
    /// Batches that name another data-parallel rank than their stream.
    pub other_dp_rank: u64,
    /// Blocks dropped that have waited too long for a parent or a name.
    pub expired: u64,
    /// Batches that wait, since others in front of them are missing and have to be asked for.
    pub waiting: u64,
    /// Ranks that began to wait for what they have missed, that were given it, and that gave up.
    pub recoveries: u64,
    /// See [`Applied::recoveries`].
    pub recovered: u64,
    /// See [`Applied::recoveries`].
    pub given_up: u64,
}

impl Applied {
    /// Events refused, for whatever reason.
    #[must_use]
    pub fn refused_events(&self) -> u64 {
        self.refused + self.crowded + self.conflicting
    }

    /// Adds what another message did.
    pub(crate) fn add(&mut self, other: Applied) {
        self.events += other.events;
        self.add_blocks(other.blocks);
        self.ignored += other.ignored;
        self.repeated += other.repeated;
        self.holes += other.holes;
        self.missing = self.missing.saturating_add(other.missing);
        self.lives += other.lives;
        self.refused += other.refused;
        self.crowded += other.crowded;
        self.conflicting += other.conflicting;
        self.other_dp_rank += other.other_dp_rank;
        self.expired += other.expired;
        self.waiting += other.waiting;
        self.recoveries += other.recoveries;
        self.recovered += other.recovered;
        self.given_up += other.given_up;
    }

    fn refuse(&mut self, refusal: Refusal, events: usize) {
        let events = events.max(1) as u64;
        match refusal {
            Refusal::OtherSource => self.refused += events,
            Refusal::NoRoom => self.crowded += events,
        }
    }

    fn add_blocks(&mut self, outcome: Outcome) {
        self.blocks.stored += outcome.stored;
        self.blocks.removed += outcome.removed;
        self.blocks.unknown += outcome.unknown;
        self.blocks.parked += outcome.parked;
        self.blocks.dropped += outcome.dropped;
    }
}

/// Why a source may not feed a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// Another one feeds it.
    OtherSource,
    /// There is no room for another rank.
    NoRoom,
}

/// Ends what is applied together, however that ends.
struct Together<'a>(&'a mut Mirror);

impl Drop for Together<'_> {
    fn drop(&mut self) {
        self.0.writer.publish();
        self.0.to_be_seen.clear();
        self.0.now = None;
    }
}

/// What the clocks say.
#[derive(Clone, Copy)]
struct Now {
    steady_ms: u64,
    wall_ms: u64,
}

/// When a message is applied, and when it says that it was published.
#[derive(Clone, Copy)]
struct Times {
    steady_ms: u64,
    wall_ms: u64,
    published_at_ms: Option<u64>,
}

impl Mirror {
    /// What waits counts as `pending`.
    pub(crate) fn new(writer: Writer, clock: Clock, pending: Arc<Pending>) -> Mirror {
        Mirror {
            writer,
            ranks: Ranks::default(),
            publishers: HashMap::new(),
            early: Early::default(),
            pending,
            announcements: Announcements::default(),
            followed: HashSet::new(),
            clock,
            now: None,
            to_be_seen: Vec::new(),
            doubted_ms: HashMap::new(),
            looked_ms: 0,
        }
    }

    /// Makes all that is applied meanwhile one version, of one time.
    pub(crate) fn together(&mut self, apply: impl FnOnce(&mut Mirror)) {
        self.now = Some(self.now());
        self.writer.collect();
        let together = Together(self);
        apply(together.0);
    }

    /// Whether what is applied together has taken long.
    pub(crate) fn has_taken_long(&self) -> bool {
        self.now.is_some_and(|now| now.steady_ms + TOGETHER_MS < self.clock.steady_ms())
    }

    /// Gives up on what has been waited for long enough: frames in front of others, answers of engines, parents of blocks.
    /// Returns what that did, by source.
    pub(crate) fn tick(&mut self) -> Vec<(u32, Applied)> {
        let mut all = self.apply_due();
        all.extend(self.give_up_overdue());
        all.extend(self.give_up_wanted());
        all.extend(self.drop_unannounced());
        all.extend(self.expire_parked());
        all
    }

    /// Everything that a source had published at that time is applied. Of ranks of which nothing came in order since
    /// `doubted_ms`, when messages may have been lost, that is not known.
    pub(crate) fn verify(&mut self, source: Source, until_ms: u64, doubted_ms: Option<u64>) -> Applied {
        let doubted_ms = doubted_ms.max(self.doubted_ms.get(&source.id).copied());
        self.followed.insert(source.id);
        let Mirror { ranks, early, writer, .. } = self;
        writer.update(|update| {
            for stream in ranks.of_mut(source) {
                if !stream.claims.current().is_some_and(|publisher| early.waits_for(publisher)) {
                    stream.vouch(update, until_ms, doubted_ms);
                }
            }
        });
        doubted_ms.map_or_else(Applied::default, |doubted_ms| self.doubt_announced(source, doubted_ms))
    }

    fn now(&self) -> Now {
        let read = || Now { steady_ms: self.clock.steady_ms(), wall_ms: self.clock.wall_ms() };
        self.now.unwrap_or_else(read)
    }

    fn steady_ms(&self) -> u64 {
        self.now().steady_ms
    }

    fn times(&self, published_at_ms: Option<u64>) -> Times {
        let Now { steady_ms, wall_ms } = self.now();
        Times { steady_ms, wall_ms, published_at_ms }
    }
}
