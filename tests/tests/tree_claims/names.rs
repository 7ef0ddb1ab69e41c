//! Names belong to ranks: what one calls a block says nothing about another's.

use kvtide_radix::{
    Blocks, Copies, Event, Layer, Limits, RankSettings, Seed, SequenceHash, Stored, Tier, TokenBlocks,
};

use crate::scene::{BLOCK, Scene, block, blocks, named, removed, stored};

const GPU: Layer = Layer::GPU;

/// A published index looks removals up by the first rank's names: the second's never match, and it stays credited.
#[test]
fn two_ranks_may_name_one_content_differently_and_each_removes_by_its_own_names() {
    for first_to_go in [0, 1] {
        let mut scene = Scene::new(2);
        scene.store(0, 1..=3);
        scene.apply(1, &stored(GPU, None, vec![block(101, 1), block(102, 2), block(103, 3)]));
        assert_eq!([0, 1].map(|number| scene.reach(number, 1..=3)), [3, 3]);
        assert_eq!(
            scene.remove(1, [1, 2, 3]).unknown,
            3,
            "the first rank's names mean nothing to the second"
        );
        let names = [[1, 2, 3], [101, 102, 103]];
        assert_eq!(scene.remove(first_to_go, names[first_to_go]).removed, 3);
        assert_eq!(scene.reach(first_to_go, 1..=3), 0);
        assert_eq!(scene.reach(1 - first_to_go, 1..=3), 3, "the other's stay");
        scene.remove(1 - first_to_go, names[1 - first_to_go]);
        assert_eq!(scene.size(), Default::default());
    }
}

#[test]
fn a_rank_with_two_names_for_one_block_holds_it_until_both_are_removed() {
    for order in [[2, 102], [102, 2]] {
        let mut scene = Scene::new(1);
        scene.store(0, 1..=3);
        scene.apply(0, &stored(GPU, Some(1), vec![block(102, 2)]));
        assert_eq!(scene.size().held_blocks, 3, "one block, however it is called");
        scene.remove(0, [order[0]]);
        assert_eq!(scene.reach(0, 1..=3), 3);
        scene.remove(0, [order[1]]);
        assert_eq!(scene.reach(0, 1..=3), 1);
    }
}

#[test]
fn one_name_may_mean_two_contents_on_two_ranks() {
    let mut scene = Scene::new(2);
    scene.apply(0, &stored(GPU, None, vec![block(7, 1), block(8, 2)]));
    scene.apply(1, &stored(GPU, None, vec![block(7, 5), block(8, 6)]));
    let reaches =
        |scene: &Scene| [0, 1].map(|number| (scene.reach(number, [1, 2]), scene.reach(number, [5, 6])));
    assert_eq!(reaches(&scene), [(2, 0), (0, 2)]);
    scene.apply(1, &stored(GPU, Some(8), vec![block(9, 3)]));
    assert_eq!([0, 1].map(|number| scene.reach(number, [5, 6, 3])), [0, 3], "behind its own block 8");
    scene.remove(0, [7]);
    assert_eq!(reaches(&scene), [(0, 0), (0, 2)]);
}

#[test]
fn the_first_meaning_of_a_name_stays_while_its_rank_holds_it() {
    let mut scene = Scene::new(1);
    scene.apply(0, &stored(GPU, None, vec![block(7, 1)]));
    scene.apply(0, &stored(GPU, None, vec![block(7, 2)]));
    assert_eq!((scene.reach(0, [1]), scene.reach(0, [2])), (1, 0), "7 still means 1");
    scene.remove(0, [7]);
    scene.apply(0, &stored(GPU, None, vec![block(7, 2)]));
    assert_eq!((scene.reach(0, [1]), scene.reach(0, [2])), (0, 1), "nobody held it: 7 is free");
}

#[test]
fn copies_are_counted_only_where_the_source_announces_each() {
    // Stores, removals, what is left.
    let rows = [
        (Copies::Set, 2, 1, 0),
        (Copies::Counted, 2, 1, 3),
        (Copies::Counted, 2, 2, 0),
        (Copies::Counted, 3, 2, 3),
        (Copies::Set, 3, 1, 0),
    ];
    for (copies, stores, removals, left) in rows {
        let settings = RankSettings { copies, ..RankSettings::default() };
        let mut scene = Scene::with(Limits::default(), vec![settings]);
        for _ in 0..stores {
            scene.store(0, 1..=3);
        }
        for _ in 0..removals {
            scene.remove(0, 1..=3);
        }
        assert_eq!(scene.reach(0, 1..=3), left, "{copies:?}, {stores} stores, {removals} removals");
    }
}

