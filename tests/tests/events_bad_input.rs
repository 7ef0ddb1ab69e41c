//! Input that is cut, corrupted or hostile: never a panic, and errors that say where and what but show no content.

mod fixture;
mod wire;

use kvtide_events::{DecodeError, Engine, Frame, Problem};
use proptest::prelude::*;
use rmpv::Value;
use wire::{array, map, pack};

const ENGINE: Engine = Engine { block_size: 16, adapter_names: std::collections::BTreeMap::new() };

/// What stands in the hand-made inputs wherever content can stand, and in no error.
const CANARY: &str = "canary";
const CANARY_NUMBER: u32 = 3_141_592_653;

/// Every recorded input, and some hand-made ones full of canaries.
fn inputs() -> Vec<Vec<u8>> {
    let mut inputs: Vec<Vec<u8>> = ["dynamo_frames.jsonl", "engine_batches.jsonl"]
        .iter()
        .flat_map(|file| fixture::rows(file))
        .map(|row| fixture::bytes(&row))
        .collect();
    inputs.push(canary_frame());
    inputs.push(canary_batch());
    inputs
}

fn canary_frame() -> Vec<u8> {
    let block = || map([("block_hash", CANARY_NUMBER.into()), ("tokens_hash", CANARY_NUMBER.into())]);
    let stored = map([("parent_hash", CANARY_NUMBER.into()), ("blocks", array([block(), block()]))]);
    let event = map([("event_id", 1.into()), ("data", map([("stored", stored)])), ("dp_rank", 1.into())]);
    let router_event = map([
        ("worker_id", CANARY_NUMBER.into()),
        ("storage_tier", CANARY.into()),
        ("residency_domain", CANARY.into()),
        (CANARY, CANARY.into()),
        ("event", event),
    ]);
    wire::frame(u64::from(CANARY_NUMBER), 0, 0, pack(&array([router_event])))
}

fn canary_batch() -> Vec<u8> {
    let stored = map([
        ("type", "BlockStored".into()),
        ("block_hashes", array([CANARY_NUMBER, CANARY_NUMBER])),
        ("parent_block_hash", Value::Nil),
        ("token_ids", array([CANARY_NUMBER; 32])),
        ("block_size", 16.into()),
        ("lora_name", CANARY.into()),
        ("extra_keys", array([array([CANARY, CANARY]), array([CANARY])])),
        ("session_id", CANARY.into()),
    ]);
    wire::batch([stored, map([("type", CANARY.into()), (CANARY, CANARY.into())])])
}

/// Decodes as either format. What comes out does not matter; that it comes out does.
fn try_all(bytes: &[u8]) {
    check_error(bytes.len(), Frame::decode(bytes).map(drop));
    check_error(bytes.len(), ENGINE.decode(bytes).map(drop));
    let _ = Frame::cut(bytes);
}

fn check_error(length: usize, decoded: Result<(), DecodeError>) {
    let Err(error) = decoded else { return };
    assert!(error.offset() <= length, "{error}");
    let text = format!("{error} {error:?}");
    assert!(!text.contains(CANARY), "{text}");
}

/// Bytes that turn a value into one of every other kind and length, and neighbours of those.
const CORRUPT: [u8; 49] = [
    0x00, 0x01, 0x7f, 0x80, 0x81, 0x82, 0x8f, 0x90, 0x91, 0x92, 0x9f, 0xa0, 0xa1, 0xbf, 0xc0, 0xc1, 0xc2,
    0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xcb, 0xcc, 0xcd, 0xce, 0xcf, 0xd0, 0xd1, 0xd2, 0xd3,
    0xd4, 0xd6, 0xd8, 0xd9, 0xda, 0xdb, 0xdc, 0xdd, 0xde, 0xdf, 0xe0, 0xf0, 0xfe, 0xff, 0x2a,
];

#[test]
fn no_input_cut_anywhere_ends_the_process() {
    for input in inputs() {
        for length in 0..=input.len() {
            try_all(&input[..length]);
        }
    }
}

#[test]
fn no_byte_changed_to_any_kind_of_value_ends_the_process() {
    for input in inputs() {
        let mut bytes = input.clone();
        for offset in 0..input.len() {
            let flipped = (0..8).map(|bit| input[offset] ^ (1 << bit));
            for byte in CORRUPT.into_iter().chain(flipped) {
                bytes[offset] = byte;
                try_all(&bytes);
            }
            bytes[offset] = input[offset];
        }
    }
}

