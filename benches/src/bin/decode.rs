//! How fast frames and batches decode, beside the types of `dynamo-kv-router` read by `rmp-serde`.
//!
//! The peer's frame is borrowed from the input, which is kinder to it than its own runtime is. Both sides build
//! their events and drop them again.

use std::{hint::black_box, path::PathBuf, time::Duration};

use clap::Parser;
use dynamo_kv_router::{protocols as dynamo, zmq_wire};
use kvtide::capture::Capture;
use kvtide_benches::{Timing, rounds};
use kvtide_events::{Engine, Frame};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};

/// Decodes frames of several shapes, and the batches of a recorded engine.
#[derive(Parser)]
struct Settings {
    /// Rounds that each side runs, in turns.
    #[arg(long, default_value_t = 21)]
    rounds: usize,
    /// Length of a round, in milliseconds.
    #[arg(long, default_value_t = 20)]
    round_ms: u64,
    /// The capture whose batches are decoded.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/captures/vllm033_int_cbor"))]
    capture: PathBuf,
    /// Only cases whose names contain this.
    #[arg(long, default_value = "")]
    case: String,
    /// Print one JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
}

/// Inputs of one kind. One call of a contestant decodes all of them.
struct Case {
    name: String,
    inputs: Vec<Vec<u8>>,
    /// Blocks that all inputs store or remove.
    blocks: usize,
}

/// One side's figures for one case.
#[derive(Serialize)]
struct Figures {
    frames_per_second: f64,
    megabytes_per_second: f64,
    blocks_per_second: f64,
    /// Half the distance between the quartiles of the rounds, as a part of the median.
    spread: f64,
}

#[derive(Serialize)]
struct Row {
    case: String,
    bytes_per_frame: usize,
    kvtide: Figures,
    peer: Figures,
    /// How many times as many frames kvtide decodes in the same time.
    ratio: f64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let settings = Settings::parse();
    let mut rows = Vec::new();
    for case in frames().into_iter().filter(|case| case.name.contains(&settings.case)) {
        rows.push(time_frames(&settings, &case));
    }
    if "engine batches".contains(&settings.case) {
        rows.push(time_batches(&settings, &Capture::load(&settings.capture)?));
    }
    if settings.json {
        for row in &rows {
            println!("{}", serde_json::to_string(row)?);
        }
    } else {
        print_table(&rows);
    }
    Ok(())
}

/// The map around a frame's events.
#[derive(Deserialize)]
struct PeerFrame<'a> {
    publisher_id: u64,
    sequence: u64,
    published_at: u64,
    topic: &'a str,
    payload: &'a [u8],
}

fn decode_as_peer(bytes: &[u8]) -> Option<(u64, Vec<dynamo::RouterEvent>)> {
    let frame: PeerFrame<'_> = rmp_serde::from_slice(bytes).ok()?;
    let events = rmp_serde::from_slice(frame.payload).ok()?;
    black_box((frame.sequence, frame.published_at, frame.topic));
    Some((frame.publisher_id, events))
}

fn time_frames(settings: &Settings, case: &Case) -> Row {
    for input in &case.inputs {
        let (ours, theirs) = (Frame::decode(input), decode_as_peer(input));
        let events = (ours.map(|frame| frame.events.len()).ok(), theirs.map(|(_, events)| events.len()));
        assert!(events.0.is_some() && events.0 == events.1, "{}: {events:?} events", case.name);
    }
    let mut ours = || case.inputs.iter().for_each(|input| drop(black_box(Frame::decode(input))));
    let mut theirs = || case.inputs.iter().for_each(|input| drop(black_box(decode_as_peer(input))));
    row(settings, case, &mut ours, &mut theirs)
}

fn time_batches(settings: &Settings, capture: &Capture) -> Row {
    let adapter_names = capture.adapter_ids.iter().map(|(name, &id)| (id, name.clone())).collect();
    let engine = Engine { block_size: capture.block_size, adapter_names };
    let inputs: Vec<Vec<u8>> = capture.workers.concat().into_iter().map(|message| message.payload).collect();
    let blocks = inputs
        .iter()
        .filter_map(|input| zmq_wire::decode_event_batch(input).ok())
        .map(|batch| peer_blocks(&batch));
    let case = Case { name: format!("engine batches, {}", capture.name), blocks: blocks.sum(), inputs };
    for input in &case.inputs {
        assert!(engine.decode(input).is_ok(), "{}", case.name);
        assert!(zmq_wire::decode_event_batch(input).is_ok(), "{}: the peer refuses it", case.name);
    }
    let mut ours = || case.inputs.iter().for_each(|input| drop(black_box(engine.decode(input))));
    let mut theirs =
        || case.inputs.iter().for_each(|input| drop(black_box(zmq_wire::decode_event_batch(input))));
    row(settings, &case, &mut ours, &mut theirs)
}

fn peer_blocks(batch: &zmq_wire::KvEventBatch) -> usize {
    let blocks = batch.events.iter().map(|event| match event {
        zmq_wire::RawKvEvent::BlockStored { block_hashes, .. }
        | zmq_wire::RawKvEvent::BlockRemoved { block_hashes, .. } => block_hashes.len(),
        zmq_wire::RawKvEvent::AllBlocksCleared { .. } | zmq_wire::RawKvEvent::Ignored => 0,
    });
    blocks.sum()
}

