//! How fast, how large and how right the tree is, beside the published indexes of its field.
//!
//! Every index takes the same events on one core and answers the same prompts, each just before a rank serves it.
//! Each round of each index runs in a process of its own, so that allocator and caches are its own, and the rounds
//! of the indexes take turns. What is printed are medians. A lookup's time contains one reading of the clock, which
//! is printed too.

mod contender;
mod contestant;
mod measure;
mod process;
mod report;

use std::error::Error;

use clap::{Parser, ValueEnum};
use contender::Contender;
use kvtide_benches::{Kind, clock};
use measure::{Hashes, Round};
use process::Order;
use report::{Figures, name};

/// Measures indexes of KV cache blocks beside each other.
#[derive(Parser)]
struct Settings {
    /// What to measure; all if none is named.
    #[arg(long = "workload", value_enum, value_delimiter = ',')]
    workloads: Vec<Kind>,
    /// Ranks, instead of those that the workload is meant for.
    #[arg(long, value_delimiter = ',')]
    ranks: Vec<usize>,
    /// Whom to measure; all if none is named.
    #[arg(long = "index", value_enum, value_delimiter = ',')]
    indexes: Vec<Contender>,
    /// Rounds that each index runs, in turns.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// An eighth of each workload, in a single round.
    #[arg(long)]
    quick: bool,
    /// Ask with hashes that have just been written, instead of such as come from memory.
    #[arg(long)]
    warm: bool,
    /// Print one JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
    /// Run one round of one index here, and say its figures.
    #[arg(long, hide = true)]
    one_round: bool,
    /// In that round, compare answers with the truth.
    #[arg(long, hide = true)]
    check: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let settings = Settings::parse();
    if settings.one_round {
        return one_round(&settings);
    }
    let all = Kind::value_variants();
    let workloads = if settings.workloads.is_empty() { all } else { &settings.workloads };
    if !settings.json {
        let hashes = if settings.warm { "warm: just written" } else { "cold: they come from memory" };
        println!(
            "the prompts' hashes are {hashes}; a lookup contains a reading of the clock, {} ns",
            clock()
        );
        println!("{}", Figures::heading());
    }
    for &kind in workloads {
        let ranks = if settings.ranks.is_empty() { kind.ranks() } else { &settings.ranks };
        for &ranks in ranks {
            measure(&settings, kind, ranks)?;
        }
    }
    Ok(())
}

/// All rounds of all indexes on one workload.
fn measure(settings: &Settings, kind: Kind, ranks: usize) -> Result<(), Box<dyn Error>> {
    let all = Contender::value_variants();
    let named = if settings.indexes.is_empty() { all } else { &settings.indexes };
    let mut indexes = Vec::new();
    for &index in named {
        match index.lacks(kind, ranks) {
            Some(reason) => eprintln!("{} does not run {}: {reason}", name(&index), name(&kind)),
            None => indexes.push(index),
        }
    }
    let mut measured: Vec<Vec<Round>> = indexes.iter().map(|_| Vec::new()).collect();
    for round in 0..if settings.quick { 1 } else { settings.rounds } {
        for (&index, measured) in indexes.iter().zip(&mut measured) {
            let (quick, warm) = (settings.quick, settings.warm);
            measured.push(Order { kind, ranks, index, quick, warm, check: round == 0 }.run()?);
        }
    }
    for (&index, measured) in indexes.iter().zip(&measured) {
        let figures = Figures::of(kind, ranks, index, measured).ok_or("no round was run")?;
        println!("{}", if settings.json { figures.json()? } else { figures.row() });
        if let Some(refusal) = figures.refusal() {
            eprintln!("{refusal}");
        }
    }
    Ok(())
}

/// What a process does that this program started.
fn one_round(settings: &Settings) -> Result<(), Box<dyn Error>> {
    let (&[kind], &[ranks], &[index]) = (&settings.workloads[..], &settings.ranks[..], &settings.indexes[..])
    else {
        let got = (settings.workloads.len(), settings.ranks.len(), settings.indexes.len());
        return Err(format!("a round is of 1 workload, 1 number of ranks and 1 index, got {got:?}").into());
    };
    let workload = kind.workload(ranks, if settings.quick { 8 } else { 1 })?;
    let hashes = if settings.warm { Hashes::Warm } else { Hashes::Cold };
    let round = index.round(&workload, hashes, settings.check);
    println!("{}", serde_json::to_string(&round)?);
    Ok(())
}
