//! Dynamo's event plane: one frame carries a publisher's router events.
//!
//! Source: dynamo-runtime and dynamo-kv-router 1.6.1. A frame is a MessagePack map whose payload is, in turn, a
//! MessagePack array of router events. Keys may come in any order and unknown ones are passed over.

use kvtide_radix::{
    Block, BlockHash, Blocks, Event, Group, Layer, Rank, Removed, SequenceHash, Stored, Tier,
};

use crate::{DecodeError, Ignored, error::Problem, medium, msgpack::Reader, msgpack::Value};

/// Bytes that a router event takes at least: the names of its fields alone.
const ROUTER_EVENT_BYTES: usize = 40;
/// Bytes that a block takes at least.
const BLOCK_BYTES: usize = 24;

/// One frame of a publisher.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The publisher, which is one life of one rank's stream.
    pub publisher_id: u64,
    /// The frame's number, from 0.
    pub sequence: u64,
    /// When it was published by the publisher's clock, milliseconds since the Unix epoch.
    pub published_at_ms: u64,
    /// Its events, in order.
    pub events: Vec<RouterEvent>,
}

/// One numbered event of one rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouterEvent {
    /// The rank that it speaks of.
    pub rank: Rank,
    /// Its number, from 1, growing by one a publisher.
    pub event_id: u64,
    /// What happened, or why it is passed over. An event that is passed over still takes its number.
    pub change: Result<Event, Ignored>,
}

/// Where a block is resident, as far as that matters here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Residency {
    Missing,
    Worker,
    CacheOwner,
    Unknown,
}

impl Frame {
    /// Its events by the rank that they speak of, as they come. A rank may be in it more than once.
    pub fn events_by_rank(&self) -> impl Iterator<Item = (Rank, &[RouterEvent])> {
        let of_one_rank = self.events.chunk_by(|one, next| one.rank == next.rank);
        of_one_rank.filter_map(|events| Some((events.first()?.rank, events)))
    }

    /// Decodes a frame.
    ///
    /// # Errors
    /// [`DecodeError`] where the frame or its payload is not of this form; nothing of it is then usable but,
    /// perhaps, its [publisher](Frame::cut).
    pub fn decode(bytes: &[u8]) -> Result<Frame, DecodeError> {
        let mut reader = Reader::new(bytes);
        let (mut publisher_id, mut sequence, mut published_at_ms, mut events) = (None, None, None, None);
        for _ in 0..reader.map("a frame (a map)")? {
            match reader.name()? {
                b"publisher_id" => publisher_id = Some(reader.integer("the publisher's id")?),
                b"sequence" => sequence = Some(reader.integer("the frame's sequence")?),
                b"published_at" => published_at_ms = Some(reader.integer("the time of publishing")?),
                b"payload" => events = Some(decode_payload(reader.nested("the payload (bytes)")?)?),
                _other => reader.skip()?,
            }
        }
        Ok(Frame {
            publisher_id: present(&reader, publisher_id, "publisher_id")?,
            sequence: present(&reader, sequence, "sequence")?,
            published_at_ms: present(&reader, published_at_ms, "published_at")?,
            events: present(&reader, events, "payload")?,
        })
    }

    /// What can be told of a frame that may not decode: the publisher's id stands first, and its number behind that.
    #[must_use]
    pub fn cut(bytes: &[u8]) -> Option<CutFrame> {
        let mut reader = Reader::new(bytes);
        reader.enter_cut_map()?;
        let mut next = |name: &[u8]| (reader.name().ok()? == name).then(|| reader.integer("").ok()).flatten();
        let publisher_id = next(b"publisher_id")?;
        Some(CutFrame { publisher_id, sequence: next(b"sequence") })
    }
}

/// What is left of a frame that does not decode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CutFrame {
    /// Whose it was.
    pub publisher_id: u64,
    /// Its number, if that can be read too.
    pub sequence: Option<u64>,
}

fn present<T>(reader: &Reader<'_>, value: Option<T>, field: &'static str) -> Result<T, DecodeError> {
    match value {
        Some(value) => Ok(value),
        None => reader.refuse(Problem::Missing { field }),
    }
}

