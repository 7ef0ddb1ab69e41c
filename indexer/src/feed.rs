//! Feeds: what brings events to an indexer from elsewhere.

mod nats;

pub use nats::{NatsError, NatsFeed};
