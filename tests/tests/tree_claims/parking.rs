//! Stores whose parent is unknown wait for it, and are neither lost nor put where they do not belong.

use kvtide_radix::{Event, Group, Layer, Limits, RankSettings, Tier};

use crate::scene::{Scene, named};

/// All orders of four things.
fn orders() -> Vec<[usize; 4]> {
    let mut orders = Vec::new();
    for number in 0..256 {
        let order = [number % 4, number / 4 % 4, number / 16 % 4, number / 64];
        if (0..4).all(|one| order.contains(&one)) {
            orders.push(order);
        }
    }
    orders
}

#[test]
fn parts_of_a_chain_may_arrive_in_any_order() {
    assert_eq!(orders().len(), 24);
    for order in orders() {
        let mut scene = Scene::new(2);
        for (arrived, part) in order.into_iter().enumerate() {
            let start = part as u64 * 5 + 1;
            scene.store(0, start..=start + 4);
            let whole = (0..4).take_while(|part| order[..=arrived].contains(part)).count() as u32;
            assert_eq!(scene.reach(0, 1..=20), whole * 5, "{order:?} up to {part}");
            let parked = (arrived + 1 - whole as usize) * 5;
            assert_eq!(scene.size().parked_blocks, parked, "{order:?} up to {part}");
        }
    }
}

#[test]
fn another_ranks_block_is_nobodys_parent() {
    let mut scene = Scene::new(2);
    scene.store(0, 1..=5);
    assert_eq!(scene.store(1, 6..=8).parked, 3, "the second rank does not hold block 5");
    assert_eq!((scene.reach(1, 1..=8), scene.reach(1, 6..=8)), (0, 0), "not even at the start of a prompt");
    scene.store(1, 1..=5);
    assert_eq!([0, 1].map(|number| scene.reach(number, 1..=8)), [5, 8]);
}

#[test]
fn no_more_waits_than_may_and_what_is_dropped_is_counted() {
    let limits = Limits { parked_blocks: 10, ..Limits::default() };
    let mut scene = Scene::with(limits, vec![RankSettings::default(); 2]);
    assert_eq!(scene.store(0, 11..=16).dropped, 0);
    assert_eq!(scene.store(0, 21..=24).dropped, 0);
    assert_eq!(scene.store(0, 31..=31).dropped, 6, "the oldest six go for one");
    assert_eq!(scene.size().parked_blocks, 5);
    assert_eq!(scene.store(0, 41..=60).dropped, 25, "more than may wait at all");
    assert_eq!(scene.size().parked_blocks, 0);
    assert_eq!(scene.store(1, 11..=20).dropped, 0, "every rank has its own room");
    scene.store(0, 1..=10);
    assert_eq!(scene.reach(0, 1..=16), 10, "what was dropped does not come back");
    scene.store(1, 1..=10);
    assert_eq!(scene.reach(1, 1..=20), 20);
}

#[test]
fn a_removal_cancels_what_waits() {
    let mut scene = Scene::new(1);
    scene.store(0, 4..=6);
    let outcome = scene.remove(0, [5, 9]);
    assert_eq!((outcome.removed, outcome.unknown), (1, 1));
    scene.store(0, 1..=3);
    assert_eq!(scene.reach(0, 1..=6), 4);
    scene.store(0, 5..=5);
    assert_eq!(scene.reach(0, 1..=6), 6, "6 was stored, behind 5");
}

#[test]
fn a_clear_drops_what_waits() {
    let mut scene = Scene::new(1);
    scene.store(0, 4..=6);
    scene.apply(0, &Event::Cleared);
    assert_eq!(scene.size(), Default::default());
    scene.store(0, 1..=3);
    assert_eq!(scene.reach(0, 1..=6), 3);
}

/// Names that come without content say nothing about it: they wait for the store that does.
#[test]
fn names_alone_create_nothing_and_wait() {
    let host = Layer::new(Tier::Host, Group::FULL);
    let mut scene = Scene::new(1);
    let outcome = scene.apply(0, &named(host, None, 1..=3));
    assert_eq!((outcome.parked, scene.reach_by_tier(0, 1..=3)), (3, [0; 4]));
    scene.store(0, 1..=2);
    assert_eq!((scene.size().parked_blocks, scene.reach_by_tier(0, 1..=3)), (1, [2; 4]));
    scene.remove(0, 1..=2);
    assert_eq!(scene.reach_by_tier(0, 1..=3), [0, 2, 2, 2]);
}

#[test]
fn what_waits_is_bounded_in_bytes_too() {
    // A block of hashes is 16 bytes.
    let limits = Limits { parked_bytes: 160, ..Limits::default() };
    let mut scene = Scene::with(limits, vec![RankSettings::default(); 1]);
    assert_eq!(scene.store(0, 11..=16).dropped, 0);
    assert_eq!(scene.store(0, 21..=24).dropped, 0);
    assert_eq!(scene.store(0, 31..=31).dropped, 6, "the oldest six go for one");
    assert_eq!(scene.store(0, 41..=51).dropped, 16, "and all for one that is too large");
    assert_eq!(scene.size().parked_blocks, 0);
    assert_eq!(scene.store(0, 61..=70).dropped, 0, "nothing is left of what was dropped");
}

#[test]
fn what_has_waited_too_long_is_dropped_and_told_apart() {
    let mut scene = Scene::new(1);
    scene.store(0, 11..=13);
    scene.apply(0, &named(Layer::new(Tier::Host, Group::FULL), None, 21..=22));
    let slot = scene.reader.view().ranks().next().unwrap().slot;
    let then = scene.writer.parking(slot);
    assert_eq!((then.blocks, then.arrivals), (5, 3), "each name waits by itself");
    scene.store(0, 31..=34);
    let expired = scene.writer.update(|update| update.expire(slot, then.arrivals));
    assert_eq!((expired.blocks, expired.names), (3, 2));
    assert_eq!(scene.writer.parking(slot).blocks, 4, "what came later goes on waiting");
    scene.store(0, 1..=30);
    assert_eq!(scene.reach(0, 1..=34), 34);
}
