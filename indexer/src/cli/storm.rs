//! `kvtide storm`: a load test of kvtide with a simulated fleet, in an open loop, with every figure counted from when it was due.

mod ahead;
mod check;
mod faults;
mod live;
mod machine;
mod measured;
mod message;
mod pace;
mod page;
mod plan;
mod play;
mod prompts;
mod publisher;
mod quiet;
mod reference;
mod report;
mod scenario;
mod search;
mod series;
mod sight;
mod target;
mod trace;
#[cfg(test)]
mod truth_tests;

use std::{
    fs,
    io::{Write, stdout},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use kvtide::serving::Failure;

use ahead::Ahead;
use check::Checker;
use faults::{Begun, Faulty};
use plan::Plan;
use play::Player;
use quiet::Quiet;
use report::{Report, Run};
use scenario::{SHIPPED, Scenario};
use search::Trials;
use sight::Fleet;
use target::{Followed, Place};

/// Rounds of what is sent as fast as can be.
const ROUNDS: u32 = 5;

#[derive(Args)]
pub(super) struct Arguments {
    /// A scenario that comes with the program (--list), or a file.
    #[arg(required_unless_present = "list")]
    scenario: Option<String>,
    /// Where messages go: in-process, nats (a nats-server that is started for it), one as nats://HOST:PORT, or zmq.
    #[arg(long, value_name = "TARGET", default_value = "in-process")]
    target: Place,
    /// How long the load lasts, or each trial of a search.
    #[arg(long, value_name = "N", default_value_t = 10.0, value_parser = positive)]
    seconds: f64,
    /// How many times as fast as the scenario has it.
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = positive)]
    rate: f64,
    /// Search the highest load that is carried, and then play half of it.
    #[arg(long)]
    search: bool,
    /// A load is carried if of a hundred events 99 are visible within so many milliseconds, and none is lost.
    #[arg(long, value_name = "MS", default_value_t = 5.0, value_parser = positive)]
    lag_limit_ms: f64,
    /// Tell of each stretch of so many seconds too.
    #[arg(long, value_name = "N", value_parser = positive)]
    every: Option<f64>,
    /// Write a page with plots to a file, for people.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Megabytes of messages and questions that are planned ahead.
    #[arg(long, value_name = "MB", default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    ahead_mb: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// List the scenarios that come with the program.
    #[arg(long)]
    list: bool,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        Ok(_) | Err(_) => Err("expected a number above 0".into()),
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut out = stdout().lock();
    if arguments.list {
        for (name, _) in SHIPPED {
            writeln!(out, "{name:<14} {}", Scenario::find(name)?.description)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let name = arguments.scenario.as_deref().unwrap_or_default();
    let mut scenario = Scenario::find(name)?;
    scenario.fleet.publisher = arguments.target.publisher(scenario.fleet.publisher);
    let report = arguments.play(name, &scenario)?;
    if let Some(path) = &arguments.html {
        fs::write(path, page::write(&report)).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        write!(out, "{}", report.text())?;
    }
    Ok(if report.is_right() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Arguments {
    fn play(&self, name: &str, scenario: &Scenario) -> Result<Report, Failure> {
        let fleet = Fleet { ranks: scenario.ranks(), dp_ranks: scenario.fleet.dp_ranks };
        let ahead_bytes = usize::try_from(self.ahead_mb << 20)?;
        let quiet = Quiet::default();
        let ahead = Ahead::start(Plan::new(scenario)?, ahead_bytes, quiet.clone())?;
        let (checker, checking) = Checker::start(fleet, scenario.fleet.block_size, quiet.clone())?;
        let followed = Followed::start(&self.target, scenario)?;
        let (target, indexer, following) = followed.into_parts();
        let begun = Begun::default();
        let target = Box::new(Faulty::new(target, &scenario.faults, begun.clone()));
        let mut player = Player::new(ahead, target, indexer, fleet, checker, quiet);
        let mut lost = player.warm()?;
        let (mut rate, length) = (self.rate, Duration::from_secs_f64(self.seconds));
        let search = if self.search {
            let mut trials =
                Trials::new(&mut player, length, Duration::from_secs_f64(self.lag_limit_ms / 1e3));
            let search = trials.search(rate)?;
            lost += trials.unseen_events;
            rate = search.highest_rate / 2.0;
            Some(search)
        } else {
            None
        };
        player.get_ready();
        let every = self.every.map_or(length, Duration::from_secs_f64);
        let last = player.play(rate, length, every)?;
        let rss_mb = machine::rss_mb();
        player.get_ready();
        let idle = player.ask_idle(rate, Duration::from_secs(2).min(length))?;
        let races = player.race(ROUNDS)?;
        lost += last.seen.unseen_events + player.missing();
        // Before the bus, which goes with the player: what is followed ends with what is on its way.
        following.stop();
        drop(player);
        let verdict = checking.end()?;
        let target = self.target.name();
        let run = Run {
            scenario: name,
            target,
            last: &last,
            idle: &idle,
            races: &races,
            verdict,
            lost,
            rss_mb,
            search,
            faults: &begun.all(),
        };
        Ok(Report::of(run))
    }
}
