//! What kvtide is held to: the [`Model`], which keeps plain sets of blocks and does nothing clever, and the
//! [`harness`], which runs the real thing, with files in a [`Folder`].

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first step that cannot be")]

mod authority;
mod fleet;
mod folder;
pub mod harness;
mod model;
pub mod vectors;

pub use authority::Authority;
pub use fleet::Fleet;
pub use folder::Folder;
pub use model::{Model, REACH_NONE};
