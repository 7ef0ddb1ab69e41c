//! How much one indexer takes in.

/// Limits of an [`Indexer`](crate::Indexer), each named in the error that it causes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Scopes.
    pub scopes: usize,
    /// Tokens of a query's prompt.
    pub query_tokens: u64,
    /// Limits of each scope's index.
    pub index: kvtide_radix::Limits,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { scopes: 1024, query_tokens: 4 << 20, index: kvtide_radix::Limits::default() }
    }
}
