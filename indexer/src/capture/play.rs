//! Plays a recording into a fresh index. There is no engine's answer to compare with: what counts is what it ends with.

use std::{path::Path, sync::Arc};

use super::{CaptureError, Recording, records::Records};
use crate::{
    Applied, ApplyError, BindError, BoundStream, Clock, Format, Indexer, Limits, Message, ScopeState,
    config::ConfigError, feed::TICK,
};

/// Milliseconds between the start of a recording and the latest of its messages that can be meant: a year.
const LONGEST_MS: u64 = 366 * 24 * 60 * 60 * 1000;
/// Milliseconds that pass behind the last message, so that nothing waits for one that could still come.
const AFTER_MS: u64 = 1000;

/// What a recording ended with.
#[derive(Debug)]
pub struct Played {
    /// Messages.
    pub messages: u64,
    /// Those of them that did not decode.
    pub undecodable: u64,
    /// What the others did.
    pub applied: Applied,
    /// What is known at the end.
    pub scopes: Vec<ScopeState>,
}

/// Why a recording cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    /// A file of it cannot be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// Settings of a stream contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A stream cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A message is of another kind than its stream.
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

/// Plays the recording in `folder`, stream by stream. For messages of a bus the time is that of their arrival; engines' messages
/// have none, and take no time.
///
/// # Errors
/// [`PlayError`]. A message that does not decode is none.
pub fn play(folder: &Path, recording: &Recording) -> Result<Played, PlayError> {
    let clock = Clock::manual(recording.started_at_ms);
    let indexer = Indexer::new(Limits::default(), clock.clone());
    let streams = recording.bind(&indexer)?;
    let (applied, scopes) = (Applied::default(), Vec::new());
    let mut player = Player {
        indexer,
        clock,
        ticked_ms: 0,
        played: Played { messages: 0, undecodable: 0, applied, scopes },
    };
    for (recorded, stream) in recording.streams.iter().zip(streams) {
        let path = folder.join(&recorded.file);
        match &stream.stream().format {
            Format::Dynamo => player.play_bus(&path, &stream, recording.started_at_ms)?,
            Format::Engine(_) | Format::Direct => player.play_engine(&path, &stream)?,
        }
    }
    player.wait(AFTER_MS);
    let Player { indexer, played, .. } = player;
    Ok(Played { scopes: indexer.scopes(), ..played })
}

impl Recording {
    /// Binds its streams, each as it is to be read.
    ///
    /// # Errors
    /// [`PlayError`] where one cannot be.
    pub fn bind(&self, indexer: &Indexer) -> Result<Vec<Arc<BoundStream>>, PlayError> {
        let streams = self.streams.iter().map(|recorded| Ok(indexer.bind(recorded.stream.stream()?)?));
        streams.collect()
    }
}

struct Player {
    indexer: Indexer,
    clock: Clock,
    /// When what waits was last looked at.
    ticked_ms: u64,
    played: Played,
}

impl Player {
    fn play_engine(&mut self, path: &Path, stream: &BoundStream) -> Result<(), PlayError> {
        let mut records = Records::open(path, "messages of a publisher")?;
        while let Some(record) = records.next()? {
            self.apply(stream, Message::of_parts(&record))?;
        }
        Ok(())
    }

    fn play_bus(&mut self, path: &Path, stream: &BoundStream, started_at_ms: u64) -> Result<(), PlayError> {
        let mut records = Records::open(path, "messages of subject, time and frame")?;
        // A wall clock may have been set back meanwhile.
        let latest_ms = started_at_ms + LONGEST_MS;
        while let Some(record) = records.next()? {
            let [_subject, at_ms, frame] = record.as_slice() else { return Err(records.wrong().into()) };
            let at_ms = at_ms.as_slice().try_into().map(u64::from_be_bytes);
            let at_ms = at_ms.ok().filter(|&at_ms| at_ms <= latest_ms);
            let at_ms = at_ms.ok_or_else(|| records.wrong())?;
            self.wait(at_ms.saturating_sub(self.clock.wall_ms()));
            self.apply(stream, Message::Frame(frame))?;
        }
        Ok(())
    }

    fn wait(&mut self, ms: u64) {
        self.clock.advance(ms);
        let now_ms = self.clock.steady_ms();
        if u128::from(now_ms - self.ticked_ms) >= TICK.as_millis() {
            self.ticked_ms = now_ms;
            self.played.applied.add(self.indexer.tick());
        }
    }

    fn apply(&mut self, stream: &BoundStream, message: Message<'_>) -> Result<(), PlayError> {
        self.played.messages += 1;
        match self.indexer.apply(stream, message) {
            Ok(applied) => self.played.applied.add(applied),
            Err(ApplyError::Undecodable { .. }) => self.played.undecodable += 1,
            Err(error @ (ApplyError::OtherFormat { .. } | ApplyError::LetGo { .. })) => {
                return Err(error.into());
            }
        }
        Ok(())
    }
}
