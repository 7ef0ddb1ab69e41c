//! Ranks that store and remove, in few words.

use kvtide_radix::{
    Block, BlockHash, Blocks, Event, Layer, Limits, Outcome, Overlap, Rank, RankSettings, RankSlot, Reader,
    Removed, SequenceHash, Size, Stored, Tier, Writer, index,
};

/// Tokens a block.
pub(crate) const BLOCK: u32 = 16;

/// A tree and its ranks, by number.
pub(crate) struct Scene {
    pub writer: Writer,
    pub reader: Reader,
    slots: Vec<Option<RankSlot>>,
}

pub(crate) fn rank(number: usize) -> Rank {
    Rank { worker_id: number as u64, dp_rank: 0 }
}

/// Blocks that are named as they are: 7 contains 7 and is called 7.
pub(crate) fn blocks(numbers: impl IntoIterator<Item = u64>) -> Vec<Block> {
    numbers.into_iter().map(|number| block(number, number)).collect()
}

pub(crate) fn block(name: u64, content: u64) -> Block {
    Block { name: SequenceHash(name), content: BlockHash(content) }
}

/// Blocks behind a parent.
pub(crate) fn stored(layer: Layer, parent: Option<u64>, blocks: Vec<Block>) -> Event {
    let blocks = Blocks::Hashed(blocks);
    Event::Stored(Stored { layer, parent: parent.map(SequenceHash), blocks })
}

/// Names alone.
pub(crate) fn named(layer: Layer, parent: Option<u64>, names: impl IntoIterator<Item = u64>) -> Event {
    let blocks = Blocks::Named(names.into_iter().map(SequenceHash).collect());
    Event::Stored(Stored { layer, parent: parent.map(SequenceHash), blocks })
}

pub(crate) fn removed(layer: Layer, names: impl IntoIterator<Item = u64>) -> Event {
    Event::Removed(Removed { layer, names: names.into_iter().map(SequenceHash).collect() })
}

impl Scene {
    /// A tree with ranks that have nothing set.
    pub(crate) fn new(ranks: usize) -> Scene {
        Scene::with(Limits::default(), vec![RankSettings::default(); ranks])
    }

    pub(crate) fn with(limits: Limits, settings: Vec<RankSettings>) -> Scene {
        let (writer, reader) = index(BLOCK, limits);
        let mut scene = Scene { writer, reader, slots: vec![None; settings.len()] };
        for (number, settings) in settings.into_iter().enumerate() {
            scene.join(number, settings);
        }
        scene
    }

    pub(crate) fn join(&mut self, number: usize, settings: RankSettings) {
        self.slots[number] = Some(self.writer.update(|update| update.join(rank(number), settings)).unwrap());
    }

    pub(crate) fn leave(&mut self, number: usize) {
        let slot = self.slots[number].take().unwrap();
        self.writer.update(|update| update.leave(slot));
    }

    pub(crate) fn slot(&self, number: usize) -> RankSlot {
        self.slots[number].unwrap()
    }

    pub(crate) fn apply(&mut self, number: usize, event: &Event) -> Outcome {
        let slot = self.slot(number);
        self.writer.update(|update| update.apply(slot, event))
    }

    /// Stores plain blocks on the GPU, the first of them at the start of a prompt or behind the number before it.
    pub(crate) fn store(&mut self, number: usize, numbers: std::ops::RangeInclusive<u64>) -> Outcome {
        let parent = numbers.start().checked_sub(1).filter(|&parent| parent > 0);
        self.apply(number, &stored(Layer::GPU, parent, blocks(numbers)))
    }

    pub(crate) fn remove(&mut self, number: usize, numbers: impl IntoIterator<Item = u64>) -> Outcome {
        self.apply(number, &removed(Layer::GPU, numbers))
    }

    /// Blocks that a rank could reuse of a prompt, by tier.
    pub(crate) fn reach_by_tier(&self, number: usize, prompt: impl IntoIterator<Item = u64>) -> [u32; 4] {
        let mut answer = Overlap::default();
        let view = self.reader.view();
        view.overlap(prompt.into_iter().map(BlockHash), &mut answer);
        let reach = view.reach(&answer, rank(number)).unwrap();
        Tier::ALL.map(|tier| reach.tokens(tier) / BLOCK)
    }

    /// The same on the GPU.
    pub(crate) fn reach(&self, number: usize, prompt: impl IntoIterator<Item = u64>) -> u32 {
        self.reach_by_tier(number, prompt)[0]
    }

    pub(crate) fn size(&self) -> Size {
        self.reader.view().size()
    }
}
