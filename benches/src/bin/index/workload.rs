//! What is measured: a stream of events, and prompts to ask for once it is applied.

use std::ops::Range;

use kvtide_radix::{
    Block, BlockHash, Blocks, Copies, Event, Layer, RankSettings, Removed, SequenceHash, Stored,
};

use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};

use crate::cache::Cache;

const SEED: u64 = 4;

/// A block of the workload: its number stands for its content and for all that is in front of it.
pub(crate) type Number = u32;

/// One workload.
pub(crate) struct Workload {
    pub(crate) name: String,
    pub(crate) ranks: usize,
    /// How kvtide reads what the ranks announce. Other indexes have no such settings.
    pub(crate) settings: RankSettings,
    /// Each with the number of its rank.
    pub(crate) events: Vec<(usize, Event)>,
    pub(crate) prompts: Prompts,
    /// Blocks that all ranks hold in the end.
    pub(crate) held_blocks: usize,
}

/// Prompts, in the order in which they are asked for.
pub(crate) struct Prompts<H = BlockHash> {
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
    fn new(prompts: &[(usize, Vec<Number>)]) -> Prompts {
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
    pub(crate) fn with<H>(&self, hash: impl Fn(BlockHash) -> H) -> Prompts<H> {
        Prompts { prompts: self.prompts.clone(), hashes: self.hashes.iter().map(|&one| hash(one)).collect() }
    }
}

impl<H> Prompts<H> {
    pub(crate) fn len(&self) -> usize {
        self.prompts.len()
    }

    pub(crate) fn get(&self, index: usize) -> &[H] {
        &self.hashes[self.prompts[index].hashes.clone()]
    }

    /// How many events are applied before the prompt is asked for.
    pub(crate) fn after(&self, index: usize) -> usize {
        self.prompts[index].after
    }
}

/// Ranks that serve requests, each with a cache that evicts; what they announce.
pub(crate) struct Fleet {
    caches: Vec<Cache>,
    events: Vec<(usize, Event)>,
    prompts: Vec<(usize, Vec<Number>)>,
}

impl Fleet {
    /// As many ranks with room for `blocks` each.
    pub(crate) fn new(ranks: usize, blocks: usize) -> Fleet {
        let caches = (0..ranks).map(|_| Cache::new(blocks)).collect();
        Fleet { caches, events: Vec::new(), prompts: Vec::new() }
    }

    /// A router asks for a prompt.
    pub(crate) fn ask(&mut self, prompt: &[Number]) {
        self.prompts.push((self.events.len(), prompt.to_vec()));
    }

    /// A rank serves a prompt: what it lacks is stored, once what has to go for it is removed. Of a prompt that its
    /// cache has no room for it serves the part that fits.
    pub(crate) fn serve(&mut self, rank: usize, prompt: &[Number]) {
        let cache = &mut self.caches[rank];
        let prompt = &prompt[..prompt.len().min(cache.room())];
        let (held, evicted) = cache.serve(prompt);
        if !evicted.is_empty() {
            let names = evicted.iter().map(|&number| block(number).name).collect();
            self.events.push((rank, Event::Removed(Removed { layer: Layer::GPU, names })));
        }
        let lacking: Vec<Block> = prompt[held..].iter().map(|&number| block(number)).collect();
        if !lacking.is_empty() {
            let parent = held.checked_sub(1).map(|last| block(prompt[last]).name);
            let blocks = Blocks::Hashed(lacking);
            self.events.push((rank, Event::Stored(Stored { layer: Layer::GPU, parent, blocks })));
        }
    }

    /// The workload. Of the prompts only the second half is asked for, when the caches are full.
    pub(crate) fn finish(self, name: String) -> Workload {
        let prompts = Prompts::new(&self.prompts[self.prompts.len() / 2..]);
        let held_blocks = self.caches.iter().map(Cache::held).sum();
        let settings = RankSettings::default();
        Workload { name, ranks: self.caches.len(), settings, events: self.events, prompts, held_blocks }
    }
}

impl Workload {
    /// The same, every event cut into events of one block.
    pub(crate) fn one_by_one(mut self) -> Workload {
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
        Workload { name: "one-block".to_owned(), events, ..self }
    }

    /// The same, read as what an engine itself publishes: copies are counted, and names are kept for a while.
    pub(crate) fn of_engines(self) -> Workload {
        let settings =
            RankSettings { copies: Copies::Counted, recent_names: 1024, ..RankSettings::default() };
        Workload { name: "engine".to_owned(), settings, ..self }
    }

    /// Blocks that all events store or remove.
    pub(crate) fn blocks(&self) -> usize {
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

/// The blocks of a store. Workloads give all blocks as hashes.
pub(crate) fn hashed(stored: &Stored) -> &[Block] {
    match &stored.blocks {
        Blocks::Hashed(blocks) => blocks,
        Blocks::Tokens(_) | Blocks::Named(_) => &[],
    }
}

fn blocks_of(event: &Event) -> usize {
    match event {
        Event::Stored(stored) => stored.blocks.len(),
        Event::Removed(removed) => removed.names.len(),
        Event::Cleared => 0,
    }
}

fn block(number: Number) -> Block {
    let number = u64::from(number);
    Block { name: SequenceHash(mix(2 * number + 1)), content: BlockHash(mix(2 * number + 2)) }
}

/// The finalizer of SplitMix64: numbers become what hashes look like.
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
