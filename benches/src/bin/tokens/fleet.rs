//! Ranks that serve the requests of a trace, each with a cache that evicts, and what they announce.

use std::iter;

use kvtide_benches::{Cache, Number, Request};
use kvtide_events::{Hashing, PromptHasher};
use kvtide_radix::{Block, BlockHash, Blocks, Event, Layer, Removed, Seed, SequenceHash, Stored};
use rand::{RngExt, SeedableRng, rngs::StdRng};

pub(crate) const RANKS: usize = 64;
/// Blocks that all ranks together have room for.
const ROOM: usize = 524_288;
const SEED: u64 = 1;

/// What a rank announces when it serves a request.
pub(crate) struct Served {
    pub(crate) rank: usize,
    pub(crate) events: Vec<Event>,
}

/// What is announced for each of the requests, every one served by a random rank.
pub(crate) fn serve(requests: &[Request], hashing: Hashing) -> Vec<Served> {
    let mut random = StdRng::seed_from_u64(SEED);
    let mut caches: Vec<Cache> = (0..RANKS).map(|_| Cache::new(ROOM / RANKS)).collect();
    let mut tokens = Vec::new();
    let mut prompt = PromptHasher::new(hashing, Seed::PLAIN);
    let serve = |request: &Request| {
        request.write_tokens(&mut tokens);
        prompt.truncate(0);
        prompt.extend(&tokens, &[]);
        let rank = random.random_range(0..RANKS);
        Served { rank, events: announce(&mut caches[rank], prompt.hashes()) }
    };
    requests.iter().map(serve).collect()
}

/// What a rank announces of a prompt that it serves: what has gone, and what is new.
fn announce(cache: &mut Cache, prompt: &[BlockHash]) -> Vec<Event> {
    let prompt = &prompt[..prompt.len().min(cache.room())];
    let numbers: Vec<Number> = prompt.iter().map(|hash| hash.0).collect();
    let served = cache.serve(&numbers);
    let names = served.evicted.into_iter().map(|number| name(BlockHash(number))).collect();
    let removed = Event::Removed(Removed { layer: Layer::GPU, names });
    let stored = served.lacking.into_iter().map(|part| {
        let parent = part.start.checked_sub(1).map(|last| name(prompt[last]));
        let blocks = prompt[part].iter().map(|&content| Block { name: name(content), content });
        Event::Stored(Stored { layer: Layer::GPU, parent, blocks: Blocks::Hashed(blocks.collect()) })
    });
    iter::once(removed).chain(stored).filter(|event| !is_empty(event)).collect()
}

fn is_empty(event: &Event) -> bool {
    match event {
        Event::Stored(stored) => stored.blocks.is_empty(),
        Event::Removed(removed) => removed.names.is_empty(),
        Event::Cleared => false,
    }
}

/// An id of the trace stands for its whole prefix, so a block's content alone tells it from all others.
fn name(content: BlockHash) -> SequenceHash {
    SequenceHash(content.0.rotate_left(32) ^ 0x9E37_79B9_7F4A_7C15)
}
