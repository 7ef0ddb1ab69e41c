//! One round of one index: builds it, and asks it for every prompt at its time.

use std::{alloc::System, hint::black_box, time::Instant};

use kvtide_benches::{Latency, Workload};
use serde::{Deserialize, Serialize};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

use crate::{contender::Contender, contestant::Contestant};

/// Counts what the index holds. It is in the way of every index alike.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Events an update where the index publishes versions.
pub(crate) const BATCH: usize = 64;

/// What one round measured: a line that one process says to another.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Round {
    /// Nanoseconds a lookup.
    pub(crate) lookup: Latency,
    /// Stored and removed blocks a second, in millions, with an update for each [`BATCH`] events.
    pub(crate) applied: f64,
    /// The same with an update for each event, of an index that publishes versions.
    pub(crate) applied_singly: Option<f64>,
    /// Bytes that the allocator has given out for the index and not taken back, for each held block.
    pub(crate) bytes: f64,
    /// Allocations a lookup.
    pub(crate) allocations: f64,
    /// Ranks with any reach, in the mean.
    pub(crate) matching: f64,
    /// Blocks that all ranks hold in the end.
    pub(crate) held_blocks: usize,
    /// Wrong answers, where they were looked for.
    pub(crate) wrong: Option<Wrong>,
}

/// Of sampled prompts and all ranks, answers that differ from the truth.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Wrong {
    /// Answers that were compared.
    pub(crate) of: usize,
    /// A rank is credited with blocks that it does not hold, or not behind all the others.
    pub(crate) over: usize,
    /// A rank is not credited with all that it holds.
    pub(crate) under: usize,
    /// Events that the index could not apply, if it says so.
    pub(crate) refused: Option<usize>,
}

/// Where a prompt's hashes are when they are asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hashes {
    /// In memory, far from those of the prompt before.
    Cold,
    /// Just written.
    Warm,
}

pub(crate) fn round<C: Contestant>(
    index: Contender,
    workload: &Workload,
    hashes: Hashes,
    check: bool,
) -> Round {
    // This comes first: every index grows in memory that its process did not have before.
    let applied = applied_at_once::<C>(workload, BATCH);
    let asked = ask::<C>(workload, hashes);
    let applied_singly = index.publishes_versions().then(|| applied_at_once::<C>(workload, 1));
    let wrong = check.then(|| wrong_answers::<C>(workload));
    Round {
        lookup: asked.lookup,
        applied,
        applied_singly,
        bytes: asked.live_bytes as f64 / workload.held_blocks as f64,
        allocations: asked.allocations,
        matching: asked.matching,
        held_blocks: workload.held_blocks,
        wrong,
    }
}

fn events<C: Contestant>(workload: &Workload) -> Vec<C::Event> {
    workload.events.iter().map(|(rank, event)| C::event(*rank, event)).collect()
}

fn live_bytes() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

fn allocations() -> usize {
    let stats = ALLOCATOR.stats();
    stats.allocations + stats.reallocations
}

/// Millions of blocks a second that an index applies, so many events at once.
fn applied_at_once<C: Contestant>(workload: &Workload, at_once: usize) -> f64 {
    let mut events = events::<C>(workload);
    let (_built, taken) = C::build(workload.ranks, &workload.settings, &mut events, at_once);
    workload.blocks() as f64 / taken.as_secs_f64() / 1e6
}

/// What asking for all prompts took.
struct Asked {
    lookup: Latency,
    allocations: f64,
    matching: f64,
    /// Bytes that the index has in the end.
    live_bytes: usize,
}

/// Builds an index and asks it for each prompt at its time. In the end counts its bytes: an index that owns its events
/// has then dropped or kept them, and all others are dropped here.
fn ask<C: Contestant>(workload: &Workload, hashes: Hashes) -> Asked {
    let prompts = workload.prompts.with(C::hash);
    let mut nanoseconds = Vec::with_capacity(prompts.len());
    let mut written =
        Vec::with_capacity((0..prompts.len()).map(|one| prompts.get(one).len()).max().unwrap_or(0));
    let (mut matching, mut allocated) = (0, 0);
    let before = live_bytes();
    let mut events = events::<C>(workload);
    let mut index = C::new(workload.ranks, &workload.settings);
    let mut applied = 0;
    for prompt in 0..prompts.len() {
        let after = prompts.after(prompt);
        events[applied..after].chunks_mut(BATCH).for_each(|update| index.apply(update));
        applied = after;
        let prompt = match hashes {
            Hashes::Cold => prompts.get(prompt),
            Hashes::Warm => {
                written.clear();
                written.extend_from_slice(prompts.get(prompt));
                &written
            }
        };
        if nanoseconds.is_empty() {
            // Once before it counts, so that the buffer for answers has its memory.
            index.ask(black_box(prompt));
        }
        let before = allocations();
        let start = Instant::now();
        matching += index.ask(black_box(prompt));
        nanoseconds.push(start.elapsed().as_nanos() as u64);
        allocated += allocations() - before;
    }
    events[applied..].chunks_mut(BATCH).for_each(|update| index.apply(update));
    index.sweep();
    drop(events);
    let live_bytes = live_bytes().saturating_sub(before);
    let count = prompts.len() as f64;
    let lookup = Latency::of(nanoseconds).expect("a workload has prompts");
    Asked { lookup, allocations: allocated as f64 / count, matching: matching as f64 / count, live_bytes }
}

/// Builds an index once more and compares its answers with the truth, each at its time.
pub(crate) fn wrong_answers<C: Contestant>(workload: &Workload) -> Wrong {
    let prompts = workload.prompts.with(C::hash);
    let mut events = events::<C>(workload);
    let mut index = C::new(workload.ranks, &workload.settings);
    let mut applied = 0;
    let mut wrong = Wrong::default();
    for truth in &workload.truths {
        let after = prompts.after(truth.prompt);
        index.apply(&mut events[applied..after]);
        applied = after;
        let answers = index.reaches(prompts.get(truth.prompt));
        for (answer, truth) in answers.into_iter().zip(&truth.reaches) {
            wrong.of += 1;
            wrong.over += usize::from(answer > *truth);
            wrong.under += usize::from(answer < *truth);
        }
    }
    wrong.refused = index.refused();
    wrong
}
