//! Requests of the Mooncake conversation trace (benches/traces), each served by a random rank.

use std::io::{BufRead, BufReader, Error};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::Deserialize;

use crate::{
    fleet::{Fleet, Shape},
    workload::{Number, Workload},
};

const TRACE: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/traces/conversation_trace.jsonl.zst"));
/// Tokens that one id of the trace stands for.
const ID_TOKENS: Number = 512;
const SEED: u64 = 1;

/// How the trace is cut up and served.
pub struct Mooncake {
    /// Tokens a block; divides 512.
    pub block_tokens: Number,
    /// Requests of the trace that are served.
    pub requests: usize,
    /// Who serves them.
    pub shape: Shape,
}

#[derive(Deserialize)]
struct Request {
    hash_ids: Vec<Number>,
}

impl Mooncake {
    /// The workload.
    ///
    /// # Errors
    /// If the trace that is built in cannot be read.
    pub fn workload(&self) -> Result<Workload, Error> {
        let mut random = StdRng::seed_from_u64(SEED);
        let mut fleet = Fleet::new(self.shape);
        let blocks_per_id = ID_TOKENS / self.block_tokens;
        let trace = BufReader::new(zstd::Decoder::new(TRACE)?);
        for line in trace.lines().take(self.requests) {
            let request: Request = serde_json::from_str(&line?)?;
            let blocks_of = |id: &Number| id * blocks_per_id..(id + 1) * blocks_per_id;
            let prompt: Vec<Number> = request.hash_ids.iter().flat_map(blocks_of).collect();
            fleet.ask(&prompt);
            fleet.serve(random.random_range(0..self.shape.ranks), &prompt);
        }
        Ok(fleet.finish())
    }
}
