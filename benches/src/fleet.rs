//! Ranks that serve requests, each with a cache that evicts; what they announce, and what they really hold.

use std::collections::VecDeque;

use kvtide_radix::{Event, RankSettings};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::{
    cache::Cache,
    workload::{Number, Prompts, Truth, Workload, removed, stored},
};

const SEED: u64 = 3;
/// Of so many prompts one has its right answer noted.
const SAMPLED: usize = 8;
/// How often a block for a hole is looked for, for each block that was stored.
const ATTEMPTS: usize = 4;
/// Blocks an event when everything is evicted.
const EVICTED: usize = 64;
/// Prompts of a rank that may be hit by a hole.
const RECENT: usize = 32;

/// Ranks that serve requests.
pub struct Fleet {
    caches: Vec<Cache>,
    events: Vec<(usize, Event)>,
    asked: Vec<Asked>,
    holes: Option<Holes>,
}

/// How large a fleet is, and what its ranks do to their blocks.
#[derive(Clone, Copy)]
pub struct Shape {
    /// How many ranks.
    pub ranks: usize,
    /// Blocks that each has room for.
    pub room: usize,
    /// Of so many stored blocks one is a hole: a block amid a prompt is evicted while the next one stays.
    pub stored_per_hole: Option<usize>,
}

/// A prompt that a router asked for.
struct Asked {
    /// Events before it.
    after: usize,
    prompt: Vec<Number>,
    /// Leading blocks that each rank held then, of a sampled prompt.
    reaches: Option<Vec<u32>>,
}

/// Makes holes.
struct Holes {
    stored_per_hole: usize,
    /// Blocks stored for which no hole was made yet.
    stored: usize,
    random: StdRng,
    /// What each rank served last.
    served: Vec<VecDeque<Vec<Number>>>,
}

impl Fleet {
    /// Ranks that hold nothing.
    #[must_use]
    pub fn new(shape: Shape) -> Fleet {
        let caches = (0..shape.ranks).map(|_| Cache::new(shape.room)).collect();
        let holes = shape.stored_per_hole.map(|stored_per_hole| Holes {
            stored_per_hole,
            stored: 0,
            random: StdRng::seed_from_u64(SEED),
            served: vec![VecDeque::new(); shape.ranks],
        });
        Fleet { caches, events: Vec::new(), asked: Vec::new(), holes }
    }

    /// A router asks for a prompt.
    pub fn ask(&mut self, prompt: &[Number]) {
        let sampled = self.asked.len().is_multiple_of(SAMPLED);
        let reaches = || self.caches.iter().map(|cache| cache.reach(prompt) as u32).collect();
        let reaches = sampled.then(reaches);
        self.asked.push(Asked { after: self.events.len(), prompt: prompt.to_vec(), reaches });
    }

    /// A rank serves a prompt: what it lacks is stored, once what has to go for it is removed. Of a prompt that its
    /// cache has no room for it serves the part that fits.
    pub fn serve(&mut self, rank: usize, prompt: &[Number]) {
        let cache = &mut self.caches[rank];
        let prompt = &prompt[..prompt.len().min(cache.room())];
        let served = cache.serve(prompt);
        if !served.evicted.is_empty() {
            self.events.push((rank, removed(&served.evicted)));
        }
        let mut blocks = 0;
        for part in served.lacking {
            blocks += part.len();
            self.events.push((rank, stored(prompt, part)));
        }
        if let Some(holes) = &mut self.holes {
            let gone = holes.after(rank, prompt, blocks, cache);
            self.events.extend(gone.into_iter().map(|number| (rank, removed(&[number]))));
        }
    }

    /// Every rank evicts all that it holds, some blocks an event.
    pub fn evict_all(&mut self) {
        for (rank, cache) in self.caches.iter_mut().enumerate() {
            let evicted = cache.evict_all();
            self.events.extend(evicted.chunks(EVICTED).map(|numbers| (rank, removed(numbers))));
        }
    }

    /// Blocks that all ranks hold.
    #[must_use]
    pub fn held_blocks(&self) -> usize {
        self.caches.iter().map(Cache::held).sum()
    }

    /// What was announced since the last time, each with the number of its rank.
    pub fn take_events(&mut self) -> Vec<(usize, Event)> {
        std::mem::take(&mut self.events)
    }

    /// What was asked for since the last time.
    pub fn take_prompts(&mut self) -> Vec<Vec<Number>> {
        std::mem::take(&mut self.asked).into_iter().map(|asked| asked.prompt).collect()
    }

    /// The workload. Of the prompts only the second half is asked for, when the caches are full.
    #[must_use]
    pub fn finish(mut self) -> Workload {
        let asked = self.asked.split_off(self.asked.len() / 2);
        let truth =
            |(prompt, asked): (usize, &Asked)| asked.reaches.clone().map(|reaches| Truth { prompt, reaches });
        let truths = asked.iter().enumerate().filter_map(truth).collect();
        let prompts: Vec<_> = asked.into_iter().map(|asked| (asked.after, asked.prompt)).collect();
        Workload {
            ranks: self.caches.len(),
            settings: RankSettings::default(),
            held_blocks: self.held_blocks(),
            events: self.events,
            prompts: Prompts::new(&prompts),
            truths,
        }
    }
}

impl Holes {
    /// Evicts as many blocks as are due after so many were stored: each amid a prompt that was served lately, and
    /// with the next one still held. Where no such block is found, it stays due. Returns what has gone.
    fn after(&mut self, rank: usize, prompt: &[Number], stored: usize, cache: &mut Cache) -> Vec<Number> {
        let served = &mut self.served[rank];
        served.push_back(prompt.to_vec());
        if served.len() > RECENT {
            served.pop_front();
        }
        self.stored += stored;
        let mut gone = Vec::new();
        for _ in 0..ATTEMPTS * stored {
            if self.stored < self.stored_per_hole {
                break;
            }
            let prompt = &served[self.random.random_range(0..served.len())];
            if prompt.len() < 3 {
                continue;
            }
            let at = self.random.random_range(1..prompt.len() - 1);
            if cache.holds(prompt[at + 1]) && cache.evict(prompt[at]) {
                gone.push(prompt[at]);
                self.stored -= self.stored_per_hole;
            }
        }
        gone
    }
}
