//! Each round runs in a process of its own: this program starts itself, and reads one line of figures from it.

use std::{
    env::current_exe,
    io,
    process::{Command, ExitStatus, Stdio},
};

use kvtide_benches::Kind;

use crate::{contender::Contender, measure::Round, report::name};

/// Which round a process runs.
pub(crate) struct Order {
    pub(crate) kind: Kind,
    pub(crate) ranks: usize,
    pub(crate) index: Contender,
    pub(crate) quick: bool,
    pub(crate) warm: bool,
    /// Whether answers are compared with the truth, which need not be done in every round.
    pub(crate) check: bool,
}

/// A process did not do its round.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{index} on {workload}: no process: {error}")]
    Start { index: String, workload: String, error: io::Error },
    #[error("{index} on {workload}: the process ended with {status}, expected success")]
    Ended { index: String, workload: String, status: ExitStatus },
    #[error("{index} on {workload}: the process said {got:?}, expected one line of figures: {error}")]
    Said { index: String, workload: String, got: String, error: serde_json::Error },
}

impl Order {
    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "--one-round".to_owned(),
            format!("--workload={}", name(&self.kind)),
            format!("--ranks={}", self.ranks),
            format!("--index={}", name(&self.index)),
        ];
        for (wanted, flag) in [(self.quick, "--quick"), (self.warm, "--warm"), (self.check, "--check")] {
            arguments.extend(wanted.then(|| flag.to_owned()));
        }
        arguments
    }

    /// Has the round run, and waits for it.
    pub(crate) fn run(&self) -> Result<Round, Failure> {
        let (index, workload) = (name(&self.index), name(&self.kind));
        let output = current_exe().and_then(|program| {
            Command::new(program).args(self.arguments()).stderr(Stdio::inherit()).output()
        });
        let output = match output {
            Ok(output) if output.status.success() => output.stdout,
            Ok(output) => return Err(Failure::Ended { index, workload, status: output.status }),
            Err(error) => return Err(Failure::Start { index, workload, error }),
        };
        let got = String::from_utf8_lossy(&output).into_owned();
        serde_json::from_str(&got).map_err(|error| Failure::Said { index, workload, got, error })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::Settings;

    #[test]
    fn an_order_arrives_as_it_was_given() {
        for check in [false, true] {
            let (kind, index) = (Kind::OneBlock, Contender::DynamoPositional);
            let order = Order { kind, ranks: 7, index, quick: true, warm: !check, check };
            let program = ["peers".to_owned()];
            let read = Settings::parse_from(program.into_iter().chain(order.arguments()));
            assert!(read.one_round && read.quick);
            assert_eq!((read.warm, read.check), (!check, check));
            assert_eq!((read.workloads, read.ranks, read.indexes), (vec![kind], vec![7], vec![index]));
        }
    }
}
