//! Says what was refused, at a limited rate: a broken publisher must not fill the log.

use std::time::{Duration, Instant};

use tracing::warn;

use crate::ApplyError;

/// Lines a second. What is left out is counted in the next line.
const LINES: u32 = 5;

/// The refusals of one subscription.
pub(super) struct Refusals {
    since: Instant,
    lines: u32,
    left_out: u64,
}

impl Refusals {
    pub(super) fn new() -> Refusals {
        Refusals { since: Instant::now(), lines: 0, left_out: 0 }
    }

    /// Logs where a refused message came from and how long it was, never its content.
    pub(super) fn report(&mut self, from: &str, bytes: usize, error: &ApplyError) {
        if self.since.elapsed() > Duration::from_secs(1) {
            (self.since, self.lines) = (Instant::now(), 0);
        }
        if self.lines == LINES {
            self.left_out += 1;
            return;
        }
        self.lines += 1;
        let left_out = std::mem::take(&mut self.left_out);
        warn!(from, bytes, left_out, %error, "message refused");
    }
}
