//! What kvtide is measured with, alone and beside its peers.
//!
//! Figures of one run compare with each other and with no other run's: the machine is shared, and its speed drifts
//! by more than the differences that matter. So everything that is compared runs in turns, round by round, and what
//! is reported is the median round ([`rounds`] within a process, [`median`] over processes).
//!
//! A [`Workload`] is what ranks announce, and prompts that a router asks for in between. [`Kind`] names those that
//! are measured. They come from a [`Fleet`] of ranks that evict, which also knows the right answers.

mod cache;
mod conversations;
mod fleet;
mod kind;
mod latency;
mod mooncake;
mod open;
mod rounds;
mod trace;
mod workload;

pub use cache::{Cache, Served};
pub use conversations::Conversations;
pub use fleet::{Fleet, Shape};
pub use kind::Kind;
pub use latency::{Latency, clock, median};
pub use mooncake::Mooncake;
pub use open::open;
pub use rounds::{Timing, rounds};
pub use trace::Request;
pub use workload::{Number, Prompts, Truth, Workload, block, blocks_of, hashed, mix};
