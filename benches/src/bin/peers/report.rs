//! Figures of several rounds, and the two forms in which they are printed.

use clap::ValueEnum;
use kvtide_benches::{Kind, Latency, median};
use serde::Serialize;

use crate::{
    contender::Contender,
    measure::{Round, Wrong},
};

/// What is reported of one index on one workload: medians of the rounds.
pub(crate) struct Figures {
    workload: String,
    ranks: usize,
    index: String,
    round: Round,
    wrong: Wrong,
}

/// What `--json` prints. Other programs read it: these names stay.
#[derive(Serialize)]
struct Line<'a> {
    workload: &'a str,
    ranks: usize,
    index: &'a str,
    lookup_ns: Latency,
    applied_mblocks_s: f64,
    bytes_per_held_block: f64,
    allocs_per_lookup: f64,
    over: usize,
    under: usize,
}

/// The name of a workload or an index on the command line.
pub(crate) fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

impl Figures {
    /// Of at least one round, one of which looked for wrong answers.
    pub(crate) fn of(kind: Kind, ranks: usize, index: Contender, rounds: &[Round]) -> Option<Figures> {
        let of = |value: fn(&Round) -> f64| median(rounds.iter().map(value));
        let lookups: Vec<Latency> = rounds.iter().map(|round| round.lookup).collect();
        let singly: Option<Vec<f64>> = rounds.iter().map(|round| round.applied_singly).collect();
        let round = Round {
            lookup: Latency::median(&lookups),
            applied: of(|round| round.applied),
            applied_singly: singly.map(median),
            bytes: of(|round| round.bytes),
            allocations: of(|round| round.allocations),
            matching: of(|round| round.matching),
            ..*rounds.first()?
        };
        let wrong = rounds.iter().find_map(|round| round.wrong)?;
        Some(Figures { workload: name(&kind), ranks, index: name(&index), round, wrong })
    }

    /// The events that the index could not apply, in words, if there were any.
    pub(crate) fn refusal(&self) -> Option<String> {
        let refused = self.wrong.refused.filter(|&refused| refused > 0)?;
        Some(format!("{} on {}: {refused} events could not be applied", self.index, self.workload))
    }

    pub(crate) fn heading() -> &'static str {
        "workload       ranks  index              held  lookup p50    p99  p99.9   mean ns  Mblocks/s  singly  \
         B/block  allocs  match    over   under  of"
    }

    pub(crate) fn row(&self) -> String {
        let Round { lookup, applied, bytes, allocations, matching, held_blocks, .. } = self.round;
        let singly = self.round.applied_singly.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.2}"));
        let (workload, ranks, index) = (&self.workload, self.ranks, &self.index);
        format!(
            "{workload:<13} {ranks:>6}  {index:<17} {held_blocks:>8} {:>9.0} {:>6.0} {:>6.0} {:>9.0}  \
             {applied:>9.2} {singly:>7} {bytes:>8.1} {allocations:>7.2} {matching:>6.1} {:>7} {:>7}  {}",
            lookup.p50,
            lookup.p99,
            lookup.p999,
            lookup.mean,
            self.wrong.over,
            self.wrong.under,
            self.wrong.of,
        )
    }

    pub(crate) fn json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(&Line {
            workload: &self.workload,
            ranks: self.ranks,
            index: &self.index,
            lookup_ns: self.round.lookup,
            applied_mblocks_s: self.round.applied,
            bytes_per_held_block: self.round.bytes,
            allocs_per_lookup: self.round.allocations,
            over: self.wrong.over,
            under: self.wrong.under,
        })
    }
}
