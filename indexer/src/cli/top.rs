//! `kvtide top`: what a running service knows of every rank, again and again.

mod look;
mod screen;
mod table;

use std::{
    io::{IsTerminal, Write, stdout},
    process::ExitCode,
    time::Duration,
};

use clap::{Args, value_parser};
use kvtide::{KnowledgeState, serving::Failure};

use super::service_at::ServiceArguments;
use look::Looker;
use table::{Choice, Column, Table};

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    service: ServiceArguments,
    /// Seconds between one look and the next.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = value_parser!(u64).range(1..=3600))]
    every_s: u64,
    /// The column to sort by; numbers with the largest first.
    #[arg(long, value_name = "COLUMN", default_value = "worker")]
    sort: Column,
    /// The other way round.
    #[arg(long)]
    reverse: bool,
    /// Only ranks in this state; as often as needed.
    #[arg(long = "state", value_name = "STATE", value_parser = parse_state)]
    states: Vec<KnowledgeState>,
    /// Only ranks of this worker; as often as needed.
    #[arg(long = "worker", value_name = "N")]
    workers: Vec<u64>,
    /// Print one table and end, as it is where standard output is no terminal.
    #[arg(long)]
    once: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let service = arguments.service.service()?;
    let choice = Choice {
        sort: arguments.sort,
        reverse: arguments.reverse,
        states: arguments.states.clone(),
        workers: arguments.workers.clone(),
    };
    if !arguments.once && stdout().is_terminal() {
        screen::run(service, choice, Duration::from_secs(arguments.every_s))?;
        return Ok(ExitCode::SUCCESS);
    }
    let url = service.url().to_owned();
    let look = Looker::new(service).look()?;
    let mut out = stdout().lock();
    for line in look.header(&url, None) {
        writeln!(out, "{line}")?;
    }
    let table = Table::of(&look.workers, &choice);
    writeln!(out, "\n{}", table.head())?;
    for row in &table.rows {
        writeln!(out, "{}", table.line(row))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn parse_state(text: &str) -> Result<KnowledgeState, String> {
    let found = KnowledgeState::ALL.into_iter().find(|state| state.name() == text);
    found.ok_or_else(|| {
        let names = KnowledgeState::ALL.map(KnowledgeState::name);
        format!("expected one of {}", names.join(", "))
    })
}
