//! Every recorded frame, batch and hash decodes to exactly what stands beside it.
//!
//! What is expected is built here from the JSON of a row, by rules written down once more; it shares nothing with
//! the decoders but the vocabulary. All rows of a file are tried before the test fails.

mod fixture;

use dynamo_kv_router::protocols::hash_mm_identifier;
use kvtide_events::{Batch, Engine, Frame, Hashing, Ignored, Media, RouterEvent, sequence_hashes};
use kvtide_radix::{
    Block, BlockHash, Blocks, Event, Group, Layer, Rank, Removed, Seed, SequenceHash, Stored, Tier,
    TokenBlocks, Window,
};
use serde_json::{Value, json};

/// Tries each row and fails with all that differ.
fn each_row(file: &str, check: impl Fn(&Value) -> Result<(), String>) {
    let failures: Vec<String> = fixture::rows(file)
        .iter()
        .enumerate()
        .filter_map(|(line, row)| {
            let name = format!("{}:{} {} {}", file, line + 1, row["version"], row["case"]);
            check(row).err().map(|difference| format!("{name}: {difference}"))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn same<T: PartialEq + std::fmt::Debug>(got: &T, expected: &T) -> Result<(), String> {
    if got == expected { Ok(()) } else { Err(format!("\n got      {got:?}\n expected {expected:?}")) }
}

#[test]
fn every_dynamo_frame_decodes_to_what_its_row_says() {
    each_row("dynamo_frames.jsonl", |row| {
        let expected = Frame {
            publisher_id: number(&row["publisher_id"]),
            sequence: number(&row["sequence"]),
            published_at_ms: number(&row["published_at"]),
            events: list(&row["events"]).iter().map(router_event).collect(),
        };
        let bytes = fixture::bytes(row);
        same(&Frame::decode(&bytes), &Ok(expected))?;
        same(&Frame::cut(&bytes).map(|cut| cut.publisher_id), &row["publisher_id"].as_u64())
    });
}

#[test]
fn every_dynamo_hash_is_computed_as_its_row_says() {
    each_row("dynamo_hashes.jsonl", |row| {
        let tokens: Vec<u32> = list(&row["tokens"]).iter().map(token).collect();
        let hashing = Hashing {
            block_size: u32::try_from(number(&row["block_size"])).unwrap(),
            eagle: row["eagle"].as_bool().unwrap(),
        };
        let seed = Seed::of(row["adapter"].as_str(), row["tenant"].as_str());
        let blocks: Vec<BlockHash> = hashing.block_hashes(&tokens, &[], seed).collect();
        same(&blocks.iter().map(|hash| hash.0).collect(), &hex_numbers(&row["block_hashes"]))?;
        same(&hashing.blocks(tokens.len()), &blocks.len())?;
        let names: Vec<u64> = sequence_hashes(blocks).map(|name| name.0).collect();
        same(&names, &hex_numbers(&row["sequence_hashes"]))
    });
}

#[test]
fn every_engine_batch_decodes_to_what_its_row_says() {
    let engine = Engine { block_size: 16, adapter_names: [].into() };
    each_row("engine_batches.jsonl", |row| {
        let mut expected = Batch {
            published_at_s: row["json"][0].as_f64().unwrap(),
            dp_rank: row["json"][2].as_u64().map(|rank| u32::try_from(rank).unwrap()),
            ..Batch::default()
        };
        for event in list(&row["json"][1]) {
            let event = named_fields(event);
            expected.windows.extend(window(&event));
            match engine_event(&event) {
                Ok(event) => expected.events.push(event),
                Err(ignored) => expected.ignored.push(ignored),
            }
        }
        let bytes = fixture::bytes(row);
        same(&(bytes.len() as u64), &number(&row["len"]))?;
        same(&engine.decode(&bytes), &Ok(expected))
    });
}

#[test]
fn tokens_1_to_8_in_blocks_of_4_hash_to_the_published_values() {
    let tokens: Vec<u32> = (1..=8).collect();
    let check =
        |adapter: Option<&str>, tenant: Option<&str>, eagle: bool, media: &[Media], expected: &[u64]| {
            let hashing = Hashing { block_size: 4, eagle };
            let by_block = Media::by_block(media, 4, hashing.blocks(tokens.len()));
            let hashes = hashing.block_hashes(&tokens, &by_block, Seed::of(adapter, tenant));
            let got: Vec<u64> = hashes.map(|hash| hash.0).collect();
            assert_eq!(got, expected, "{adapter:?} {tenant:?} eagle {eagle} media {media:?}");
        };
    let image = Media { hash: 42, tokens: std::iter::once(1..3).collect() };
    check(None, None, false, &[], &[0xcb38_e4d7_fb2d_ca5c, 0xe8d3_ec39_b907_b74c]);
    check(Some("a"), None, false, &[], &[0xf55f_0eaa_406a_ae96, 0x9535_5829_048d_0156]);
    check(None, Some("a"), false, &[], &[0xa790_3c21_4135_cfc1, 0xe8d3_d8f1_381d_45e1]);
    check(Some("a"), Some("b"), false, &[], &[0xcd8f_edcb_ddc4_0bcd, 0x77b2_90c5_b349_0504]);
    check(None, None, true, &[], &[0x1a92_ffa9_004c_0851]);
    check(None, None, false, &[image], &[0xc24b_4634_b565_6053, 0xe8d3_ec39_b907_b74c]);
    let plain = Hashing { block_size: 4, eagle: false }.block_hashes(&tokens, &[], Seed::PLAIN);
    let names: Vec<u64> = sequence_hashes(plain).map(|name| name.0).collect();
    assert_eq!(names, [0xcb38_e4d7_fb2d_ca5c, 0x44a2_b237_9d6d_3c3d]);
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

fn token(value: &Value) -> u32 {
    u32::try_from(number(value)).expect("a token has 32 bits")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn hex_numbers(value: &Value) -> Vec<u64> {
    let parse = |digits: &Value| u64::from_str_radix(digits.as_str().expect("digits"), 16).expect("64 bits");
    list(value).iter().map(parse).collect()
}

/// The event of a frame, by what its JSON says.
fn router_event(row: &Value) -> RouterEvent {
    let event = &row["event"];
    RouterEvent {
        rank: Rank { worker_id: number(&row["worker_id"]), dp_rank: token(&event["dp_rank"]) },
        event_id: number(&event["event_id"]),
        change: router_change(row, &event["data"]),
    }
}

fn router_change(row: &Value, data: &Value) -> Result<Event, Ignored> {
    match row.get("residency_domain") {
        None => {}
        Some(domain) if domain == "worker" => {}
        Some(domain) if domain == "cache_owner" => return Err(Ignored::OtherResidency),
        Some(_) => return Err(Ignored::UnknownResidency),
    }
    if data == "cleared" {
        return Ok(Event::Cleared);
    }
    let tier = match row["storage_tier"].as_str() {
        Some("device") | None => Tier::Gpu,
        Some("host_pinned") => Tier::Host,
        Some("disk") => Tier::Disk,
        Some("external") => Tier::External,
        Some(_) => return Err(Ignored::UnknownTier),
    };
    let layer = Layer::new(tier, Group::FULL);
    if let Some(removed) = data.get("removed") {
        let names = list(&removed["block_hashes"]).iter().map(|name| SequenceHash(number(name))).collect();
        return Ok(Event::Removed(Removed { layer, names }));
    }
    let stored = &data["stored"];
    let block = |block: &Value| Block {
        name: SequenceHash(number(&block["block_hash"])),
        content: BlockHash(number(&block["tokens_hash"])),
    };
    Ok(Event::Stored(Stored {
        layer,
        parent: stored["parent_hash"].as_u64().map(SequenceHash),
        blocks: Blocks::Hashed(list(&stored["blocks"]).iter().map(block).collect()),
    }))
}

/// An engine's event with its fields by name, whichever layout it has.
fn named_fields(event: &Value) -> Value {
    let Value::Array(elements) = event else {
        return event.clone();
    };
    let names: &[&str] = match elements[0].as_str() {
        Some("BlockStored") => &[
            "type",
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
        ],
        _removed_or_cleared => &["type", "block_hashes", "medium", "group_idx"],
    };
    names.iter().zip(elements).map(|(name, element)| ((*name).to_owned(), element.clone())).collect()
}

fn group(event: &Value) -> u64 {
    event["group_idx"].as_u64().unwrap_or(0)
}

fn window(event: &Value) -> Option<Window> {
    let tokens = event["kv_cache_spec_sliding_window"].as_u64()?;
    let group = Group::new(group(event)).filter(|&group| group != Group::FULL)?;
    Some(Window { group, tokens: u32::try_from(tokens).expect("a window has 32 bits") })
}

/// A hash by its bit pattern, or the last 8 of its bytes.
fn hash(value: &Value) -> SequenceHash {
    let pattern = match value["bytes"].as_str() {
        Some(digits) => u64::from_str_radix(&digits[digits.len() - 16..], 16).expect("hexadecimal"),
        None => value.as_u64().or(value.as_i64().map(i64::cast_unsigned)).expect("a 64-bit number"),
    };
    SequenceHash(pattern)
}

fn engine_event(event: &Value) -> Result<Event, Ignored> {
    if event["type"] == "AllBlocksCleared" {
        return Ok(Event::Cleared);
    }
    if event.get("ownership").is_some_and(|owner| owner != "framework") {
        return Err(Ignored::OtherResidency);
    }
    let tier = match event["medium"].as_str() {
        Some("GPU") | None => Tier::Gpu,
        Some("CPU_PINNED") => Tier::Host,
        Some("DISK") => Tier::Disk,
        Some("EXTERNAL") => Tier::External,
        Some(_) => return Err(Ignored::UnknownTier),
    };
    let layer = Layer::new(tier, Group::new(group(event)).ok_or(Ignored::UnknownGroup)?);
    let names: Vec<SequenceHash> = list(&event["block_hashes"]).iter().map(hash).collect();
    if event["type"] == "BlockRemoved" {
        return Ok(Event::Removed(Removed { layer, names }));
    }
    let parent = Some(&event["parent_block_hash"]).filter(|parent| !parent.is_null()).map(hash);
    let blocks = match layer == Layer::GPU {
        true => Blocks::Tokens(token_blocks(event, names, parent)),
        // Lower tiers and window groups say nothing of content.
        false => Blocks::Named(names),
    };
    Ok(Event::Stored(Stored { layer, parent, blocks }))
}

fn token_blocks(event: &Value, names: Vec<SequenceHash>, parent: Option<SequenceHash>) -> TokenBlocks {
    let size = usize::try_from(number(&event["block_size"])).expect("a small number");
    let ids = list(&event["token_ids"]);
    let pairs = ids.first().is_some_and(Value::is_array);
    let tokens = ids.chunks(size).flat_map(|block| {
        let first = |id: &Value| token(if pairs { &id[0] } else { id });
        let next = block.last().filter(|_| pairs).map(|last| token(&last[1]));
        block.iter().map(first).chain(next).collect::<Vec<_>>()
    });
    let mut salt = event["cache_salt"].as_str().map(str::to_owned);
    let mut media = Vec::new();
    for (index, keys) in event["extra_keys"].as_array().into_iter().flatten().enumerate() {
        // The adapter stands first in each block; then a bare word is the salt, but only where a chain starts.
        for key in list(keys).iter().filter(|&key| *key != event["lora_name"]) {
            match key.as_str() {
                Some(word) if index == 0 && parent.is_none() => salt = Some(word.to_owned()),
                word => {
                    let identifier = word.or(key[0].as_str()).expect("a name");
                    media.push((index, hash_mm_identifier(identifier).expect("a name")));
                }
            }
        }
    }
    TokenBlocks {
        names,
        tokens: tokens.collect(),
        tokens_per_block: size + usize::from(pairs),
        root_seed: Seed::of(event["lora_name"].as_str(), salt.as_deref()),
        media,
    }
}

#[test]
fn the_rules_above_read_arrays_and_maps_alike() {
    let array = json!(["BlockRemoved", [1], "GPU"]);
    let map = json!({"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"});
    assert_eq!(named_fields(&array), map);
}
