//! Streams: where events come from, what scope they belong to, and how they are to be read.

use std::collections::BTreeMap;

use kvtide_events::{Batch, Engine};
use kvtide_radix::{Copies, Rank, RankSettings, Window};
use serde::{Deserialize, Serialize};

use crate::Scope;

/// One source of events, bound to its scope.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stream {
    /// Its name, by which frames can be handed in over HTTP and which metrics carry.
    pub name: String,
    /// The scope of all its blocks.
    pub scope: Scope,
    /// Whether its engines key blocks by pairs of tokens (EAGLE). All streams of a scope agree on it.
    pub eagle: bool,
    /// What its messages are.
    pub format: Format,
    /// What becomes of a rank of which something is lost for good.
    pub gap_policy: GapPolicy,
    /// Other kvtides follow it too. Whoever brings its messages asks those for what was missed
    /// ([`Indexer::wanted`](crate::Indexer::wanted)); its ranks wait for the answer. Of an engine, where it can be asked itself
    /// but does not keep what is missing.
    pub has_peers: bool,
    /// It was registered while the service runs. Those come and go, so that all of them are counted together.
    pub registered: bool,
    /// Of Dynamo: publishers are [announced](crate::Indexer::announce) by a discovery that knows which of them live. Frames of
    /// others wait for ten seconds, and are dropped then.
    pub announced: bool,
}

impl Stream {
    /// A stream of which nothing further is stated.
    #[must_use]
    pub fn new(name: impl Into<String>, scope: Scope, format: Format) -> Stream {
        let gap_policy = GapPolicy::default();
        let (eagle, has_peers, registered, announced) = (false, false, false, false);
        Stream { name: name.into(), scope, eagle, format, gap_policy, has_peers, registered, announced }
    }
}

/// What becomes of a rank of which something is lost for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum GapPolicy {
    /// Its blocks are forgotten: what is credited from then on is held, and more may be.
    #[default]
    Forget,
    /// Its blocks stay, and its numbers may be wrong either way until a clear or a new life.
    Keep,
}

/// What a stream's messages are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Format {
    /// Frames of Dynamo's event plane, from any number of ranks.
    Dynamo,
    /// Batches of one engine's own publisher.
    Engine(EngineStream),
    /// Events that a program hands in itself, over HTTP or in process.
    Direct,
}

impl Format {
    pub(crate) fn describe(&self) -> &'static str {
        match self {
            Format::Dynamo => "Dynamo frames",
            Format::Engine(_) => "engine batches",
            Format::Direct => "events handed in",
        }
    }
}

/// One engine's own publisher.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineStream {
    /// The worker, since batches do not name it.
    pub worker_id: u64,
    /// The data-parallel rank, if it is not to be read from the batches.
    pub dp_rank: Option<u32>,
    /// What a second announcement of a block means. Engines announce every physical copy.
    pub copies: Copies,
    /// The engine looks host blocks up in chunks of this many.
    pub host_chunk_blocks: u32,
    /// Windows of further groups; those that the events state are taken from there.
    pub windows: Vec<Window>,
    /// Names of adapters that the engine announces by number.
    pub adapter_names: BTreeMap<u64, String>,
    /// The engine keeps its latest batches and can be asked for them. Whoever brings its batches does so where one is
    /// missing ([`Indexer::replay_request`](crate::Indexer::replay_request)); the rank waits for the answer.
    pub replays: bool,
}

/// Names of blocks no longer held that an engine's rank keeps bound. 256 were enough for every recorded stream;
/// a clear of a small host tier is the case that needs them.
const RECENT_NAMES: usize = 1024;

impl EngineStream {
    /// An engine of which nothing but its worker is configured.
    #[must_use]
    pub fn new(worker_id: u64) -> EngineStream {
        EngineStream {
            worker_id,
            dp_rank: None,
            copies: Copies::Counted,
            host_chunk_blocks: 1,
            windows: Vec::new(),
            adapter_names: BTreeMap::new(),
            replays: false,
        }
    }

    /// The rank that a batch is about.
    pub(crate) fn rank(&self, batch: &Batch) -> Rank {
        let dp_rank = self.dp_rank.or(batch.dp_rank).unwrap_or(0);
        Rank { worker_id: self.worker_id, dp_rank }
    }

    pub(crate) fn engine(&self, block_size: u32) -> Engine {
        Engine { block_size, adapter_names: self.adapter_names.clone() }
    }

    pub(crate) fn rank_settings(&self) -> RankSettings {
        RankSettings {
            copies: self.copies,
            host_chunk_blocks: self.host_chunk_blocks,
            windows: self.windows.clone(),
            recent_names: RECENT_NAMES,
        }
    }
}
