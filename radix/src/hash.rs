//! The three 64-bit values that everything is keyed by: what a block contains, what a rank calls it, and what
//! its chain is salted with.

use serde::{Deserialize, Serialize};

mod hasher;
mod keys;

pub use hasher::BlockHasher;
use smallvec::SmallVec;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Hash of one block's content: its tokens, salted with adapter and tenant. A router computes it from a prompt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct BlockHash(pub u64);

impl AsRef<[BlockHash]> for BlockHash {
    /// A group of one.
    fn as_ref(&self) -> &[BlockHash] {
        std::slice::from_ref(self)
    }
}

/// A rank's own opaque name for a block in its prefix. Removals name blocks by it, and so do parents.
///
/// Names belong to the rank that uses them: two ranks may name one content differently, and one name may mean
/// different content on two ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SequenceHash(pub u64);

/// What every block hash of a chain is seeded with: the adapter and the tenant of its first block, which all
/// blocks behind it inherit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Seed(pub u64);

impl Seed {
    /// The seed of plain blocks, with neither adapter nor tenant. Source: dynamo-kv-hashing 1.6.1.
    pub const PLAIN: Seed = Seed(1337);

    /// The seed for an adapter (LoRA) and a tenant (cache namespace, salt). An empty name is no name.
    ///
    /// `1337 + XXH3-64(adapter, seed 0) + XXH3-64(tenant, seed 1)`, wrapping. Source: dynamo-kv-hashing 1.6.1.
    #[must_use]
    pub fn of(adapter: Option<&str>, tenant: Option<&str>) -> Seed {
        let part = |name: Option<&str>, seed| match name {
            Some(name) if !name.is_empty() => xxh3_64_with_seed(name.as_bytes(), seed),
            _ => 0,
        };
        Seed(Self::PLAIN.0.wrapping_add(part(adapter, 0)).wrapping_add(part(tenant, 1)))
    }
}

impl BlockHash {
    /// Hashes one block: XXH3-64 over the tokens and then the sorted hashes of the media in the block, all
    /// little-endian, seeded with the chain's [`Seed`]. Source: dynamo-kv-router 1.6.1.
    ///
    /// `media` is empty for plain text; its order does not matter. [`BlockHasher`] is for many blocks of one seed.
    #[must_use]
    pub fn of(tokens: &[u32], media: &[u64], seed: Seed) -> BlockHash {
        if media.is_empty() && cfg!(target_endian = "little") {
            return BlockHash(xxh3_64_with_seed(bytemuck::cast_slice(tokens), seed.0));
        }
        let mut sorted: SmallVec<[u64; 8]> = SmallVec::from_slice(media);
        sorted.sort_unstable();
        let mut bytes: SmallVec<[u8; 512]> = SmallVec::new();
        bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        bytes.extend(sorted.iter().flat_map(|hash| hash.to_le_bytes()));
        BlockHash(xxh3_64_with_seed(&bytes, seed.0))
    }
}

/// The hash under which a named medium (an image, an embedding) enters a block hash.
///
/// A 64-digit hexadecimal digest stands for its first 16 digits, as in Dynamo; any other name is hashed.
/// Source: dynamo-kv-router 1.6.1.
#[must_use]
pub fn media_hash(identifier: &str) -> u64 {
    let digest = identifier.len() == 64 && identifier.bytes().all(|byte| byte.is_ascii_hexdigit());
    match identifier.get(..16).filter(|_| digest).and_then(|head| u64::from_str_radix(head, 16).ok()) {
        Some(hash) => hash,
        None => xxh3_64(identifier.as_bytes()),
    }
}
