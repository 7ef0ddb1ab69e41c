//! What decoding holds in memory is bounded by the length of the input, whatever the input declares.
//!
//! The allocator counts the whole process, so this file has one test and nothing runs beside it.

mod fixture;
mod wire;

use kvtide_events::{Engine, Frame};
use peak_alloc::PeakAlloc;
use proptest::{prelude::*, test_runner::TestRunner};
use rmpv::Value;
use wire::{array, map, pack};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// As the documentation of the crate promises.
const BYTES_FOR_EACH_BYTE: usize = 64;
/// For the first allocation of each list, which holds at least four elements.
const CONSTANT: usize = 1024;
const ENGINE: Engine = Engine { block_size: 1, adapter_names: std::collections::BTreeMap::new() };

/// The most that `decode` has allocated at any time, in bytes.
fn peak<T>(decode: impl FnOnce() -> T) -> usize {
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    let result = decode();
    let peak = ALLOCATOR.peak_usage() - before;
    drop(result);
    peak
}

fn check(name: &str, bytes: &[u8]) {
    let limit = BYTES_FOR_EACH_BYTE * bytes.len() + CONSTANT;
    let engine16 = Engine { block_size: 16, ..ENGINE };
    let peaks = [
        ("frame", peak(|| Frame::decode(bytes))),
        ("batch", peak(|| ENGINE.decode(bytes))),
        ("batch in blocks of 16", peak(|| engine16.decode(bytes))),
    ];
    for (format, peak) in peaks {
        assert!(peak <= limit, "{name} as a {format}: {peak} bytes of memory for {} of input", bytes.len());
    }
}

fn inputs() -> Vec<Vec<u8>> {
    let rows = ["dynamo_frames.jsonl", "engine_batches.jsonl"].iter().flat_map(|file| fixture::rows(file));
    rows.map(|row| fixture::bytes(&row)).collect()
}

#[test]
fn decoding_holds_at_most_64_bytes_for_each_byte_of_input() {
    let counted = peak(|| vec![0_u8; 1000]);
    assert_eq!(counted, 1000, "the allocator counts");
    check_declared_lengths();
    check_densest_inputs();
    check_arbitrary_changes();
}

fn check_declared_lengths() {
    for (row, input) in inputs().into_iter().enumerate() {
        for offset in 0..=input.len() {
            // Longer than the input, and exactly as long as the input allows.
            for head in [0xdb_u8, 0xc6, 0xc9, 0xdd, 0xdf] {
                let bytes = [&input[..offset], &[head, 0xff, 0xff, 0xff, 0xff], &input[offset..]].concat();
                check(&format!("row {row}, byte {offset}, head {head:#x}"), &bytes);
            }
            for filling in [0x00_u8, 0x80, 0x90, 0xa0, 0xc0, 0xc1] {
                let bytes = [&input[..offset], &[0xdc, 0x08, 0x00], &[filling; 0x0800]].concat();
                check(&format!("row {row}, byte {offset}, filling {filling:#x}"), &bytes);
            }
        }
    }
}

/// The densest input of each kind: the most memory for the fewest bytes.
fn dense(count: usize) -> Vec<(&'static str, Vec<u8>)> {
    let events = |event: Value| wire::batch(vec![event; count]);
    let root = |names: Value, tokens: Value, keys: Value| {
        let fields = [
            Value::from("BlockStored"),
            names,
            Value::Nil,
            tokens,
            Value::Nil,
            Value::Nil,
            Value::Nil,
            Value::Nil,
            keys,
        ];
        array(fields)
    };
    let ones = || array(vec![1; count]);
    let pair = array([1, 1]);
    let router = |event: Value| map([("worker_id", 1.into()), ("event", event)]);
    let numbered = |data: Value| map([("event_id", 1.into()), ("data", data)]);
    let frame = |events: Vec<Value>| wire::frame(1, 0, 0, pack(&array(events)));
    let block = map([("block_hash", 1.into()), ("tokens_hash", 1.into())]);
    let stored = |blocks: Vec<Value>| numbered(map([("stored", map([("blocks", array(blocks))]))]));
    let removed = |names: Value| numbered(map([("removed", map([("block_hashes", names)]))]));
    let window = |tokens: usize| {
        map([
            ("group_idx", 1.into()),
            ("kv_cache_spec_kind", "x".into()),
            ("kv_cache_spec_sliding_window", tokens.into()),
            ("type", "AllBlocksCleared".into()),
        ])
    };
    vec![
        ("clears", events(array(["AllBlocksCleared"]))),
        ("empty events", events(array::<Value>([]))),
        ("removals of nothing", events(array([Value::from("BlockRemoved"), array::<Value>([])]))),
        ("stores of nothing", events(array([Value::from("BlockStored"), array::<Value>([])]))),
        ("stores of one block", events(root(array([1]), array([1]), Value::Nil))),
        ("stores of one pair", events(root(array([1]), array([pair.clone()]), Value::Nil))),
        ("media, one a store", events(root(array([1]), array([1]), array([array([1])])))),
        ("names", wire::batch([array([Value::from("BlockRemoved"), ones()])])),
        ("tokens", wire::batch([root(ones(), ones(), Value::Nil)])),
        ("pairs", wire::batch([root(ones(), array(vec![pair; count]), Value::Nil)])),
        ("keys of one block", wire::batch([root(array([1]), array([1]), array([ones()]))])),
        ("keys of many blocks", wire::batch([root(array([1]), array([1]), array(vec![array([1]); count]))])),
        ("windows", wire::batch((0..count).map(window))),
        ("router clears", frame(vec![router(numbered("cleared".into())); count])),
        ("router stores of one", frame(vec![router(stored(vec![block.clone()])); count])),
        ("router stores of nothing", frame(vec![router(stored(vec![])); count])),
        ("router removals of nothing", frame(vec![router(removed(array::<Value>([]))); count])),
        ("router blocks", frame(vec![router(stored(vec![block; count]))])),
        ("router names", frame(vec![router(removed(ones()))])),
        ("unknown router events", frame(vec![router(numbered("x".into())); count])),
    ]
}

fn check_densest_inputs() {
    // One more than a power of two: a list that has just grown to twice its length.
    for count in [1, 5, 33, 1_025, 4_097, 40_000] {
        for (name, bytes) in dense(count) {
            check(&format!("{count} {name}"), &bytes);
        }
    }
}

fn check_arbitrary_changes() {
    let dense = dense(40).into_iter().map(|(_, bytes)| bytes);
    let input = prop::sample::select(inputs().into_iter().chain(dense).collect::<Vec<_>>());
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let config = ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() };
    let checked = TestRunner::new(config).run(&(input, changes), |(mut bytes, changes)| {
        for (place, byte) in changes {
            let offset = place.index(bytes.len());
            bytes[offset] = byte;
        }
        check("changed", &bytes);
        Ok(())
    });
    checked.expect("within the bound");
}
