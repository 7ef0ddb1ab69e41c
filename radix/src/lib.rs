//! wip
mod event;
mod hash;
mod rank;
mod reach;
mod tier;
pub use event::*;
pub use hash::*;
pub use rank::*;
pub use reach::*;
pub use tier::*;
