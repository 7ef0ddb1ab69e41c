//! Requests of the Mooncake conversation trace (indexer/traces), with tokens made up for them.

use std::io::{BufRead, BufReader, Error};

use serde::Deserialize;

const TRACE: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../indexer/traces/conversation_trace.jsonl.zst"));
/// Tokens that one id of the trace stands for, the last id of a request for fewer.
pub(crate) const ID_TOKENS: usize = 512;

/// One request.
#[derive(Deserialize)]
pub struct Request {
    input_length: usize,
    hash_ids: Vec<u32>,
}

impl Request {
    /// The first so many requests of the trace.
    ///
    /// # Errors
    /// If the trace, which is a part of the program, does not decode.
    pub fn read(count: usize) -> Result<Vec<Request>, Error> {
        let lines = BufReader::new(zstd::Decoder::new(TRACE)?).lines().take(count);
        lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect()
    }

    /// Its ids, each of which stands for a part of the prompt and all that is in front of it.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.hash_ids
    }

    /// Writes the prompt's tokens: as many as the request had, the same for the same ids.
    pub fn write_tokens(&self, tokens: &mut Vec<u32>) {
        tokens.clear();
        for &id in &self.hash_ids {
            // A step of an odd number in 32 bits: no token of an id is repeated, and ids differ from the first on.
            let start = id.wrapping_mul(0x9E37_79B1);
            tokens.extend(
                (0..ID_TOKENS as u32).map(|index| start.wrapping_add(index.wrapping_mul(0x85EB_CA77))),
            );
        }
        tokens.truncate(self.input_length);
    }
}
