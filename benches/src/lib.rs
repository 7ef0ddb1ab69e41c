//! Measures kvtide beside its peers.
//!
//! Figures of one run compare with each other and with no other run's: the machine is shared, and its speed drifts
//! by more than the differences that matter. So everything that is compared runs in one process, round by round in
//! turns ([`rounds`]), and what is reported is the median round.

mod rounds;
mod trace;

pub use rounds::{Timing, rounds};
pub use trace::Request;
