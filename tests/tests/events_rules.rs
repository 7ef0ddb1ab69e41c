//! What the fields of frames and batches mean, and what is passed over without harm to the rest.

mod wire;

use dynamo_kv_router::protocols::hash_mm_identifier;
use kvtide_events::{Batch, Engine, Frame, Ignored, Problem};
use kvtide_radix::{
    Block, BlockHash, Blocks, Event, Group, Layer, Removed, Seed, SequenceHash, Stored, Tier, TokenBlocks,
    Window,
};
use rmpv::Value;
use wire::{array, map, pack};

const ENGINE: Engine = Engine { block_size: 2, adapter_names: std::collections::BTreeMap::new() };

/// A router event of one stored block, with another tier and domain where they are given.
fn stored(event_id: u64, further: &[(&str, Value)]) -> Value {
    let block = map([("block_hash", event_id.into()), ("tokens_hash", 5.into())]);
    let data = map([("stored", map([("parent_hash", Value::Nil), ("blocks", array([block]))]))]);
    router_event(event_id, data, further)
}

fn router_event(event_id: u64, data: Value, further: &[(&str, Value)]) -> Value {
    let event = map([("event_id", event_id.into()), ("data", data), ("dp_rank", 1.into())]);
    let mut entries: Vec<(Value, Value)> = vec![("worker_id".into(), 9.into())];
    entries.extend(further.iter().map(|(name, value)| ((*name).into(), value.clone())));
    entries.push(("event".into(), event));
    Value::Map(entries)
}

fn changes(events: &[Value]) -> Vec<Result<Event, Ignored>> {
    let frame = wire::frame(1, 0, 0, pack(&array(events.to_vec())));
    let events = Frame::decode(&frame).expect("a well-formed frame").events;
    events.into_iter().map(|event| event.change).collect()
}

fn held(event_id: u64, tier: Tier) -> Result<Event, Ignored> {
    let block = Block { name: SequenceHash(event_id), content: BlockHash(5) };
    let layer = Layer::new(tier, Group::FULL);
    Ok(Event::Stored(Stored { layer, parent: None, blocks: Blocks::Hashed(vec![block]) }))
}

#[test]
fn an_unknown_tier_does_not_drop_the_rest_of_the_frame() {
    let unknown =
        [Value::from("memory_pool"), Value::from(3), array([1]), map([("a", map([("b", 1.into())]))])];
    for tier in unknown {
        let got = changes(&[stored(1, &[]), stored(2, &[("storage_tier", tier)]), stored(3, &[])]);
        assert_eq!(got, [held(1, Tier::Gpu), Err(Ignored::UnknownTier), held(3, Tier::Gpu)]);
    }
}

#[test]
fn tiers_have_their_words_and_the_default_is_the_gpu() {
    let rows = [
        (Value::from("device"), Tier::Gpu),
        (Value::from("host_pinned"), Tier::Host),
        (Value::from("disk"), Tier::Disk),
        (Value::from("external"), Tier::External),
        (Value::Nil, Tier::Gpu),
    ];
    for (word, tier) in rows {
        assert_eq!(changes(&[stored(1, &[("storage_tier", word)])]), [held(1, tier)]);
    }
    assert_eq!(changes(&[stored(1, &[])]), [held(1, Tier::Gpu)]);
}

#[test]
fn only_what_the_worker_itself_holds_counts() {
    let rows = [
        (Value::from("worker"), held(1, Tier::Gpu)),
        (Value::from("cache_owner"), Err(Ignored::OtherResidency)),
        (Value::from("another"), Err(Ignored::UnknownResidency)),
        (Value::Nil, Err(Ignored::UnknownResidency)),
        (array([1]), Err(Ignored::UnknownResidency)),
    ];
    for (domain, expected) in rows {
        assert_eq!(changes(&[stored(1, &[("residency_domain", domain)])]), [expected]);
    }
}

