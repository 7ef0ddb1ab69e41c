//! How much one indexer takes in, and for how long.

use std::time::Duration;

/// Limits of an [`Indexer`](crate::Indexer), each named in the error that it causes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Scopes.
    pub scopes: usize,
    /// Tokens of a query's prompt.
    pub query_tokens: u64,
    /// Ranks of a request's answers, together.
    pub query_ranks: u64,
    /// Media of a query's prompt, each counted once for every block that it stands in.
    pub query_media: u64,
    /// A worker from which nothing has come for so long is silent.
    pub silent_after: Duration,
    /// Of two publishers that claim one rank, one has given up when it has been silent for so long.
    pub conflict_silence: Duration,
    /// A worker from which nothing has come for so long has gone: its ranks are removed. None: never.
    pub gone_after: Option<Duration>,
    /// Limits of each scope's index.
    pub index: kvtide_radix::Limits,
}

impl Limits {
    /// What is taken in if nothing is said.
    pub const DEFAULT: Limits = Limits {
        scopes: 1024,
        query_tokens: 4 << 20,
        query_ranks: 1 << 20,
        query_media: 4 << 20,
        silent_after: Duration::from_secs(60),
        conflict_silence: Duration::from_secs(10),
        gone_after: None,
        index: kvtide_radix::Limits::DEFAULT,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Limits::DEFAULT
    }
}
