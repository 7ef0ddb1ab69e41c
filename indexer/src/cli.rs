//! The command line: one file a command.

mod cache;
mod check_config;
mod demo;
mod query;
mod replay;
mod serve;
mod storm;
mod token;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use kvtide::{
    config::{Config, File, LogConfig, with_environment},
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
    /// Say whether a configuration file can be served.
    CheckConfig(check_config::Arguments),
    /// Make access tokens for a service.
    Token(token::Arguments),
    /// Play recorded streams of real engines and compare every answer with the engine's own.
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
    Arguments::command().mut_subcommand("serve", with_environment)
}

/// What is to be done, with what a configuration file says of it.
fn parse() -> Result<Arguments, Failure> {
    let arguments = Arguments::from_arg_matches(&command().get_matches())?;
    let Command::Serve(config) = &arguments.command else { return Ok(arguments) };
    let Some(path) = &config.config else { return Ok(arguments) };
    let file = File::read(path)?;
    let mut arguments = Arguments::from_arg_matches(&file.set_defaults(command())?.get_matches())?;
    if let Command::Serve(config) = &mut arguments.command {
        config.streams = file.into_streams();
    }
    Ok(arguments)
}

fn obey(arguments: Arguments) -> Result<ExitCode, Failure> {
    start_log(&arguments.log)?;
    match arguments.command {
        Command::Serve(config) => serve::run(&config),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Query(arguments) => query::run(&arguments),
        Command::CheckConfig(arguments) => check_config::run(&arguments),
        Command::Token(arguments) => token::run(arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Storm(arguments) => storm::run(&arguments),
    }
}
