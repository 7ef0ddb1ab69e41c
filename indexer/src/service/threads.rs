//! Threads that serve connections, each with a runtime of its own: a request is read, answered and written by one thread,
//! and wakes no other. Feeds are not in its way, nor is it in theirs.

use std::{io, thread};

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::cores;

/// As many threads as there are cores. They end with this, and with them whatever they still do.
pub(super) struct Threads {
    runtimes: Vec<Handle>,
    _running: DropGuard,
}

impl Threads {
    pub(super) fn start() -> io::Result<Threads> {
        let running = CancellationToken::new();
        let start = |index| {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let (handle, over) = (runtime.handle().clone(), running.clone());
            thread::Builder::new().name(format!("http-{index}")).spawn(move || {
                runtime.block_on(over.cancelled());
                runtime.shutdown_background();
            })?;
            Ok(handle)
        };
        let runtimes = (0..cores()).map(start).collect::<io::Result<_>>()?;
        Ok(Threads { runtimes, _running: running.drop_guard() })
    }

    /// The threads, in turns, for ever.
    pub(super) fn turns(&self) -> impl Iterator<Item = &Handle> {
        self.runtimes.iter().cycle()
    }
}
