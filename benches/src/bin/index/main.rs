//! How fast and how large the tree is, beside the published indexes that answer exactly.
//!
//! Every index takes the same events on one core and answers the same prompts, in turns, in one process. A sample of
//! the answers is compared with the reference model first. An index's time for a lookup contains one reading of the
//! clock, which is printed.

mod cache;
mod check;
mod contestant;
mod conversations;
mod measure;
mod mooncake;
mod report;
mod workload;

use std::{io::Error, time::Instant};

use check::Truth;
use clap::{Parser, ValueEnum};
use contestant::{Contestant, KvIndex, Kvtide, Smg};
use conversations::Conversations;
use measure::{Round, round};
use mooncake::Mooncake;
use report::Figures;
use workload::Workload;

/// Measures indexes of KV cache blocks.
#[derive(Parser)]
struct Settings {
    /// What to measure; all if none is named.
    #[arg(long = "workload", value_enum, value_delimiter = ',')]
    workloads: Vec<Kind>,
    /// Ranks, instead of those that the workload is meant for.
    #[arg(long, value_delimiter = ',')]
    ranks: Vec<usize>,
    /// Whom to measure.
    #[arg(long = "index", value_enum, value_delimiter = ',', default_value = "kvtide")]
    indexes: Vec<Contender>,
    /// Rounds that each index runs, in turns.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// A smaller workload, in a single round.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// The Mooncake trace in blocks of 64 tokens, room for 524,288 of them.
    Mooncake64,
    /// The Mooncake trace in blocks of 16 tokens, room for 4,194,304 of them.
    Mooncake16,
    /// Conversations over shared system prompts, with answers that grow block by block.
    Conversations,
    /// The first of these, with one block an event.
    OneBlock,
    /// The first of these, read as an engine's own stream.
    Engine,
}

#[derive(Clone, Copy, ValueEnum)]
enum Contender {
    Kvtide,
    KvIndex,
    SmgRadixTree,
}

impl Contender {
    fn round(self) -> (&'static str, fn(&Workload, &Truth) -> Round) {
        match self {
            Contender::Kvtide => (Kvtide::NAME, round::<Kvtide>),
            Contender::KvIndex => (KvIndex::NAME, round::<KvIndex>),
            Contender::SmgRadixTree => (Smg::NAME, round::<Smg>),
        }
    }
}

impl Kind {
    fn ranks(self) -> &'static [usize] {
        match self {
            Kind::Mooncake64 | Kind::Mooncake16 | Kind::OneBlock | Kind::Engine => &[64],
            Kind::Conversations => &[8, 128, 1024],
        }
    }

    fn workload(self, ranks: usize, quick: bool) -> Result<Workload, Error> {
        let part = if quick { 8 } else { 1 };
        let mooncake = |block_tokens, room: usize| {
            let (room, requests) = (room / part, 12_031 / part);
            Mooncake { block_tokens, ranks, room, requests }.workload()
        };
        match self {
            Kind::Mooncake64 => mooncake(64, 524_288),
            Kind::Mooncake16 => mooncake(16, 4_194_304),
            Kind::Conversations => Ok(Conversations { ranks, requests: 20_000 / part }.workload()),
            Kind::OneBlock => Ok(mooncake(64, 524_288)?.one_by_one()),
            Kind::Engine => Ok(mooncake(64, 524_288)?.of_engines()),
        }
    }
}

fn main() -> Result<(), Error> {
    let settings = Settings::parse();
    let workloads = if settings.workloads.is_empty() { Kind::value_variants() } else { &settings.workloads };
    if !settings.json {
        println!("reading the clock takes {} ns\n{}", clock(), Figures::heading());
    }
    for kind in workloads {
        let ranks = if settings.ranks.is_empty() { kind.ranks() } else { &settings.ranks };
        for &ranks in ranks {
            measure(&settings, &kind.workload(ranks, settings.quick)?)?;
        }
    }
    Ok(())
}

fn measure(settings: &Settings, workload: &Workload) -> Result<(), Error> {
    let truth = Truth::of(workload);
    let rounds = if settings.quick { 1 } else { settings.rounds };
    let mut measured: Vec<Vec<Round>> = settings.indexes.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (index, measured) in settings.indexes.iter().zip(&mut measured) {
            let (_, round) = index.round();
            measured.push(round(workload, &truth));
        }
    }
    for (index, measured) in settings.indexes.iter().zip(&measured) {
        let figures = Figures::of(index.round().0, workload, measured);
        if settings.json {
            println!("{}", serde_json::to_string(&figures)?);
        } else {
            println!("{}", figures.row());
        }
    }
    Ok(())
}

/// Nanoseconds between two readings of the clock: a part of every lookup's time.
fn clock() -> u64 {
    let readings = (0..1000).map(|_| {
        let start = Instant::now();
        start.elapsed().as_nanos() as u64
    });
    let mut readings: Vec<u64> = readings.collect();
    readings.sort_unstable();
    readings[readings.len() / 2]
}