#[test]
fn a_dynamo_clear_ignores_the_tier_but_not_the_domain() {
    let cleared = |further: &[(&str, Value)]| changes(&[router_event(1, "cleared".into(), further)]);
    assert_eq!(cleared(&[]), [Ok(Event::Cleared)]);
    assert_eq!(cleared(&[("storage_tier", "disk".into())]), [Ok(Event::Cleared)]);
    assert_eq!(cleared(&[("storage_tier", "memory_pool".into())]), [Ok(Event::Cleared)]);
    assert_eq!(cleared(&[("residency_domain", "worker".into())]), [Ok(Event::Cleared)]);
    assert_eq!(cleared(&[("residency_domain", "cache_owner".into())]), [Err(Ignored::OtherResidency)]);
    assert_eq!(cleared(&[("residency_domain", Value::Nil)]), [Err(Ignored::UnknownResidency)]);
}

#[test]
fn a_block_is_the_same_in_whichever_way_it_is_written() {
    let (name, content) = (u64::MAX - 1, 1_u64 << 63);
    let binary = |hash: u64| Value::Binary(hash.to_be_bytes().to_vec());
    let [n, c, m] =
        [("block_hash", name.into()), ("tokens_hash", content.into()), ("mm_extra_info", Value::Nil)];
    let usual = map([n.clone(), c.clone(), m.clone()]);
    let rows = [
        map([c.clone(), n.clone(), m.clone()]),
        map([n.clone(), c.clone(), ("mm_extra_info", map([("mm_objects", array([1]))]))]),
        map([n.clone(), c.clone(), ("mm_other_info", Value::Nil)]),
        map([n, c]),
        map([("block_hash", binary(name)), ("tokens_hash", binary(content)), m]),
    ];
    let blocks = array(rows.into_iter().flat_map(|row| [usual.clone(), row]));
    let got = changes(&[router_event(1, map([("stored", map([("blocks", blocks)]))]), &[])]);
    let expected = vec![Block { name: SequenceHash(name), content: BlockHash(content) }; 10];
    assert!(
        matches!(&got[..], [Ok(Event::Stored(Stored { blocks: Blocks::Hashed(blocks), .. }))] if *blocks == expected)
    );
}

#[test]
fn blocks_behind_others_of_which_none_is_named_are_no_start_of_a_prompt() {
    let stored = |parent: Value, position: Value| {
        let block = map([("block_hash", 1.into()), ("tokens_hash", 5.into())]);
        let data = map([("parent_hash", parent), ("start_position", position), ("blocks", array([block]))]);
        changes(&[router_event(1, map([("stored", data)]), &[])])
    };
    assert_eq!(stored(Value::Nil, 3.into()), [Err(Ignored::Unplaced)]);
    assert_eq!(stored(Value::Nil, 0.into()), [held(1, Tier::Gpu)]);
    assert_eq!(stored(Value::Nil, Value::Nil), [held(1, Tier::Gpu)]);
    assert!(matches!(stored(7.into(), 3.into())[..], [Ok(Event::Stored(Stored { parent: Some(_), .. }))]));
}

#[test]
fn unknown_dynamo_events_keep_their_number_and_harm_nothing() {
    let further = [("some_new_field", array([map([("x", 1.into())])])), ("session_id", "s".into())];
    let moved = map([("moved", map([("from", 1.into())]))]);
    let frame = wire::frame(
        1,
        0,
        0,
        pack(&array([
            router_event(7, moved, &[]),
            router_event(8, "paused".into(), &[]),
            stored(9, &further),
        ])),
    );
    let events = Frame::decode(&frame).unwrap().events;
    assert_eq!(events.iter().map(|event| event.event_id).collect::<Vec<_>>(), [7, 8, 9]);
    let got: Vec<_> = events.into_iter().map(|event| event.change).collect();
    assert_eq!(got, [Err(Ignored::UnknownEvent), Err(Ignored::UnknownEvent), held(9, Tier::Gpu)]);
}

fn decode(events: impl IntoIterator<Item = Value>) -> Batch {
    ENGINE.decode(&wire::batch(events)).expect("a well-formed batch")
}

fn problem(event: Value) -> Problem {
    ENGINE.decode(&wire::batch([event])).expect_err("a fault").problem().clone()
}

