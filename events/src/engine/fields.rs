//! The fields of one engine event, however they are laid out, and the event that they make.

use kvtide_radix::{Blocks, Event, Group, Layer, Removed, Seed, SequenceHash, Stored, Tier};

use super::{
    Engine,
    media::{BlockKeys, KeyedEvent},
    tokens::Tokens,
};
use crate::{DecodeError, Ignored, dynamo::decode_names, error::Problem, medium};
use crate::{msgpack::Reader, msgpack::Value};

/// The fields of one event. Which of them its kind uses is decided in [`Fields::event`].
#[derive(Default)]
pub(super) struct Fields<'a> {
    kind: Kind,
    layout: Layout,
    names: Option<Vec<SequenceHash>>,
    parent: Option<SequenceHash>,
    tokens: Tokens,
    block_size: Option<u64>,
    lora_id: Option<u64>,
    medium: Option<&'a str>,
    lora_name: Option<&'a str>,
    /// Where the extra keys stand. What they mean depends on fields that may come behind them.
    keys: Option<Reader<'a>>,
    cache_salt: Option<&'a str>,
    locality: Option<&'a str>,
    ownership: Option<&'a str>,
    pub(super) group: Option<u64>,
    pub(super) spec_kind: Option<&'a str>,
    pub(super) sliding_window: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Kind {
    Stored,
    Removed,
    Cleared,
    #[default]
    Unknown,
}

/// How an event's fields are laid out.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Layout {
    /// By position, the kind first: up to vLLM 0.23.
    #[default]
    Array,
    /// By name: from vLLM 0.24.
    Map,
}

impl Kind {
    fn of(word: Option<&[u8]>) -> Kind {
        match word {
            Some(b"BlockStored") => Kind::Stored,
            Some(b"BlockRemoved") => Kind::Removed,
            Some(b"AllBlocksCleared") => Kind::Cleared,
            Some(_) | None => Kind::Unknown,
        }
    }

    /// Where the fields stand in an array, behind the kind.
    fn positions(self) -> &'static [&'static str] {
        match self {
            Kind::Stored => &STORED,
            Kind::Removed => &REMOVED,
            Kind::Cleared | Kind::Unknown => &[],
        }
    }
}

const STORED: [&str; 11] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
];
const REMOVED: [&str; 3] = ["block_hashes", "medium", "group_idx"];

