//! What vLLM and SGLang publish themselves: one batch a message, of events as arrays or as maps.
//!
//! Sources: vLLM 0.9 to 0.33, SGLang 0.5.9 to 0.5.23. Up to vLLM 0.23 and in SGLang 0.5.9 an event is an array whose
//! first element is its type; later a map with a `type`. Shorter and longer arrays and unknown fields are taken.

mod fields;
mod media;
mod tokens;

use std::collections::BTreeMap;

use kvtide_radix::{Event, Group, Window};

use crate::{DecodeError, Ignored, error::Problem, msgpack::Reader, msgpack::Value};
use fields::Fields;

/// Bytes that an event takes at least that is not passed over: the word for its kind.
const EVENT_BYTES: usize = 13;

/// What must be known of an engine to read its batches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Engine {
    /// Tokens a block, as the engine's scope says.
    pub block_size: u32,
    /// Names of adapters that the engine announces by number only (vLLM before 0.19). One that is not listed is
    /// called `lora_id=N`, so that it is never taken for another.
    pub adapter_names: BTreeMap<u64, String>,
}

/// One batch of an engine.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Batch {
    /// When it was published by the engine's clock, seconds since the Unix epoch.
    pub published_at_s: f64,
    /// The data-parallel rank that it speaks of, where it says.
    pub dp_rank: Option<u32>,
    /// Its events, to be applied strictly in order.
    pub events: Vec<Event>,
    /// Events that were passed over, and why.
    pub ignored: Vec<Ignored>,
    /// Sliding windows that its events state, one for each group: the last that was stated.
    pub windows: Vec<Window>,
}

impl Engine {
    /// Decodes a batch.
    ///
    /// # Errors
    /// [`DecodeError`] where the batch is not of this form, or its blocks are of another size than the scope's.
    pub fn decode(&self, bytes: &[u8]) -> Result<Batch, DecodeError> {
        let mut reader = Reader::new(bytes);
        match reader.value()? {
            Value::Array(count) => self.decode_array(&mut reader, count),
            Value::Map(count) => self.decode_map(&mut reader, count),
            other => reader.expected("a batch (an array of time, events and rank, or a map)", other),
        }
    }

    fn decode_array(&self, reader: &mut Reader<'_>, count: usize) -> Result<Batch, DecodeError> {
        let mut batch = Batch::default();
        if count < 2 {
            return reader.refuse(Problem::Missing { field: "events" });
        }
        batch.published_at_s = reader.seconds("the batch's time")?;
        self.decode_events(reader, &mut batch)?;
        if count > 2 {
            batch.dp_rank = reader.optional_u32("data_parallel_rank")?;
        }
        for _behind in 3..count {
            reader.skip()?;
        }
        Ok(batch)
    }

    fn decode_map(&self, reader: &mut Reader<'_>, count: usize) -> Result<Batch, DecodeError> {
        let mut batch = Batch::default();
        let (mut timed, mut filled) = (false, false);
        for _ in 0..count {
            match reader.name()? {
                b"ts" => {
                    batch.published_at_s = reader.seconds("the batch's time")?;
                    timed = true;
                }
                b"events" => {
                    self.decode_events(reader, &mut batch)?;
                    filled = true;
                }
                b"data_parallel_rank" => batch.dp_rank = reader.optional_u32("data_parallel_rank")?,
                _other => reader.skip()?,
            }
        }
        // Any map would decode otherwise, a frame of another format above all.
        match (timed, filled) {
            (true, true) => Ok(batch),
            (false, _) => reader.refuse(Problem::Missing { field: "ts" }),
            (true, false) => reader.refuse(Problem::Missing { field: "events" }),
        }
    }

    fn decode_events(&self, reader: &mut Reader<'_>, batch: &mut Batch) -> Result<(), DecodeError> {
        let count = reader.array("an array of events")?;
        batch.events.reserve(reader.at_most(count, EVENT_BYTES));
        for _ in 0..count {
            let fields = Fields::read(reader)?;
            if let Some(window) = fields.window() {
                match batch.windows.iter_mut().find(|known| known.group == window.group) {
                    Some(known) => *known = window,
                    None => batch.windows.push(window),
                }
            }
            match fields.event(self, reader)? {
                Ok(event) => batch.events.push(event),
                Err(ignored) => batch.ignored.push(ignored),
            }
        }
        Ok(())
    }

    fn adapter_name(&self, id: u64) -> String {
        self.adapter_names.get(&id).cloned().unwrap_or_else(|| format!("lora_id={id}"))
    }
}

impl Fields<'_> {
    /// The window that the event states for its group.
    fn window(&self) -> Option<Window> {
        let group = Group::new(self.group?).filter(|&group| group != Group::FULL)?;
        let tokens = match self.spec_kind? {
            // A further group of full attention must hold the whole prefix.
            "full_attention" | "mla_attention" | "sink_full_attention" => u32::MAX,
            // The state behind the last block is all that is needed: a window that ends one block back.
            "mamba" => 2,
            _sliding => u32::try_from(self.sliding_window?).unwrap_or(u32::MAX),
        };
        Some(Window { group, tokens })
    }
}
