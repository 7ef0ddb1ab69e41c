//! Which workloads there are.

use std::io::Error;

use clap::ValueEnum;

use crate::{
    conversations::Conversations,
    fleet::{Fleet, Shape},
    mooncake::Mooncake,
    workload::Workload,
};

/// Requests in the Mooncake trace.
const TRACE_REQUESTS: usize = 12_031;

/// A workload by its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Kind {
    /// The Mooncake trace in blocks of 64 tokens, room for 524,288 of them.
    Mooncake64,
    /// The Mooncake trace in blocks of 16 tokens, room for 4,194,304 of them.
    Mooncake16,
    /// Conversations over shared system prompts, with answers that grow block by block.
    Conversations,
    /// The first of these, in which blocks amid a prompt are evicted, one for 50 that are stored.
    Fragmented,
    /// Conversations with room for 262,144 blocks, until that has been stored ten times over.
    Churn,
    /// The first of these, with one block an event.
    OneBlock,
    /// The first of these, read as an engine's own stream.
    Engine,
}

impl Kind {
    /// The numbers of ranks that it is meant for.
    #[must_use]
    pub fn ranks(self) -> &'static [usize] {
        match self {
            Kind::Mooncake64
            | Kind::Mooncake16
            | Kind::Fragmented
            | Kind::Churn
            | Kind::OneBlock
            | Kind::Engine => &[64],
            Kind::Conversations => &[8, 128, 1024],
        }
    }

    /// The workload, or a `part`-th of it.
    ///
    /// # Errors
    /// If the trace that is built in cannot be read.
    pub fn workload(self, ranks: usize, part: usize) -> Result<Workload, Error> {
        let mooncake = |block_tokens, room: usize, stored_per_hole| {
            let shape = Shape { ranks, room: room / part / ranks, stored_per_hole };
            Mooncake { block_tokens, requests: TRACE_REQUESTS / part, shape }.workload()
        };
        match self {
            Kind::Mooncake64 => mooncake(64, 524_288, None),
            Kind::Mooncake16 => mooncake(16, 4_194_304, None),
            Kind::Fragmented => mooncake(64, 524_288, Some(50)),
            // 256k tokens a rank, in blocks of 64.
            Kind::Conversations => Ok(conversations(ranks, 4096, 20_000 / part)),
            Kind::Churn => Ok(conversations(ranks, 262_144 / part / ranks, 160_000 / part)),
            Kind::OneBlock => Ok(mooncake(64, 524_288, None)?.one_by_one()),
            Kind::Engine => Ok(mooncake(64, 524_288, None)?.of_engines()),
        }
    }
}

fn conversations(ranks: usize, room: usize, turns: usize) -> Workload {
    let mut fleet = Fleet::new(Shape { ranks, room, stored_per_hole: None });
    let mut conversations = Conversations::new(ranks);
    for _ in 0..turns {
        conversations.turn(&mut fleet);
    }
    fleet.finish()
}