#[test]
fn no_error_shows_a_hash_or_a_token() {
    let too_large = array([
        "BlockStored".into(),
        array([CANARY_NUMBER]),
        CANARY_NUMBER.into(),
        array([u64::from(CANARY_NUMBER) << 32]),
    ]);
    let two_blocks = array(["BlockStored".into(), array([1, 2]), Value::Nil, array([CANARY_NUMBER; 16])]);
    let no_hash = array(["BlockStored".into(), array([Value::from(CANARY_NUMBER), CANARY.into()])]);
    let batches = [too_large, two_blocks, no_hash].map(|event| wire::batch([event]));
    for input in [canary_frame(), canary_batch()].iter().chain(&batches) {
        for length in 0..=input.len() {
            for error in [Frame::decode(&input[..length]).err(), ENGINE.decode(&input[..length]).err()] {
                let text =
                    format!("{error:?} {}", error.as_ref().map(ToString::to_string).unwrap_or_default());
                assert!(!text.contains("3141592653") && !text.contains(CANARY), "{text}");
                assert!(!text.contains(&(u64::from(CANARY_NUMBER) << 32).to_string()), "{text}");
            }
        }
    }
}

#[test]
fn no_declared_length_is_believed() {
    // Heads of strings, bytes, extensions, arrays and maps that claim four thousand million elements.
    for head in [0xdb_u8, 0xc6, 0xc9, 0xdd, 0xdf] {
        for input in inputs() {
            for offset in 0..input.len() {
                let mut bytes = input[..offset].to_vec();
                bytes.extend([head, 0xff, 0xff, 0xff, 0xff]);
                try_all(&bytes);
                bytes.extend(&input[offset..]);
                try_all(&bytes);
            }
        }
    }
    let batch = [0x92, 0x00, 0xdd, 0xff, 0xff, 0xff, 0xff];
    let error = ENGINE.decode(&batch).unwrap_err();
    assert_eq!((error.offset(), error.problem()), (7, &Problem::Truncated { needed: 0xffff_ffff, left: 0 }));
}

#[test]
fn values_nested_10_000_deep_are_passed_over_where_they_are_unknown() {
    let cleared = pack(&array(["AllBlocksCleared"]));
    for deep in [vec![0x91; 10_000], [0x81, 0xa1, b'k'].repeat(10_000)] {
        // In an unknown field, in an unknown event, and cut short.
        let unknown_field = [
            &[0x92, 0x00, 0x92, 0x82, 0xa4][..],
            b"type",
            &[0xa1, b'x', 0xa1, b'y'],
            &deep,
            &[0xc0],
            &cleared,
        ];
        let batch = ENGINE.decode(&unknown_field.concat()).unwrap();
        assert_eq!((batch.events.len(), batch.ignored.len()), (1, 1));
        let unknown_event = [&[0x92, 0x00, 0x92, 0x91][..], &deep, &[0xc0], &cleared];
        let batch = ENGINE.decode(&unknown_event.concat()).unwrap();
        assert_eq!((batch.events.len(), batch.ignored.len()), (1, 1));
        assert!(ENGINE.decode(&[&[0x92, 0x00, 0x91, 0x91][..], &deep].concat()).is_err());
        // Everywhere else.
        for input in inputs() {
            for offset in (0..input.len()).step_by(7) {
                let mut bytes = input[..offset].to_vec();
                bytes.extend(&deep);
                try_all(&bytes);
                bytes.extend(&input[offset..]);
                try_all(&bytes);
            }
        }
    }
}

#[test]
fn the_publisher_is_known_from_a_frame_cut_anywhere_behind_its_id() {
    let long: Vec<(Value, Value)> = std::iter::once(("publisher_id".into(), 7.into()))
        .chain((0..70_000).map(|field| (field.to_string().into(), Value::Nil)))
        .collect();
    for entries in [5, 16, 70_000] {
        let frame = pack(&Value::Map(long[..entries].to_vec()));
        let behind_id = frame.iter().position(|&byte| byte == 7).unwrap() + 1;
        for length in (behind_id..frame.len()).step_by(1 + entries / 100) {
            assert_eq!(
                Frame::cut(&frame[..length]).map(|cut| cut.publisher_id),
                Some(7),
                "{entries} entries, {length} bytes"
            );
        }
        for length in 0..behind_id {
            assert_eq!(
                Frame::cut(&frame[..length]).map(|cut| cut.publisher_id),
                None,
                "{entries} entries, {length} bytes"
            );
        }
    }
    let row = &fixture::rows("dynamo_frames.jsonl")[0];
    let (frame, publisher) = (fixture::bytes(row), row["publisher_id"].as_u64());
    for length in 23..=frame.len() {
        assert_eq!(Frame::cut(&frame[..length]).map(|cut| cut.publisher_id), publisher, "{length} bytes");
    }
}

