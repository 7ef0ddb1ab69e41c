//! An engine event's `token_ids`: numbers, or under EAGLE pairs of each token and the next.

use kvtide_radix::{Blocks, Seed, SequenceHash, TokenBlocks};

use crate::{DecodeError, error::Problem, msgpack::Reader, msgpack::Value};

/// Tokens as they came: of pairs the first halves, and all second halves beside them.
#[derive(Default)]
pub(super) struct Tokens {
    first: Vec<u32>,
    second: Vec<u32>,
}

impl Tokens {
    /// Reads nil or an array. At most 8 bytes of memory for each byte of input.
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = reader.optional_array("token ids")?.unwrap_or(0);
        let mut tokens = Tokens { first: Vec::with_capacity(count), second: Vec::new() };
        for _ in 0..count {
            match reader.value()? {
                Value::Int(token) => tokens.first.push(token_id(token, reader)?),
                Value::Array(2) => {
                    let (first, second) = (reader.integer("a token id")?, reader.integer("a token id")?);
                    tokens.first.push(token_id(first, reader)?);
                    tokens.second.push(token_id(second, reader)?);
                }
                other => return reader.expected("a token id, or a pair of them", other),
            }
        }
        if !tokens.second.is_empty() && tokens.second.len() != tokens.first.len() {
            let expected = "token ids, or pairs of them throughout";
            return reader.refuse(Problem::Unexpected { expected, got: "both" });
        }
        Ok(tokens)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// The blocks that these tokens fill, to be hashed once their chain's seed is known.
    pub(super) fn into_blocks(
        self,
        names: Vec<SequenceHash>,
        expected: u32,
        got: Option<u64>,
        root_seed: Seed,
        media: Vec<(usize, u64)>,
        reader: &Reader<'_>,
    ) -> Result<Blocks, DecodeError> {
        if let Some(got) = got.filter(|&got| got != u64::from(expected)) {
            return reader.refuse(Problem::BlockSize { expected, got });
        }
        let block_size = expected as usize;
        let needed = names.len().saturating_mul(block_size);
        if self.first.len() != needed {
            return reader.refuse(Problem::TokenCount {
                blocks: names.len(),
                block_size: expected,
                expected: needed,
                got: self.first.len(),
            });
        }
        let (tokens, tokens_per_block) = if self.second.is_empty() {
            (self.first, block_size)
        } else {
            (windows(&self.first, &self.second, block_size), block_size + 1)
        };
        Ok(Blocks::Tokens(TokenBlocks { names, tokens, tokens_per_block, root_seed, media }))
    }
}

/// From pairs `(t0, t1), (t1, t2), ...` the tokens of each block and the one behind it.
fn windows(first: &[u32], second: &[u32], block_size: usize) -> Vec<u32> {
    let blocks = first.chunks_exact(block_size).zip(second.chunks_exact(block_size));
    blocks.flat_map(|(first, second)| first.iter().chain(second.last())).copied().collect()
}

fn token_id(token: u64, reader: &Reader<'_>) -> Result<u32, DecodeError> {
    match u32::try_from(token) {
        Ok(token) => Ok(token),
        // Without the number: tokens are content.
        Err(_) => {
            let expected = "a token id, below 2^32";
            reader.refuse(Problem::Unexpected { expected, got: "a larger integer" })
        }
    }
}
