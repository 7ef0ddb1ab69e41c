//! Messages as publishers make them: frames of Dynamo's event plane, and batches of vLLM.

use std::sync::Arc;

use kvtide_radix::{Rank, SequenceHash, Tier};
use rmp::encode::{write_array_len, write_bin, write_f64, write_map_len, write_nil, write_str, write_uint};

use super::prompts::{Owner, write_tokens};
use crate::cli::cache::{Change, Piece};

/// What a frame of Dynamo holds at most.
pub(super) const FRAME_EVENTS: usize = 128;

/// A change, and whose prompt it was made for.
pub(super) type Announced = (Change, Arc<Owner>);

/// What a publisher has to say, ready to be sent but for the time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Message {
    bytes: Vec<u8>,
    /// Where the time is to stand, and in which form; none once it does.
    stamp: Option<Stamp>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stamp {
    /// Eight bytes of milliseconds.
    Milliseconds(usize),
    /// Eight bytes of seconds as a float.
    Seconds(usize),
}

/// Whose message it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sender {
    pub(super) rank: Rank,
    /// One life of the rank's publisher.
    pub(super) publisher_id: u64,
    /// The message's number in that life, from 0.
    pub(super) sequence: u64,
    /// The number of its first event in that life, from 1.
    pub(super) first_event: u64,
}

impl Message {
    /// Bytes that it takes.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Takes its last part away, so that it does not decode.
    pub(super) fn cut(&mut self) {
        self.bytes.truncate(self.bytes.len() - self.bytes.len() / 8 - 1);
    }

    /// Says when it is sent, in milliseconds since the Unix epoch, unless that was said already.
    pub(super) fn stamp(&mut self, wall_ms: u64) {
        let (at, bytes) = match self.stamp.take() {
            Some(Stamp::Milliseconds(at)) => (at, wall_ms.to_be_bytes()),
            Some(Stamp::Seconds(at)) => (at, (wall_ms as f64 / 1000.0).to_be_bytes()),
            None => return,
        };
        self.bytes[at..at + 8].copy_from_slice(&bytes);
    }

    /// What is sent at a time, in milliseconds since the Unix epoch.
    pub(super) fn sent_at(mut self, wall_ms: u64) -> Vec<u8> {
        self.stamp(wall_ms);
        self.bytes
    }

    /// A frame of Dynamo's event plane: a map around the bytes of an array of router events, as dynamo-runtime and
    /// dynamo-kv-router 1.6.1 write them.
    pub(super) fn frame(sender: &Sender, changes: &[Announced]) -> Message {
        let mut payload = Vec::new();
        write(write_array_len(&mut payload, changes.len() as u32));
        for (event_id, (change, _)) in (sender.first_event..).zip(changes) {
            router_event(&mut payload, sender.rank, event_id, change);
        }
        let mut bytes = Vec::with_capacity(payload.len() + 96);
        write(write_map_len(&mut bytes, 5));
        number(&mut bytes, "publisher_id", sender.publisher_id);
        number(&mut bytes, "sequence", sender.sequence);
        // The time of any day of ours takes nine bytes, the first of which says so.
        number(&mut bytes, "published_at", u64::MAX);
        let stamp = Stamp::Milliseconds(bytes.len() - 8);
        write(write_str(&mut bytes, "topic"));
        write(write_str(&mut bytes, "kv-events"));
        write(write_str(&mut bytes, "payload"));
        write(write_bin(&mut bytes, &payload));
        Message { bytes, stamp: Some(stamp) }
    }

    /// A batch of vLLM 0.28: an array of the time, events as maps, and the data-parallel rank.
    pub(super) fn batch(sender: &Sender, changes: &[Announced], block_size: u32) -> Message {
        let mut bytes = Vec::new();
        write(write_array_len(&mut bytes, 3));
        write(write_f64(&mut bytes, 0.0));
        let stamp = Stamp::Seconds(bytes.len() - 8);
        write(write_array_len(&mut bytes, changes.len() as u32));
        for (change, owner) in changes {
            engine_event(&mut bytes, change, owner, block_size);
        }
        write(write_uint(&mut bytes, u64::from(sender.rank.dp_rank)));
        Message { bytes, stamp: Some(stamp) }
    }
}

