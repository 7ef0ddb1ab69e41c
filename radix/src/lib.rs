//! A radix tree of KV cache blocks: which rank holds how much of a prompt, in which tier of memory.
//!
//! [`index`] makes the two doors to a tree. The one [`Writer`] applies [`Event`]s; any number of [`Reader`]s ask for
//! the [`Reach`] of every rank into a prompt.
//!
//! ```
//! use kvtide_radix::*;
//!
//! let (mut writer, reader) = index(64, Limits::default());
//! writer.update(|update| {
//!     let rank = update.join(Rank { worker_id: 7, dp_rank: 0 }, RankSettings::default())?;
//!     let block = |name, content| Block { name: SequenceHash(name), content: BlockHash(content) };
//!     let blocks = Blocks::Hashed(vec![block(1, 10), block(2, 20)]);
//!     update.apply(rank, &Event::Stored(Stored { layer: Layer::GPU, parent: None, blocks }));
//!     Ok::<_, RanksFull>(())
//! })?;
//! let (view, mut answer) = (reader.view(), Overlap::default());
//! view.overlap([10, 20, 30].map(BlockHash), &mut answer);
//! assert_eq!(view.reach(&answer, Rank { worker_id: 7, dp_rank: 0 }).map(|reach| reach.gpu()), Some(128));
//! # Ok::<(), RanksFull>(())
//! ```
//!
//! # Consistency
//!
//! Everything asked of one [`View`] is of one version: blocks, reach, and each rank's [`Watermark`]. What one
//! [`Writer::update`] changes becomes visible at once.
//!
//! # Names
//!
//! Ranks name blocks by [`SequenceHash`], and their removals use those names. A name belongs to the rank that uses
//! it; what it means is decided by the first store that binds it, and stays so while the rank holds the block.
#![forbid(unsafe_code)]

mod chain;
mod contents;
mod coverage;
mod dump;
mod event;
mod fold;
mod hash;
mod holds;
mod index;
mod marked;
mod names;
mod numbers;
mod overlap;
mod owners;
mod pages;
mod parking;
mod parted;
mod prompt;
mod rank;
mod rank_set;
mod reach;
mod recent;
mod run;
mod sides;
mod skeleton;
mod stretches;
mod sync;
mod tier;
mod tree;

pub use dump::{Dump, DumpError, DumpedHold, DumpedPlace, DumpedRank, DumpedRun, DumpedSpan, DumpedStore};
pub use event::{Block, Blocks, Event, Removed, Stored, TokenBlocks};
pub use hash::{BlockHash, BlockHasher, Seed, SequenceHash, media_hash};
pub use index::{Limits, RankState, RanksFull, Reader, RestoreError, Size, Update, View, Writer, index};
pub use overlap::Overlap;
pub use parking::{Expired, ParkingState};
pub use rank::{Copies, Knowledge, Life, Rank, RankSettings, RankSlot, Watermark, Window};
pub use reach::Reach;
pub use tier::{Group, Layer, Tier};
pub use tree::Outcome;
