//! A simulated fleet: workers with LRU caches on the GPU and in host memory, and conversations that grow.

use std::sync::Arc;

use kvtide::{BoundStream, Indexer, PromptContent, Query, Scope, ScopeQuery};
use kvtide_events::{Hashing, sequence_hashes};
use kvtide_radix::{Block, Blocks, Event, Group, Layer, Rank, Removed, Seed, Stored};
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

use kvtide::serving::Failure;

use crate::cli::cache::{Caches, Change, Piece};

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

/// A worker, and what it holds.
struct Worker {
    rank: Rank,
    events: u64,
    caches: Caches,
}

impl Fleet {
    pub(super) fn new(indexer: Arc<Indexer>, workers: u64, seed: u64) -> Result<Fleet, Failure> {
        let stream = indexer.direct(&Scope::new(MODEL, BLOCK_SIZE))?;
        let workers = (1..=workers).map(|worker_id| Worker {
            rank: Rank { worker_id, dp_rank: 0 },
            events: 0,
            caches: Caches::new([GPU_BLOCKS, HOST_BLOCKS, 0]),
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
            prompt: PromptContent::Tokens(prompt.as_slice().into()),
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
        // Nobody asks for the texts again.
        let pieces = names.iter().zip(&contents).map(|(&name, &content)| Piece { name, content, text: 0 });
        let mut changes = Vec::new();
        self.caches.serve(&pieces.collect::<Vec<_>>(), &mut changes);
        let events: Vec<_> = changes.into_iter().map(event).collect();
        let first = self.events + 1;
        self.events += events.len() as u64;
        indexer.apply_events(stream, self.rank, Some(first), &events)?;
        Ok(())
    }
}

/// A change as the worker tells of it.
fn event(change: Change) -> Event {
    match change {
        Change::Stored { tier, parent, pieces } => {
            let blocks = pieces.into_iter().map(|Piece { name, content, .. }| Block { name, content });
            let layer = Layer::new(tier, Group::FULL);
            Event::Stored(Stored { layer, parent, blocks: Blocks::Hashed(blocks.collect()) })
        }
        Change::Removed { tier, names } => {
            Event::Removed(Removed { layer: Layer::new(tier, Group::FULL), names })
        }
    }
}