fn router_event(bytes: &mut Vec<u8>, rank: Rank, event_id: u64, change: &Change) {
    let tier = match change {
        Change::Stored { tier, .. } | Change::Removed { tier, .. } => *tier,
    };
    write(write_map_len(bytes, 3));
    number(bytes, "worker_id", rank.worker_id);
    write(write_str(bytes, "storage_tier"));
    write(write_str(bytes, dynamo_tier(tier)));
    write(write_str(bytes, "event"));
    write(write_map_len(bytes, 3));
    number(bytes, "event_id", event_id);
    write(write_str(bytes, "data"));
    write(write_map_len(bytes, 1));
    match change {
        Change::Stored { parent, pieces, .. } => {
            write(write_str(bytes, "stored"));
            write(write_map_len(bytes, 3));
            write(write_str(bytes, "parent_hash"));
            name_or_nil(bytes, *parent);
            write(write_str(bytes, "start_position"));
            write(write_nil(bytes));
            write(write_str(bytes, "blocks"));
            write(write_array_len(bytes, pieces.len() as u32));
            for piece in pieces {
                write(write_map_len(bytes, 3));
                number(bytes, "block_hash", piece.name.0);
                number(bytes, "tokens_hash", piece.content.0);
                write(write_str(bytes, "mm_extra_info"));
                write(write_nil(bytes));
            }
        }
        Change::Removed { names, .. } => {
            write(write_str(bytes, "removed"));
            write(write_map_len(bytes, 1));
            write(write_str(bytes, "block_hashes"));
            list(bytes, names.iter().map(|name| name.0));
        }
    }
    number(bytes, "dp_rank", u64::from(rank.dp_rank));
}

fn engine_event(bytes: &mut Vec<u8>, change: &Change, owner: &Owner, block_size: u32) {
    match change {
        Change::Stored { tier: Tier::Gpu, parent, pieces } => {
            let salted = owner.adapter.is_some() || owner.tenant.is_some();
            store(bytes, pieces, *parent, if salted { 9 } else { 8 });
            let mut tokens = Vec::with_capacity(pieces.len() * block_size as usize);
            for piece in pieces {
                write_tokens(piece.text, block_size, &mut tokens);
            }
            write(write_str(bytes, "token_ids"));
            list(bytes, tokens.into_iter().map(u64::from));
            number(bytes, "block_size", u64::from(block_size));
            medium(bytes, Tier::Gpu);
            adapter(bytes, owner.adapter.as_deref());
            if salted {
                write(write_str(bytes, "extra_keys"));
                write(write_array_len(bytes, pieces.len() as u32));
                for index in 0..pieces.len() {
                    // The salt stands in a prompt's first block only.
                    let salt = owner.tenant.as_deref().filter(|_| index == 0 && parent.is_none());
                    extra_keys(bytes, [owner.adapter.as_deref(), salt]);
                }
            }
        }
        // What lower tiers hold is announced by name alone.
        Change::Stored { tier, parent, pieces } => {
            store(bytes, pieces, *parent, 8);
            write(write_str(bytes, "token_ids"));
            write(write_array_len(bytes, 0));
            number(bytes, "block_size", 0);
            medium(bytes, *tier);
            adapter(bytes, None);
        }
        Change::Removed { tier, names } => {
            write(write_map_len(bytes, 3));
            write(write_str(bytes, "type"));
            write(write_str(bytes, "BlockRemoved"));
            write(write_str(bytes, "block_hashes"));
            list(bytes, names.iter().map(|name| name.0));
            medium(bytes, *tier);
        }
    }
}

fn store(bytes: &mut Vec<u8>, pieces: &[Piece], parent: Option<SequenceHash>, fields: u32) {
    write(write_map_len(bytes, fields));
    write(write_str(bytes, "type"));
    write(write_str(bytes, "BlockStored"));
    write(write_str(bytes, "block_hashes"));
    list(bytes, pieces.iter().map(|piece| piece.name.0));
    write(write_str(bytes, "parent_block_hash"));
    name_or_nil(bytes, parent);
    write(write_str(bytes, "lora_id"));
    write(write_nil(bytes));
}

fn medium(bytes: &mut Vec<u8>, tier: Tier) {
    write(write_str(bytes, "medium"));
    write(write_str(bytes, engine_medium(tier)));
}