fn decode_payload(mut reader: Reader<'_>) -> Result<Vec<RouterEvent>, DecodeError> {
    let count = reader.array("an array of router events")?;
    let mut events = Vec::with_capacity(reader.at_most(count, ROUTER_EVENT_BYTES));
    for _ in 0..count {
        events.push(decode_router_event(&mut reader)?);
    }
    Ok(events)
}

fn decode_router_event(reader: &mut Reader<'_>) -> Result<RouterEvent, DecodeError> {
    let (mut worker_id, mut event) = (None, None);
    let (mut tier, mut residency) = (Some(Tier::Gpu), Residency::Missing);
    for _ in 0..reader.map("a router event (a map)")? {
        match reader.name()? {
            b"worker_id" => worker_id = Some(reader.integer("the worker's id")?),
            b"storage_tier" => tier = decode_tier(reader)?,
            b"residency_domain" => residency = decode_residency(reader)?,
            b"event" => event = Some(decode_event(reader)?),
            _other => reader.skip()?,
        }
    }
    let worker_id = present(reader, worker_id, "worker_id")?;
    let Numbered { event_id, dp_rank, data } = present(reader, event, "event")?;
    Ok(RouterEvent {
        rank: Rank { worker_id, dp_rank },
        event_id,
        change: data.and_then(|data| place(data, tier, residency)),
    })
}

/// Puts an event's data where its tier and residency say, or says why it is passed over.
fn place(data: Data, tier: Option<Tier>, residency: Residency) -> Result<Event, Ignored> {
    match residency {
        Residency::Missing | Residency::Worker => {}
        Residency::CacheOwner => return Err(Ignored::OtherResidency),
        Residency::Unknown => return Err(Ignored::UnknownResidency),
    }
    let layer = || tier.map(|tier| Layer::new(tier, Group::FULL)).ok_or(Ignored::UnknownTier);
    match data {
        Data::Stored { is_unplaced: true, .. } => Err(Ignored::Unplaced),
        Data::Stored { parent, blocks, .. } => {
            Ok(Event::Stored(Stored { layer: layer()?, parent, blocks: Blocks::Hashed(blocks) }))
        }
        Data::Removed { names } => Ok(Event::Removed(Removed { layer: layer()?, names })),
        // A clear ends every tier, whichever it names.
        Data::Cleared => Ok(Event::Cleared),
    }
}

fn decode_tier(reader: &mut Reader<'_>) -> Result<Option<Tier>, DecodeError> {
    match reader.value()? {
        Value::Nil => Ok(Some(Tier::Gpu)),
        Value::Str(word) => Ok(medium::dynamo_tier(word)),
        other => reader.skip_inside(other).map(|()| None),
    }
}

fn decode_residency(reader: &mut Reader<'_>) -> Result<Residency, DecodeError> {
    Ok(match reader.word()? {
        Some(b"worker") => Residency::Worker,
        Some(b"cache_owner") => Residency::CacheOwner,
        // Nil too: a clear with a malformed domain must not become one of every domain.
        Some(_) | None => Residency::Unknown,
    })
}

struct Numbered {
    event_id: u64,
    dp_rank: u32,
    data: Result<Data, Ignored>,
}

enum Data {
    Stored { parent: Option<SequenceHash>, is_unplaced: bool, blocks: Vec<Block> },
    Removed { names: Vec<SequenceHash> },
    Cleared,
}

fn decode_event(reader: &mut Reader<'_>) -> Result<Numbered, DecodeError> {
    let (mut event_id, mut dp_rank, mut data) = (None, 0, None);
    for _ in 0..reader.map("an event (a map)")? {
        match reader.name()? {
            b"event_id" => event_id = Some(reader.integer("the event's id")?),
            b"dp_rank" => dp_rank = reader.optional_u32("dp_rank")?.unwrap_or(0),
            b"data" => data = Some(decode_data(reader)?),
            _other => reader.skip()?,
        }
    }
    Ok(Numbered {
        event_id: present(reader, event_id, "event_id")?,
        dp_rank,
        data: present(reader, data, "data")?,
    })
}

