//! Dynamo's publishers, played by the test: frames as its own crate encodes them, on a real bus.

use dynamo_kv_router::protocols::RouterEvent;
use kvtide_radix::{
    Block, BlockHash, Blocks, Event, Group, Layer, Rank, Removed, SequenceHash, Stored, Tier,
};
use serde_json::{Value, json};

pub(crate) const SUBJECT: &str = "namespace.dynamo.component.backend.endpoint.generate.kv-events";

/// A frame as dynamo-runtime puts it on the bus.
pub(crate) struct Frame {
    pub(crate) publisher_id: u64,
    pub(crate) sequence: u64,
    pub(crate) published_at: u64,
    pub(crate) events: Vec<RouterEvent>,
}

impl Frame {
    pub(crate) fn encode(&self) -> Vec<u8> {
        use rmp::encode::{write_bin, write_map_len, write_str, write_uint};
        let payload = rmp_serde::to_vec_named(&self.events).unwrap();
        let mut frame = Vec::new();
        write_map_len(&mut frame, 5).unwrap();
        for (name, number) in [
            ("publisher_id", self.publisher_id),
            ("sequence", self.sequence),
            ("published_at", self.published_at),
        ] {
            write_str(&mut frame, name).unwrap();
            write_uint(&mut frame, number).unwrap();
        }
        write_str(&mut frame, "topic").unwrap();
        write_str(&mut frame, "kv-events").unwrap();
        write_str(&mut frame, "payload").unwrap();
        write_bin(&mut frame, &payload).unwrap();
        frame
    }
}

/// What a router event means, read from its JSON and not by the decoder under test. None: to be passed over.
pub(crate) fn meaning(event: &Value) -> (Rank, Option<Event>) {
    let number = |value: &Value| value.as_u64().unwrap();
    let names =
        |list: &Value| list.as_array().unwrap().iter().map(|hash| SequenceHash(number(hash))).collect();
    let rank = Rank {
        worker_id: number(&event["worker_id"]),
        dp_rank: u32::try_from(number(&event["event"]["dp_rank"])).unwrap(),
    };
    let tier = match event["storage_tier"].as_str().unwrap() {
        "device" => Tier::Gpu,
        "host_pinned" => Tier::Host,
        "disk" => Tier::Disk,
        "external" => Tier::External,
        _ => return (rank, None),
    };
    let layer = Layer::new(tier, Group::FULL);
    let data = &event["event"]["data"];
    let meaning = if data == "cleared" {
        Event::Cleared
    } else if let Some(stored) = data.get("stored") {
        let blocks = stored["blocks"].as_array().unwrap().iter().map(|block| Block {
            name: SequenceHash(number(&block["block_hash"])),
            content: BlockHash(number(&block["tokens_hash"])),
        });
        Event::Stored(Stored {
            layer,
            parent: stored["parent_hash"].as_u64().map(SequenceHash),
            blocks: Blocks::Hashed(blocks.collect()),
        })
    } else {
        Event::Removed(Removed { layer, names: names(&data["removed"]["block_hashes"]) })
    };
    (rank, Some(meaning))
}

/// An event of a worker, as Dynamo's crate has it.
pub(crate) fn event(worker_id: u64, event_id: u64, tier: &str, data: &Value) -> RouterEvent {
    serde_json::from_value(json!({
        "worker_id": worker_id,
        "storage_tier": tier,
        "event": {"event_id": event_id, "data": data, "dp_rank": 0},
    }))
    .unwrap()
}

/// The data of a store of blocks, each a name and its content.
pub(crate) fn stored(parent: Option<u64>, blocks: &[(u64, u64)]) -> Value {
    let blocks: Vec<Value> = blocks
        .iter()
        .map(|(name, content)| json!({"block_hash": name, "tokens_hash": content, "mm_extra_info": null}))
        .collect();
    json!({"stored": {"parent_hash": parent, "start_position": null, "blocks": blocks}})
}
