//! Who holds blocks: the rank, the life it is in, and what the writer last said about it.

use serde::{Deserialize, Serialize};

/// The thing that holds blocks and is chosen by a router: one data-parallel rank of one worker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Rank {
    /// The worker's id, as the event bus or the configuration gives it.
    pub worker_id: u64,
    /// The data-parallel rank within the worker; 0 where there is only one.
    pub dp_rank: u32,
}

/// A rank's place in the index: small, dense, and given to another rank after this one has left.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
// 32 bits, though ranks are fewer than 2^16: beside a `Reach` there is no padding, which costs 3 ns a rank to copy.
pub struct RankSlot(pub(crate) u32);

impl RankSlot {
    /// How many slots there can be.
    pub(crate) const LIMIT: usize = 1 << 16;

    /// Its number, from 0.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which life of its publisher a rank is in, counted from 1. A restart starts a new one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Life(pub u64);

/// How to read a rank's numbers, zero above all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Knowledge {
    /// Nothing is known: there is no reach, which is not a reach of 0.
    #[default]
    Unknown,
    /// Everything that this publisher has published in this life is applied.
    Complete,
    /// A lower bound: what is credited is held, more may be.
    Partial,
    /// Numbers of before a break, frozen while the missing part is fetched.
    Recovering,
    /// Something is missing and nothing was forgotten: numbers may be wrong either way.
    Gap,
}

/// What the writer says about a rank. It is published with the blocks, so that an answer's numbers and the
/// point in the stream they belong to are of one version. The tree keeps it and does not read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Watermark {
    /// The life that the rank is in.
    pub life: Life,
    /// How to read the rank's numbers.
    pub knowledge: Knowledge,
    /// Two live publishers claim the rank, which is why nothing is known.
    pub conflict: bool,
    /// The last event taken in order: an event id (Dynamo) or a batch sequence (ZMQ).
    pub last_event_id: Option<u64>,
    /// When that event was applied, in milliseconds of the writer's own steady clock.
    pub applied_at_ms: Option<u64>,
    /// From the publisher's timestamp of that event to its being visible, in milliseconds; negative where the
    /// publisher's clock is ahead.
    pub lag_ms: Option<i64>,
    /// The smallest such lag of the last minute.
    pub best_lag_ms: Option<i64>,
    /// Events known lost in this life and not recovered.
    pub missing_events: u64,
    /// When something last came from the rank's publisher, in milliseconds of the writer's own steady clock.
    pub heard_at_ms: Option<u64>,
    /// When it was last proven that everything published until then is applied, in milliseconds of the writer's own
    /// steady clock.
    pub verified_at_ms: Option<u64>,
}

/// How a rank's announcements are to be read. Fixed while the rank is in the index.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RankSettings {
    /// What a second announcement of a block means.
    pub copies: Copies,
    /// The engine looks host blocks up in chunks of this many (0 and 1: one by one).
    pub host_chunk_blocks: u32,
    /// Windows of further groups (hybrid attention): a prefix is usable where each holds its last blocks.
    pub windows: Vec<Window>,
    /// How many names of blocks that the rank no longer holds stay bound to their content.
    pub recent_names: usize,
}

/// What a second announcement of a block that is already held means.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Copies {
    /// Nothing: the publisher has counted already, and one removal ends the block.
    #[default]
    Set,
    /// One more physical copy: as many removals end the block.
    Counted,
}

/// The window over which a further group of layers attends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Window {
    /// The group.
    pub group: super::Group,
    /// Its window in tokens.
    pub tokens: u32,
}

impl Window {
    /// How many blocks in front of the end of a prefix the group must hold: `ceil((tokens - 1) / block_size)`.
    #[must_use]
    pub fn blocks(self, block_size: u32) -> u32 {
        self.tokens.saturating_sub(1).div_ceil(block_size)
    }
}
