//! kvtide as a Python package: what of it is Rust. `python/kvtide/_native.pyi` says what Python sees of it.

mod applied;
mod args;
mod error;
mod events;
mod fork;
mod freshness;
mod hashes;
mod hashing;
mod indexer;
mod media;
mod overlap;
mod query;
mod radix_tree;
mod reach;
mod tokens;

/// The Rust side of the Python package `kvtide`.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::applied::Applied;
    #[pymodule_export]
    use crate::fork::{after_fork, before_fork};
    #[pymodule_export]
    use crate::freshness::{Freshness, FreshnessLimits};
    #[pymodule_export]
    use crate::hashes::hash_list;
    #[pymodule_export]
    use crate::hashing::{PromptHasher, hash_blocks, sequence_hashes};
    #[pymodule_export]
    use crate::indexer::Indexer;
    #[pymodule_export]
    use crate::overlap::{Overlap, RankOverlap, read_overlap, read_overlaps};
    #[pymodule_export]
    use crate::radix_tree::{OverlapScores, RadixTree};
    #[pymodule_export]
    use crate::reach::Reach;
    #[pymodule_export]
    use crate::tokens::token_bytes;
}
