//! The two doors to a tree: one writer that changes it, any number of readers that ask it.

use crate::{
    BlockHash, Dump, DumpError, Event, Expired, Outcome, Overlap, ParkingState, Rank, RankSettings, RankSlot,
    Reach, Watermark, Window,
    pages::Place,
    sides::Sides,
    skeleton::Skeleton,
    sync::{Arc, Guard, Slot},
    tree::Tree,
};

/// How much a tree takes in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Ranks at the same time; at most 65,536.
    pub ranks: usize,
    /// Blocks a rank that wait for their parent or name. Beyond it, those that have waited longest are dropped.
    pub parked_blocks: usize,
    /// Bytes a rank of such blocks, as they were announced. Beyond it, the same.
    pub parked_bytes: usize,
    /// Different blocks at the same time, counted by pages of 16; at most 2^29. New ones beyond it are dropped.
    pub blocks: usize,
}

impl Limits {
    /// What a tree takes in if nothing is said.
    pub const DEFAULT: Limits =
        Limits { ranks: 16_384, parked_blocks: 65_536, parked_bytes: 32 << 20, blocks: Place::MOST };
}

impl Default for Limits {
    fn default() -> Self {
        Limits::DEFAULT
    }
}

/// As many ranks as may be are in the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no room for another rank: {limit} are there, which is the limit")]
pub struct RanksFull {
    /// The limit.
    pub limit: usize,
}

/// Why an index cannot go on with what another held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RestoreError {
    /// It is of no tree.
    #[error(transparent)]
    Dump(#[from] DumpError),
    /// There are too many ranks.
    #[error(transparent)]
    RanksFull(#[from] RanksFull),
    /// There are too many blocks.
    #[error("no room for {blocks} blocks: {limit} may be there")]
    BlocksFull {
        /// How many there are.
        blocks: usize,
        /// The limit.
        limit: usize,
    },
    /// Somebody is here already.
    #[error("expected an index without ranks, got one with {ranks}")]
    NotEmpty {
        /// Ranks that it has.
        ranks: usize,
    },
}

/// Creates the index of one scope.
#[must_use]
pub fn index(block_size: u32, limits: Limits) -> (Writer, Reader) {
    let (sides, slot) = Sides::new(Skeleton::new(block_size));
    let writer =
        Writer { tree: Tree::new(block_size, limits), sides, ready: true, collecting: false, changed: false };
    (writer, Reader { slot })
}

/// Changes an index. There is one.
pub struct Writer {
    tree: Tree,
    sides: Sides,
    /// Whether the tree has a side that it may change.
    ready: bool,
    /// Whether updates are collected, and whether there was any.
    collecting: bool,
    changed: bool,
}

/// Asks an index, and never waits for the writer. There can be any number.
#[derive(Clone)]
pub struct Reader {
    slot: Arc<Slot<Skeleton>>,
}

impl Writer {
    /// Makes changes that readers see all at once, as one new version. Returns what `change` returns.
    ///
    /// Publishing a version costs about as much as applying one event. Where events come fast, one for each 0.2 ms of them
    /// is best: see [`Writer::collect`].
    pub fn update<T>(&mut self, change: impl FnOnce(&mut Update<'_>) -> T) -> T {
        self.get_ready();
        if !self.changed {
            self.tree.reclaim(self.sides.oldest());
        }
        let result = change(&mut Update { tree: &mut self.tree });
        self.changed = true;
        if !self.collecting {
            self.publish();
        }
        result
    }

    /// Makes updates from here on one version together, which readers see once it is [published](Writer::publish).
    pub fn collect(&mut self) {
        self.collecting = true;
    }

    /// Shows readers what was [collected](Writer::collect). Without any update there is no new version.
    pub fn publish(&mut self) {
        self.collecting = false;
        if !std::mem::take(&mut self.changed) {
            return;
        }
        self.sides.publish(self.tree.finish());
        // Where nobody reads the side that was the latest, there is nothing to wait for.
        let next = self.sides.try_take();
        self.ready = next.is_some();
        if let Some(side) = next {
            self.tree.begin(side);
            self.tree.reclaim(self.sides.oldest());
        }
    }

    /// Waits for a side that nobody reads, or makes one.
    fn get_ready(&mut self) {
        if !self.ready {
            self.tree.begin(self.sides.take());
            self.ready = true;
        }
    }

    /// What those ranks hold now, with settings left out.
    #[must_use]
    pub fn dump(&mut self, is_in: impl Fn(Rank) -> bool) -> Dump {
        self.get_ready();
        self.tree.dump(is_in)
    }

    /// What waits for a parent or a name, as it is now.
    #[must_use]
    pub fn parking(&self, rank: RankSlot) -> ParkingState {
        self.tree.parking(rank)
    }
}

/// Changes that become one version.
pub struct Update<'a> {
    tree: &'a mut Tree,
}

impl Update<'_> {
    /// Lets a rank in, which holds nothing yet. One that is already in keeps its slot and settings.
    ///
    /// # Errors
    /// [`RanksFull`] where the limit is reached.
    pub fn join(&mut self, rank: Rank, settings: RankSettings) -> Result<RankSlot, RanksFull> {
        self.tree.join(rank, settings)
    }

    /// Applies one event of a rank, in the order in which the rank published them.
    pub fn apply(&mut self, rank: RankSlot, event: &Event) -> Outcome {
        self.tree.apply(rank, event)
    }

    /// States the windows of a rank's further groups.
    pub fn set_windows(&mut self, rank: RankSlot, windows: Vec<Window>) {
        self.tree.set_windows(rank, windows);
    }

    /// Fills an index without ranks with what another held. Ranks join with the settings that `settings` gives them by
    /// their number in the dump. Returns their slots, in the order of the dump.
    ///
    /// # Errors
    /// [`RestoreError`]. Nothing has changed then.
    pub fn restore(
        &mut self,
        dump: &Dump,
        settings: impl Fn(usize) -> RankSettings,
    ) -> Result<Vec<RankSlot>, RestoreError> {
        dump.check()?;
        self.tree.check_room(dump)?;
        let mut slots = Vec::with_capacity(dump.ranks.len());
        for (number, dumped) in dump.ranks.iter().enumerate() {
            match self.tree.join(dumped.rank, settings(number)) {
                Ok(slot) => slots.push(slot),
                Err(full) => {
                    slots.into_iter().for_each(|slot| self.tree.leave(slot));
                    return Err(full.into());
                }
            }
        }
        self.tree.restore(dump, &slots);
        Ok(slots)
    }

    /// Replaces what a rank holds by what the rank of a number in a dump did, under the same names.
    ///
    /// # Errors
    /// [`DumpError`] of a dump that is of no tree. Nothing has changed then.
    pub fn adopt(&mut self, rank: RankSlot, dump: &Dump, number: usize) -> Result<Outcome, DumpError> {
        dump.check()?;
        Ok(self.tree.adopt(rank, dump, number))
    }

    /// Drops what has waited for a parent or a name since before so many stores had to
    /// ([`ParkingState::arrivals`]).
    pub fn expire(&mut self, rank: RankSlot, before: u64) -> Expired {
        self.tree.expire(rank, before)
    }

    /// States how far a rank's stream is applied and how to read its numbers.
    pub fn mark(&mut self, rank: RankSlot, watermark: Watermark) {
        self.tree.mark(rank, watermark);
    }

    /// Takes everything away that a rank holds, waits for or ever named.
    pub fn forget(&mut self, rank: RankSlot) {
        self.tree.forget(rank);
    }

    /// Lets a rank go, with everything that it holds. Its slot goes to another.
    pub fn leave(&mut self, rank: RankSlot) {
        self.tree.leave(rank);
    }
}

