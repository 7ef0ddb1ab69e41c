//! What kvtide is held to: the [`Model`], which keeps plain sets of blocks and does nothing clever.

mod model;

pub use model::{Model, REACH_NONE};
