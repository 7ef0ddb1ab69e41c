//! What publishers announce, in kvtide's vocabulary and as it goes over the wire.

use kvtide_radix::{Block, BlockHash, Blocks, Event, Group, Layer, Removed, SequenceHash, Stored, Tier};
use kvtide_tests::vectors::{self, BLOCK_SIZE, EventSpec, Kind};
use serde_json::{Value, json};

/// Something that a rank announces. A block is its name, and the token that fills it.
#[derive(Clone, Debug)]
pub(crate) enum Announced {
    Stored { parent: Option<u64>, blocks: Vec<(u64, u32)>, host: bool },
    Removed { names: Vec<u64>, host: bool },
    Cleared,
    Unheard,
}

/// The content of a block that one token fills.
pub(crate) fn content(token: u32) -> BlockHash {
    vectors::content(token.into())
}

impl From<&EventSpec> for Announced {
    fn from(event: &EventSpec) -> Announced {
        let stored = |&[first, last]: &[u64; 2], host| Announced::Stored {
            parent: (first > 1).then(|| first - 1),
            blocks: (first..=last).map(|block| (block, u32::try_from(block).unwrap())).collect(),
            host,
        };
        match event {
            EventSpec::Stored(blocks) => stored(blocks, false),
            EventSpec::StoredHost(blocks) => stored(blocks, true),
            EventSpec::Removed(names) => Announced::Removed { names: names.clone(), host: false },
            EventSpec::Cleared([]) => Announced::Cleared,
            EventSpec::Unheard([]) => Announced::Unheard,
        }
    }
}

impl Announced {
    /// What it means to a stream of that kind. In host memory an engine names blocks alone.
    pub(crate) fn meaning(&self, kind: Kind) -> Option<Event> {
        let layer = |host| Layer::new(if host { Tier::Host } else { Tier::Gpu }, Group::FULL);
        Some(match self {
            Announced::Stored { parent, blocks, host } => Event::Stored(Stored {
                layer: layer(*host),
                parent: parent.map(SequenceHash),
                blocks: if *host && kind == Kind::Engine {
                    Blocks::Named(blocks.iter().map(|&(name, _)| SequenceHash(name)).collect())
                } else {
                    let block = |&(name, token)| Block { name: SequenceHash(name), content: content(token) };
                    Blocks::Hashed(blocks.iter().map(block).collect())
                },
            }),
            Announced::Removed { names, host } => {
                let names = names.iter().copied().map(SequenceHash).collect();
                Event::Removed(Removed { layer: layer(*host), names })
            }
            Announced::Cleared => Event::Cleared,
            Announced::Unheard => return None,
        })
    }

    /// As vLLM's publisher has it.
    fn engine_event(&self) -> Value {
        let medium = |host: bool| if host { "CPU" } else { "GPU" };
        match self {
            Announced::Stored { parent, blocks, host } => {
                let names: Vec<u64> = blocks.iter().map(|&(name, _)| name).collect();
                let tokens = blocks.iter().flat_map(|&(_, token)| [token; BLOCK_SIZE as usize]);
                json!({"type": "BlockStored", "block_hashes": names, "parent_block_hash": parent,
                       "block_size": BLOCK_SIZE, "token_ids": tokens.collect::<Vec<_>>(),
                       "medium": medium(*host)})
            }
            Announced::Removed { names, host } => {
                json!({"type": "BlockRemoved", "block_hashes": names, "medium": medium(*host)})
            }
            Announced::Cleared => json!({"type": "AllBlocksCleared"}),
            Announced::Unheard => json!({"type": "BlockPainted", "colour": "blue"}),
        }
    }

    /// As Dynamo's publisher has it.
    fn router_event(&self, worker_id: u64, event_id: u64) -> Value {
        let (host, data) = match self {
            Announced::Stored { parent, blocks, host } => {
                let block = |&(name, token)| json!({"block_hash": name, "tokens_hash": content(token).0});
                let blocks: Vec<Value> = blocks.iter().map(block).collect();
                (*host, json!({"stored": {"parent_hash": parent, "start_position": null, "blocks": blocks}}))
            }
            Announced::Removed { names, host } => (*host, json!({"removed": {"block_hashes": names}})),
            Announced::Cleared => (false, json!("cleared")),
            Announced::Unheard => (false, json!({"painted": {"colour": "blue"}})),
        };
        json!({"worker_id": worker_id, "storage_tier": if host { "host_pinned" } else { "device" },
               "event": {"event_id": event_id, "data": data, "dp_rank": 0}})
    }
}

/// A batch as vLLM publishes it.
pub(crate) fn batch(published_at_ms: u64, events: &[Announced], dp_rank: u32) -> Vec<u8> {
    #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 are far below 2^53")]
    let seconds = published_at_ms as f64 / 1000.0;
    let events: Vec<Value> = events.iter().map(Announced::engine_event).collect();
    rmp_serde::to_vec(&json!([seconds, events, dp_rank])).unwrap()
}

/// A frame as dynamo-runtime publishes it, of events with their worker and number.
pub(crate) fn frame(
    publisher: u64,
    sequence: u64,
    published_at_ms: u64,
    events: &[(u64, u64, Announced)],
) -> Vec<u8> {
    let events: Vec<Value> =
        events.iter().map(|(worker, id, event)| event.router_event(*worker, *id)).collect();
    let payload = rmp_serde::to_vec(&events).unwrap();
    let numbers = [("publisher_id", publisher), ("sequence", sequence), ("published_at", published_at_ms)];
    let mut encoded = Vec::new();
    rmp::encode::write_map_len(&mut encoded, 4).unwrap();
    for (name, number) in numbers {
        rmp::encode::write_str(&mut encoded, name).unwrap();
        rmp::encode::write_uint(&mut encoded, number).unwrap();
    }
    rmp::encode::write_str(&mut encoded, "payload").unwrap();
    rmp::encode::write_bin(&mut encoded, &payload).unwrap();
    encoded
}
