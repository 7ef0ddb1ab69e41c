//! One round of one index: builds it twice, and asks it for every prompt, cold and warm.

use std::{alloc::System, hint::black_box, time::Instant};

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use crate::{
    check::Truth,
    contestant::Contestant,
    workload::{Prompts, Workload},
};

/// Counts what the index holds. It is in the way of every index alike.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Events an update, in the second of the two builds.
pub(crate) const BATCH: usize = 64;

/// What one round measured.
pub(crate) struct Round {
    /// Nanoseconds a lookup, sorted. Cold: the prompt's hashes come from memory; warm: they have just been written.
    pub(crate) cold: Vec<u64>,
    pub(crate) warm: Vec<u64>,
    /// Stored and removed blocks a second, in millions: with an update for each event, and for each [`BATCH`].
    pub(crate) applied: f64,
    pub(crate) applied_in_batches: f64,
    /// Bytes that the allocator has given out for the index and not taken back.
    pub(crate) live_bytes: usize,
    /// Allocations a lookup.
    pub(crate) allocations: f64,
    /// Ranks with any reach, in the mean.
    pub(crate) matching: f64,
}

pub(crate) fn round<C: Contestant>(workload: &Workload, truth: &Truth) -> Round {
    let events: Vec<(usize, C::Event)> =
        workload.events.iter().map(|(rank, event)| (*rank, C::event(event))).collect();
    let prompts = workload.prompts.with(C::hash);
    let (_, applied_in_batches) = build::<C>(workload, &events, BATCH);
    let memory = Region::new(ALLOCATOR);
    let (mut index, applied) = build::<C>(workload, &events, 1);
    let memory = memory.change();
    truth.hold(&mut index, &prompts);
    drop(index);
    let cold = ask::<C>(workload, &events, &prompts, Hashes::Cold);
    let warm = ask::<C>(workload, &events, &prompts, Hashes::Warm);
    let asked = prompts.len() as f64;
    Round {
        cold: cold.nanoseconds,
        warm: warm.nanoseconds,
        applied,
        applied_in_batches,
        live_bytes: memory.bytes_allocated - memory.bytes_deallocated,
        allocations: warm.allocations as f64 / asked,
        matching: warm.matching as f64 / asked,
    }
}

/// Builds an index. Returns it and millions of blocks applied a second.
fn build<C: Contestant>(workload: &Workload, events: &[(usize, C::Event)], batch: usize) -> (C, f64) {
    let mut index = C::new(workload.ranks, &workload.settings);
    let start = Instant::now();
    for update in events.chunks(batch) {
        index.apply(update);
    }
    let seconds = start.elapsed().as_secs_f64();
    (index, workload.blocks() as f64 / seconds / 1e6)
}

/// Where a prompt's hashes are when they are asked for.
#[derive(Clone, Copy)]
enum Hashes {
    Cold,
    Warm,
}

/// What asking for all prompts took.
struct Asked {
    /// For each, sorted.
    nanoseconds: Vec<u64>,
    allocations: usize,
    /// Ranks with any reach, over all prompts.
    matching: usize,
}

/// Builds an index and asks it for each prompt at its time.
fn ask<C: Contestant>(
    workload: &Workload,
    events: &[(usize, C::Event)],
    prompts: &Prompts<C::Hash>,
    hashes: Hashes,
) -> Asked {
    let mut index = C::new(workload.ranks, &workload.settings);
    let mut applied = 0;
    let mut written = Vec::new();
    let mut asked = Asked { nanoseconds: Vec::new(), allocations: 0, matching: 0 };
    for prompt in 0..prompts.len() {
        let after = prompts.after(prompt);
        events[applied..after].chunks(1).for_each(|event| index.apply(event));
        applied = after;
        let prompt = match hashes {
            Hashes::Cold => prompts.get(prompt),
            Hashes::Warm => {
                written.clear();
                written.extend_from_slice(prompts.get(prompt));
                &written
            }
        };
        let before = ALLOCATOR.stats();
        let start = Instant::now();
        asked.matching += index.ask(black_box(prompt));
        let nanoseconds = start.elapsed().as_nanos() as u64;
        let after = ALLOCATOR.stats();
        asked.nanoseconds.push(nanoseconds);
        asked.allocations +=
            after.allocations + after.reallocations - before.allocations - before.reallocations;
    }
    asked.nanoseconds.sort_unstable();
    asked
}
