//! What kvtide is held to: the [`Model`], which keeps plain sets of blocks and does nothing clever.

#![expect(clippy::unwrap_used, reason = "a reference may stop at the first step that cannot be")]

mod model;

pub use model::{Model, REACH_NONE};
