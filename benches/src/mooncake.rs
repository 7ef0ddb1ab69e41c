//! Requests of the Mooncake conversation trace (indexer/traces), each served by a random rank.

use std::io::Error;

use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::{
    fleet::{Fleet, Shape},
    trace::{ID_TOKENS, Request},
    workload::{Number, Workload},
};

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

impl Mooncake {
    /// The workload.
    ///
    /// # Errors
    /// If the trace that is built in cannot be read.
    pub fn workload(&self) -> Result<Workload, Error> {
        let mut random = StdRng::seed_from_u64(SEED);
        let mut fleet = Fleet::new(self.shape);
        let blocks_per_id = ID_TOKENS as Number / self.block_tokens;
        for request in Request::read(self.requests)? {
            let blocks_of =
                |&id: &u32| (0..blocks_per_id).map(move |block| Number::from(id) * blocks_per_id + block);
            let prompt: Vec<Number> = request.ids().iter().flat_map(blocks_of).collect();
            fleet.ask(&prompt);
            fleet.serve(random.random_range(0..self.shape.ranks), &prompt);
        }
        Ok(fleet.finish())
    }
}
