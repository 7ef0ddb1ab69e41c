//! The two doors to a tree: one writer that changes it, any number of readers that ask it.

use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard};

use crate::{
    BlockHash, Event, Layer, Outcome, Overlap, Rank, RankSettings, RankSlot, Reach, Size, Tier, Watermark,
    Window, tree::Tree,
};

/// How much a tree takes in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Ranks at the same time; at most 65,536.
    pub ranks: usize,
    /// Blocks a rank that wait for their parent or name. Beyond it, those that have waited longest are dropped.
    pub parked_blocks: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { ranks: 16_384, parked_blocks: 65_536 }
    }
}

/// As many ranks as may be are in the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no room for another rank: {limit} are there, which is the limit")]
pub struct RanksFull {
    /// The limit.
    pub limit: usize,
}

/// Creates the index of one scope.
#[must_use]
pub fn index(block_size: u32, limits: Limits) -> (Writer, Reader) {
    let tree = Arc::new(RwLock::new(Tree::new(block_size, limits)));
    (Writer { tree: Arc::clone(&tree), limits }, Reader { tree })
}

/// Changes an index. There is one.
pub struct Writer {
    tree: Arc<RwLock<Tree>>,
    limits: Limits,
}

/// Asks an index. There can be any number.
#[derive(Clone)]
pub struct Reader {
    tree: Arc<RwLock<Tree>>,
}

impl Writer {
    /// Makes changes that readers see all at once, as one new version. Returns what `change` returns.
    pub fn update<T>(&mut self, change: impl FnOnce(&mut Update<'_>) -> T) -> T {
        let mut tree = self.tree.write();
        let result = change(&mut Update { tree: &mut tree, limits: self.limits });
        tree.version += 1;
        result
    }
}

/// Changes that become one version.
pub struct Update<'a> {
    tree: &'a mut Tree,
    limits: Limits,
}

impl Update<'_> {
    /// Lets a rank in, which holds nothing yet. One that is already in keeps its slot and settings.
    ///
    /// # Errors
    /// [`RanksFull`] where the limit is reached.
    pub fn join(&mut self, rank: Rank, settings: RankSettings) -> Result<RankSlot, RanksFull> {
        if let Some(slot) = self.tree.ranks.find(rank) {
            return Ok(slot);
        }
        let limit = self.limits.ranks;
        let full = RanksFull { limit };
        if self.tree.ranks.len() >= limit {
            return Err(full);
        }
        self.tree.ranks.join(rank, settings).ok_or(full)
    }

    /// Applies one event of a rank, in the order in which the rank published them.
    pub fn apply(&mut self, rank: RankSlot, event: &Event) -> Outcome {
        self.tree.apply(rank, event)
    }

    /// States the windows of a rank's further groups.
    pub fn set_windows(&mut self, rank: RankSlot, windows: Vec<Window>) {
        self.tree.ranks.set_windows(rank, windows);
    }

    /// States how far a rank's stream is applied and how to read its numbers.
    pub fn mark(&mut self, rank: RankSlot, watermark: Watermark) {
        self.tree.ranks.get_mut(rank).watermark = watermark;
    }

    /// Takes everything away that a rank holds, waits for or ever named.
    pub fn forget(&mut self, rank: RankSlot) {
        self.tree.forget(rank);
    }

    /// Lets a rank go, with everything that it holds. Its slot goes to another.
    pub fn leave(&mut self, rank: RankSlot) {
        self.tree.forget(rank);
        self.tree.ranks.leave(rank);
    }
}

impl Reader {
    /// The index as it is now. Everything asked of one view is of one version; a view should not be kept.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View { tree: self.tree.read() }
    }
}

/// One version of an index.
pub struct View<'a> {
    tree: RwLockReadGuard<'a, Tree>,
}

/// A rank in a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RankState {
    /// Its slot.
    pub slot: RankSlot,
    /// Who it is.
    pub rank: Rank,
    /// How far its stream is applied, and how to read its numbers.
    pub watermark: Watermark,
    /// Blocks of full attention that it holds, by [`Tier::ALL`].
    pub held_blocks: [u64; 4],
    /// Blocks that wait for a parent or a name.
    pub parked_blocks: usize,
}

impl View<'_> {
    /// The version's number. It grows by one with each.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.tree.version
    }

    /// Tokens a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.tree.block_size
    }

    /// All ranks, in order, whatever they hold.
    pub fn ranks(&self) -> impl Iterator<Item = RankState> {
        self.tree.ranks.iter().map(|(slot, entry)| RankState {
            slot,
            rank: entry.rank,
            watermark: entry.watermark,
            held_blocks: Tier::ALL.map(|tier| entry.held[Layer::new(tier, crate::Group::FULL).index()]),
            parked_blocks: entry.parking.blocks(),
        })
    }

    /// Finds every rank's reach into a prompt, given by its block hashes in order, and writes it into `answer`.
    ///
    /// The hashes come one by one or in groups, and are not asked for beyond where the tree ends: an iterator that
    /// computes each [`BlockHash`] when it is asked for saves hashing what nobody holds. Hashes that are there
    /// already are best given as one slice, `[&hashes]`, which is followed several blocks at a time.
    pub fn overlap<G: AsRef<[BlockHash]>>(&self, prompt: impl IntoIterator<Item = G>, answer: &mut Overlap) {
        self.tree.overlap(prompt, answer);
    }

    /// The reach of one rank in an answer of this view.
    #[must_use]
    pub fn reach(&self, answer: &Overlap, rank: Rank) -> Option<Reach> {
        self.tree.ranks.find(rank).map(|slot| answer.reach(slot))
    }

    /// How large the index is.
    #[must_use]
    pub fn size(&self) -> Size {
        self.tree.size()
    }
}
