//! Blocks that go from the middle of a prompt: what is behind them stays held, and is not lent to anyone.

use kvtide_radix::{Event, Layer};

use crate::scene::Scene;

/// Published indexes that skip ahead where two sets of ranks are equally large give the second rank credit here.
#[test]
fn a_rank_that_evicts_a_middle_block_does_not_lend_its_neighbour_credit() {
    // What the first rank evicts of five blocks, what the second holds of them, and what they then reach.
    let rows: [(&[u64], std::ops::RangeInclusive<u64>, [u32; 2]); 6] = [
        (&[3], 1..=3, [2, 3]),
        (&[4], 1..=3, [3, 3]),
        (&[1], 1..=2, [0, 2]),
        (&[2], 1..=1, [1, 1]),
        (&[5], 1..=4, [4, 4]),
        (&[2, 4], 1..=5, [1, 5]),
    ];
    for (evicted, second, reaches) in rows {
        let mut scene = Scene::new(2);
        scene.store(0, 1..=5);
        scene.store(1, second.clone());
        scene.remove(0, evicted.iter().copied());
        let got = [0, 1].map(|number| scene.reach(number, 1..=5));
        assert_eq!(got, reaches, "first without {evicted:?}, second with {second:?}");
    }
}

#[test]
fn a_hole_ends_the_reach_and_filling_it_restores_it() {
    // At the start, inside a page, at a page's end, at the prompt's end.
    for hole in [1, 5, 16, 17, 40] {
        let mut scene = Scene::new(3);
        scene.store(0, 1..=40);
        scene.store(1, 1..=40);
        scene.remove(0, [hole]);
        assert_eq!(scene.reach(0, 1..=40), hole as u32 - 1);
        assert_eq!(scene.reach(1, 1..=40), 40, "the other rank has no hole");
        assert_eq!(scene.size().held_blocks, 79);
        scene.store(0, hole..=hole);
        assert_eq!(scene.reach(0, 1..=40), 40, "block {hole} is back, and nothing else was announced");
    }
}

/// Published indexes forget for good what lies behind a block that is removed.
#[test]
fn blocks_behind_a_removed_one_can_be_removed_and_built_upon() {
    let mut scene = Scene::new(1);
    scene.store(0, 1..=9);
    scene.remove(0, [5]);
    assert_eq!(scene.remove(0, [7]).removed, 1, "7 was still held");
    assert_eq!(scene.store(0, 10..=12).parked, 0, "9 is still a parent");
    scene.store(0, 5..=5);
    assert_eq!(scene.reach(0, 1..=12), 6);
    scene.store(0, 7..=7);
    assert_eq!(scene.reach(0, 1..=12), 12);
}

#[test]
fn the_last_holder_of_a_hole_may_be_gone_and_the_chain_still_stands() {
    let mut scene = Scene::new(2);
    scene.store(0, 1..=20);
    scene.remove(0, [10]);
    assert_eq!(scene.reach(0, 1..=20), 9);
    scene.store(1, 1..=20);
    assert_eq!(scene.reach(1, 1..=20), 20, "nobody held block 10, but it had kept its place");
    assert_eq!(scene.reach(0, 1..=20), 9);
}

#[test]
fn removals_in_any_order_come_to_the_same() {
    let orders: [&[u64]; 4] = [&[3, 4, 5, 6, 7], &[7, 6, 5, 4, 3], &[5, 3, 7, 4, 6], &[5, 5, 4, 6, 3, 7, 7]];
    for order in orders {
        let mut scene = Scene::new(2);
        scene.store(0, 1..=10);
        scene.store(1, 1..=10);
        let outcome = scene.remove(0, order.iter().copied());
        assert_eq!((outcome.removed, outcome.unknown), (5, order.len() - 5), "{order:?}");
        assert_eq!([0, 1].map(|number| scene.reach(number, 1..=10)), [2, 10], "{order:?}");
    }
}

#[test]
fn a_rank_cleared_in_the_middle_of_a_chain_takes_nothing_from_those_around_it() {
    let mut scene = Scene::new(3);
    scene.store(0, 1..=4);
    scene.store(1, 1..=8);
    scene.store(2, 1..=12);
    scene.apply(1, &Event::Cleared);
    assert_eq!([0, 1, 2].map(|number| scene.reach(number, 1..=12)), [4, 0, 12]);
    // Between two stores of one update: what came before is gone, what comes behind stands.
    let slot = scene.slot(2);
    let again = crate::scene::stored(Layer::GPU, None, crate::scene::blocks(1..=2));
    scene.writer.update(|update| {
        update.apply(slot, &Event::Cleared);
        update.apply(slot, &again);
    });
    assert_eq!([0, 1, 2].map(|number| scene.reach(number, 1..=12)), [4, 0, 2]);
}
