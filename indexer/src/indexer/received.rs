//! A message on its way: decoded, counted as pending, and then applied.

use kvtide_events::{Batch, CutFrame, DecodeError, Engine, Frame};
use kvtide_radix::Rank;

use super::{ApplyError, BoundStream, digest};
use crate::{
    Applied,
    mirror::LiveBatch,
    pending::PendingEvents,
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

/// A message that is decoded but not yet applied. Its events count as pending.
pub struct Received<'a> {
    stream: &'a BoundStream,
    content: Result<Decoded, (DecodeError, Lost)>,
    pending: PendingEvents,
}

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
    pub(super) fn decode(stream: &'a BoundStream, message: Message<'_>) -> Result<Received<'a>, ApplyError> {
        let content = match (message, &stream.stream.format) {
            (Message::Frame(bytes), Format::Dynamo) => match Frame::decode(bytes) {
                Ok(frame) => Ok(Decoded::Frame { bytes: bytes.len(), frame }),
                Err(error) => Err((error, Lost::Frame { cut: Frame::cut(bytes) })),
            },
            (Message::Batch { sequence, payload }, Format::Engine(engine)) => {
                let engine: Engine = engine.engine(stream.stream.scope.block_size);
                let (digest, bytes) = (digest(payload), payload.len());
                match engine.decode(payload) {
                    Ok(batch) => Ok(Decoded::Batch { sequence, digest, bytes, batch }),
                    Err(error) => Err((error, Lost::Batch { sequence, digest })),
                }
            }
            (message, format) => {
                let (stream, expected) = (stream.stream.name.clone(), format.describe());
                return Err(ApplyError::OtherFormat { stream, expected, got: message.describe() });
            }
        };
        let pending = content.as_ref().map_or_else(|_| Vec::new(), |content| content.events(&stream.stream));
        Ok(Received { stream, content, pending: stream.scope.pending.add(pending) })
    }

    /// Applies the message, as one version.
    ///
    /// # Errors
    /// [`ApplyError::Undecodable`].
    pub fn commit(self) -> Result<Applied, ApplyError> {
        let Received { stream, content, pending } = self;
        let mut mirror = stream.mirror()?;
        let (applied, refused) = match (content, &stream.stream.format) {
            (Ok(Decoded::Frame { bytes, frame }), _) => {
                (mirror.apply_frame(stream.source, frame, bytes, pending), None)
            }
            (Ok(Decoded::Batch { sequence, digest, bytes, batch }), Format::Engine(engine)) => {
                let live = LiveBatch { sequence, batch, digest, bytes, pending };
                (mirror.apply_batch(stream.source, engine, live), None)
            }
            (Ok(Decoded::Batch { .. }), Format::Dynamo | Format::Direct) => (Applied::default(), None),
            (Err((error, Lost::Frame { cut })), _) => (mirror.lose_frame(stream.source, cut), Some(error)),
            (Err((error, Lost::Batch { sequence, digest })), _) => {
                (mirror.lose_batch(stream.source, sequence, digest), Some(error))
            }
        };
        drop(mirror);
        telemetry::count_message(stream, &applied);
        match refused {
            None => Ok(applied),
            Some(error) => {
                telemetry::count_undecodable(stream);
                Err(ApplyError::Undecodable { stream: stream.stream.name.clone(), error })
            }
        }
    }
}

impl Decoded {
    /// How many events it has for which rank.
    fn events(&self, stream: &Stream) -> Vec<(Rank, u64)> {
        let mut counts: Vec<(Rank, u64)> = Vec::new();
        match (self, &stream.format) {
            (Decoded::Frame { frame, .. }, _) => {
                for event in &frame.events {
                    match counts.last_mut() {
                        Some((rank, count)) if *rank == event.rank => *count += 1,
                        Some(_) | None => counts.push((event.rank, 1)),
                    }
                }
            }
            (Decoded::Batch { batch, .. }, Format::Engine(engine)) => {
                counts.push((engine.rank(batch), batch.events.len() as u64));
            }
            (Decoded::Batch { .. }, Format::Dynamo | Format::Direct) => {}
        }
        counts
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
