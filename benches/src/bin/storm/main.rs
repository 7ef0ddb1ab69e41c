//! A writer at full speed on one core, a reader on the other: what they cost each other.
//!
//! The stream keeps as many blocks held as there are, and does not end. Each round has four phases: the reader alone,
//! the writer alone, both, and the writer beside a reader that falls asleep for 3 ms of each 10 ms, and holds what it
//! asked while it sleeps. The prompts' hashes come from memory.

mod race;
mod side;
mod stream;

use std::{error::Error, time::Duration};

use clap::{Parser, ValueEnum};
use kvtide_benches::{Latency, clock};
use race::{Round, Side};
use serde::Serialize;
use stream::Stream;

/// Measures a writer and a reader that work at the same time.
#[derive(Parser)]
struct Settings {
    /// Whom to measure.
    #[arg(long = "index", value_enum, value_delimiter = ',', default_value = "kvtide")]
    indexes: Vec<Contender>,
    /// Rounds that each index runs, in turns.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of each of the four phases of a round, in milliseconds.
    #[arg(long, default_value_t = 2000)]
    phase_ms: u64,
    /// A smaller index and a single short round.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Contender {
    /// This repository's.
    Kvtide,
    /// ChainIndex of kv-index, which has no versions: a reader that sleeps holds nothing.
    KvIndex,
}

/// An index that runs round after round.
type Runner = Box<dyn FnMut(Duration) -> Round>;

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Contender::Kvtide => "kvtide",
            Contender::KvIndex => "kv-index",
        }
    }

    fn runner(self, stream: &Stream) -> Runner {
        let (first, again, prompts) = (&stream.first, &stream.again, stream.again.prompts.clone());
        match self {
            Contender::Kvtide => {
                let mut side = Side::new(side::kvtide(), first, again);
                Box::new(move |length| side.round(&prompts, length))
            }
            Contender::KvIndex => {
                let mut side = Side::new(side::kv_index(), first, again);
                Box::new(move |length| side.round(&prompts, length))
            }
        }
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Line {
    index: &'static str,
    reader_idle_ns: Latency,
    reader_beside_writer_ns: Latency,
    writer_alone_mblocks_s: f64,
    writer_beside_reader_mblocks_s: f64,
    writer_beside_sleeper_mblocks_s: f64,
    /// How much slower the writer is beside a reader that sleeps than alone.
    lost_to_sleeper_percent: f64,
    longest_update_alone_us: f64,
    longest_update_beside_reader_us: f64,
    longest_update_beside_sleeper_us: f64,
}

impl Line {
    fn of(index: Contender, round: &Round) -> Line {
        Line {
            index: index.name(),
            reader_idle_ns: round.reader_idle,
            reader_beside_writer_ns: round.reader_beside,
            writer_alone_mblocks_s: round.alone.rate,
            writer_beside_reader_mblocks_s: round.beside_reader.rate,
            writer_beside_sleeper_mblocks_s: round.beside_sleeper.rate,
            lost_to_sleeper_percent: 100.0 * (1.0 - round.beside_sleeper.rate / round.alone.rate),
            longest_update_alone_us: round.alone.longest,
            longest_update_beside_reader_us: round.beside_reader.longest,
            longest_update_beside_sleeper_us: round.beside_sleeper.longest,
        }
    }

    fn row(&self) -> String {
        let (idle, beside) = (self.reader_idle_ns, self.reader_beside_writer_ns);
        format!(
            "{:<9} {:>9.0} {:>6.0} {:>13.0} {:>6.0}  {:>11.2} {:>7.2} {:>8.2} {:>6.1}  {:>14.0} {:>7.0} {:>8.0}",
            self.index,
            idle.p50,
            idle.p99,
            beside.p50,
            beside.p99,
            self.writer_alone_mblocks_s,
            self.writer_beside_reader_mblocks_s,
            self.writer_beside_sleeper_mblocks_s,
            self.lost_to_sleeper_percent,
            self.longest_update_alone_us,
            self.longest_update_beside_reader_us,
            self.longest_update_beside_sleeper_us,
        )
    }
}

const HEADING: &str = "          reader idle, ns   beside a writer  writer Mblocks/s         beside  lost to  \
                       longest update        beside, us\n\
                       index           p50    p99           p50    p99        alone  reader  sleeper  sleeper %   \
                       alone  reader  sleeper";

fn main() -> Result<(), Box<dyn Error>> {
    let settings = Settings::parse();
    let (part, rounds, length) =
        if settings.quick { (8, 1, 200) } else { (1, settings.rounds, settings.phase_ms) };
    let stream = Stream::new(part);
    let mut runners: Vec<(Contender, Runner, Vec<Round>)> =
        settings.indexes.iter().map(|&index| (index, index.runner(&stream), Vec::new())).collect();
    drop(stream);
    for _ in 0..rounds {
        for (_, runner, measured) in &mut runners {
            measured.push(runner(Duration::from_millis(length)));
        }
    }
    if !settings.json {
        println!("a lookup contains a reading of the clock, {} ns\n{HEADING}", clock());
    }
    for (index, _, measured) in &runners {
        let line = Line::of(*index, &Round::median(measured));
        println!("{}", if settings.json { serde_json::to_string(&line)? } else { line.row() });
    }
    Ok(())
}
