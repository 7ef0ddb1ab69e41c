//! Vectors: messages in, what is known of a rank out. The reference ([`Fleet`](crate::Fleet)) and kvtide play the same
//! files, `tests/vectors/*.json`, whose README says what the words mean.

use std::path::Path;

use kvtide_radix::{
    Block, BlockHash, Blocks, Event, Group, Layer, Rank, Removed, Seed, SequenceHash, Stored, Tier,
};
use serde::Deserialize;

/// Tokens a block.
pub const BLOCK_SIZE: u32 = 4;

/// One vector.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// What it shows.
    pub name: String,
    /// The stream that it is about.
    pub stream: StreamSpec,
    /// What happens, and what must be known in between.
    pub steps: Vec<Step>,
}

/// A stream.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamSpec {
    /// What its messages are.
    pub kind: Kind,
    /// The engine can be asked for its batches.
    #[serde(default)]
    pub replays: bool,
    /// Publishers are announced.
    #[serde(default)]
    pub announced: bool,
    /// The engine's configured rank.
    pub dp_rank: Option<u32>,
    /// Blocks stay where something is lost.
    #[serde(default)]
    pub keep: bool,
    /// Blocks that may wait for a parent.
    pub parked_blocks: Option<usize>,
}

/// What a stream's messages are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Frames of Dynamo.
    Dynamo,
    /// Batches of one engine, worker 7.
    Engine,
    /// Events that a program hands in.
    Direct,
}

/// One step.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// An engine's batch arrives.
    Batch(BatchSpec),
    /// The engine is asked for its batches; what it answers comes later.
    Ask,
    /// It answers the last question that is open; if there is none, it is asked now.
    Answer(Vec<BatchSpec>),
    /// A frame arrives.
    Frame(FrameSpec),
    /// A frame arrives that does not decode.
    UnreadableFrame {
        /// Whose it was, if that can be read.
        publisher: Option<u64>,
    },
    /// Discovery says that a publisher lives, and feeds a worker.
    Announce(AnnouncedSpec),
    /// Discovery says that it has gone.
    Withdraw {
        /// Who.
        publisher: u64,
    },
    /// A publisher's worker is asked for what its own index tells; what it answers comes later.
    AskIndex {
        /// Whose.
        publisher: u64,
        /// What must be wanted then.
        wanted: WantedSpec,
    },
    /// It answers the last question.
    Index(IndexSpec),
    /// A program hands in events.
    Events {
        /// The worker.
        #[serde(default = "seven")]
        worker: u64,
        /// The number of the first.
        first_id: Option<u64>,
        /// The events.
        events: Vec<EventSpec>,
    },
    /// Everything had come by so many milliseconds ago, and something may have been lost so many ago.
    Verify {
        /// When.
        ago: u64,
        /// When something may have been lost.
        doubted_ago: Option<u64>,
    },
    /// The connection to the engine was made anew.
    Reconnected,
    /// So many milliseconds pass.
    Wait(u64),
    /// What must be known now.
    Expect(Expected),
}

/// A batch.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchSpec {
    /// Its number.
    pub sequence: Option<u64>,
    /// When it was published.
    #[serde(default)]
    pub at: u64,
    /// The rank that it names.
    #[serde(default)]
    pub dp_rank: u32,
    /// It does not decode.
    #[serde(default)]
    pub unreadable: bool,
    /// What it says.
    #[serde(default)]
    pub events: Vec<EventSpec>,
}

/// A frame.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrameSpec {
    /// Who publishes.
    pub publisher: u64,
    /// Its number.
    pub sequence: u64,
    /// When it was published.
    #[serde(default)]
    pub at: u64,
    /// What it says.
    #[serde(default)]
    pub events: Vec<RankEvent>,
}

/// A publisher that is announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnnouncedSpec {
    /// Who publishes.
    pub publisher: u64,
    /// The worker.
    #[serde(default = "seven")]
    pub worker: u64,
    /// Its worker keeps no index that could be asked.
    #[serde(default)]
    pub live_only: bool,
}

/// What is wanted of a worker's own index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WantedSpec {
    /// Nothing.
    Nothing,
    /// Events from that one on.
    From(u64),
    /// Everything that it holds.
    All,
}

/// What a worker's own index answers.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IndexSpec {
    /// These events.
    Events(Vec<RankEvent>),
    /// What it holds, up to an event.
    Dump {
        /// That event.
        last: u64,
        /// What it holds.
        holds: Vec<EventSpec>,
        /// What it has taken since.
        #[serde(default)]
        behind: Vec<RankEvent>,
    },
    /// Nothing newer than that event.
    Nothing {
        /// That event.
        last: u64,
    },
    /// It fails.
    Failed,
}

