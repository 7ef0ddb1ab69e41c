//! The fields of one engine event, however they are laid out, and the event that they make.

use kvtide_radix::{Blocks, Event, Group, Layer, Removed, SequenceHash, Stored, Tier};

use super::{Engine, media::BlockKeys, tokens::Tokens};
use crate::{DecodeError, Ignored, dynamo::decode_names, medium, msgpack::Reader};

/// The fields of one event. Which of them its type uses is decided in [`Fields::event`].
#[derive(Default)]
pub(super) struct Fields<'a> {
    kind: &'a str,
    names: Vec<SequenceHash>,
    parent: Option<SequenceHash>,
    tokens: Tokens,
    block_size: Option<u64>,
    lora_id: Option<u64>,
    medium: Option<&'a str>,
    lora_name: Option<&'a str>,
    keys: BlockKeys<'a>,
    cache_salt: Option<&'a str>,
    locality: Option<&'a str>,
    ownership: Option<&'a str>,
    pub(super) group: Option<u64>,
    pub(super) spec_kind: Option<&'a str>,
    pub(super) sliding_window: Option<u64>,
}

/// Where the elements of an array event stand, behind its type.
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
    /// Reads an event of either layout.
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let mut fields = Fields::default();
        let mut ahead = *reader;
        if let Ok(count) = ahead.map("") {
            *reader = ahead;
            for _ in 0..count {
                match reader.string("a field's name")? {
                    "type" => fields.kind = reader.string("the event's type")?,
                    name => fields.read_field(name, reader)?,
                }
            }
            return Ok(fields);
        }
        let Some(behind_type) = reader.array("an event (an array or a map)")?.checked_sub(1) else {
            return Ok(fields);
        };
        fields.kind = reader.string("the event's type")?;
        let layout: &[&str] = match fields.kind {
            "BlockStored" => &STORED,
            "BlockRemoved" => &REMOVED,
            _other => &[],
        };
        for index in 0..behind_type {
            match layout.get(index) {
                Some(name) => fields.read_field(name, reader)?,
                None => reader.skip()?,
            }
        }
        Ok(fields)
    }

    fn read_field(&mut self, name: &str, reader: &mut Reader<'a>) -> Result<(), DecodeError> {
        match name {
            "block_hashes" => self.names = decode_names(reader)?,
            "parent_block_hash" => {
                self.parent = reader.optional_hash("the parent's hash")?.map(SequenceHash);
            }
            "token_ids" => self.tokens = Tokens::read(reader)?,
            "block_size" => self.block_size = reader.optional_integer("the block size")?,
            "lora_id" => self.lora_id = reader.optional_integer("the adapter's number")?,
            "medium" => self.medium = reader.optional_string("a medium")?,
            "lora_name" => self.lora_name = reader.optional_string("the adapter's name")?,
            "extra_keys" => self.keys = BlockKeys::read(reader)?,
            "cache_salt" => self.cache_salt = reader.optional_string("the cache salt")?,
            "locality" => self.locality = reader.optional_string("a locality")?,
            "ownership" => self.ownership = reader.optional_string("an ownership")?,
            "group_idx" => self.group = reader.optional_integer("the group's index")?,
            "kv_cache_spec_kind" => self.spec_kind = reader.optional_string("the group's kind")?,
            "kv_cache_spec_sliding_window" => {
                self.sliding_window = reader.optional_integer("the sliding window")?;
            }
            _other => reader.skip()?,
        }
        Ok(())
    }

    /// The event that these fields make, or why it is passed over.
    pub(super) fn event(
        self,
        engine: &Engine,
        reader: &Reader<'_>,
    ) -> Result<Result<Event, Ignored>, DecodeError> {
        match self.kind {
            "AllBlocksCleared" => return Ok(Ok(Event::Cleared)),
            "BlockStored" | "BlockRemoved" => {}
            _other => return Ok(Err(Ignored::UnknownEvent)),
        }
        let layer = match self.layer() {
            Ok(layer) => layer,
            Err(ignored) => return Ok(Err(ignored)),
        };
        if self.kind == "BlockRemoved" {
            return Ok(Ok(Event::Removed(Removed { layer, names: self.names })));
        }
        let parent = self.parent;
        let blocks = self.into_blocks(layer, engine, reader)?;
        Ok(Ok(Event::Stored(Stored { layer, parent, blocks })))
    }

    fn layer(&self) -> Result<Layer, Ignored> {
        let known = |word: Option<&str>, ours: &str| word.is_none_or(|word| word.eq_ignore_ascii_case(ours));
        if !known(self.locality, "LOCAL") || !known(self.ownership, "FRAMEWORK") {
            return Err(Ignored::OtherResidency);
        }
        let tier = medium::engine_tier(self.medium).ok_or(Ignored::UnknownTier)?;
        let group = Group::new(self.group.unwrap_or(0)).ok_or(Ignored::UnknownGroup)?;
        Ok(Layer::new(tier, group))
    }

    /// Only full attention on the GPU says what blocks contain. In lower tiers an engine may leave out parents,
    /// tokens and salts, and window groups anchor nothing.
    fn into_blocks(self, layer: Layer, engine: &Engine, reader: &Reader<'_>) -> Result<Blocks, DecodeError> {
        let binds = layer == Layer::new(Tier::Gpu, Group::FULL) && !self.tokens.is_empty();
        if !binds {
            return Ok(Blocks::Named(self.names));
        }
        let adapter = match (self.lora_name.filter(|name| !name.is_empty()), self.lora_id) {
            (Some(name), _) => Some(name.to_owned()),
            // Number 0 is no adapter in engines that give one to every request.
            (None, Some(0) | None) => None,
            (None, Some(id)) => Some(engine.adapter_name(id)),
        };
        let at_root = self.parent.is_none();
        let keys = self.keys.sort(self.lora_name, at_root);
        let tenant = self.cache_salt.or(keys.tenant);
        self.tokens.into_blocks(
            self.names,
            engine.block_size,
            self.block_size,
            kvtide_radix::Seed::of(adapter.as_deref(), tenant),
            keys.media,
            reader,
        )
    }
}
