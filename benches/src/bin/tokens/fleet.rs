//! Ranks that serve the requests of a trace, each with a cache that evicts, and what they announce.

use std::collections::{HashMap, VecDeque};

use kvtide_benches::Request;
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
    let mut caches: Vec<Cache> = (0..RANKS).map(|_| Cache::default()).collect();
    let mut tokens = Vec::new();
    let mut prompt = PromptHasher::new(hashing, Seed::PLAIN);
    let serve = |request: &Request| {
        request.write_tokens(&mut tokens);
        prompt.truncate(0);
        prompt.extend(&tokens, &[]);
        let rank = random.random_range(0..RANKS);
        Served { rank, events: caches[rank].serve(prompt.hashes()) }
    };
    requests.iter().map(serve).collect()
}

/// A rank's cache: evicts what has not been used for longest, and of a prompt its end first.
#[derive(Default)]
struct Cache {
    /// When each block was last used.
    held: HashMap<BlockHash, u64>,
    /// Uses in order; one that is not a block's last is passed over.
    uses: VecDeque<(BlockHash, u64)>,
    clock: u64,
}

impl Cache {
    fn serve(&mut self, prompt: &[BlockHash]) -> Vec<Event> {
        let room = ROOM / RANKS;
        let prompt = &prompt[..prompt.len().min(room)];
        let held = prompt.iter().take_while(|hash| self.held.contains_key(hash)).count();
        // Backwards, so that no block is evicted before those behind it.
        for &hash in prompt.iter().rev() {
            self.clock += 1;
            self.held.insert(hash, self.clock);
            self.uses.push_back((hash, self.clock));
        }
        let mut evicted = Vec::new();
        while self.held.len() > room {
            let Some((hash, when)) = self.uses.pop_front() else { break };
            if self.held.get(&hash) == Some(&when) {
                self.held.remove(&hash);
                evicted.push(name(hash));
            }
        }
        let lacking = prompt[held..].iter().map(|&content| Block { name: name(content), content });
        let blocks = Blocks::Hashed(lacking.collect());
        let parent = held.checked_sub(1).map(|last| name(prompt[last]));
        let removed = Event::Removed(Removed { layer: Layer::GPU, names: evicted });
        let stored = Event::Stored(Stored { layer: Layer::GPU, parent, blocks });
        [removed, stored].into_iter().filter(|event| !is_empty(event)).collect()
    }
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