/// A map event that stores the blocks 1 and 2 of the tokens 10 to 13, changed by `further`.
fn engine_stored(further: &[(&str, Value)]) -> Value {
    let mut entries: Vec<(Value, Value)> = vec![
        ("type".into(), "BlockStored".into()),
        ("block_hashes".into(), array([1, 2])),
        ("parent_block_hash".into(), Value::Nil),
        ("token_ids".into(), array(10..14)),
        ("block_size".into(), 2.into()),
    ];
    for (name, value) in further {
        let name = Value::from(*name);
        entries.retain(|(known, _)| *known != name);
        entries.push((name, value.clone()));
    }
    Value::Map(entries)
}

/// The blocks of the only event.
fn blocks(event: Value) -> TokenBlocks {
    match decode([event]).events.as_slice() {
        [Event::Stored(Stored { blocks: Blocks::Tokens(blocks), .. })] => blocks.clone(),
        other => unreachable!("{other:?} are not blocks with tokens"),
    }
}

fn seed(further: &[(&str, Value)]) -> Seed {
    blocks(engine_stored(further)).root_seed
}

fn media_hash(identifier: &str) -> u64 {
    hash_mm_identifier(identifier).expect("a name")
}

#[test]
fn unknown_engine_events_and_fields_harm_nothing() {
    let cleared = || array(["AllBlocksCleared"]);
    let unknown = [
        map([("type", "BlockMoved".into()), ("block_hashes", "not a list".into()), ("medium", 5.into())]),
        map([("block_hashes", "not a list".into()), ("type", "BlockMoved".into())]),
        map([("type", 5.into()), ("block_size", array([1]))]),
        map([]),
        array(["BlockMoved", "x"]),
        array([5]),
        array::<Value>([]),
    ];
    for event in unknown {
        let got = decode([cleared(), event.clone(), engine_stored(&[("new", map([("a", array([1]))]))])]);
        assert_eq!(got.events.len(), 2, "{event}");
        assert_eq!(got.ignored, [Ignored::UnknownEvent], "{event}");
    }
}

#[test]
fn shorter_and_longer_arrays_are_read_as_far_as_they_are_known() {
    let names = || array([1, 2]);
    let gpu = Event::Removed(Removed { layer: Layer::GPU, names: vec![SequenceHash(1), SequenceHash(2)] });
    let further = array([9]);
    let rows = [
        array(["BlockRemoved".into(), names()]),
        array(["BlockRemoved".into(), names(), "GPU".into()]),
        array(["BlockRemoved".into(), names(), Value::Nil, 0.into(), further.clone(), "x".into()]),
    ];
    for row in rows {
        assert_eq!(decode([row]).events, std::slice::from_ref(&gpu));
    }

    let mut stored: Vec<Value> =
        vec!["BlockStored".into(), names(), Value::Nil, array(10..14), 2.into(), Value::Nil];
    let expected = decode([engine_stored(&[])]).events;
    assert_eq!(decode([array(stored[..5].to_vec())]).events, expected);
    stored.extend([
        Value::Nil,
        Value::Nil,
        Value::Nil,
        0.into(),
        "full_attention".into(),
        Value::Nil,
        further,
    ]);
    for length in 6..=stored.len() {
        assert_eq!(decode([array(stored[..length].to_vec())]).events, expected, "{length}");
    }

    let cleared = || array([array(["AllBlocksCleared"])]);
    for (row, dp_rank) in [
        (vec![1.into(), cleared()], None),
        (vec![1.into(), cleared(), 3.into()], Some(3)),
        (vec![1.into(), cleared(), 3.into(), array([1]), "x".into()], Some(3)),
    ] {
        let got = ENGINE.decode(&pack(&array(row))).unwrap();
        assert_eq!((got.published_at_s, got.dp_rank, got.events), (1.0, dp_rank, vec![Event::Cleared]));
    }
}

