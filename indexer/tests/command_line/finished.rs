//! The command that is tested, run to its end.

use std::process::Command;

pub(crate) use kvtide_tests::harness::{Finished, Running};

/// Runs the command with its settings of the environment taken away.
pub(crate) fn kvtide(arguments: &[&str]) -> Finished {
    kvtide_in(&[], arguments)
}

/// The same with these settings in the environment.
pub(crate) fn kvtide_in(environment: &[(&str, &str)], arguments: &[&str]) -> Finished {
    Running::start(Command::new(env!("CARGO_BIN_EXE_kvtide")).args(arguments), environment).finish()
}
