//! The tree is as large as what is held, and no larger for what has happened.

use kvtide_radix::{Event, Group, Layer, Limits, RankSettings, Size, Tier};

use crate::scene::{Scene, blocks, named, removed, stored};

/// How a rank goes.
#[derive(Clone, Copy, Debug)]
enum End {
    Forwards,
    Backwards,
    Cleared,
    Left,
}

const ENDS: [End; 4] = [End::Forwards, End::Backwards, End::Cleared, End::Left];

/// Ranks share a prompt of 64 blocks up to different depths, which cuts it, and go on differently behind it.
fn diverged(ranks: usize) -> Scene {
    let mut scene = Scene::new(ranks);
    for number in 0..ranks {
        let depth = shared(number);
        scene.store(number, 1..=depth);
        scene.apply(number, &stored(Layer::GPU, Some(depth), blocks(own(number))));
    }
    scene
}

fn shared(number: usize) -> u64 {
    if number == 0 { 64 } else { [20, 20, 33, 48][number % 4] }
}

fn own(number: usize) -> std::ops::Range<u64> {
    let start = 1000 * (number as u64 + 1);
    start..start + 20
}

fn end(scene: &mut Scene, number: usize, end: End) {
    let names: Vec<u64> = (1..=shared(number)).chain(own(number)).collect();
    match end {
        End::Forwards => drop(scene.remove(number, names)),
        End::Backwards => drop(scene.remove(number, names.into_iter().rev())),
        End::Cleared => drop(scene.apply(number, &Event::Cleared)),
        End::Left => scene.leave(number),
    }
}

/// A published index never joins again what it has split; a user of it reports 20 GB of growth an hour.
#[test]
fn runs_come_back_to_what_one_rank_alone_needs() {
    const RANKS: usize = 33;
    let alone = diverged(1).size();
    for how in ENDS {
        let mut scene = diverged(RANKS);
        assert!(scene.size().runs > RANKS + alone.runs, "cut at three depths: {:?}", scene.size());
        for number in 1..RANKS {
            end(&mut scene, number, how);
        }
        assert_eq!(scene.size(), alone, "{how:?}");
        end(&mut scene, 0, how);
        assert_eq!(scene.size(), Size::default(), "{how:?}");
    }
}

#[test]
fn churn_does_not_grow_the_tree() {
    let mut scene = diverged(17);
    let before = scene.size();
    for round in 0..200 {
        for number in 0..17 {
            end(&mut scene, number, ENDS[(round + number) % 3]);
        }
        for number in 0..17 {
            let number = (number * 5 + round) % 17;
            scene.store(number, 1..=shared(number));
            scene.apply(number, &stored(Layer::GPU, Some(shared(number)), blocks(own(number))));
        }
    }
    let after = scene.size();
    assert_eq!((after.held_blocks, after.parked_blocks), (before.held_blocks, 0));
    // The order in which ranks come decides where a page begins.
    assert!(after.runs <= before.runs && after.pages <= before.pages + 17, "{before:?}, then {after:?}");
}

#[test]
fn nothing_is_left_when_everything_is_removed() {
    let host = Layer::new(Tier::Host, Group::FULL);
    for how in ENDS {
        let mut scene = diverged(9);
        for number in 0..9 {
            scene.apply(number, &named(host, None, 1..=8));
            scene.store(number, 5000..=5003);
            scene.apply(number, &stored(Layer::GPU, None, vec![crate::scene::block(9000, 1)]));
        }
        for number in 0..9 {
            scene.apply(number, &removed(host, 1..=8));
            scene.remove(number, [9000, 5001]);
            end(&mut scene, number, how);
            if matches!(how, End::Forwards | End::Backwards) {
                scene.remove(number, 5000..=5003);
            }
        }
        assert_eq!(scene.size(), Size::default(), "{how:?}");
    }
}

/// A recursion of a few bytes a block would end the process.
fn on_a_small_stack(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, test);
        thread.unwrap().join().unwrap();
    });
}

const DEEP: u64 = 1_000_000;

#[test]
fn a_chain_of_a_million_blocks_needs_no_deep_stack() {
    on_a_small_stack(|| {
        for how in [End::Cleared, End::Left] {
            let mut scene = Scene::new(2);
            scene.store(0, 1..=DEEP);
            scene.store(1, 1..=DEEP);
            scene.remove(0, (1..=DEEP).rev());
            assert_eq!([0, 1].map(|number| scene.reach(number, 1..=DEEP)), [0, DEEP as u32]);
            end(&mut scene, 1, how);
            assert_eq!(scene.size(), Size::default());
        }
        let mut scene = Scene::new(1);
        scene.store(0, 1..=DEEP);
    });
}

/// Two ranks take turns in holding a block in four tiers, so that no run can be joined with the next.
fn staircase(steps: u64) -> Scene {
    let lower = [Tier::Host, Tier::Disk, Tier::External].map(|tier| Layer::new(tier, Group::FULL));
    let mut scene = Scene::new(2);
    for number in 1..=steps {
        let turn = (number % 2) as usize;
        scene.store(turn, number..=number);
        for layer in lower {
            scene.apply(turn, &named(layer, None, [number]));
        }
        scene.store(1 - turn, number..=number);
    }
    scene
}

#[test]
fn a_chain_of_a_million_runs_needs_no_deep_stack() {
    on_a_small_stack(|| {
        let scene = staircase(DEEP);
        assert_eq!(scene.size().runs, DEEP as usize);
        assert_eq!([0, 1].map(|number| scene.reach(number, 1..=DEEP)), [DEEP as u32; 2]);
        drop(scene);
        // Every block of the chain goes with the last.
        let mut scene = staircase(DEEP / 4);
        scene.leave(0);
        scene.apply(1, &Event::Cleared);
        assert_eq!(scene.size(), Size::default());
    });
}

#[test]
fn a_full_tree_drops_what_is_new_and_says_so() {
    let mut scene =
        Scene::with(Limits { blocks: 4 * 16, ..Limits::default() }, vec![RankSettings::default(); 2]);
    assert_eq!(scene.store(0, 1..=60).dropped, 0);
    assert_eq!(scene.store(0, 61..=77).dropped, 17, "16 to a page, and the fourth page is begun");
    assert_eq!(scene.reach(0, 1..=77), 60);
    assert_eq!(scene.store(1, 1..=60).dropped, 0, "what is there already takes no room");
    assert_eq!(scene.store(0, 78..=80).parked, 3, "their parent was dropped");
    for number in 0..2 {
        scene.remove(number, 1..=60);
    }
    let others = stored(Layer::GPU, None, blocks(1001..=1064));
    assert_eq!(scene.apply(1, &others).dropped, 0, "there is room again");
    assert_eq!((scene.reach(1, 1001..=1064), scene.size().pages), (64, 4));
}