fn row(settings: &Settings, case: &Case, ours: &mut dyn FnMut(), theirs: &mut dyn FnMut()) -> Row {
    let length = Duration::from_millis(settings.round_ms);
    let timings = rounds(settings.rounds, length, &mut [ours, theirs]);
    let bytes: usize = case.inputs.iter().map(Vec::len).sum();
    let per_second = |count: usize, timing: Timing| count as f64 / timing.median;
    let figures = |timing: Timing| Figures {
        frames_per_second: per_second(case.inputs.len(), timing),
        megabytes_per_second: per_second(bytes, timing) / 1e6,
        blocks_per_second: per_second(case.blocks, timing),
        spread: timing.spread,
    };
    Row {
        case: case.name.clone(),
        bytes_per_frame: bytes / case.inputs.len(),
        kvtide: figures(timings[0]),
        peer: figures(timings[1]),
        ratio: timings[1].median / timings[0].median,
    }
}

fn print_table(rows: &[Row]) {
    println!("{:42} {:>8}  {:>31}  {:>31}  {:>5}", "", "", "kvtide", "dynamo-kv-router, rmp-serde", "");
    let heads = ("kframe/s", "MB/s", "Mblock/s");
    let (frames, bytes, blocks) = heads;
    println!(
        "{:42} {:>8}  {frames:>10} {bytes:>10} {blocks:>9}  {frames:>10} {bytes:>10} {blocks:>9}  {:>5}",
        "case", "B/frame", "ratio"
    );
    for row in rows {
        print!("{:42} {:>8}", row.case, row.bytes_per_frame);
        for side in [&row.kvtide, &row.peer] {
            let (frames, blocks) = (side.frames_per_second / 1e3, side.blocks_per_second / 1e6);
            print!("  {frames:>10.1} {:>10.1} {blocks:>9.2}", side.megabytes_per_second);
        }
        println!("  {:>5.2}", row.ratio);
    }
}

/// Frames of the shapes that publishers send, of invented hashes.
fn frames() -> Vec<Case> {
    let mut random = StdRng::seed_from_u64(7);
    let mut case = |name: &str, frames: usize, events: usize, blocks: usize, removed: bool| {
        let inputs = (0..frames).map(|_| frame(&mut random, events, blocks, removed)).collect();
        Case { name: name.to_owned(), inputs, blocks: frames * events * blocks }
    };
    vec![
        case("1 event that stores 1 block", 256, 1, 1, false),
        case("1 event that stores 64 blocks", 64, 1, 64, false),
        case("128 events that store 8 blocks each", 16, 128, 8, false),
        case("1 event that removes 1 block", 256, 1, 1, true),
        case("1 event that removes 64 blocks", 64, 1, 64, true),
        case("128 events that remove 1 block each", 32, 128, 1, true),
    ]
}

fn frame(random: &mut StdRng, events: usize, blocks: usize, removed: bool) -> Vec<u8> {
    let events: Vec<dynamo::RouterEvent> = (0..events)
        .map(|number| {
            let data = if removed { remove(random, blocks) } else { store(random, blocks) };
            let event = dynamo::KvCacheEvent { event_id: 100_000 + number as u64, data, dp_rank: 0 };
            dynamo::RouterEvent::new(0x1a2b_3c4d_5e6f, event)
        })
        .collect();
    let payload = rmp_serde::to_vec_named(&events).expect("their own types");
    let mut frame = Vec::new();
    write_frame(&mut frame, &payload).expect("a vector takes everything");
    frame
}

fn store(random: &mut StdRng, blocks: usize) -> dynamo::KvCacheEventData {
    let mut block = || dynamo::KvCacheStoredBlockData {
        block_hash: dynamo::ExternalSequenceBlockHash(random.random()),
        tokens_hash: dynamo::LocalBlockHash(random.random()),
        mm_extra_info: None,
    };
    let parent_hash = Some(block().block_hash);
    let blocks = (0..blocks).map(|_| block()).collect();
    dynamo::KvCacheEventData::Stored(dynamo::KvCacheStoreData { parent_hash, start_position: None, blocks })
}

fn remove(random: &mut StdRng, blocks: usize) -> dynamo::KvCacheEventData {
    let block_hashes = (0..blocks).map(|_| dynamo::ExternalSequenceBlockHash(random.random())).collect();
    dynamo::KvCacheEventData::Removed(dynamo::KvCacheRemoveData { block_hashes })
}

/// The map around the payload, as dynamo-runtime writes it.
fn write_frame(out: &mut Vec<u8>, payload: &[u8]) -> Result<(), rmp::encode::ValueWriteError> {
    rmp::encode::write_map_len(out, 5)?;
    for (name, number) in
        [("publisher_id", 0x1a2b_3c4d_5e6f_u64), ("sequence", 90_000), ("published_at", 1_700_000_000_123)]
    {
        rmp::encode::write_str(out, name)?;
        rmp::encode::write_uint(out, number)?;
    }
    rmp::encode::write_str(out, "topic")?;
    rmp::encode::write_str(out, "kv-events")?;
    rmp::encode::write_str(out, "payload")?;
    rmp::encode::write_bin(out, payload)
}