impl Reader {
    /// The index as it is now. Everything asked of one view is of one version.
    ///
    /// A view should not be kept: the memory of whatever leaves the index meanwhile is not used again before it goes.
    #[must_use]
    pub fn view(&self) -> View {
        View { skeleton: self.slot.load() }
    }
}

/// One version of an index.
pub struct View {
    skeleton: Guard<Skeleton>,
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
    /// Blocks of full attention that it holds, by [`Tier::ALL`](crate::Tier::ALL).
    pub held_blocks: [u64; 4],
    /// Blocks that wait for a parent or a name.
    pub parked_blocks: usize,
}

/// How large an index is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Size {
    /// Runs of blocks.
    pub runs: usize,
    /// Pages of 16 blocks.
    pub pages: usize,
    /// Blocks held, summed over ranks and layers.
    pub held_blocks: u64,
    /// Blocks that wait for a parent or a name.
    pub parked_blocks: usize,
}

impl View {
    /// The version's number. It grows by one with each.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.skeleton.version
    }

    /// Tokens a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.skeleton.block_size
    }

    /// All ranks, in order, whatever they hold.
    pub fn ranks(&self) -> impl Iterator<Item = RankState> {
        self.skeleton.roster.iter().map(|member| member.state)
    }

    /// Finds every rank's reach into a prompt, given by its block hashes in order, and writes it into `answer`.
    ///
    /// The hashes come one by one or in groups, and are not asked for beyond where the tree ends: an iterator that
    /// computes each [`BlockHash`] when it is asked for saves hashing what nobody holds. Hashes that are there
    /// already are best given as one slice, `[&hashes]`, which is followed several blocks at a time.
    pub fn overlap<G: AsRef<[BlockHash]>>(&self, prompt: impl IntoIterator<Item = G>, answer: &mut Overlap) {
        self.skeleton.overlap(prompt, answer);
    }

    /// The reach of one rank in an answer of this view.
    #[must_use]
    pub fn reach(&self, answer: &Overlap, rank: Rank) -> Option<Reach> {
        self.skeleton.roster.find(rank).map(|slot| answer.reach(slot))
    }

    /// How large the index is.
    #[must_use]
    pub fn size(&self) -> Size {
        let totals = self.skeleton.totals;
        Size {
            runs: totals.runs,
            pages: totals.pages,
            held_blocks: totals.held_blocks,
            parked_blocks: self.ranks().map(|state| state.parked_blocks).sum(),
        }
    }
}
