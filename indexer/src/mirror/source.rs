//! Where a message comes from, as far as a rank's stream depends on it.

use crate::{
    GapPolicy,
    stream::{Format, Stream},
};

/// The stream that a message belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// Tells it from all others, so that each rank has one.
    pub(crate) id: u32,
    pub(crate) gap_policy: GapPolicy,
    /// What is missing can be asked for again.
    pub(crate) replays: bool,
    /// Other kvtides can be asked for what they hold.
    pub(crate) has_peers: bool,
    /// Discovery says which publishers live.
    pub(crate) announced: bool,
    /// Of two publishers that claim one rank, one has given up when it has been silent for so long.
    pub(crate) conflict_silence_ms: u64,
}

impl Source {
    /// Who feeds a rank that is only registered.
    pub(crate) const NOBODY: Source = Source {
        id: u32::MAX,
        gap_policy: GapPolicy::Forget,
        replays: false,
        has_peers: false,
        announced: false,
        conflict_silence_ms: 0,
    };

    pub(crate) fn is_nobody(self) -> bool {
        self.id == Source::NOBODY.id
    }

    pub(crate) fn new(id: u32, stream: &Stream, conflict_silence_ms: u64) -> Source {
        let (replays, has_peers) = match &stream.format {
            // Only its own answers show which process' batches others have seen.
            Format::Engine(engine) => (engine.replays, engine.replays && stream.has_peers),
            Format::Dynamo => (false, stream.has_peers),
            Format::Direct => (false, false),
        };
        let announced = stream.announced && stream.format == Format::Dynamo;
        Source { id, gap_policy: stream.gap_policy, replays, has_peers, announced, conflict_silence_ms }
    }
}
