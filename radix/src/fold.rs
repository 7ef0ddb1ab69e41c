//! Sixteen block hashes folded into one, so that a lookup reads 8 bytes of the tree for a page instead of 128.
//!
//! Two pages that differ have the same fold with a chance of about 2^-64, which is that of two blocks with the same hash.
//! The keys are drawn by each process, so that nobody can look for such pages. The fold is the NH of UMAC (Black et al.,
//! CRYPTO '99; RFC 4418) over words of 64 bits, its two halves mixed.

use std::{hash::BuildHasher, sync::LazyLock};

use hashbrown::DefaultHashBuilder;

use crate::{BlockHash, pages::PAGE_BLOCKS};

/// One key for each block of a page.
pub(crate) struct Keys([u64; PAGE_BLOCKS]);

static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    let random = DefaultHashBuilder::default();
    Keys(std::array::from_fn(|index| random.hash_one(index)))
});

impl Keys {
    /// This process' keys.
    pub(crate) fn get() -> &'static Keys {
        &KEYS
    }

    /// The fold of a page.
    pub(crate) fn fold(&self, page: &[BlockHash; PAGE_BLOCKS]) -> BlockHash {
        let pairs = page.as_chunks::<2>().0.iter().zip(self.0.as_chunks::<2>().0);
        let products = pairs.map(|([a, b], [key_a, key_b])| {
            u128::from(a.0.wrapping_add(*key_a)) * u128::from(b.0.wrapping_add(*key_b))
        });
        let sum = products.fold(0_u128, u128::wrapping_add);
        BlockHash(sum as u64 ^ (sum >> 64) as u64)
    }
}
