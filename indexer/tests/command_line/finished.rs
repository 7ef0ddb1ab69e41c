//! Commands that run to their end.

use std::process::{Command, Stdio};

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) error: String,
}

/// Runs the command with its settings of the environment taken away.
pub(crate) fn kvtide(arguments: &[&str]) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtide"));
    for name in ["KVTIDE_CONFIG", "KVTIDE_LISTEN", "KVTIDE_NATS", "KVTIDE_URL", "KVTIDE_LOG"] {
        command.env_remove(name);
    }
    let output = command.args(arguments).stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap_or_else(|| panic!("{arguments:?}: {}", output.status));
    Finished { code, out: text(output.stdout), error: text(output.stderr) }
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
