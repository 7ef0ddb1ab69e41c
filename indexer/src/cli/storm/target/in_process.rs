//! Messages are applied where they are made, as a feed applies them: decoded, and each a version.

use std::{sync::Arc, time::Duration};

use kvtide::{BoundStream, Format, Indexer, Message, serving::Failure};

use super::{BusPart, Fate, Race, Target};
use crate::cli::storm::{plan::Frame, sight::Fleet};

pub(super) struct InProcess {
    indexer: Arc<Indexer>,
    /// One for all, or one for each rank.
    streams: Vec<Arc<BoundStream>>,
}

impl InProcess {
    pub(super) fn new(indexer: Arc<Indexer>, streams: Vec<Arc<BoundStream>>) -> InProcess {
        InProcess { indexer, streams }
    }
}

impl Target for InProcess {
    fn send(&mut self, frame: Frame) -> Result<Fate, Failure> {
        let stream = self.streams.get(frame.rank).unwrap_or(&self.streams[0]);
        let bytes = frame.message.sent_at(self.indexer.clock().wall_ms());
        let message = match &stream.stream().format {
            Format::Dynamo | Format::Direct => Message::Frame(&bytes),
            Format::Engine(_) => Message::Batch { sequence: Some(frame.sequence), payload: &bytes },
        };
        self.indexer.apply(stream, message)?;
        Ok(Fate::Visible)
    }

    fn race(&mut self, _frames: Vec<Frame>, _fleet: Fleet) -> Result<Option<Race>, Failure> {
        Ok(None)
    }

    fn interrupt(&mut self, _part: BusPart, _down: Duration) -> Result<(), Failure> {
        Err("there is no bus in process; expected --target nats".into())
    }
}
