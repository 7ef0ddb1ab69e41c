//! Snapshots that are torn, foreign, of a newer kvtide, or changed: refused, and nothing of them is taken.

use kvtide::{
    Clock, EngineStream, Format, Indexer, Limits, Message, Scope, Stream,
    snapshot::{MAGIC, SnapshotError, Summary, VERSION},
};
use kvtide_radix::{Block, BlockHash, Blocks, Event, Layer, Rank, SequenceHash, Stored};
use serde_json::json;

fn scope() -> Scope {
    Scope::new("m", 4)
}

/// An index with an engine's rank and some whose events are handed in.
fn filled(limits: Limits) -> Indexer {
    let indexer = empty(limits);
    let stream = indexer.stream("engine").unwrap();
    let stored = json!({"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": null, "block_size": 4,
                        "token_ids": [1, 1, 1, 1, 2, 2, 2, 2], "medium": "GPU"});
    let waits = json!({"type": "BlockStored", "block_hashes": [9], "parent_block_hash": 8, "block_size": 4,
                       "token_ids": [1, 1, 1, 1], "medium": "GPU"});
    let payload = &rmp_serde::to_vec(&json!([1.7e9, [stored, stored, waits], 0])).unwrap();
    indexer.apply(&stream, Message::Batch { sequence: Some(0), payload }).unwrap();
    let direct = indexer.direct(&scope()).unwrap();
    for worker_id in 0..20 {
        let block = |name| Block { name: SequenceHash(name), content: BlockHash(name) };
        let blocks = Blocks::Hashed((1..=5 + worker_id).map(block).collect());
        let stored = Event::Stored(Stored { layer: Layer::GPU, parent: None, blocks });
        indexer.apply_events(&direct, Rank { worker_id, dp_rank: 0 }, Some(1), &[stored]).unwrap();
    }
    indexer
}

fn empty(limits: Limits) -> Indexer {
    let indexer = Indexer::new(limits, Clock::manual(1_700_000_000_000));
    let engine = EngineStream { replays: true, ..EngineStream::new(77) };
    indexer.bind(Stream::new("engine", scope(), Format::Engine(engine))).unwrap();
    indexer
}

/// What every rank holds, and what waits for it.
fn held(indexer: &Indexer) -> Vec<(Rank, [u64; 4], usize)> {
    let ranks = indexer.scopes().remove(0).ranks;
    ranks.iter().map(|rank| (rank.rank, rank.held_blocks, rank.parked_blocks)).collect()
}

fn written(indexer: &Indexer) -> Vec<u8> {
    let mut bytes = Vec::new();
    indexer.write_snapshot(&mut bytes).unwrap();
    bytes
}

/// Reads into an empty index. What is refused leaves it empty.
fn read(bytes: &[u8]) -> Result<Summary, SnapshotError> {
    let indexer = empty(Limits::default());
    let outcome = indexer.read_snapshot(bytes);
    let size = indexer.scopes()[0].size;
    assert_eq!(size.held_blocks > 0, outcome.is_ok(), "{outcome:?}: {size:?}");
    outcome
}

#[test]
fn what_is_written_is_read_whole() {
    let indexer = filled(Limits::default());
    let bytes = written(&indexer);
    assert_eq!(read(&bytes).unwrap(), Summary { scopes: 1, ranks: 21, left_out: 0 });
    let again = empty(Limits::default());
    again.read_snapshot(&bytes[..]).unwrap();
    assert_eq!(held(&again), held(&indexer));
}

#[test]
fn a_torn_one_is_refused_wherever_it_is_torn() {
    let bytes = written(&filled(Limits::default()));
    for length in 0..bytes.len() {
        match read(&bytes[..length]) {
            Err(SnapshotError::Foreign { got }) => assert!(length < 12, "{length}: {got:?}"),
            Err(SnapshotError::Damaged { reason }) => assert!(!reason.is_empty() && length >= 12, "{length}"),
            other => panic!("{length} of {}: {other:?}", bytes.len()),
        }
    }
}

#[test]
fn one_of_which_a_bit_was_changed_is_refused_or_says_the_same() {
    let indexer = filled(Limits::default());
    let bytes = written(&indexer);
    let mut refused = 0;
    for index in 0..bytes.len() {
        for bit in [0, 3, 7] {
            let mut changed = bytes.clone();
            changed[index] ^= 1 << bit;
            let again = empty(Limits::default());
            // Some bits of the compression mean nothing; what they compress is checksummed.
            match again.read_snapshot(&changed[..]) {
                Ok(_) => assert_eq!(held(&again), held(&indexer), "byte {index}, bit {bit}"),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > bytes.len() * 3 * 9 / 10, "{refused} of {}", bytes.len() * 3);
}

#[test]
fn what_is_none_says_what_was_expected() {
    let error = read(b"{\"model\": 1, \"more\": true}").unwrap_err().to_string();
    assert!(error.starts_with("expected a snapshot, which begins with [4b, 56,"), "{error}");
    let newer = [&MAGIC[..], &(VERSION + 1).to_le_bytes(), b"what may come"].concat();
    let error = read(&newer).unwrap_err().to_string();
    assert_eq!(error, format!("expected a snapshot of format {VERSION}, got one of format {}", VERSION + 1));
    let mut longer = written(&filled(Limits::default()));
    longer.extend_from_slice(b"more");
    assert!(read(&longer).is_err());
}

#[test]
fn one_that_is_too_large_for_the_limits_is_refused_whole() {
    let bytes = written(&filled(Limits::default()));
    let few_ranks = kvtide_radix::Limits { ranks: 20, ..kvtide_radix::Limits::default() };
    let few_blocks = kvtide_radix::Limits { blocks: 16, ..kvtide_radix::Limits::default() };
    for (index, expected) in
        [(few_ranks, "20 are there, which is the limit"), (few_blocks, "16 may be there")]
    {
        let indexer = empty(Limits { index, ..Limits::default() });
        let error = indexer.read_snapshot(&bytes[..]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(indexer.scopes()[0].ranks, []);
    }
    let busy = filled(Limits::default());
    let error = busy.read_snapshot(&bytes[..]).unwrap_err().to_string();
    assert_eq!(error, "expected an index without ranks, got one with 21");
}

#[test]
fn ranks_that_nobody_feeds_here_are_left_out() {
    let bytes = written(&filled(Limits::default()));
    let stranger = Indexer::new(Limits::default(), Clock::manual(0));
    assert_eq!(stranger.read_snapshot(&bytes[..]).unwrap(), Summary { scopes: 1, ranks: 20, left_out: 1 });
    assert_eq!(stranger.scopes()[0].ranks.len(), 20);
    // And those of an engine that cannot be asked whether it is still the same process.
    let unasked = Indexer::new(Limits::default(), Clock::manual(0));
    unasked.bind(Stream::new("engine", scope(), Format::Engine(EngineStream::new(77)))).unwrap();
    assert_eq!(unasked.read_snapshot(&bytes[..]).unwrap().left_out, 1);
}
