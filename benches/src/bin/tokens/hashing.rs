//! Hashing by itself: a long prompt at once, and a conversation turn by turn.

use std::{hint::black_box, time::Duration};

use kvtide_benches::{Timing, rounds};
use kvtide_events::{Hashing, PromptHasher};
use kvtide_radix::{BlockHash, Seed};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::Serialize;

use crate::{contestant::dynamo_hashes, print};

const SEED: u64 = 5;
/// Tokens of the long prompt.
const PROMPT: usize = 131_072;
/// Tokens of a conversation's first prompt, what each turn adds, and how many turns there are.
const SYSTEM: usize = 4_000;
const TURN: usize = 600;
const TURNS: usize = 20;

/// Microseconds a prompt or turn.
#[derive(Serialize)]
struct Row {
    measured: &'static str,
    block_size: u32,
    eagle: bool,
    kvtide: f64,
    dynamo: f64,
    ratio: f64,
    /// Half the distance between the quartiles of the rounds, the larger of both sides, as a part of the median.
    spread: f64,
}

impl Row {
    fn print(measured: &'static str, hashing: Hashing, [ours, theirs]: [Timing; 2], parts: f64, json: bool) {
        let row = Row {
            measured,
            block_size: hashing.block_size,
            eagle: hashing.eagle,
            kvtide: ours.median * 1e6 / parts,
            dynamo: theirs.median * 1e6 / parts,
            ratio: ours.median / theirs.median,
            spread: ours.spread.max(theirs.spread),
        };
        print(json, &row, || {
            format!(
                "{:14} blocks of {:3}{}   kvtide {:7.2} us   dynamo {:7.2} us   ratio {:.3}   spread {:.3}",
                row.measured,
                row.block_size,
                if row.eagle { " under EAGLE" } else { "            " },
                row.kvtide,
                row.dynamo,
                row.ratio,
                row.spread
            )
        });
    }
}

/// Hashes a long prompt at once, all blocks.
pub(crate) fn long_prompts(count: usize, length: Duration, json: bool) {
    let tokens = tokens(PROMPT);
    for (block_size, eagle) in [(64, false), (16, false), (32, false), (128, false), (64, true)] {
        let hashing = Hashing { block_size, eagle };
        let ours = || hashing.block_hashes(black_box(&tokens), &[], Seed::PLAIN).collect::<Vec<BlockHash>>();
        let theirs = || dynamo_hashes(black_box(&tokens), hashing);
        assert!(ours().iter().map(|hash| hash.0).eq(theirs().iter().map(|hash| hash.0)), "{hashing:?}");
        let timings =
            rounds(count, length, &mut [&mut || drop(black_box(ours())), &mut || drop(black_box(theirs()))]);
        if let [ours, theirs] = timings[..] {
            Row::print("131,072 tokens", hashing, [ours, theirs], 1.0, json);
        }
    }
}

/// Hashes a conversation at every turn: what the turn adds, or all of it again.
pub(crate) fn conversations(count: usize, length: Duration, json: bool) {
    let tokens = tokens(SYSTEM + TURNS * TURN);
    let turns = || (SYSTEM..=tokens.len()).step_by(TURN);
    for (block_size, eagle) in [(64, false), (16, false), (64, true)] {
        let hashing = Hashing { block_size, eagle };
        let mut conversation = PromptHasher::new(hashing, Seed::PLAIN);
        let mut extended = || {
            let mut before = conversation.truncate(0);
            for end in turns() {
                conversation.extend(&black_box(&tokens)[before..end], &[]);
                black_box(conversation.hashes());
                before = end;
            }
        };
        let mut again = || {
            for end in turns() {
                drop(black_box(dynamo_hashes(&black_box(&tokens)[..end], hashing)));
            }
        };
        let timings = rounds(count, length, &mut [&mut extended, &mut again]);
        if let [ours, theirs] = timings[..] {
            Row::print("a turn", hashing, [ours, theirs], turns().count() as f64, json);
        }
    }
}

fn tokens(count: usize) -> Vec<u32> {
    let mut random = StdRng::seed_from_u64(SEED);
    (0..count).map(|_| random.random_range(0..150_000)).collect()
}