fn decode_data(reader: &mut Reader<'_>) -> Result<Result<Data, Ignored>, DecodeError> {
    match reader.value()? {
        Value::Str(b"cleared") => Ok(Ok(Data::Cleared)),
        Value::Str(_) => Ok(Err(Ignored::UnknownEvent)),
        Value::Map(count) => {
            let mut data = Err(Ignored::UnknownEvent);
            for _ in 0..count {
                match reader.name()? {
                    b"stored" => data = Ok(decode_stored(reader)?),
                    b"removed" => data = Ok(decode_removed(reader)?),
                    _other => reader.skip()?,
                }
            }
            Ok(data)
        }
        other => reader.expected("an event's data (a map or a word)", other),
    }
}

fn decode_stored(reader: &mut Reader<'_>) -> Result<Data, DecodeError> {
    let (mut parent, mut position, mut blocks) = (None, None, None);
    for _ in 0..reader.map("stored blocks (a map)")? {
        match reader.name()? {
            b"parent_hash" => parent = reader.optional_hash("the parent's hash")?.map(SequenceHash),
            b"start_position" => position = reader.optional_u32("start_position")?,
            b"blocks" => {
                let count = reader.array("an array of blocks")?;
                let mut list = Vec::with_capacity(reader.at_most(count, BLOCK_BYTES));
                for _ in 0..count {
                    list.push(decode_block(reader)?);
                }
                blocks = Some(list);
            }
            _other => reader.skip()?,
        }
    }
    let is_behind_others = position.is_some_and(|position| position > 0);
    Ok(Data::Stored {
        parent,
        is_unplaced: parent.is_none() && is_behind_others,
        blocks: present(reader, blocks, "blocks")?,
    })
}

/// A block as Dynamo writes it: two hashes, nearly always at full length, between bytes that are always the same. Field by
/// field, a frame of nine such blocks takes 6,300 instructions in place of 4,600.
fn usual_block(reader: &mut Reader<'_>) -> Option<Block> {
    let mut ahead = *reader;
    ahead.exactly(b"\x83\xaablock_hash")?;
    let name = ahead.full_integer()?;
    ahead.exactly(b"\xabtokens_hash")?;
    let content = ahead.full_integer()?;
    ahead.exactly(b"\xadmm_extra_info\xc0")?;
    *reader = ahead;
    Some(Block { name: SequenceHash(name), content: BlockHash(content) })
}

fn decode_block(reader: &mut Reader<'_>) -> Result<Block, DecodeError> {
    if let Some(block) = usual_block(reader) {
        return Ok(block);
    }
    let (mut name, mut content) = (None, None);
    for _ in 0..reader.map("a block (a map)")? {
        match reader.name()? {
            b"block_hash" => name = Some(SequenceHash(reader.hash("a sequence hash")?)),
            b"tokens_hash" => content = Some(BlockHash(reader.hash("a block hash")?)),
            // Media already stand in the block hash.
            _other => reader.skip()?,
        }
    }
    Ok(Block {
        name: present(reader, name, "block_hash")?,
        content: present(reader, content, "tokens_hash")?,
    })
}

fn decode_removed(reader: &mut Reader<'_>) -> Result<Data, DecodeError> {
    let mut names = None;
    for _ in 0..reader.map("removed blocks (a map)")? {
        match reader.name()? {
            b"block_hashes" => names = Some(decode_names(reader)?),
            _other => reader.skip()?,
        }
    }
    Ok(Data::Removed { names: present(reader, names, "block_hashes")? })
}

/// An array of sequence hashes, at most 8 bytes of memory for each byte of input.
pub(crate) fn decode_names(reader: &mut Reader<'_>) -> Result<Vec<SequenceHash>, DecodeError> {
    let count = reader.array("an array of sequence hashes")?;
    let mut names = Vec::with_capacity(count);
    for _ in 0..count {
        names.push(SequenceHash(reader.hash("a sequence hash")?));
    }
    Ok(names)
}
