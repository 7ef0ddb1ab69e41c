//! Whether the tree stays as it is: churn at constant residency for as long as wanted.
//!
//! Ranks with full caches serve conversations that never end, so that every stored block has another one removed. Blocks
//! are always new. Runs, bytes and lookups have to stay the same, and once everything is removed nothing may be left.
//!
//! The machine does not stay the same. So each interval also fills a young index, which then takes turns with the old
//! one: what is compared over time is how the old one does beside the young one.

mod churn;
mod report;

use std::{
    error::Error,
    time::{Duration, Instant},
};

use churn::{Churn, Measured};
use clap::Parser;
use kvtide_benches::clock;
use report::{Drift, Empty, HEADING, Interval};

/// Measures an index under churn for a long time.
#[derive(Parser)]
struct Settings {
    /// How long, once the caches are full. The young indexes have a good half of it.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Print one JSON object a line instead of a table: one for each interval, and the drift last.
    #[arg(long)]
    json: bool,
}

/// Seconds an interval; shorter where the whole is short.
const INTERVAL: f64 = 10.0;
/// Intervals that there are at least.
const INTERVALS: f64 = 4.0;

fn main() -> Result<(), Box<dyn Error>> {
    let settings = Settings::parse();
    let length = Duration::try_from_secs_f64(settings.minutes * 60.0)?;
    let interval = Duration::from_secs_f64(INTERVAL.min(length.as_secs_f64() / INTERVALS));
    let mut churn = Churn::filled();
    if !settings.json {
        println!(
            "{} ranks; hashes are warm; a lookup contains a reading of the clock, {} ns\n{HEADING}",
            churn::RANKS,
            clock()
        );
    }
    let start = Instant::now();
    let mut intervals = Vec::new();
    while intervals.is_empty() || start.elapsed() < length {
        let row = run(&mut churn, interval, start).ok_or("an interval without a lookup")?;
        println!("{}", if settings.json { serde_json::to_string(&row)? } else { row.row() });
        intervals.push(row);
    }
    churn.empty();
    let empty = Empty {
        bytes_before: churn.bytes_before(),
        bytes_after: churn.live_bytes(),
        size_after: churn.size(),
    };
    let drift = Drift::of(&intervals, &empty);
    println!("{}", if settings.json { serde_json::to_string(&drift)? } else { drift.sentence() });
    Ok(())
}

fn run(churn: &mut Churn, length: Duration, start: Instant) -> Option<Interval> {
    let begin = Instant::now();
    let mut young = Churn::filled();
    let (mut of_old, mut of_young) = (Measured::default(), Measured::default());
    while of_old.blocks == 0 || begin.elapsed() < length {
        churn.step(&mut of_old);
        young.step(&mut of_young);
    }
    let size = churn.size();
    let (lookup_ns, applied_mblocks_s) = of_old.told()?;
    let (young_lookup_ns, young_applied_mblocks_s) = of_young.told()?;
    Some(Interval {
        seconds: start.elapsed().as_secs_f64(),
        runs: size.runs,
        pages: size.pages,
        held_blocks: size.held_blocks,
        live_bytes: churn.live_bytes(),
        lookup_ns,
        applied_mblocks_s,
        young_lookup_ns,
        young_applied_mblocks_s,
    })
}
