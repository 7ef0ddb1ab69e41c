//! The command line: one file a command.

mod demo;
mod query;
mod replay;
mod serve;

use std::{io::IsTerminal, process::ExitCode};

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Tells a request router how much of a prompt's KV cache every inference worker already holds.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Follow event streams and answer over HTTP.
    Serve(serve::Arguments),
    /// Serve a simulated fleet, so that there is something to query.
    Demo(demo::Arguments),
    /// Ask a running service how much of a prompt every rank holds.
    Query(query::Arguments),
    /// Play recorded streams of real engines and compare every answer with the engine's own.
    Replay(replay::Arguments),
}

/// What ends a command early, in words.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Runs the command that the arguments name.
pub(crate) fn run() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_from_env("KVTIDE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let color = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(color).init();
    let result = match arguments.command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Query(arguments) => query::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
    };
    match result {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("kvtide: {}", failure.to_string().trim_end());
            ExitCode::FAILURE
        }
    }
}
