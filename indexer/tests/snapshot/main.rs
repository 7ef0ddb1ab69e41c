//! Snapshots: what goes on after a restart, and what is refused.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first step that cannot be")]

mod damaged;
mod elsewhere;
mod restarts;
