//! Tiers, chunks and windows.

use kvtide_radix::{Group, Layer, Limits, RankSettings, Tier, Window};

use crate::scene::{BLOCK, Scene, blocks, removed, stored};

fn layer(tier: Tier) -> Layer {
    Layer::new(tier, Group::FULL)
}

/// Published indexes walk the tiers one after the other and lose what a faster one holds behind a slower one.
#[test]
fn tiers_count_together_whatever_their_order() {
    // Which tier holds each of six blocks, and what is reached with each tier and all faster ones.
    let rows = [
        ("ggddhh", [2, 2, 6, 6]),
        ("gghhdd", [2, 4, 6, 6]),
        ("hhgggg", [0, 6, 6, 6]),
        ("dgdgdg", [0, 0, 6, 6]),
        ("gxhdgg", [1, 1, 1, 6]),
        ("gg.hdx", [2, 2, 2, 2]),
        ("xdhg..", [0, 0, 0, 4]),
    ];
    for (tiers, reach) in rows {
        let mut scene = Scene::new(1);
        scene.store(0, 1..=6);
        for (number, tier) in (1..).zip(tiers.chars()) {
            let tier = match tier {
                'h' => Tier::Host,
                'd' => Tier::Disk,
                'x' => Tier::External,
                _ => Tier::Gpu,
            };
            scene.apply(0, &stored(layer(tier), (number > 1).then_some(number - 1), blocks([number])));
        }
        let not_on_gpu = (1..).zip(tiers.chars()).filter(|&(_, tier)| tier != 'g').map(|(number, _)| number);
        scene.remove(0, not_on_gpu);
        assert_eq!(scene.reach_by_tier(0, 1..=6), reach, "{tiers}");
    }
}

#[test]
fn a_removal_in_one_tier_leaves_the_others() {
    let mut scene = Scene::new(1);
    scene.store(0, 1..=4);
    scene.apply(0, &stored(layer(Tier::Host), None, blocks(1..=4)));
    scene.remove(0, 2..=4);
    assert_eq!(scene.reach_by_tier(0, 1..=4), [1, 4, 4, 4]);
    assert_eq!(scene.remove(0, [3]).unknown, 1, "no longer on the GPU");
    scene.apply(0, &removed(layer(Tier::Host), [3]));
    assert_eq!(scene.reach_by_tier(0, 1..=4), [1, 2, 2, 2]);
}

#[test]
fn an_engine_that_looks_chunks_up_serves_whole_chunks() {
    let settings = RankSettings { host_chunk_blocks: 4, ..RankSettings::default() };
    // Blocks on the GPU and in host memory, and what is reached.
    let rows = [
        (1..=4, 1..=8, [4, 8, 8, 8]),
        (1..=4, 1..=7, [4, 4, 4, 4]),
        (1..=5, 1..=8, [5, 8, 8, 8]),
        (1..=2, 3..=8, [2, 2, 2, 2]),
        (1..=6, 5..=12, [6, 12, 12, 12]),
    ];
    for (gpu, host, reach) in rows {
        let mut scene = Scene::with(Limits::default(), vec![settings.clone()]);
        scene.store(0, 1..=12);
        let parent = (*host.start() > 1).then(|| host.start() - 1);
        scene.apply(0, &stored(layer(Tier::Host), parent, blocks(host.clone())));
        scene.remove(0, gpu.end() + 1..=12);
        assert_eq!(scene.reach_by_tier(0, 1..=12), reach, "GPU {gpu:?}, host {host:?}");
    }
}

/// Ignoring the window groups over-reports by 40 % on a real engine's stream.
#[test]
fn a_prefix_is_usable_where_every_window_holds_its_last_blocks() {
    let group = Group::new(1).unwrap();
    // Three blocks of 16: ceil((48 - 1) / 16).
    let settings =
        RankSettings { windows: vec![Window { group, tokens: 3 * BLOCK }], ..RankSettings::default() };
    // Blocks that the window group has, and what is reached of ten.
    let rows: [(&[u64], u32); 6] = [
        (&[8, 9, 10], 10),
        (&[4, 5, 6, 7, 9, 10], 7),
        (&[1, 2], 2),
        (&[], 0),
        (&[1, 3, 4], 1),
        (&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 10),
    ];
    for (window, reach) in rows {
        let mut scene = Scene::with(Limits::default(), vec![settings.clone()]);
        scene.store(0, 1..=10);
        for &number in window {
            let parent = (number > 1).then(|| number - 1);
            scene.apply(0, &stored(Layer::new(Tier::Gpu, group), parent, blocks([number])));
        }
        assert_eq!(scene.reach(0, 1..=10), reach, "{window:?}");
    }
}