/// An event of a frame.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct RankEvent {
    /// The worker.
    #[serde(default = "seven")]
    pub worker: u64,
    /// The event's number.
    pub id: u64,
    /// What happened.
    #[serde(flatten)]
    pub event: EventSpec,
}

/// Something that happened. Block `n` is named `n`, stands behind block `n - 1`, and has content of its own.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventSpec {
    /// Blocks from the first to the last are stored on the GPU.
    Stored([u64; 2]),
    /// The same in host memory.
    StoredHost([u64; 2]),
    /// Blocks are gone from the GPU.
    Removed(Vec<u64>),
    /// Everything is gone.
    Cleared([u64; 0]),
    /// Something that nobody knows.
    Unheard([u64; 0]),
}

/// What must be known of a rank.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// The worker.
    #[serde(default = "seven")]
    pub worker: u64,
    /// The state; null where the rank is not known at all.
    pub knowledge: Option<State>,
    /// Two live publishers claim the rank.
    #[serde(default)]
    pub conflict: bool,
    /// The life.
    #[serde(default)]
    pub generation: u64,
    /// The last event or batch taken in order.
    pub last: Option<u64>,
    /// Events or batches lost.
    #[serde(default)]
    pub missing: u64,
    /// Leading blocks of the prompt 1, 2, ... on the GPU, and with host memory. Null where nothing is known.
    pub reach: Option<[u32; 2]>,
    /// Events that are here and not visible.
    #[serde(default)]
    pub pending: u64,
    /// Age of the last proof.
    pub verified: Option<u64>,
}

/// A rank's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Nothing known.
    Unknown,
    /// Everything known.
    Complete,
    /// A lower bound.
    Partial,
    /// Waits for what was missed.
    Recovering,
    /// Something is missing.
    Gap,
}

fn seven() -> u64 {
    7
}

/// Blocks of the prompt that is asked about.
pub const PROMPT: u64 = 40;

/// The tokens of block `n`.
#[must_use]
pub fn tokens(block: u64) -> [u32; BLOCK_SIZE as usize] {
    [u32::try_from(block).unwrap(); BLOCK_SIZE as usize]
}

/// The content of block `n`.
#[must_use]
pub fn content(block: u64) -> BlockHash {
    BlockHash::of(&tokens(block), &[], Seed::of(None, None))
}

/// The prompt that is asked about.
#[must_use]
pub fn prompt() -> Vec<BlockHash> {
    (1..=PROMPT).map(content).collect()
}

impl EventSpec {
    /// The event in kvtide's vocabulary; none for what nobody knows. In host memory an engine names blocks alone.
    #[must_use]
    pub fn event(&self, kind: Kind) -> Option<Event> {
        let stored = |tier, &[first, last]: &[u64; 2]| {
            let block = |number| Block { name: SequenceHash(number), content: content(number) };
            let blocks = match (kind, tier) {
                (Kind::Engine, Tier::Host) => Blocks::Named((first..=last).map(SequenceHash).collect()),
                (Kind::Engine | Kind::Dynamo | Kind::Direct, _) => {
                    Blocks::Hashed((first..=last).map(block).collect())
                }
            };
            Event::Stored(Stored {
                layer: Layer::new(tier, Group::FULL),
                parent: (first > 1).then(|| SequenceHash(first - 1)),
                blocks,
            })
        };
        Some(match self {
            EventSpec::Stored(blocks) => stored(Tier::Gpu, blocks),
            EventSpec::StoredHost(blocks) => stored(Tier::Host, blocks),
            EventSpec::Removed(names) => {
                let names = names.iter().copied().map(SequenceHash).collect();
                Event::Removed(Removed { layer: Layer::GPU, names })
            }
            EventSpec::Cleared([]) => Event::Cleared,
            EventSpec::Unheard([]) => return None,
        })
    }
}

/// Reads all vectors, each with the name of its file.
///
/// # Panics
/// Where a file is not of this form.
#[must_use]
pub fn read() -> Vec<(String, Case)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    let mut all = Vec::new();
    for path in files {
        let file = path.file_stem().unwrap().to_string_lossy().into_owned();
        let cases: Vec<Case> = serde_json::from_slice(&std::fs::read(&path).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        all.extend(cases.into_iter().map(|case| (file.clone(), case)));
    }
    all
}

/// The rank of a worker in these vectors.
#[must_use]
pub fn rank(worker_id: u64) -> Rank {
    Rank { worker_id, dp_rank: 0 }
}
