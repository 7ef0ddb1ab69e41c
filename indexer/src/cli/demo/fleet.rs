//! A simulated fleet: workers with LRU caches on the GPU and in host memory, and conversations that grow.

use std::{collections::BTreeMap, sync::Arc};

use kvtide::{BoundStream, Indexer, PromptContent, Query, Scope, ScopeQuery};
use kvtide_events::{Hashing, sequence_hashes};
use kvtide_radix::{Block, Blocks, Event, Group, Layer, Rank, Removed, Seed, SequenceHash, Stored, Tier};
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

use kvtide::serving::Failure;

const MODEL: &str = "demo-model";
const BLOCK_SIZE: u32 = 64;
const GPU_BLOCKS: usize = 600;
const HOST_BLOCKS: usize = 1200;
/// Conversations start from one of these many system prompts.
const SYSTEM_PROMPTS: u32 = 6;
const SYSTEM_TOKENS: u32 = 1024;
const CONVERSATIONS: usize = 40;
/// A conversation that is longer than this ends, and another one starts.
const LONGEST: usize = 12_000;

/// The fleet, and the router in front of it that asks kvtide before every request.
pub(super) struct Fleet {
    indexer: Arc<Indexer>,
    stream: Arc<BoundStream>,
    workers: Vec<Worker>,
    conversations: Vec<Vec<u32>>,
    random: StdRng,
}

/// A worker's caches. A block's stamp says when it was last used; of one prompt, later blocks are older, so that
/// no block goes before those behind it.
struct Worker {
    rank: Rank,
    events: u64,
    stamps: u64,
    gpu: Cache,
    host: Cache,
}

#[derive(Default)]
struct Cache {
    by_name: BTreeMap<SequenceHash, u64>,
    by_stamp: BTreeMap<u64, SequenceHash>,
}

impl Fleet {
    pub(super) fn new(indexer: Arc<Indexer>, workers: u64, seed: u64) -> Result<Fleet, Failure> {
        let stream = indexer.direct(&Scope::new(MODEL, BLOCK_SIZE))?;
        let workers = (1..=workers).map(|worker_id| Worker {
            rank: Rank { worker_id, dp_rank: 0 },
            events: 0,
            stamps: 0,
            gpu: Cache::default(),
            host: Cache::default(),
        });
        let mut random = StdRng::seed_from_u64(seed);
        let conversations = (0..CONVERSATIONS).map(|_| new_conversation(&mut random)).collect();
        Ok(Fleet { indexer, stream, workers: workers.collect(), conversations, random })
    }

    /// A prompt of which some worker surely holds something: the first system prompt and some more.
    pub(super) fn example_prompt() -> String {
        format!("0..{}", 2 * SYSTEM_TOKENS)
    }

    /// One conversation goes on by a turn, on the worker that reaches furthest into it.
    pub(super) fn serve_request(&mut self) -> Result<(), Failure> {
        let chosen = self.random.random_range(0..self.conversations.len());
        if self.conversations[chosen].len() > LONGEST {
            self.conversations[chosen] = new_conversation(&mut self.random);
        }
        let turn = self.random.random_range(100..900);
        let tokens = (0..turn).map(|_| self.random.next_u32() >> 12);
        self.conversations[chosen].extend(tokens);
        let prompt = self.conversations[chosen].clone();
        let query = Query {
            scope: ScopeQuery { model: Some(MODEL.into()), ..ScopeQuery::default() },
            prompt: PromptContent::Tokens(prompt.clone()),
            limit: Some(1),
            without_freshness: true,
            ..Query::default()
        };
        let best =
            self.indexer.overlap(&query)?.ranks.first().map(|answer| (answer.rank(), answer.reach_tokens));
        // Now and then the best worker is busy.
        let worker = match best {
            Some((rank, Some(reach))) if reach.gpu > SYSTEM_TOKENS && self.random.random_ratio(9, 10) => {
                self.workers.iter().position(|worker| worker.rank == rank)
            }
            Some(_) | None => None,
        };
        let worker = worker.unwrap_or_else(|| self.random.random_range(0..self.workers.len()));
        self.workers[worker].serve(&self.indexer, &self.stream, &prompt)
    }
}

/// A system prompt and a first turn. Tokens of system prompts are consecutive numbers, so that they can be typed.
fn new_conversation(random: &mut StdRng) -> Vec<u32> {
    let start = random.random_range(0..SYSTEM_PROMPTS) * SYSTEM_TOKENS;
    (start..start + SYSTEM_TOKENS).collect()
}

impl Worker {
    fn serve(&mut self, indexer: &Indexer, stream: &BoundStream, prompt: &[u32]) -> Result<(), Failure> {
        let hashing = Hashing { block_size: BLOCK_SIZE, eagle: false };
        let contents: Vec<_> = hashing.block_hashes(prompt, &[], Seed::PLAIN).collect();
        let names: Vec<_> = sequence_hashes(contents.iter().copied()).collect();
        let held = names.iter().take_while(|name| self.gpu.by_name.contains_key(name)).count();
        let mut events = Vec::new();
        let blocks = names.iter().zip(&contents).map(|(&name, &content)| Block { name, content });
        let missing: Vec<_> = blocks.skip(held).collect();
        if !missing.is_empty() {
            let parent = held.checked_sub(1).map(|last| names[last]);
            events.push(Event::Stored(Stored { layer: Layer::GPU, parent, blocks: Blocks::Hashed(missing) }));
        }
        self.stamps += names.len() as u64;
        for (age, &name) in names.iter().enumerate() {
            self.gpu.touch(name, self.stamps - age as u64);
        }
        self.evict(&mut events);
        let first = self.events + 1;
        self.events += events.len() as u64;
        indexer.apply_events(stream, self.rank, Some(first), &events)?;
        Ok(())
    }

    /// What no longer fits on the GPU goes to host memory; what no longer fits there is gone.
    fn evict(&mut self, events: &mut Vec<Event>) {
        let host = Layer::new(Tier::Host, Group::FULL);
        let moved = self.gpu.shrink(GPU_BLOCKS);
        if moved.is_empty() {
            return;
        }
        events.push(Event::Stored(Stored {
            layer: host,
            parent: None,
            blocks: Blocks::Named(moved.clone()),
        }));
        self.stamps += moved.len() as u64;
        for (age, &name) in moved.iter().rev().enumerate() {
            self.host.touch(name, self.stamps - age as u64);
        }
        events.push(Event::Removed(Removed { layer: Layer::GPU, names: moved }));
        let gone = self.host.shrink(HOST_BLOCKS);
        if !gone.is_empty() {
            events.push(Event::Removed(Removed { layer: host, names: gone }));
        }
    }
}

impl Cache {
    fn touch(&mut self, name: SequenceHash, stamp: u64) {
        if let Some(before) = self.by_name.insert(name, stamp) {
            self.by_stamp.remove(&before);
        }
        self.by_stamp.insert(stamp, name);
    }

    /// Takes the blocks out that were used longest ago, until no more than `capacity` are left.
    fn shrink(&mut self, capacity: usize) -> Vec<SequenceHash> {
        let mut gone = Vec::new();
        while self.by_name.len() > capacity
            && let Some((_, name)) = self.by_stamp.pop_first()
        {
            self.by_name.remove(&name);
            gone.push(name);
        }
        gone
    }
}
