//! Figures of several rounds, and the two forms in which they are printed.

use serde::Serialize;

use crate::{measure::Round, workload::Workload};

/// What is reported of one index on one workload: medians of the rounds.
#[derive(Serialize)]
pub(crate) struct Figures {
    workload: String,
    ranks: usize,
    index: &'static str,
    rounds: usize,
    held_blocks: usize,
    cold: Lookup,
    warm: Lookup,
    /// Millions of stored and removed blocks a second, with an update for each event.
    applied_mblocks: f64,
    applied_mblocks_in_batches: f64,
    bytes_a_held_block: f64,
    allocations_a_lookup: f64,
    matching_ranks: f64,
}

/// Nanoseconds a lookup.
#[derive(Serialize)]
struct Lookup {
    p50: f64,
    p99: f64,
    mean: f64,
}

impl Lookup {
    fn of(rounds: &[Round], part: impl Fn(&Round) -> &[u64]) -> Lookup {
        let at = |percent: usize| {
            median(rounds, |round| {
                part(round).get(part(round).len() * percent / 100).map_or(0.0, |&ns| ns as f64)
            })
        };
        let mean = |round: &Round| part(round).iter().sum::<u64>() as f64 / part(round).len() as f64;
        Lookup { p50: at(50), p99: at(99), mean: median(rounds, mean) }
    }
}

fn median(rounds: &[Round], value: impl Fn(&Round) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Figures {
    pub(crate) fn of(index: &'static str, workload: &Workload, rounds: &[Round]) -> Figures {
        Figures {
            workload: workload.name.clone(),
            ranks: workload.ranks,
            index,
            rounds: rounds.len(),
            held_blocks: workload.held_blocks,
            cold: Lookup::of(rounds, |round| &round.cold),
            warm: Lookup::of(rounds, |round| &round.warm),
            applied_mblocks: median(rounds, |round| round.applied),
            applied_mblocks_in_batches: median(rounds, |round| round.applied_in_batches),
            bytes_a_held_block: median(rounds, |round| round.live_bytes as f64 / workload.held_blocks as f64),
            allocations_a_lookup: median(rounds, |round| round.allocations),
            matching_ranks: median(rounds, |round| round.matching),
        }
    }

    pub(crate) fn heading() -> &'static str {
        "workload       ranks  index           held      cold p50/p99/mean ns    warm p50/p99/mean ns  \
         Mblocks/s  in 64s  B/block  allocs  match"
    }

    pub(crate) fn row(&self) -> String {
        let lookup = |lookup: &Lookup| format!("{:.0}/{:.0}/{:.0}", lookup.p50, lookup.p99, lookup.mean);
        format!(
            "{:<13} {:>6}  {:<14} {:>8} {:>22} {:>22}  {:>9.2} {:>7.2} {:>8.1} {:>7.2} {:>6.1}",
            self.workload,
            self.ranks,
            self.index,
            self.held_blocks,
            lookup(&self.cold),
            lookup(&self.warm),
            self.applied_mblocks,
            self.applied_mblocks_in_batches,
            self.bytes_a_held_block,
            self.allocations_a_lookup,
            self.matching_ranks,
        )
    }
}
