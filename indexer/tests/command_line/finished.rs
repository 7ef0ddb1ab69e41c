//! Commands that run to their end.

use std::{
    io::Read,
    process::{Command, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use kvtide_tests::harness::PATIENCE;

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) error: String,
}

/// Runs the command with its settings of the environment taken away.
pub(crate) fn kvtide(arguments: &[&str]) -> Finished {
    kvtide_in(&[], arguments)
}

/// The same with these settings in the environment.
pub(crate) fn kvtide_in(environment: &[(&str, &str)], arguments: &[&str]) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtide"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("KVTIDE_") || name == "COLUMNS") {
        command.env_remove(name);
    }
    command.envs(environment.iter().copied());
    let command = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let out = read(child.stdout.take().unwrap());
    let error = read(child.stderr.take().unwrap());
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("{arguments:?} does not end: {}", error.join().unwrap());
        }
        thread::sleep(Duration::from_millis(2));
    };
    let code = status.code().unwrap_or_else(|| panic!("{arguments:?}: {status}"));
    Finished { code, out: out.join().unwrap(), error: error.join().unwrap() }
}

fn read(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut text = String::new();
        from.read_to_string(&mut text).unwrap();
        text
    })
}

impl Finished {
    /// Asserts that it failed for a stated reason: with that code, nothing printed, and these words.
    pub(crate) fn failed(&self, code: i32, words: &[&str]) {
        assert_eq!((self.code, self.out.as_str()), (code, ""), "{self:?}");
        for word in words {
            assert!(self.error.contains(word), "no {word:?}: {}", self.error);
        }
        assert!(!self.error.contains("panicked"), "{}", self.error);
    }
}