#[test]
fn a_batch_may_be_a_map_with_its_fields_in_any_order() {
    let events = || array([array(["AllBlocksCleared"])]);
    let full =
        map([("x", array([1])), ("data_parallel_rank", 4.into()), ("events", events()), ("ts", 2.5.into())]);
    let expected =
        Batch { published_at_s: 2.5, dp_rank: Some(4), events: vec![Event::Cleared], ..Batch::default() };
    assert_eq!(ENGINE.decode(&pack(&full)), Ok(expected));

    let missing = |batch: Value| ENGINE.decode(&pack(&batch)).unwrap_err().problem().clone();
    assert_eq!(missing(map([("ts", 2.5.into())])), Problem::Missing { field: "events" });
    assert_eq!(missing(map([("events", events())])), Problem::Missing { field: "ts" });
    // A frame of the other format is not an empty batch.
    let frame = wire::frame(1, 0, 0, pack(&array([stored(1, &[])])));
    assert_eq!(ENGINE.decode(&frame).unwrap_err().problem(), &Problem::Missing { field: "ts" });
}

#[test]
fn a_block_size_that_differs_from_the_scopes_is_refused_with_both() {
    let got = problem(engine_stored(&[("block_size", 16.into())]));
    assert_eq!(got, Problem::BlockSize { expected: 2, got: 16 });
    assert_eq!(got.to_string(), "blocks of 16 tokens in a scope of 2-token blocks");
}

#[test]
fn tokens_that_do_not_fill_their_blocks_are_refused() {
    for (tokens, got) in [(10..13, 3), (10..15, 5)] {
        let refused = problem(engine_stored(&[("token_ids", array(tokens))]));
        assert_eq!(refused, Problem::TokenCount { blocks: 2, block_size: 2, expected: 4, got });
    }
}

#[test]
fn hashes_that_an_event_always_has_are_missed() {
    for kind in ["BlockStored", "BlockRemoved"] {
        assert_eq!(problem(map([("type", kind.into())])), Problem::Missing { field: "block_hashes" });
        assert_eq!(problem(array([kind])), Problem::Missing { field: "block_hashes" });
    }
}

#[test]
fn a_salt_stands_only_in_the_first_block_at_a_root() {
    let keys = || array([array(["salt"]), array(["word"])]);
    let at_root = blocks(engine_stored(&[("extra_keys", keys())]));
    assert_eq!(at_root.root_seed, Seed::of(None, Some("salt")));
    assert_eq!(at_root.media, [(1, media_hash("word"))]);

    let behind = blocks(engine_stored(&[("parent_block_hash", 7.into()), ("extra_keys", keys())]));
    assert_eq!(behind.root_seed, Seed::PLAIN);
    assert_eq!(behind.media, [(0, media_hash("salt")), (1, media_hash("word"))]);
}

#[test]
fn a_salt_may_have_a_field_of_its_own_or_a_mark() {
    let salted = Seed::of(None, Some("t"));
    let marked = || array([array(["dynamo-cache-salt:t"])]);
    assert_eq!(seed(&[("cache_salt", "t".into())]), salted);
    assert_eq!(seed(&[("extra_keys", marked())]), salted);
    assert_eq!(seed(&[("extra_keys", array([array(["t"])]))]), salted);
    // An empty salt is none, and does not hide the other.
    assert_eq!(seed(&[("cache_salt", "".into())]), Seed::PLAIN);
    assert_eq!(seed(&[("cache_salt", "".into()), ("extra_keys", marked())]), salted);
    assert_eq!(seed(&[("extra_keys", array([array(["dynamo-cache-salt:"])]))]), Seed::PLAIN);

    // Some SGLang versions write it in an array, in the place of the adapter's name.
    let fields: [Value; 7] =
        ["BlockStored".into(), array([1]), Value::Nil, array([10, 11]), 2.into(), Value::Nil, "GPU".into()];
    let event = array(fields.into_iter().chain([map([("cache_salt", "t".into()), ("x", 1.into())])]));
    assert_eq!(blocks(event).root_seed, salted);
}

#[test]
fn a_salt_may_equal_the_adapters_name_and_fields_may_come_in_any_order() {
    let keys = || array([array(["a", "a"]), array(["a"])]);
    for fields in [
        [("extra_keys", keys()), ("lora_name", "a".into())],
        [("lora_name", "a".into()), ("extra_keys", keys())],
    ] {
        let got = blocks(engine_stored(&fields));
        assert_eq!(got.root_seed, Seed::of(Some("a"), Some("a")));
        assert_eq!(got.media, []);
    }
    assert_eq!(
        seed(&[("extra_keys", array([array(["a"])])), ("lora_name", "a".into())]),
        Seed::of(Some("a"), None)
    );
}

