//! vLLM's `extra_keys`: what besides its tokens a block's content depends on, untagged and block by block.

use kvtide_radix::media_hash;
use xxhash_rust::xxh3::xxh3_64;

use crate::{DecodeError, msgpack::Reader, msgpack::Value};

/// Dynamo's front end marks the salts that it passes on to an engine.
const DYNAMO_SALT: &str = "dynamo-cache-salt:";

/// The keys of all blocks of one event, by what they mean.
#[derive(Default)]
pub(super) struct BlockKeys<'a> {
    /// The salt of the chain that starts here.
    pub(super) tenant: Option<&'a str>,
    /// Hashes of media, by the index of their block, ascending.
    pub(super) media: Vec<(usize, u64)>,
}

/// What the event's other fields say about its keys.
#[derive(Clone, Copy)]
pub(super) struct KeyedEvent<'a> {
    /// The adapter's name. Where a block has it among its keys, it comes first.
    pub(super) adapter: Option<&'a str>,
    /// Whether a chain starts here: the salt stands in the first block of a chain and nowhere else.
    pub(super) at_root: bool,
    /// Whether a digest may stand for a medium without an offset, as a bare word. Engines of the array layout
    /// did that once. A digest is a good salt too, and in the map layout it is nothing else.
    pub(super) bare_digests: bool,
}

enum Key<'a> {
    /// The adapter's name, the cache salt, or an identifier of some medium.
    Word(&'a str),
    /// Surely a medium: it has an offset in the block, or is a digest in bytes.
    Medium(u64),
}

impl<'a> BlockKeys<'a> {
    /// Reads nil, or for each block nil or an array of keys. At most 48 bytes of memory for each byte of input,
    /// while the list of media grows.
    pub(super) fn read(mut reader: Reader<'a>, event: KeyedEvent<'_>) -> Result<Self, DecodeError> {
        let mut keys = BlockKeys::default();
        for block in 0..reader.optional_array("extra keys for each block")?.unwrap_or(0) {
            let at_root = event.at_root && block == 0;
            let mut adapter = event.adapter;
            for _ in 0..reader.optional_array("a block's extra keys")?.unwrap_or(0) {
                match Key::read(&mut reader)? {
                    // Once a block: behind it, the same word is a salt that equals the adapter's name.
                    Key::Word(word) if adapter == Some(word) => adapter = None,
                    Key::Word(word) if at_root && keys.takes_salt(word, event) => {}
                    Key::Word(word) => keys.media.push((block, media_hash(word))),
                    Key::Medium(hash) => keys.media.push((block, hash)),
                }
            }
        }
        // A medium enters a block once, however often it stands there, as it does in a prompt.
        keys.media.sort_unstable();
        keys.media.dedup();
        Ok(keys)
    }

    fn takes_salt(&mut self, word: &'a str, event: KeyedEvent<'_>) -> bool {
        if let Some(salt) = word.strip_prefix(DYNAMO_SALT) {
            self.tenant = Some(salt);
            return true;
        }
        let digest = word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        let takes = self.tenant.is_none() && !(digest && event.bare_digests);
        if takes {
            self.tenant = Some(word);
        }
        takes
    }
}

impl<'a> Key<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match reader.value()? {
            Value::Str(word) => match str::from_utf8(word) {
                Ok(word) => Key::Word(word),
                Err(_) => Key::Medium(xxh3_64(word)),
            },
            Value::Bytes(digest) => Key::Medium(xxh3_64(digest)),
            Value::Int(number) => Key::Medium(xxh3_64(&number.to_le_bytes())),
            Value::Array(count) => Key::Medium(Self::read_tuple(count, reader)?),
            // Nothing that an engine sends; still part of the content, so it must not match plain text.
            other => {
                reader.skip_inside(other)?;
                Key::Medium(0)
            }
        })
    }

    /// `(identifier, offset)`: the hash of the identifier. The offset does not enter the block hash.
    fn read_tuple(count: usize, reader: &mut Reader<'a>) -> Result<u64, DecodeError> {
        if count == 0 {
            return Ok(0);
        }
        let hash = match reader.value()? {
            Value::Str(word) => str::from_utf8(word).map_or_else(|_| xxh3_64(word), media_hash),
            Value::Bytes(digest) => xxh3_64(digest),
            Value::Int(number) => number,
            other => {
                reader.skip_inside(other)?;
                0
            }
        };
        for _behind in 1..count {
            reader.skip()?;
        }
        Ok(hash)
    }
}
