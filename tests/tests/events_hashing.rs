//! Block hashes are XXH3-64 of every length, and the same whether a prompt is hashed at once, in groups or as it grows.

use kvtide_events::{BlockMedia, Hashing, Media, PromptHasher};
use kvtide_radix::{
    Block, BlockHash, BlockHasher, Blocks, Event, Layer, Limits, Overlap, Rank, RankSettings, Seed,
    SequenceHash, Stored, index,
};
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Where XXH3 changes its way, in tokens, and the block sizes of engines.
const LENGTHS: [usize; 22] =
    [1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 32, 33, 59, 60, 61, 64, 65, 128, 255, 256, 257, 512];

fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|number| number.wrapping_mul(0x9E37_79B1).rotate_left(number % 32)).collect()
}

/// XXH3-64 of the tokens as little-endian bytes.
fn xxh3(tokens: &[u32], seed: u64) -> BlockHash {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    BlockHash(xxh3_64_with_seed(&bytes, seed))
}

#[test]
fn a_block_of_any_length_is_hashed_as_xxh3_does() {
    let all = tokens(1100);
    for seed in [0, 1, 1337, u64::MAX, 0x8000_0000_0000_0000, 0x0123_4567_89AB_CDEF] {
        let hasher = BlockHasher::new(Seed(seed));
        for length in 0..=all.len() {
            let block = &all[all.len() - length..];
            assert_eq!(hasher.hash(block, &[]), xxh3(block, seed), "{length} tokens, seed {seed}");
            let mut hash = [BlockHash(0)];
            if length > 0 {
                hasher.hash_blocks(block, length, length, &mut hash);
                assert_eq!(hash, [xxh3(block, seed)], "{length} tokens, seed {seed}, as blocks");
            }
        }
    }
}

#[test]
fn blocks_are_hashed_as_far_as_both_sides_have_room() {
    let all = tokens(2000);
    let rows = LENGTHS.iter().flat_map(|&stride| [(stride, stride), (stride, stride + 1)]);
    for (stride, window) in rows {
        for room in [0, 1, 3, 40] {
            let mut hashes = vec![BlockHash(7); room];
            BlockHasher::new(Seed::PLAIN).hash_blocks(&all, stride, window, &mut hashes);
            let expected = all.windows(window).step_by(stride).map(|block| xxh3(block, Seed::PLAIN.0));
            let expected: Vec<BlockHash> =
                expected.chain(std::iter::repeat(BlockHash(7))).take(room).collect();
            assert_eq!(hashes, expected, "{window} tokens every {stride}, room for {room}");
        }
    }
}

fn hashing() -> impl Strategy<Value = Hashing> {
    let block_size =
        prop_oneof![1..5_u32, prop::sample::select(LENGTHS.to_vec()).prop_map(|size| size as u32)];
    (block_size, any::<bool>()).prop_map(|(block_size, eagle)| Hashing { block_size, eagle })
}

fn media() -> impl Strategy<Value = Vec<Media>> {
    let range = (0..900_usize, 0..200_usize).prop_map(|(start, length)| start..start + length);
    let one =
        (0..4_u64, prop::collection::vec(range, 0..3)).prop_map(|(hash, tokens)| Media { hash, tokens });
    prop::collection::vec(one, 0..3)
}

fn by_block(hashing: Hashing, media: &[Media], tokens: usize) -> Vec<BlockMedia> {
    Media::by_block(media, hashing.block_size, hashing.blocks(tokens))
}

