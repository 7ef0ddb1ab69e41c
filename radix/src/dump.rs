//! A whole tree as plain data: what has to be written down so that another process can go on with it.
//!
//! Runs stand in an order in which parents come first; ranks and runs are referred to by their number in the dump. Only
//! what the tree cannot know by itself is in it: settings and watermarks are the caller's.

use serde::{Deserialize, Serialize};

use crate::{Block, Blocks, Layer, Rank, Seed, SequenceHash, Watermark};

/// A tree.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Dump {
    /// Its ranks.
    pub ranks: Vec<DumpedRank>,
    /// Its runs of blocks, parents first.
    pub runs: Vec<DumpedRun>,
}

/// A rank, and what belongs to it alone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DumpedRank {
    /// Who it is.
    pub rank: Rank,
    /// How far its stream is applied.
    pub watermark: Watermark,
    /// Names that it no longer holds and that stay bound for a while, oldest first.
    pub recent: Vec<(SequenceHash, DumpedPlace)>,
    /// What waits for a parent or a name, in order of arrival.
    pub parked: Vec<DumpedStore>,
}

/// A store that waits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DumpedStore {
    /// Where the blocks are held.
    pub layer: Layer,
    /// The parent; for names alone, the name itself.
    pub waits_for: SequenceHash,
    /// The blocks.
    pub blocks: Blocks,
    /// Indices of blocks that were removed again meanwhile, ascending.
    pub cancelled: Vec<u32>,
}

/// Blocks that follow each other.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DumpedRun {
    /// The block in front of the first; none at the start of a prompt.
    pub parent: Option<DumpedPlace>,
    /// The seed of the chain, if it starts here and its seed is known.
    pub seed: Option<Seed>,
    /// The blocks, each with its own name; 0 for one that has none.
    #[serde(with = "block_bytes")]
    pub blocks: Vec<Block>,
    /// Who holds which of them.
    pub held: Vec<DumpedSpan>,
    /// Of those, what is held under other names or more than once.
    pub unusual: Vec<DumpedHold>,
}

/// A block of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DumpedPlace {
    /// The run.
    pub run: u32,
    /// The block's index in it.
    pub block: u32,
}

/// Blocks of a run that a rank holds in a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DumpedSpan {
    /// The rank.
    pub rank: u32,
    /// The layer.
    pub layer: Layer,
    /// The first block's index.
    pub from: u32,
    /// The index behind the last one's.
    pub to: u32,
}

/// One way in which a rank holds a block that not all its holders share. All ways of that rank and block are listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DumpedHold {
    /// The rank.
    pub rank: u32,
    /// The block's index.
    pub block: u32,
    /// Under which name.
    pub name: SequenceHash,
    /// Where.
    pub layer: Layer,
    /// How often, at least once.
    pub copies: u32,
}

/// Why a dump is of no tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("run {run} of a dumped tree: expected {expected}")]
pub struct DumpError {
    /// The run's number; the number of runs for what is wrong with a rank.
    pub run: usize,
    /// What should stand there.
    pub expected: &'static str,
}

/// Copies of one block that a rank can have.
const COPIES: u32 = 1 << 20;

impl DumpedRun {
    /// Whether what is held in an unusual way is held.
    fn has_whole_holds(&self) -> bool {
        self.unusual.iter().all(|hold| {
            let held = self.held.iter().any(|span| {
                (span.rank, span.layer) == (hold.rank, hold.layer)
                    && (span.from..span.to).contains(&hold.block)
            });
            held && hold.copies <= COPIES
        })
    }
}

impl DumpedStore {
    fn is_whole(&self) -> bool {
        let ascending = self.cancelled.is_sorted_by(|one, next| one < next);
        let within = self.cancelled.last().is_none_or(|&last| (last as usize) < self.blocks.len());
        let tokens = match &self.blocks {
            Blocks::Tokens(blocks) => {
                let tokens = blocks.names.len().checked_mul(blocks.tokens_per_block);
                blocks.tokens_per_block > 0 && tokens == Some(blocks.tokens.len())
            }
            Blocks::Hashed(_) | Blocks::Named(_) => true,
        };
        ascending && within && tokens
    }
}

impl Dump {
    /// Whether this can be the dump of a tree: whatever is referred to is there.
    ///
    /// # Errors
    /// [`DumpError`]: the first thing that cannot be.
    pub fn check(&self) -> Result<(), DumpError> {
        let ranks = self.ranks.len();
        let sorted = self.ranks.iter().map(|dumped| dumped.rank).collect::<std::collections::BTreeSet<_>>();
        if sorted.len() < ranks {
            return Err(DumpError { run: self.runs.len(), expected: "every rank once" });
        }
        for (number, run) in self.runs.iter().enumerate() {
            let require = |holds: bool, expected| {
                if holds { Ok(()) } else { Err(DumpError { run: number, expected }) }
            };
            let blocks = run.blocks.len();
            require(blocks > 0, "at least one block")?;
            let parent = run.parent.is_none_or(|parent| (parent.run as usize) < number && self.has(parent));
            require(parent, "a parent in a run before it")?;
            let spans = |span: &DumpedSpan| {
                (span.rank as usize) < ranks && span.from < span.to && span.to as usize <= blocks
            };
            require(run.held.iter().all(spans), "holders that are known, of blocks that it has")?;
            let holds = |hold: &DumpedHold| {
                (hold.rank as usize) < ranks && (hold.block as usize) < blocks && hold.copies > 0
            };
            require(run.unusual.iter().all(holds), "holds of ranks that are known, of blocks that it has")?;
            require(
                run.has_whole_holds(),
                "holds of blocks that the rank holds there, no more than there can be",
            )?;
        }
        let parked = self.ranks.iter().flat_map(|rank| &rank.parked).all(DumpedStore::is_whole);
        if !parked {
            return Err(DumpError { run: self.runs.len(), expected: "stores that wait, with what they say" });
        }
        let recent = self.ranks.iter().flat_map(|rank| &rank.recent);
        let bound = recent.map(|&(_, place)| place).all(|place| self.has(place));
        let error = DumpError { run: self.runs.len(), expected: "recent names of blocks that are there" };
        if bound { Ok(()) } else { Err(error) }
    }

    fn has(&self, place: DumpedPlace) -> bool {
        self.runs.get(place.run as usize).is_some_and(|run| (place.block as usize) < run.blocks.len())
    }
}

/// Blocks as bytes, name and content little-endian: twice as fast as number by number.
mod block_bytes {
    use std::fmt;

    use serde::{
        Deserializer, Serializer,
        de::{self, Visitor},
    };

    use crate::{Block, BlockHash, SequenceHash};

    const WORD: usize = size_of::<u64>();

    pub(super) fn serialize<S: Serializer>(blocks: &[Block], serializer: S) -> Result<S::Ok, S::Error> {
        let words = blocks.iter().flat_map(|block| [block.name.0, block.content.0]);
        serializer.serialize_bytes(&words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<Vec<Block>, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Vec<Block>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("blocks, 16 bytes each")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Vec<Block>, E> {
                let (words, rest) = bytes.as_chunks::<WORD>();
                let (blocks, odd) = words.as_chunks::<2>();
                if !rest.is_empty() || !odd.is_empty() {
                    return Err(E::invalid_length(bytes.len(), &self));
                }
                let block = |&[name, content]: &[[u8; WORD]; 2]| Block {
                    name: SequenceHash(u64::from_le_bytes(name)),
                    content: BlockHash(u64::from_le_bytes(content)),
                };
                Ok(blocks.iter().map(block).collect())
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}