fn adapter(bytes: &mut Vec<u8>, name: Option<&str>) {
    write(write_str(bytes, "lora_name"));
    match name {
        Some(name) => write(write_str(bytes, name)),
        None => write(write_nil(bytes)),
    }
}

fn extra_keys(bytes: &mut Vec<u8>, keys: [Option<&str>; 2]) {
    let count = keys.iter().flatten().count();
    if count == 0 {
        return write(write_nil(bytes));
    }
    write(write_array_len(bytes, count as u32));
    for key in keys.into_iter().flatten() {
        write(write_str(bytes, key));
    }
}

fn name_or_nil(bytes: &mut Vec<u8>, name: Option<SequenceHash>) {
    match name {
        Some(name) => uint(bytes, name.0),
        None => write(write_nil(bytes)),
    }
}

fn list(bytes: &mut Vec<u8>, numbers: impl ExactSizeIterator<Item = u64>) {
    write(write_array_len(bytes, numbers.len() as u32));
    numbers.for_each(|number| uint(bytes, number));
}

fn number(bytes: &mut Vec<u8>, name: &str, value: u64) {
    write(write_str(bytes, name));
    uint(bytes, value);
}

fn uint(bytes: &mut Vec<u8>, value: u64) {
    write(write_uint(bytes, value));
}

fn dynamo_tier(tier: Tier) -> &'static str {
    match tier {
        Tier::Gpu => "device",
        Tier::Host => "host_pinned",
        Tier::Disk => "disk",
        Tier::External => "external",
    }
}

fn engine_medium(tier: Tier) -> &'static str {
    match tier {
        Tier::Gpu => "GPU",
        Tier::Host => "CPU",
        Tier::Disk => "DISK",
        Tier::External => "EXTERNAL",
    }
}

/// Memory takes whatever is written to it.
fn write<T, E: std::fmt::Debug>(written: Result<T, E>) {
    debug_assert!(written.is_ok(), "{:?}", written.err());
}

#[cfg(test)]
mod tests {
    use dynamo_kv_router::protocols::RouterEvent;
    use kvtide_radix::BlockHash;
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Envelope {
        publisher_id: u64,
        sequence: u64,
        published_at: u64,
        topic: String,
        #[serde(with = "bytes")]
        payload: Vec<u8>,
    }

    /// Bytes as MessagePack's own type for them.
    mod bytes {
        use serde::{Deserializer, de::Visitor};

        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = Vec<u8>;

            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }
        }

        pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
            from.deserialize_bytes(Bytes)
        }
    }

    fn changes() -> Vec<Announced> {
        let piece = |name: u64| Piece { name: SequenceHash(name), content: BlockHash(!name), text: name };
        let stored = |tier, parent: Option<u64>, names: std::ops::Range<u64>| Change::Stored {
            tier,
            parent: parent.map(SequenceHash),
            pieces: names.map(piece).collect(),
        };
        let removed = |tier, names: [u64; 2]| Change::Removed { tier, names: names.map(SequenceHash).into() };
        let all = [
            stored(Tier::Gpu, None, 1..4),
            stored(Tier::Host, Some(u64::MAX), 7..8),
            stored(Tier::Disk, Some(3), 200..202),
            removed(Tier::Gpu, [1, 1 << 40]),
            removed(Tier::Disk, [0, 255]),
        ];
        all.into_iter().map(|change| (change, Arc::default())).collect()
    }

    /// dynamo-kv-router reads them, and writes the same bytes.
    #[test]
    fn frames_are_those_that_dynamos_own_crate_writes() {
        let rank = Rank { worker_id: 70_000, dp_rank: 3 };
        let sender = Sender { rank, publisher_id: 1 << 33, sequence: 17, first_event: 100 };
        let bytes = Message::frame(&sender, &changes()).sent_at(1_793_000_000_123);
        let envelope: Envelope = rmp_serde::from_slice(&bytes).unwrap();
        assert_eq!((envelope.publisher_id, envelope.sequence), (1 << 33, 17));
        assert_eq!((envelope.published_at, envelope.topic.as_str()), (1_793_000_000_123, "kv-events"));
        let events: Vec<RouterEvent> = rmp_serde::from_slice(&envelope.payload).unwrap();
        assert_eq!(events.len(), 5);
        assert_eq!(rmp_serde::to_vec_named(&events).unwrap(), envelope.payload);
    }
}
