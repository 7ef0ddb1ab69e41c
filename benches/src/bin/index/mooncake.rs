//! Requests of the Mooncake conversation trace (benches/traces), each served by a random rank.

use std::io::{BufRead, BufReader, Error};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::Deserialize;

use crate::workload::{Fleet, Number, Workload};

const TRACE: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/traces/conversation_trace.jsonl.zst"));
/// Tokens that one id of the trace stands for.
const ID_TOKENS: Number = 512;
const SEED: u64 = 1;

/// How the trace is cut up and served.
pub(crate) struct Mooncake {
    /// Tokens a block; divides 512.
    pub(crate) block_tokens: Number,
    pub(crate) ranks: usize,
    /// Blocks that all ranks together have room for.
    pub(crate) room: usize,
    /// Requests of the trace that are served.
    pub(crate) requests: usize,
}

#[derive(Deserialize)]
struct Request {
    hash_ids: Vec<Number>,
}

impl Mooncake {
    pub(crate) fn workload(&self) -> Result<Workload, Error> {
        let mut random = StdRng::seed_from_u64(SEED);
        let mut fleet = Fleet::new(self.ranks, self.room / self.ranks);
        let blocks_per_id = ID_TOKENS / self.block_tokens;
        let trace = BufReader::new(zstd::Decoder::new(TRACE)?);
        for line in trace.lines().take(self.requests) {
            let request: Request = serde_json::from_str(&line?)?;
            let blocks_of = |id: &Number| id * blocks_per_id..(id + 1) * blocks_per_id;
            let prompt: Vec<Number> = request.hash_ids.iter().flat_map(blocks_of).collect();
            fleet.ask(&prompt);
            fleet.serve(random.random_range(0..self.ranks), &prompt);
        }
        Ok(fleet.finish(format!("mooncake{}", self.block_tokens)))
    }
}
