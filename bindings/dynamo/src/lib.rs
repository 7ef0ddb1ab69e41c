//! kvtide in a Dynamo fleet.
//!
//! - [`Fleet`]: what Dynamo's discovery says, and what follows from it: streams, publishers, ranks.
//! - [`Following`]: keeps an [`Indexer`](kvtide::Indexer) at what it says.
//! - [`Workers`]: asks workers for what their own indexes hold.
//! - [`Tree`]: kvtide's tree in the place of the indexers of Dynamo's own router.

mod card;
mod event;
mod fleet;
mod follow;
mod tree;
mod workers;

pub use card::{Card, Endpoint};
pub use event::translate;
pub use fleet::{Fleet, Kind, Plan, Planned, Refused, Source};
pub use follow::{DISCOVERY, Following, Settings};
pub use tree::Tree;
pub use workers::Workers;