impl<'a> Fields<'a> {
    /// Reads an event of either layout. Of an unknown kind nothing is read: its fields may mean anything.
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.value()? {
            Value::Array(count) => Self::read_array(reader, count),
            Value::Map(count) => Self::read_map(reader, count),
            other => reader.expected("an event (an array or a map)", other),
        }
    }

    fn read_array(reader: &mut Reader<'a>, count: usize) -> Result<Self, DecodeError> {
        let mut fields = Fields::default();
        let Some(behind_kind) = count.checked_sub(1) else {
            return Ok(fields);
        };
        fields.kind = Kind::of(reader.word()?);
        let positions = fields.kind.positions();
        for index in 0..behind_kind {
            match positions.get(index) {
                Some(name) => fields.read_field(name.as_bytes(), reader)?,
                None => reader.skip()?,
            }
        }
        Ok(fields)
    }

    fn read_map(reader: &mut Reader<'a>, count: usize) -> Result<Self, DecodeError> {
        let kind = Self::find_kind(*reader, count)?;
        let mut fields = Fields { kind, layout: Layout::Map, ..Fields::default() };
        for _ in 0..count {
            let name = reader.name()?;
            match kind {
                Kind::Unknown => reader.skip()?,
                Kind::Stored | Kind::Removed | Kind::Cleared => fields.read_field(name, reader)?,
            }
        }
        Ok(fields)
    }

    /// The kind of a map event. Every known engine writes it first.
    fn find_kind(mut ahead: Reader<'_>, count: usize) -> Result<Kind, DecodeError> {
        for _ in 0..count {
            if ahead.name()? == b"type" {
                return Ok(Kind::of(ahead.word()?));
            }
            ahead.skip()?;
        }
        Ok(Kind::Unknown)
    }

    fn read_field(&mut self, name: &[u8], reader: &mut Reader<'a>) -> Result<(), DecodeError> {
        match name {
            b"block_hashes" => self.names = Some(decode_names(reader)?),
            b"parent_block_hash" => {
                self.parent = reader.optional_hash("the parent's hash")?.map(SequenceHash);
            }
            b"token_ids" => self.tokens = Tokens::read(reader)?,
            b"block_size" => self.block_size = reader.optional_integer("the block size")?,
            b"lora_id" => self.lora_id = reader.optional_integer("the adapter's number")?,
            b"medium" => self.medium = reader.optional_string("a medium")?,
            b"lora_name" => self.read_adapter(reader)?,
            b"extra_keys" => {
                self.keys = Some(*reader);
                reader.skip()?;
            }
            b"cache_salt" => self.cache_salt = reader.optional_string("the cache salt")?,
            b"locality" => self.locality = reader.optional_string("a locality")?,
            b"ownership" => self.ownership = reader.optional_string("an ownership")?,
            b"group_idx" => self.group = reader.optional_integer("the group's index")?,
            b"kv_cache_spec_kind" => self.spec_kind = reader.optional_string("the group's kind")?,
            b"kv_cache_spec_sliding_window" => {
                self.sliding_window = reader.optional_integer("the sliding window")?;
            }
            _other => reader.skip()?,
        }
        Ok(())
    }

    /// The adapter's name, or a map with the salt: some SGLang versions put it there in the array layout
    /// (source: dynamo-kv-router 1.6.1).
    fn read_adapter(&mut self, reader: &mut Reader<'a>) -> Result<(), DecodeError> {
        match reader.value()? {
            Value::Nil => self.lora_name = None,
            Value::Str(name) => self.lora_name = Some(reader.utf8(name, "the adapter's name")?),
            Value::Map(count) => {
                for _ in 0..count {
                    match reader.name()? {
                        b"cache_salt" => self.cache_salt = reader.optional_string("the cache salt")?,
                        _other => reader.skip()?,
                    }
                }
            }
            other => return reader.expected("the adapter's name", other),
        }
        Ok(())
    }

    /// The event that these fields make, or why it is passed over.
    pub(super) fn event(
        mut self,
        engine: &Engine,
        reader: &Reader<'_>,
    ) -> Result<Result<Event, Ignored>, DecodeError> {
        match self.kind {
            Kind::Unknown => return Ok(Err(Ignored::UnknownEvent)),
            Kind::Stored | Kind::Removed | Kind::Cleared if !self.is_resident() => {
                return Ok(Err(Ignored::OtherResidency));
            }
            Kind::Cleared => return Ok(Ok(Event::Cleared)),
            Kind::Stored | Kind::Removed => {}
        }
        let Some(names) = self.names.take() else {
            return reader.refuse(Problem::Missing { field: "block_hashes" });
        };
        let layer = match self.layer() {
            Ok(layer) => layer,
            Err(ignored) => return Ok(Err(ignored)),
        };
        if self.kind == Kind::Removed {
            return Ok(Ok(Event::Removed(Removed { layer, names })));
        }
        let parent = self.parent;
        let blocks = self.into_blocks(names, layer, engine, reader)?;
        Ok(Ok(Event::Stored(Stored { layer, parent, blocks })))
    }

    /// Whether the event speaks of what the rank itself holds.
    fn is_resident(&self) -> bool {
        let known = |word: Option<&str>, ours: &str| word.is_none_or(|word| word.eq_ignore_ascii_case(ours));
        known(self.locality, "LOCAL") && known(self.ownership, "FRAMEWORK")
    }

    fn layer(&self) -> Result<Layer, Ignored> {
        let tier = medium::engine_tier(self.medium).ok_or(Ignored::UnknownTier)?;
        let group = Group::new(self.group.unwrap_or(0)).ok_or(Ignored::UnknownGroup)?;
        Ok(Layer::new(tier, group))
    }

    /// Only full attention on the GPU says what blocks contain. In lower tiers an engine may leave out parents,
    /// tokens and salts, and window groups anchor nothing.
    fn into_blocks(
        self,
        names: Vec<SequenceHash>,
        layer: Layer,
        engine: &Engine,
        reader: &Reader<'_>,
    ) -> Result<Blocks, DecodeError> {
        let binds = layer == Layer::new(Tier::Gpu, Group::FULL) && !self.tokens.is_empty();
        if !binds {
            return Ok(Blocks::Named(names));
        }
        let adapter = match (named(self.lora_name), self.lora_id) {
            (Some(name), _) => Some(name.to_owned()),
            // Number 0 is no adapter in engines that give one to every request.
            (None, Some(0) | None) => None,
            (None, Some(id)) => Some(engine.adapter_name(id)),
        };
        let event = KeyedEvent {
            adapter: self.lora_name,
            at_root: self.parent.is_none(),
            bare_digests: self.layout == Layout::Array,
        };
        let keys = self.keys.map(|reader| BlockKeys::read(reader, event)).transpose()?.unwrap_or_default();
        let seed = Seed::of(adapter.as_deref(), named(self.cache_salt).or(keys.tenant));
        self.tokens.into_blocks(names, engine.block_size, self.block_size, seed, keys.media, reader)
    }
}

/// An empty name is no name.
fn named(word: Option<&str>) -> Option<&str> {
    word.filter(|word| !word.is_empty())
}
