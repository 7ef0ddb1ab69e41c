//! From tokens to answer nothing is allocated, and a conversation that grows allocates only what it keeps.
//!
//! The allocator counts the whole process, so this file has one test and nothing runs beside it.

use kvtide_events::{Hashing, PromptHasher};
use kvtide_radix::{
    Block, BlockHash, Blocks, Event, Layer, Limits, Overlap, Rank, RankSettings, Seed, SequenceHash, Stored,
    index,
};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// The most bytes that `work` has allocated at any time.
fn peak(work: impl FnOnce()) -> usize {
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    work();
    ALLOCATOR.peak_usage() - before
}

#[test]
fn answering_tokens_allocates_nothing() {
    assert_eq!(peak(|| drop(vec![0_u8; 1000])), 1000, "the allocator counts");
    let tokens: Vec<u32> = (0..64 * 300).collect();
    for (block_size, eagle) in [(16, false), (32, true), (64, false), (64, true), (512, false)] {
        let hashing = Hashing { block_size, eagle };
        let hashes: Vec<BlockHash> = hashing.block_hashes(&tokens, &[], Seed::PLAIN).collect();
        let (mut writer, reader) = index(block_size, Limits::default());
        let held = hashes.len() - 3;
        let blocks = hashes[..held].iter().map(|&content| Block { name: SequenceHash(content.0), content });
        let event = Event::Stored(Stored {
            layer: Layer::GPU,
            parent: None,
            blocks: Blocks::Hashed(blocks.collect()),
        });
        writer
            .update(|update| {
                let joined = update.join(Rank { worker_id: 1, dp_rank: 0 }, RankSettings::default());
                joined.map(|slot| update.apply(slot, &event))
            })
            .expect("there is room for a rank");
        let (view, mut answer) = (reader.view(), Overlap::default());
        let mut ask = || view.overlap(hashing.hash_groups(&tokens, &[], Seed::PLAIN), &mut answer);
        // The answer's own memory is there from the first question on.
        ask();
        assert_eq!(peak(ask), 0, "{hashing:?}");
        assert_eq!(answer.reaches().next().map(|(_, reach)| reach.gpu()), Some(held as u32 * block_size));

        let mut conversation = PromptHasher::new(hashing, Seed::PLAIN);
        conversation.extend(&tokens, &[]);
        let again = || {
            conversation.truncate(0);
            tokens.chunks(100).for_each(|turn| conversation.extend(turn, &[]));
        };
        let room = 4 * (block_size as usize + 1);
        let grown = peak(again);
        assert!(
            grown <= 2 * room,
            "{hashing:?}: {grown} bytes beside the hashes, one block's tokens are {room}"
        );
    }
}