#[test]
fn an_error_says_where_it_is_what_was_expected_and_what_was_got() {
    let text = |bytes: &[u8]| Frame::decode(bytes).unwrap_err().to_string();
    assert_eq!(text(&[]), "byte 0: the input ends early: 1 needed, 0 bytes left");
    assert_eq!(text(&[0x93, 0, 0, 0]), "byte 1: expected a frame (a map), got an array");
    assert_eq!(text(&[0x80]), "byte 1: `publisher_id` is missing");
    assert_eq!(text(&[0x81, 0xc1, 0]), "byte 2: expected a value, got the reserved byte 0xc1");

    let text = |event: Value| ENGINE.decode(&wire::batch([event])).unwrap_err().to_string();
    assert_eq!(text(Value::Nil), "byte 12: expected an event (an array or a map), got nil");
    assert_eq!(text(array(["BlockRemoved"])), "byte 25: `block_hashes` is missing");
    let stored = |names: Value, tokens: Value| array(["BlockStored".into(), names, Value::Nil, tokens]);
    assert_eq!(text(stored(array([1.5]), Value::Nil)), "byte 34: expected a sequence hash, got a float");
    assert_eq!(
        text(stored(array([Value::Binary(vec![1])]), Value::Nil)),
        "byte 28: expected a hash of at least 8 bytes, got 1"
    );
    assert_eq!(
        text(stored(array([1]), array([u64::MAX]))),
        "byte 37: expected a token id, below 2^32, got a larger integer"
    );
    assert_eq!(
        text(stored(array([1]), array(["x"]))),
        "byte 30: expected a token id, or a pair of them, got a string"
    );
    assert_eq!(text(stored(array([1]), array([1]))), "byte 29: 1 blocks of 16 tokens need 16 tokens, got 1");
    let rank = pack(&array([0.into(), array::<Value>([]), Value::from(-1)]));
    let error = ENGINE.decode(&rank).unwrap_err().to_string();
    assert_eq!(error, "byte 4: `data_parallel_rank` is 18446744073709551615, at most 4294967295 is possible");
}

#[test]
fn an_offset_counts_from_the_start_of_the_frame_in_its_payload_too() {
    let frame = wire::frame(7, 0, 0, pack(&array([map([("worker_id", "seven".into())])])));
    let error = Frame::decode(&frame).unwrap_err();
    let expected = Problem::Unexpected { expected: "the worker's id", got: "a string" };
    assert_eq!((error.offset(), error.problem()), (frame.len(), &expected));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn arbitrary_bytes_never_end_the_process(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        try_all(&bytes);
    }

    #[test]
    fn arbitrary_values_in_the_place_of_any_never_end_the_process(
        input in prop::sample::select(inputs()),
        place: prop::sample::Index,
        removed in 0..20_usize,
        value in value(),
    ) {
        let from = place.index(input.len());
        let to = (from + removed).min(input.len());
        try_all(&[&input[..from], &pack(&value), &input[to..]].concat());
    }

    #[test]
    fn events_of_known_kinds_with_arbitrary_fields_never_end_the_process(
        kind in prop::sample::select(vec!["BlockStored", "BlockRemoved", "AllBlocksCleared"]),
        fields in prop::collection::vec((field_name(), value()), 0..12),
    ) {
        let array_event = [Value::from(kind)].into_iter().chain(fields.iter().map(|(_, value)| value.clone()));
        try_all(&wire::batch([array(array_event)]));
        let named = fields.into_iter().map(|(name, value)| (Value::from(name), value));
        let map_event = [("type".into(), kind.into())].into_iter().chain(named);
        try_all(&wire::batch([Value::Map(map_event.collect())]));
    }
}

fn field_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "cache_salt",
        "locality",
        "ownership",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
        "unknown",
    ])
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0..40_u64).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-zA-Z_]{0,20}".prop_map(Value::from),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::Binary),
        prop::collection::vec(any::<u8>(), 0..20).prop_map(|bytes| Value::Ext(3, bytes)),
    ];
    leaf.prop_recursive(4, 40, 20, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..20).prop_map(Value::Array),
            prop::collection::vec((inner.clone(), inner), 0..6).prop_map(Value::Map),
        ]
    })
}
