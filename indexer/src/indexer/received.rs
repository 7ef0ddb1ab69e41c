//! Messages on their way: decoded, counted as pending, and then applied.

use kvtide_events::{Batch, CutFrame, DecodeError, Engine, Frame};
use kvtide_radix::Rank;

use super::{ApplyError, BoundStream, digest};
use crate::{
    Applied,
    mirror::{LiveBatch, Mirror},
    pending::{PendingEvents, counts_of},
    stream::{Format, Stream},
    telemetry,
};

/// A message of a stream.
#[derive(Clone, Copy, Debug)]
pub enum Message<'a> {
    /// A frame of Dynamo's event plane.
    Frame(&'a [u8]),
    /// A batch of an engine's publisher, with its number if it came with one.
    Batch {
        /// The number.
        sequence: Option<u64>,
        /// The batch.
        payload: &'a [u8],
    },
}

/// Messages of one stream that are decoded but not yet applied. Their events count as pending.
pub struct Received<'a> {
    stream: &'a BoundStream,
    messages: Vec<Content>,
    pending: PendingEvents,
}

/// What messages did that were applied together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Committed {
    /// All of them.
    pub applied: Applied,
    /// Those that do not decode, by their place among the messages.
    pub refused: Vec<(usize, ApplyError)>,
}

/// What a message says, or why it does not decode and what is lost with it.
type Content = Result<Decoded, (DecodeError, Lost)>;

enum Decoded {
    Frame { bytes: usize, frame: Frame },
    Batch { sequence: Option<u64>, digest: u64, bytes: usize, batch: Batch },
}

/// What is lost with a message that does not decode.
#[derive(Clone, Copy)]
enum Lost {
    Frame { cut: Option<CutFrame> },
    Batch { sequence: Option<u64>, digest: u64 },
}

impl<'a> Received<'a> {
    pub(super) fn decode<'m>(
        stream: &'a BoundStream,
        messages: impl IntoIterator<Item = Message<'m>>,
    ) -> Result<Received<'a>, ApplyError> {
        let decoded = messages.into_iter().map(|message| decode(&stream.stream, message));
        let messages = decoded.collect::<Result<Vec<_>, _>>()?;
        let mut events = Vec::new();
        for decoded in messages.iter().flatten() {
            decoded.count_events(&stream.stream, &mut events);
        }
        Ok(Received { stream, messages, pending: stream.scope.pending.add(events) })
    }

    /// Applies the messages in their order, as one version; as several where it takes longer than 1 ms, and behind each message
    /// that does not decode, so that whatever comes behind it is newer than what was lost.
    ///
    /// # Errors
    /// [`ApplyError::LetGo`].
    pub fn commit(self) -> Result<Committed, ApplyError> {
        let Received { stream, messages, pending } = self;
        let mut committed = Committed::default();
        let mut rest = messages.into_iter().enumerate();
        while rest.len() > 0 {
            stream.mirror()?.together(|mirror| {
                for (place, message) in rest.by_ref() {
                    let (applied, refused) = apply(mirror, stream, message);
                    committed.applied.add(applied);
                    if let Some(error) = refused {
                        let stream = stream.stream.name.clone();
                        committed.refused.push((place, ApplyError::Undecodable { stream, error }));
                        break;
                    }
                    if mirror.has_taken_long() {
                        break;
                    }
                }
            });
        }
        drop(pending);
        telemetry::count_applied(stream, &committed.applied);
        telemetry::count_undecodable(stream, committed.refused.len());
        Ok(committed)
    }
}

fn decode(stream: &Stream, message: Message<'_>) -> Result<Content, ApplyError> {
    Ok(match (message, &stream.format) {
        (Message::Frame(bytes), Format::Dynamo) => match Frame::decode(bytes) {
            Ok(frame) => Ok(Decoded::Frame { bytes: bytes.len(), frame }),
            Err(error) => Err((error, Lost::Frame { cut: Frame::cut(bytes) })),
        },
        (Message::Batch { sequence, payload }, Format::Engine(engine)) => {
            let engine: Engine = engine.engine(stream.scope.block_size);
            let (digest, bytes) = (digest(payload), payload.len());
            match engine.decode(payload) {
                Ok(batch) => Ok(Decoded::Batch { sequence, digest, bytes, batch }),
                Err(error) => Err((error, Lost::Batch { sequence, digest })),
            }
        }
        (message, format) => {
            let (stream, expected) = (stream.name.clone(), format.describe());
            return Err(ApplyError::OtherFormat { stream, expected, got: message.describe() });
        }
    })
}

/// Applies one message, or what is lost with it.
fn apply(mirror: &mut Mirror, stream: &BoundStream, content: Content) -> (Applied, Option<DecodeError>) {
    match (content, &stream.stream.format) {
        (Ok(Decoded::Frame { bytes, frame }), _) => (mirror.apply_frame(stream.source, frame, bytes), None),
        (Ok(Decoded::Batch { sequence, digest, bytes, batch }), Format::Engine(engine)) => {
            let live = LiveBatch { sequence, batch, digest, bytes };
            (mirror.apply_batch(stream.source, engine, live), None)
        }
        (Ok(Decoded::Batch { .. }), Format::Dynamo | Format::Direct) => (Applied::default(), None),
        (Err((error, Lost::Frame { cut })), _) => (mirror.lose_frame(stream.source, cut), Some(error)),
        (Err((error, Lost::Batch { sequence, digest })), _) => {
            (mirror.lose_batch(stream.source, sequence, digest), Some(error))
        }
    }
}

impl Decoded {
    /// Adds how many events it has for which rank.
    fn count_events(&self, stream: &Stream, counts: &mut Vec<(Rank, u64)>) {
        match (self, &stream.format) {
            (Decoded::Frame { frame, .. }, _) => counts.extend(counts_of(frame)),
            (Decoded::Batch { batch, .. }, Format::Engine(engine)) => {
                counts.push((engine.rank(batch), batch.events.len() as u64));
            }
            (Decoded::Batch { .. }, Format::Dynamo | Format::Direct) => {}
        }
    }
}

impl<'a> Message<'a> {
    /// A batch as an engine publishes it: topic, number of 8 bytes, and batch. Of anything else nothing can be applied, and
    /// something is lost with it.
    #[must_use]
    pub fn of_parts<P: AsRef<[u8]>>(parts: &'a [P]) -> Message<'a> {
        let batch = match parts {
            [_topic, sequence, payload] => {
                <[u8; 8]>::try_from(sequence.as_ref()).ok().zip(Some(payload.as_ref()))
            }
            _other => None,
        };
        match batch {
            Some((sequence, payload)) => {
                Message::Batch { sequence: Some(u64::from_be_bytes(sequence)), payload }
            }
            None => Message::Batch { sequence: None, payload: &[] },
        }
    }
}

impl Message<'_> {
    fn describe(self) -> &'static str {
        match self {
            Message::Frame(_) => "Dynamo frames",
            Message::Batch { .. } => "engine batches",
        }
    }
}
