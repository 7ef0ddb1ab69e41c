//! XXH3-64 with what it makes of a seed made beforehand, for the lengths that blocks have: 5 to 32 and 61 to 256 words
//! of 32 bits.
//!
//! Plain arithmetic, which the compiler turns into whatever vector instructions the caller is compiled for. Source of
//! the algorithm: the XXH3 specification of xxHash 0.8.

use std::ops::RangeInclusive;

use xxhash_rust::const_xxh3::const_custom_default_secret;

use super::Seed;

/// Words in a stripe, which is what the eight sums take in at once.
const STRIPE: usize = 16;
const QUARTER: usize = STRIPE / 4;

/// XXH3's own constants.
const PRIME_64: u64 = 0x9E37_79B1_85EB_CA87;
const AVALANCHE: u64 = 0x1656_6791_9E37_79F9;
const START: [u64; 8] = [
    0xC2B2_AE3D,
    PRIME_64,
    0xC2B2_AE3D_27D4_EB4F,
    0x1656_67B1_9E37_79F9,
    0x85EB_CA77_C2B2_AE63,
    0x85EB_CA77,
    0x27D4_EB2F_1656_67C5,
    0x9E37_79B1,
];

/// The secret of seed 0.
const DEFAULT: [u64; 24] = words_of(const_custom_default_secret(0));

/// A seed's secret, as the words with which inputs are mixed.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// Those of stripe `i` start at word `i`, those of quarter `i` at word `2 * i`.
    words: [u64; 24],
    last: [u64; 8],
    merge: [u64; 8],
}

impl Keys {
    /// Lengths of [`Keys::hash_short`].
    pub(super) const SHORT: RangeInclusive<usize> = 5..=32;
    /// Lengths of [`Keys::hash_long`]: of more words XXH3 scrambles its sums.
    pub(super) const LONG: RangeInclusive<usize> = 61..=256;

    /// The keys of a seed: it is added to every other word of the secret of seed 0, and subtracted from the rest.
    pub(super) fn of(seed: Seed) -> Keys {
        let mut words = DEFAULT;
        for [added, subtracted] in words.as_chunks_mut().0 {
            *added = added.wrapping_add(seed.0);
            *subtracted = subtracted.wrapping_sub(seed.0);
        }
        Keys { words, last: from_byte(&words, 121), merge: from_byte(&words, 11) }
    }

    /// Hashes words as if they were little-endian bytes: quarters of a stripe from both ends towards the middle.
    #[inline(always)]
    pub(super) fn hash_short(&self, words: &[u32]) -> u64 {
        let mut hash = (size_of_val(words) as u64).wrapping_mul(PRIME_64);
        let (front, back) = (words.chunks(QUARTER), words.rchunks(QUARTER));
        let quarters = front.zip(back).take(words.len().div_ceil(2 * QUARTER));
        for ((front, back), keys) in quarters.zip(self.words.as_chunks::<4>().0) {
            for (quarter, keys) in [(front, [keys[0], keys[1]]), (back, [keys[2], keys[3]])] {
                if let &[a, b, c, d] = quarter {
                    hash = hash.wrapping_add(folded(word(a, b) ^ keys[0], word(c, d) ^ keys[1]));
                }
            }
        }
        avalanche(hash)
    }

    /// Hashes words as if they were little-endian bytes: stripe after stripe into eight sums.
    #[inline(always)]
    pub(super) fn hash_long(&self, words: &[u32]) -> u64 {
        let mut sums = START;
        // The last word is always left to the last stripe, which overlaps the one before where it has to.
        let stripes = &words.as_chunks::<STRIPE>().0[..(words.len() - 1) / STRIPE];
        for (stripe, keys) in stripes.iter().zip(self.words.array_windows()) {
            add(&mut sums, stripe, keys);
        }
        if let Some(stripe) = words.last_chunk() {
            add(&mut sums, stripe, &self.last);
        }
        let mut hash = (size_of_val(words) as u64).wrapping_mul(PRIME_64);
        for (sums, keys) in sums.as_chunks::<2>().0.iter().zip(self.merge.as_chunks::<2>().0) {
            hash = hash.wrapping_add(folded(sums[0] ^ keys[0], sums[1] ^ keys[1]));
        }
        avalanche(hash)
    }
}

/// Eight sums take in a stripe: each the product of its mixed word's halves, and its neighbour's word.
#[inline(always)]
fn add(sums: &mut [u64; 8], stripe: &[u32; STRIPE], keys: &[u64; 8]) {
    let words: [u64; 8] = std::array::from_fn(|index| word(stripe[2 * index], stripe[2 * index + 1]));
    for index in 0..8 {
        let mixed = words[index] ^ keys[index];
        let product = (mixed & 0xFFFF_FFFF).wrapping_mul(mixed >> 32);
        sums[index] = sums[index].wrapping_add(words[index ^ 1]).wrapping_add(product);
    }
}

fn word(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn avalanche(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 37)).wrapping_mul(AVALANCHE);
    hash ^ (hash >> 32)
}

/// A product of 128 bits, its halves folded into 64.
#[inline(always)]
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Eight words of a secret from a byte on that is no word's first, as if they were little-endian bytes.
fn from_byte(words: &[u64; 24], byte: usize) -> [u64; 8] {
    let (first, bits) = (byte / 8, byte % 8 * 8);
    std::array::from_fn(|index| words[first + index] >> bits | words[first + index + 1] << (64 - bits))
}

/// The little-endian words of a secret.
const fn words_of(secret: [u8; 192]) -> [u64; 24] {
    let mut words = [0; 24];
    let mut byte = 0;
    while byte < secret.len() {
        words[byte / 8] |= (secret[byte] as u64) << (byte % 8 * 8);
        byte += 1;
    }
    words
}
