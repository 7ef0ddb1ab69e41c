//! vLLM's `extra_keys`: what besides its tokens a block's content depends on, untagged and block by block.

use kvtide_radix::media_hash;
use xxhash_rust::xxh3::xxh3_64;

use crate::{DecodeError, msgpack::Reader, msgpack::Value};

/// Dynamo's front end marks the salts that it passes on to an engine.
const DYNAMO_SALT: &str = "dynamo-cache-salt:";

/// The keys of all blocks of one event, as they came.
#[derive(Default)]
pub(super) struct BlockKeys<'a> {
    keys: Vec<(usize, Key<'a>)>,
}

enum Key<'a> {
    /// The adapter's name, the cache salt, or an identifier of some medium.
    Word(&'a str),
    /// Surely a medium: it has an offset in the block, or is a digest.
    Medium(u64),
}

/// The keys by what they mean.
pub(super) struct SortedKeys<'a> {
    /// The salt of the chain that starts here.
    pub(super) tenant: Option<&'a str>,
    /// Hashes of media, by the index of their block.
    pub(super) media: Vec<(usize, u64)>,
}

impl<'a> BlockKeys<'a> {
    /// Reads nil, or for each block nil or an array of keys.
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let mut keys = Vec::new();
        let blocks = reader.optional_array("extra keys for each block")?.unwrap_or(0);
        for block in 0..blocks {
            for _ in 0..reader.optional_array("a block's extra keys")?.unwrap_or(0) {
                keys.push((block, Key::read(reader)?));
            }
        }
        Ok(BlockKeys { keys })
    }

    /// Tells the keys apart. The salt stands only in the first block of a chain; the adapter's name, where a
    /// block has one, comes first.
    pub(super) fn sort(self, adapter: Option<&str>, at_root: bool) -> SortedKeys<'a> {
        let mut sorted = SortedKeys { tenant: None, media: Vec::new() };
        let mut adapter_seen_in = None;
        for (block, key) in self.keys {
            match key {
                Key::Word(word) if adapter == Some(word) && adapter_seen_in != Some(block) => {
                    adapter_seen_in = Some(block);
                }
                Key::Word(word) if word.starts_with(DYNAMO_SALT) && block == 0 => {
                    sorted.tenant = word.strip_prefix(DYNAMO_SALT);
                }
                Key::Word(word) if at_root && block == 0 && sorted.tenant.is_none() && !is_digest(word) => {
                    sorted.tenant = Some(word);
                }
                Key::Word(word) => sorted.media.push((block, media_hash(word))),
                Key::Medium(hash) => sorted.media.push((block, hash)),
            }
        }
        sorted
    }
}

/// Older engines give a medium's digest as a bare word, as they do the salt.
fn is_digest(word: &str) -> bool {
    word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl<'a> Key<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match reader.value()? {
            Value::Str(word) => Key::Word(word),
            Value::Bytes(digest) => Key::Medium(xxh3_64(digest)),
            Value::Int(number) => Key::Medium(xxh3_64(&number.to_le_bytes())),
            Value::Array(count) => Key::Medium(Self::read_tuple(count, reader)?),
            // Nothing that an engine sends; still part of the content, so it must not match plain text.
            Value::Nil | Value::Bool | Value::Float(_) | Value::Ext => Key::Medium(0),
            Value::Map(count) => {
                for _ in 0..count * 2 {
                    reader.skip()?;
                }
                Key::Medium(0)
            }
        })
    }

    /// `(identifier, offset)`: the hash of the identifier. The offset does not enter the block hash.
    fn read_tuple(count: usize, reader: &mut Reader<'a>) -> Result<u64, DecodeError> {
        let mut hash = 0;
        for index in 0..count {
            if index > 0 {
                reader.skip()?;
                continue;
            }
            let mut ahead = *reader;
            hash = match ahead.value()? {
                Value::Str(word) => media_hash(word),
                Value::Bytes(digest) => xxh3_64(digest),
                Value::Int(number) => number,
                _other => 0,
            };
            reader.skip()?;
        }
        Ok(hash)
    }
}
