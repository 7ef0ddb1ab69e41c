//! What kvtide is held to: the [`Model`], which keeps plain sets of blocks and does nothing clever, and the
//! [`harness`], which runs the real thing.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first step that cannot be")]

pub mod harness;
mod model;

pub use model::{Model, REACH_NONE};
