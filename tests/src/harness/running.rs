//! Commands that run to their end, by themselves or by a signal.

use std::{
    cell::Cell,
    io::{Read, Write},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::Duration,
};

use super::{PATIENCE, wait_for, wait_within};

/// How long a command may take that ends by itself. A load test takes as long as its machine lets it.
const BY_ITSELF: Duration = Duration::from_secs(120);

/// How a command ended.
#[derive(Debug)]
pub struct Finished {
    /// Its exit code; -1 where a signal ended it.
    pub code: i32,
    /// What it has printed.
    pub out: String,
    /// What it has said on standard error.
    pub error: String,
}

/// A command that runs. It is ended with its handle.
pub struct Running {
    child: Child,
    signalled: Cell<bool>,
    out: Said,
    error: Said,
}

/// What a command has said so far.
struct Said {
    text: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Running {
    /// Starts it with these settings in the environment, and no others.
    ///
    /// # Panics
    /// Where it cannot be started.
    #[must_use]
    pub fn start(command: &mut Command, environment: &[(&str, &str)]) -> Running {
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("KVTIDE_") || name == "COLUMNS")
        {
            command.env_remove(name);
        }
        command.envs(environment.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (out, error) = (Said::by(child.stdout.take().unwrap()), Said::by(child.stderr.take().unwrap()));
        Running { child, signalled: Cell::new(false), out, error }
    }

    /// Waits until it has said that on standard error so often.
    pub fn wait_for_log(&self, part: &str, times: usize) {
        wait_for(part, || (self.error.now().matches(part).count() >= times).then_some(()));
    }

    /// What it has printed so far.
    #[must_use]
    pub fn out(&self) -> String {
        self.out.now()
    }

    /// Types at it.
    ///
    /// # Panics
    /// Where it has ended.
    pub fn press(&mut self, keys: &str) {
        self.child.stdin.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Sends it a signal, as `-INT`.
    ///
    /// # Panics
    /// Where it cannot be sent.
    pub fn signal(&self, signal: &str) {
        self.signalled.set(true);
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// How it ends.
    ///
    /// # Panics
    /// Where it does not for two minutes, or for [`PATIENCE`] behind a signal.
    #[must_use]
    pub fn finish(mut self) -> Finished {
        let patience = if self.signalled.get() { PATIENCE } else { BY_ITSELF };
        let status = wait_within(patience, "a command that ends", || self.child.try_wait().unwrap());
        for reader in [self.out.reader.take(), self.error.reader.take()].into_iter().flatten() {
            reader.join().unwrap();
        }
        Finished { code: status.code().unwrap_or(-1), out: self.out.now(), error: self.error.now() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Said {
    fn by(mut from: impl Read + Send + 'static) -> Said {
        let text = Arc::new(Mutex::new(Vec::new()));
        let said = Arc::clone(&text);
        let reader = thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(bytes @ 1..) = from.read(&mut part) {
                said.lock().unwrap().extend(&part[..bytes]);
            }
        });
        Said { text, reader: Some(reader) }
    }

    fn now(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap()).into_owned()
    }
}

impl Finished {
    /// Asserts that it failed for a stated reason: with that code, nothing printed, and these words.
    ///
    /// # Panics
    /// Where it did not.
    pub fn failed(&self, code: i32, words: &[&str]) {
        assert_eq!((self.code, self.out.as_str()), (code, ""), "{self:?}");
        for word in words {
            assert!(self.error.contains(word), "no {word:?}: {}", self.error);
        }
        assert!(!self.error.contains("panicked"), "{}", self.error);
    }
}
