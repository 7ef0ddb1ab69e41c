//! The `kvtide` command: what each subcommand prints, how it ends, and what it says of wrong arguments and files.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first step that cannot be")]

mod configuration;
mod demo;
mod finished;
mod query;
mod record;
mod recordings;
mod replay;
mod serve;
mod settings;
mod storm;
mod token;
mod top;
