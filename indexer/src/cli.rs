//! The command line: one file a command.

mod cache;
mod check_config;
mod demo;
mod query;
mod record;
mod replay;
mod serve;
mod service_at;
mod storm;
mod token;
mod top;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use kvtide::{
    config::{Config, File, LogConfig, TracesConfig, with_environment},
    serving::{Failure, start_log},
};

/// Tells a request router how much of a prompt's KV cache every inference worker already holds.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    #[command(flatten)]
    log: LogConfig,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one")]
enum Command {
    /// Follow event streams and answer over HTTP.
    Serve(Config),
    /// Serve a simulated fleet, so that there is something to query.
    Demo(demo::Arguments),
    /// Ask a running service how much of a prompt every rank holds.
    Query(query::Arguments),
    /// Watch what a running service knows of every rank.
    Top(top::Arguments),
    /// Say whether a configuration file can be served.
    CheckConfig(check_config::Arguments),
    /// Make access tokens for a service.
    Token(token::Arguments),
    /// Write what comes from publishers as a recording, to play it elsewhere.
    Record(record::Arguments),
    /// Play recorded streams: of real engines, comparing every answer with the engine's own, or a recording.
    Replay(replay::Arguments),
    /// Load kvtide with a simulated fleet, and hold its answers against the truth.
    Storm(storm::Arguments),
}

/// Runs the command that the arguments name.
pub(crate) fn run() -> ExitCode {
    match parse().and_then(obey) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("kvtide: {}", failure.to_string().trim_end());
            ExitCode::FAILURE
        }
    }
}

/// The command line.
fn command() -> clap::Command {
    // Nobody is answered by a recording.
    let without_instance = |record: clap::Command| {
        with_environment(record).mut_arg("nats.instance", |instance| instance.hide(true))
    };
    Arguments::command().mut_subcommand("serve", with_environment).mut_subcommand("record", without_instance)
}

/// What is to be done, with what a configuration file says of it.
fn parse() -> Result<Arguments, Failure> {
    let arguments = Arguments::from_arg_matches(&command().get_matches())?;
    let (Command::Serve(Config { config, .. }) | Command::Record(record::Arguments { config, .. })) =
        &arguments.command
    else {
        return Ok(arguments);
    };
    let Some(path) = config else { return Ok(arguments) };
    let file = File::read(path)?;
    let mut arguments = Arguments::from_arg_matches(&file.set_defaults(command())?.get_matches())?;
    if let Command::Serve(Config { streams, .. }) | Command::Record(record::Arguments { streams, .. }) =
        &mut arguments.command
    {
        *streams = file.into_streams();
    }
    Ok(arguments)
}

fn obey(arguments: Arguments) -> Result<ExitCode, Failure> {
    let none = TracesConfig::default();
    let traces = if let Command::Serve(config) = &arguments.command { &config.traces } else { &none };
    let traces = start_log(&arguments.log, traces)?;
    let ended = match arguments.command {
        Command::Serve(config) => serve::run(&config),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Query(arguments) => query::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::CheckConfig(arguments) => check_config::run(&arguments),
        Command::Token(arguments) => token::run(arguments),
        Command::Record(arguments) => record::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Storm(arguments) => storm::run(&arguments),
    };
    traces.stop();
    ended
}
