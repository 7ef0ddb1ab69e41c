//! What is known of a rank, and when: vectors that kvtide and the slow reference both play.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first step that cannot be")]

mod ages;
mod faults;
mod peers;
mod player;
mod restarts;
mod vectors;
mod wire;
