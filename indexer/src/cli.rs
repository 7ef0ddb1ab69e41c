//! The command line: one file a command.

mod check_config;
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
    /// How the log on standard error is written.
    #[arg(long, value_name = "FORMAT", default_value = "text", env = "KVTIDE_LOG_FORMAT", global = true)]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

#[derive(Subcommand)]
enum Command {
    /// Follow event streams and answer over HTTP.
    Serve(serve::Arguments),
    /// Serve a simulated fleet, so that there is something to query.
    Demo(demo::Arguments),
    /// Ask a running service how much of a prompt every rank holds.
    Query(query::Arguments),
    /// Say whether a configuration file can be served.
    CheckConfig(check_config::Arguments),
    /// Play recorded streams of real engines and compare every answer with the engine's own.
    Replay(replay::Arguments),
}

/// What ends a command early, in words.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Runs the command that the arguments name.
pub(crate) fn run() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_from_env("KVTIDE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match arguments.log_format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    let result = match arguments.command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Query(arguments) => query::run(&arguments),
        Command::CheckConfig(arguments) => check_config::run(&arguments),
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