/// Each block by itself, in the plainest way.
fn expected(hashing: Hashing, tokens: &[u32], media: &[Media], seed: Seed) -> Vec<BlockHash> {
    let size = hashing.block_size as usize;
    let is_within = |one: &Media, block: usize| {
        one.tokens.iter().flat_map(Clone::clone).any(|token| token / size == block)
    };
    let block = |(number, window): (usize, &[u32])| {
        let here = media.iter().filter(|one| is_within(one, number)).map(|one| one.hash);
        BlockHash::of(
            window,
            &here.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>(),
            seed,
        )
    };
    hashing.windows(tokens).enumerate().map(block).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn one_by_one_and_in_groups_the_hashes_are_the_same(
        hashing in hashing(), count in 0..1200_usize, media in media(), seed: u64,
    ) {
        let (tokens, seed) = (tokens(count), Seed(seed));
        let expected = expected(hashing, &tokens, &media, seed);
        let media = by_block(hashing, &media, count);
        let mut one_by_one = hashing.block_hashes(&tokens, &media, seed);
        for (taken, hash) in expected.iter().enumerate() {
            prop_assert_eq!(one_by_one.len(), expected.len() - taken);
            prop_assert_eq!(one_by_one.next(), Some(*hash));
        }
        prop_assert_eq!(one_by_one.next(), None);
        let groups = hashing.hash_groups(&tokens, &media, seed);
        let promised = groups.len();
        let groups: Vec<_> = groups.collect();
        prop_assert_eq!(groups.len(), promised);
        prop_assert!(groups.iter().all(|group| !group.as_ref().is_empty()));
        let flat: Vec<BlockHash> = groups.iter().flat_map(|group| group.as_ref().to_vec()).collect();
        prop_assert_eq!(flat, expected);
    }

    #[test]
    fn however_a_prompt_grows_its_hashes_are_those_of_the_whole(
        hashing in hashing(),
        parts in prop::collection::vec(prop_oneof![0..4_usize, 0..300_usize], 0..12),
        media in media(),
        seed: u64,
    ) {
        let (tokens, seed) = (tokens(parts.iter().sum()), Seed(seed));
        let mut prompt = PromptHasher::new(hashing, seed);
        let mut end = 0;
        for part in parts {
            prompt.extend(&tokens[end..end + part], &by_block(hashing, &media, tokens.len()));
            end += part;
            prop_assert_eq!(prompt.tokens(), end);
            prop_assert_eq!(prompt.hashes(), expected(hashing, &tokens[..end], &media, seed));
        }
    }

    #[test]
    fn an_edited_prompt_hashes_as_if_it_had_been_so_from_the_start(
        hashing in hashing(),
        edits in prop::collection::vec((0..600_usize, prop::collection::vec(0..9_u32, 0..200)), 1..8),
        seed: u64,
    ) {
        let seed = Seed(seed);
        let mut prompt = tokens(400);
        let mut hasher = PromptHasher::new(hashing, seed);
        hasher.extend(&prompt, &[]);
        for (keep, new) in edits {
            let before = prompt.len();
            prompt.truncate(keep);
            prompt.extend(new);
            let kept = hasher.truncate(keep);
            prop_assert!(kept <= keep.min(before) && keep.min(before) <= kept + hashing.block_size as usize);
            hasher.extend(&prompt[kept..], &[]);
            prop_assert_eq!(hasher.tokens(), prompt.len());
            prop_assert_eq!(hasher.hashes(), expected(hashing, &prompt, &[], seed));
        }
    }
}

#[test]
fn a_truncated_prompt_keeps_its_complete_blocks_and_what_it_still_knows_of_the_last() {
    // Block size, EAGLE, tokens, cut to; what is left.
    let rows = [
        (4, false, 10, 11, 10, 2),
        (4, false, 10, 10, 10, 2),
        (4, false, 10, 9, 9, 2),
        (4, false, 10, 8, 8, 2),
        (4, false, 10, 7, 4, 1),
        (4, false, 10, 0, 0, 0),
        (4, true, 10, 9, 9, 2),
        (4, true, 10, 8, 4, 1),
        (4, true, 9, 5, 4, 1),
        (4, true, 9, 4, 0, 0),
        (4, true, 3, 2, 2, 0),
    ];
    for (block_size, eagle, tokens_before, cut, left, blocks) in rows {
        let mut prompt = PromptHasher::new(Hashing { block_size, eagle }, Seed::PLAIN);
        prompt.extend(&tokens(tokens_before), &[]);
        let row = format!("{tokens_before} tokens cut to {cut}, EAGLE {eagle}");
        assert_eq!(
            (prompt.truncate(cut), prompt.tokens(), prompt.hashes().len()),
            (left, left, blocks),
            "{row}"
        );
    }
}

#[test]
fn no_more_is_hashed_than_the_walk_needs() {
    let hashing = Hashing { block_size: 64, eagle: false };
    let tokens = tokens(64 * 100);
    let hashes: Vec<BlockHash> = hashing.block_hashes(&tokens, &[], Seed::PLAIN).collect();
    // Blocks held, groups left: 1 and 13 groups of 8 and fewer are all.
    for (held, left) in [(0, 13), (1, 13), (2, 12), (9, 12), (10, 11), (97, 1), (98, 0), (100, 0)] {
        let (mut writer, reader) = index(64, Limits::default());
        let blocks = hashes[..held].iter().map(|&content| Block { name: SequenceHash(content.0), content });
        let event = Event::Stored(Stored {
            layer: Layer::GPU,
            parent: None,
            blocks: Blocks::Hashed(blocks.collect()),
        });
        let rank = Rank { worker_id: 1, dp_rank: 0 };
        writer.update(|update| match update.join(rank, RankSettings::default()) {
            Ok(slot) => drop(update.apply(slot, &event)),
            Err(full) => unreachable!("{full}"),
        });
        let (view, mut answer) = (reader.view(), Overlap::default());
        let mut groups = hashing.hash_groups(&tokens, &[], Seed::PLAIN);
        view.overlap(&mut groups, &mut answer);
        assert_eq!(view.reach(&answer, rank).map(|reach| reach.gpu()), Some(64 * held as u32));
        assert_eq!(groups.len(), left, "{held} blocks are held");
    }
}
