//! What is measured: a stream of events, prompts that are asked for in between, and the right answers to some.

use std::ops::Range;

use hashbrown::HashMap;
use kvtide_events::sequence_hashes;
use kvtide_radix::{
    Block, BlockHash, Blocks, Copies, Event, Layer, RankSettings, Removed, SequenceHash, Stored,
};
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};

const SEED: u64 = 4;

/// A block of the workload: its number stands for its content and for all that is in front of it.
pub type Number = u64;

/// One workload.
#[derive(Clone)]
pub struct Workload {
    /// Ranks that announce.
    pub ranks: usize,
    /// How kvtide reads what they announce. Other indexes have no such settings.
    pub settings: RankSettings,
    /// Each with the number of its rank.
    pub events: Vec<(usize, Event)>,
    /// What is asked for.
    pub prompts: Prompts,
    /// The right answers to a sample of the prompts, in their order.
    pub truths: Vec<Truth>,
    /// Blocks that all ranks hold in the end.
    pub held_blocks: usize,
}

/// The right answer to one prompt at its time.
#[derive(Clone)]
pub struct Truth {
    /// Which prompt.
    pub prompt: usize,
    /// Leading blocks that each rank holds.
    pub reaches: Vec<u32>,
}

/// Prompts, in the order in which they are asked for.
#[derive(Clone)]
pub struct Prompts<H = BlockHash> {
    prompts: Vec<Prompt>,
    /// The block hashes of all, in another order than they are asked for: each comes from memory, not from a cache.
    hashes: Vec<H>,
}

/// A prompt is asked for when a router would: just before a rank serves it.
#[derive(Clone)]
struct Prompt {
    /// Events that are applied by then.
    after: usize,
    hashes: Range<usize>,
}

impl Prompts {
    /// Takes each prompt with the number of events before it.
    pub(crate) fn new(prompts: &[(usize, Vec<Number>)]) -> Prompts {
        let mut order: Vec<usize> = (0..prompts.len()).collect();
        order.shuffle(&mut StdRng::seed_from_u64(SEED));
        let mut hashes = Vec::with_capacity(prompts.iter().map(|(_, prompt)| prompt.len()).sum());
        let mut placed: Vec<Prompt> =
            prompts.iter().map(|&(after, _)| Prompt { after, hashes: 0..0 }).collect();
        for index in order {
            let start = hashes.len();
            hashes.extend(prompts[index].1.iter().map(|&number| block(number).content));
            placed[index].hashes = start..hashes.len();
        }
        Prompts { prompts: placed, hashes }
    }

    /// The same with hashes of another kind.
    pub fn with<H>(&self, hash: impl Fn(BlockHash) -> H) -> Prompts<H> {
        Prompts { prompts: self.prompts.clone(), hashes: self.hashes.iter().map(|&one| hash(one)).collect() }
    }
}

impl<H> Prompts<H> {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.prompts.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.prompts.is_empty()
    }

    /// The block hashes of one.
    #[must_use]
    pub fn get(&self, index: usize) -> &[H] {
        &self.hashes[self.prompts[index].hashes.clone()]
    }

    /// How many events are applied before the prompt is asked for.
    #[must_use]
    pub fn after(&self, index: usize) -> usize {
        self.prompts[index].after
    }
}

impl Workload {
    /// The same, every event cut into events of one block.
    #[must_use]
    pub fn one_by_one(mut self) -> Workload {
        let mut events = Vec::new();
        // Where the events after so many old ones start.
        let mut starts = vec![0];
        for (rank, event) in self.events {
            events.extend(cut(event).into_iter().map(|part| (rank, part)));
            starts.push(events.len());
        }
        for prompt in &mut self.prompts.prompts {
            prompt.after = starts[prompt.after];
        }
        Workload { events, ..self }
    }

    /// The same, read as what an engine itself publishes: copies are counted, and names are kept for a while.
    #[must_use]
    pub fn of_engines(self) -> Workload {
        let settings =
            RankSettings { copies: Copies::Counted, recent_names: 1024, ..RankSettings::default() };
        Workload { settings, ..self }
    }

    /// The same, every block named as Dynamo's router names it: by a rolling hash over the block hashes.
    #[must_use]
    pub fn named_by_sequence(mut self) -> Workload {
        let mut names: HashMap<SequenceHash, SequenceHash> = HashMap::new();
        for (_, event) in &mut self.events {
            match event {
                Event::Stored(Stored { parent, blocks: Blocks::Hashed(blocks), .. }) => {
                    *parent = parent.map(|old| names[&old]);
                    // The hash rolls on from the parent's name, as if that were a first block.
                    let front = parent.map(|name| BlockHash(name.0));
                    let contents = front.into_iter().chain(blocks.iter().map(|block| block.content));
                    let new: Vec<_> = sequence_hashes(contents).skip(front.iter().len()).collect();
                    for (block, name) in blocks.iter_mut().zip(new) {
                        names.insert(block.name, name);
                        block.name = name;
                    }
                }
                Event::Removed(removed) => removed.names.iter_mut().for_each(|name| *name = names[name]),
                Event::Stored(_) | Event::Cleared => {}
            }
        }
        self
    }

    /// Blocks that all events store or remove.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.events.iter().map(|(_, event)| blocks_of(event)).sum()
    }
}

fn cut(event: Event) -> Vec<Event> {
    match event {
        Event::Stored(stored) => {
            let mut parent = stored.parent;
            let part = |&block: &Block| {
                let in_front = parent.replace(block.name);
                let blocks = Blocks::Hashed(vec![block]);
                Event::Stored(Stored { layer: stored.layer, parent: in_front, blocks })
            };
            hashed(&stored).iter().map(part).collect()
        }
        Event::Removed(Removed { layer, names }) => {
            names.into_iter().map(|name| Event::Removed(Removed { layer, names: vec![name] })).collect()
        }
        Event::Cleared => vec![Event::Cleared],
    }
}

/// What a rank announces when it has stored a part of a prompt.
pub(crate) fn stored(prompt: &[Number], part: Range<usize>) -> Event {
    let parent = part.start.checked_sub(1).map(|last| block(prompt[last]).name);
    let blocks = Blocks::Hashed(prompt[part].iter().map(|&number| block(number)).collect());
    Event::Stored(Stored { layer: Layer::GPU, parent, blocks })
}

/// What a rank announces when blocks have gone.
pub(crate) fn removed(numbers: &[Number]) -> Event {
    let names = numbers.iter().map(|&number| block(number).name).collect();
    Event::Removed(Removed { layer: Layer::GPU, names })
}

/// The blocks of a store. Workloads give all blocks as hashes.
#[must_use]
pub fn hashed(stored: &Stored) -> &[Block] {
    match &stored.blocks {
        Blocks::Hashed(blocks) => blocks,
        Blocks::Tokens(_) | Blocks::Named(_) => &[],
    }
}

/// Blocks that an event stores or removes.
#[must_use]
pub fn blocks_of(event: &Event) -> usize {
    match event {
        Event::Stored(stored) => stored.blocks.len(),
        Event::Removed(removed) => removed.names.len(),
        Event::Cleared => 0,
    }
}

/// The block that a number stands for.
#[must_use]
pub fn block(number: Number) -> Block {
    Block { name: SequenceHash(mix(2 * number + 1)), content: BlockHash(mix(2 * number + 2)) }
}

/// The finalizer of SplitMix64: numbers become what hashes look like.
#[must_use]
pub fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
