//! How the tree grows: lookups, speed and bytes from 100,000 held blocks to 100 million.
//!
//! Nothing is evicted. Prompts are made from their numbers and not kept. At each step lookups ask for random earlier
//! prompts, whose hashes come from memory.

mod prompts;

use std::{
    alloc::System,
    error::Error,
    fs,
    hint::black_box,
    ops::Range,
    time::{Duration, Instant},
};

use clap::Parser;
use kvtide_benches::{Latency, clock, open};
use kvtide_radix::{
    Block, BlockHash, Blocks, Event, Layer, Overlap, RankSettings, RankSlot, Reader, Stored, Writer,
};
use prompts::{Prompt, RANKS};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde::Serialize;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Measures one index while it grows.
#[derive(Parser)]
struct Settings {
    /// Held blocks up to which it grows, in steps of ten times as many from 100,000.
    #[arg(long, default_value_t = 100_000_000)]
    to: u64,
    /// Lookups at each step.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    lookups: u32,
    /// Print one JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
}

const FIRST_STEP: u64 = 100_000;
/// Events an update.
const VERSION: usize = 64;
const SEED: u64 = 5;

/// What is told of a step.
#[derive(Serialize)]
struct Step {
    held_blocks: u64,
    prompts: u64,
    runs: usize,
    lookup_ns: Latency,
    /// Since the step before.
    applied_mblocks_s: f64,
    bytes_per_held_block: f64,
    rss_bytes: u64,
}

/// The index and how far it has grown.
struct Growth {
    writer: Writer,
    reader: Reader,
    slots: Vec<RankSlot>,
    /// By rank and system prompt, whether the rank has it.
    has_system: Vec<bool>,
    prompts: u64,
    /// Since the last step.
    blocks: usize,
    applying: Duration,
    bytes_before: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let settings = Settings::parse();
    if !settings.json {
        println!("{RANKS} ranks; hashes are cold; a lookup contains a reading of the clock, {} ns", clock());
        println!("     held  prompts     runs  lookup p50     p99   p99.9 ns  Mblocks/s  B/block     RSS MB");
    }
    let mut growth = Growth::new();
    let mut step = FIRST_STEP.min(settings.to);
    loop {
        growth.grow(step);
        let told = growth.measure(settings.lookups)?;
        println!("{}", if settings.json { serde_json::to_string(&told)? } else { told.row() });
        if step >= settings.to {
            return Ok(());
        }
        step = (step * 10).min(settings.to);
    }
}

fn live_bytes() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

impl Growth {
    fn new() -> Growth {
        let bytes_before = live_bytes();
        let (writer, reader, slots) = open(RANKS, &RankSettings::default());
        let has_system = vec![false; RANKS * RANKS];
        let (prompts, blocks, applying) = (0, 0, Duration::ZERO);
        Growth { writer, reader, slots, has_system, prompts, blocks, applying, bytes_before }
    }

    /// Serves prompts until so many blocks are held.
    fn grow(&mut self, held_blocks: u64) {
        while self.reader.view().size().held_blocks < held_blocks {
            let events: Vec<(RankSlot, Event)> = (0..VERSION).map(|_| self.serve()).collect();
            let start = Instant::now();
            self.writer.update(|update| {
                for (rank, event) in &events {
                    update.apply(*rank, event);
                }
            });
            self.applying += start.elapsed();
        }
    }

    /// What the rank of the next prompt announces.
    fn serve(&mut self) -> (RankSlot, Event) {
        let prompt = Prompt::new(self.prompts);
        let has_system = &mut self.has_system[prompt.rank() * RANKS + prompt.system()];
        let start = prompt.lacks_from(std::mem::replace(has_system, true));
        let parent = start.checked_sub(1).and_then(|last| prompt.blocks(last..start).next());
        let blocks: Vec<Block> = prompt.blocks(start..prompt.len()).collect();
        self.prompts += 1;
        self.blocks += blocks.len();
        let parent = parent.map(|block| block.name);
        let stored = Stored { layer: Layer::GPU, parent, blocks: Blocks::Hashed(blocks) };
        (self.slots[prompt.rank()], Event::Stored(stored))
    }

    fn measure(&mut self, lookups: u32) -> Result<Step, Box<dyn Error>> {
        let live_bytes = live_bytes().saturating_sub(self.bytes_before);
        let nanoseconds = self.ask(lookups)?;
        let size = self.reader.view().size();
        let seconds = std::mem::take(&mut self.applying).as_secs_f64();
        let blocks = std::mem::take(&mut self.blocks);
        Ok(Step {
            held_blocks: size.held_blocks,
            prompts: self.prompts,
            runs: size.runs,
            lookup_ns: Latency::of(nanoseconds).ok_or("a step without a lookup")?,
            applied_mblocks_s: blocks as f64 / seconds / 1e6,
            bytes_per_held_block: live_bytes as f64 / size.held_blocks as f64,
            rss_bytes: resident_bytes()?,
        })
    }

    /// Asks for so many of the prompts, and compares the reach of the rank that served each. Their hashes are cold: all are
    /// made beforehand, and lie in another order than they are asked for.
    fn ask(&self, lookups: u32) -> Result<Vec<u64>, Box<dyn Error>> {
        let mut random = StdRng::seed_from_u64(SEED);
        let mut hashes: Vec<BlockHash> = Vec::new();
        let mut asked: Vec<(Prompt, Range<usize>)> = Vec::new();
        for _ in 0..lookups {
            let prompt = Prompt::new(random.random_range(0..self.prompts));
            let start = hashes.len();
            hashes.extend(prompt.blocks(0..prompt.len()).map(|block| block.content));
            asked.push((prompt, start..hashes.len()));
        }
        asked.shuffle(&mut random);
        let mut answer = Overlap::default();
        let mut nanoseconds = Vec::with_capacity(asked.len());
        for (prompt, range) in asked {
            let start = Instant::now();
            self.reader.view().overlap([black_box(&hashes[range])], &mut answer);
            nanoseconds.push(start.elapsed().as_nanos() as u64);
            let reach = answer.reach(self.slots[prompt.rank()]).gpu() as usize;
            if reach != prompt.len() {
                return Err(format!("a rank reaches {reach} blocks, expected {}", prompt.len()).into());
            }
        }
        Ok(nanoseconds)
    }
}

/// What the system counts as this process's memory.
fn resident_bytes() -> Result<u64, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB"));
    let kilobytes = kilobytes.ok_or("/proc/self/status has no line VmRSS in kB")?;
    Ok(kilobytes.trim().parse::<u64>()? * 1024)
}

impl Step {
    fn row(&self) -> String {
        format!(
            "{:>9} {:>8} {:>8} {:>11.0} {:>7.0} {:>10.0} {:>10.2} {:>8.1} {:>10.0}",
            self.held_blocks,
            self.prompts,
            self.runs,
            self.lookup_ns.p50,
            self.lookup_ns.p99,
            self.lookup_ns.p999,
            self.applied_mblocks_s,
            self.bytes_per_held_block,
            self.rss_bytes as f64 / 1e6
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_that_served_a_prompt_reaches_all_of_it_and_nothing_is_announced_twice() {
        let mut growth = Growth::new();
        growth.grow(50_000);
        let announced = growth.blocks as u64;
        let step = growth.measure(500).expect("each reach is compared");
        assert!(step.held_blocks >= 50_000);
        assert_eq!(announced, step.held_blocks);
    }
}