#[test]
fn a_digest_is_a_salt_where_media_have_offsets_and_a_medium_where_they_may_not() {
    let digest = "0123456789abcdef".repeat(4);
    let keys = || array([array([digest.as_str()])]);
    assert_eq!(seed(&[("extra_keys", keys())]), Seed::of(None, Some(&digest)));

    let fields: [Value; 8] = [
        "BlockStored".into(),
        array([1]),
        Value::Nil,
        array([10, 11]),
        2.into(),
        Value::Nil,
        Value::Nil,
        Value::Nil,
    ];
    let got = blocks(array(fields.into_iter().chain([keys()])));
    assert_eq!((got.root_seed, got.media), (Seed::PLAIN, vec![(0, 0x0123_4567_89ab_cdef)]));
}

#[test]
fn an_adapter_announced_by_number_has_the_name_that_is_set_for_it() {
    let named = Engine { adapter_names: [(3, "sql".to_owned())].into(), ..ENGINE };
    let seed_of = |engine: &Engine, number: Value, name: Value| {
        let event = engine_stored(&[("lora_id", number), ("lora_name", name)]);
        match engine.decode(&wire::batch([event])).unwrap().events.as_slice() {
            [Event::Stored(Stored { blocks: Blocks::Tokens(blocks), .. })] => blocks.root_seed,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(seed_of(&named, 3.into(), Value::Nil), Seed::of(Some("sql"), None));
    assert_eq!(seed_of(&named, 4.into(), Value::Nil), Seed::of(Some("lora_id=4"), None));
    assert_eq!(seed_of(&ENGINE, 3.into(), "".into()), Seed::of(Some("lora_id=3"), None));
    assert_eq!(seed_of(&named, 3.into(), "its own".into()), Seed::of(Some("its own"), None));
    assert_eq!(seed_of(&named, 0.into(), Value::Nil), Seed::PLAIN);
}

#[test]
fn media_enter_the_blocks_that_they_are_in_once_and_whatever_their_offset() {
    let digest = "0123456789abcdef".repeat(4);
    let key = |name: &str, offset: i64| array([Value::from(name), offset.into()]);
    let keys = array([array([key("cat", 3), key(&digest, -4), key("cat", 9)]), Value::Nil]);
    let got = blocks(engine_stored(&[("extra_keys", keys)]));
    let mut both = vec![(0, media_hash("cat")), (0, 0x0123_4567_89ab_cdef)];
    both.sort_unstable();
    assert_eq!((got.root_seed, got.media), (Seed::PLAIN, both));

    // Nothing that stands among the keys lets a block pass for plain text.
    for odd in [
        Value::Nil,
        5.into(),
        1.5.into(),
        Value::Binary(vec![1]),
        array::<Value>([]),
        map([("a", array([1]))]),
    ] {
        let got = blocks(engine_stored(&[("extra_keys", array([array([odd.clone()])]))]));
        assert_eq!((got.root_seed, got.media.len()), (Seed::PLAIN, 1), "{odd}");
    }
}

#[test]
fn mediums_have_their_words_in_any_case() {
    let rows: [(Tier, &[&str]); 4] = [
        (Tier::Gpu, &["", "GPU", "device"]),
        (Tier::Host, &["CPU", "cpu_pinned", "CPU_TIER1"]),
        (Tier::Disk, &["DISK", "Nvme", "STORAGE", "cpu_tier2"]),
        (Tier::External, &["EXTERNAL", "network", "REMOTE", "SHARED"]),
    ];
    let removed = |medium: Value| decode([array(["BlockRemoved".into(), array([1]), medium])]);
    for (tier, words) in rows {
        let expected =
            Event::Removed(Removed { layer: Layer::new(tier, Group::FULL), names: vec![SequenceHash(1)] });
        for word in words {
            assert_eq!(removed((*word).into()).events, std::slice::from_ref(&expected), "{word}");
        }
    }
    assert_eq!(removed("OBJ".into()).ignored, [Ignored::UnknownTier]);
}

#[test]
fn what_others_hold_is_passed_over_and_so_is_its_clear() {
    let rows = [("locality", "REMOTE"), ("ownership", "kvcr"), ("locality", "elsewhere")];
    for (field, word) in rows {
        let cleared = map([("type", "AllBlocksCleared".into()), (field, word.into())]);
        let got = decode([engine_stored(&[(field, word.into())]), cleared]);
        assert_eq!((got.events, got.ignored), (vec![], vec![Ignored::OtherResidency; 2]), "{field} {word}");
    }
    let ours = decode([engine_stored(&[("locality", "LOCAL".into()), ("ownership", "framework".into())])]);
    assert_eq!(ours.events, decode([engine_stored(&[])]).events);
}

#[test]
fn a_group_states_its_window_and_binds_no_content() {
    let in_group = |group: u64, kind: &str, window: Value| {
        engine_stored(&[
            ("group_idx", group.into()),
            ("kv_cache_spec_kind", kind.into()),
            ("kv_cache_spec_sliding_window", window),
        ])
    };
    let group = |index: u64| Group::new(index).unwrap();
    let got = decode([
        in_group(0, "full_attention", Value::Nil),
        in_group(1, "sliding_window", 128.into()),
        in_group(1, "sliding_window", 128.into()),
        in_group(2, "mamba", Value::Nil),
        in_group(3, "full_attention", Value::Nil),
        in_group(4, "sink_full_attention", Value::Nil),
        in_group(16, "sliding_window", 128.into()),
    ]);
    let expected = [(1, 128), (2, 2), (3, u32::MAX), (4, u32::MAX)]
        .map(|(index, tokens)| Window { group: group(index), tokens });
    assert_eq!(got.windows, expected);
    assert_eq!(got.ignored, [Ignored::UnknownGroup]);
    let names = Blocks::Named(vec![SequenceHash(1), SequenceHash(2)]);
    assert!(matches!(&got.events[0], Event::Stored(Stored { blocks: Blocks::Tokens(_), .. })));
    for (event, index) in got.events[1..].iter().zip([1, 1, 2, 3, 4]) {
        let layer = Layer::new(Tier::Gpu, group(index));
        assert_eq!(event, &Event::Stored(Stored { layer, parent: None, blocks: names.clone() }));
    }

    // The last that was stated counts: one window for each group, however many are stated.
    let changed = decode((1..500).map(|window| in_group(1, "sliding_window", window.into())));
    assert_eq!(changed.windows, [Window { group: group(1), tokens: 499 }]);
}

#[test]
fn hashes_are_taken_by_their_bits() {
    let tail = [0xde, 0xad, 0xbe, 0xef, 0, 1, 2, 3];
    let long: Vec<u8> = (0..24).chain(tail).collect();
    let names = [
        Value::from(-5),
        u64::MAX.into(),
        Value::Binary(tail.into()),
        Value::Binary(long),
        "0123456789".into(),
    ];
    let got = decode([array(["BlockRemoved".into(), array(names)])]);
    let expected = [
        (-5_i64).cast_unsigned(),
        u64::MAX,
        0xdead_beef_0001_0203,
        0xdead_beef_0001_0203,
        u64::from_be_bytes(*b"23456789"),
    ];
    let names = expected.map(SequenceHash).into();
    assert_eq!(got.events, [Event::Removed(Removed { layer: Layer::GPU, names })]);
    assert_eq!(
        problem(array(["BlockRemoved".into(), array([Value::Binary(vec![1; 7])])])),
        Problem::ShortHash { bytes: 7 }
    );
}

#[test]
fn pairs_of_tokens_overlap_by_the_one_behind_a_block() {
    let pairs = |ids: &[(u32, u32)]| array(ids.iter().map(|&(one, next)| array([one, next])));
    let got = blocks(engine_stored(&[("token_ids", pairs(&[(10, 11), (11, 12), (12, 13), (13, 14)]))]));
    assert_eq!((got.tokens, got.tokens_per_block), (vec![10, 11, 12, 12, 13, 14], 3));
    let mixed = array([array([10, 11]), 11.into(), array([12, 13]), 13.into()]);
    let expected = Problem::Unexpected { expected: "token ids, or pairs of them throughout", got: "both" };
    assert_eq!(problem(engine_stored(&[("token_ids", mixed)])), expected);
}