#[test]
fn a_name_without_content_means_what_it_meant_in_another_tier() {
    let host = Layer::new(Tier::Host, kvtide_radix::Group::FULL);
    let settings = RankSettings { recent_names: 8, ..RankSettings::default() };
    let mut scene = Scene::with(Limits::default(), vec![settings]);
    scene.store(0, 1..=3);
    scene.apply(0, &named(host, None, [3, 1]));
    scene.apply(0, &named(host, None, [2]));
    assert_eq!(scene.reach_by_tier(0, 1..=3), [3, 3, 3, 3]);
    scene.apply(0, &Event::Cleared);
    assert_eq!(scene.reach_by_tier(0, 1..=3), [0; 4]);
    scene.apply(0, &named(host, None, 1..=2));
    assert_eq!(scene.reach_by_tier(0, 1..=3), [0, 2, 2, 2], "the names are still remembered");
}

/// The salt stands only in the first block. A published index takes the blocks behind it for unsalted ones.
#[test]
fn children_inherit_the_seed_of_their_chain() {
    let salted = Seed::of(Some("adapter"), Some("tenant"));
    let tokens =
        |numbers: std::ops::Range<u32>| numbers.flat_map(|number| [number; BLOCK as usize]).collect();
    let event = |parent: Option<u64>, names: std::ops::Range<u64>, root_seed| {
        let tokens: Vec<u32> = tokens(names.start as u32..names.end as u32);
        Event::Stored(Stored {
            layer: GPU,
            parent: parent.map(SequenceHash),
            blocks: Blocks::Tokens(TokenBlocks {
                names: names.map(SequenceHash).collect(),
                tokens,
                tokens_per_block: BLOCK as usize,
                root_seed,
                media: Vec::new(),
            }),
        })
    };
    let prompt =
        |seed| (1..7).map(move |number| kvtide_radix::BlockHash::of(&[number; BLOCK as usize], &[], seed).0);
    let mut scene = Scene::new(1);
    scene.apply(0, &event(None, 1..3, salted));
    // Nothing here says that the chain is salted.
    scene.apply(0, &event(Some(2), 3..7, Seed::PLAIN));
    assert_eq!((scene.reach(0, prompt(salted)), scene.reach(0, prompt(Seed::PLAIN))), (6, 0));
    // A child may come before its parent: it is hashed once the parent is known.
    let mut scene = Scene::new(1);
    assert_eq!(scene.apply(0, &event(Some(2), 3..7, Seed::PLAIN)).parked, 4);
    scene.apply(0, &event(None, 1..3, salted));
    assert_eq!((scene.reach(0, prompt(salted)), scene.reach(0, prompt(Seed::PLAIN))), (6, 0));
}

#[test]
fn a_slot_given_to_another_rank_brings_nothing_of_the_old_one() {
    let mut scene = Scene::new(3);
    scene.store(0, 1..=5);
    scene.apply(0, &stored(GPU, None, vec![block(70, 1)]));
    scene.store(0, 80..=81);
    scene.store(1, 1..=5);
    let slot = scene.slot(0);
    scene.leave(0);
    scene.join(0, RankSettings { copies: Copies::Counted, ..RankSettings::default() });
    assert_eq!(scene.slot(0), slot, "the slot is given out again");
    assert_eq!(scene.reach(0, 1..=5), 0);
    assert_eq!(scene.apply(0, &removed(GPU, [1, 70, 80])).unknown, 3);
    assert_eq!(scene.reader.view().ranks().map(|state| state.parked_blocks).sum::<usize>(), 0);
    assert_eq!(scene.reach(1, 1..=5), 5);
    scene.apply(0, &stored(GPU, None, blocks(1..=2)));
    assert_eq!([0, 1, 2].map(|number| scene.reach(number, 1..=5)), [2, 5, 0]);
}
