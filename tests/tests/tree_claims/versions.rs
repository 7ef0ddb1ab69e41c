//! Readers see whole versions, whatever the writer does meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};

use kvtide_radix::{BlockHash, Event, Layer, Life, Overlap, Watermark};

use crate::scene::{BLOCK, Scene, blocks, rank, stored};

const UPDATES: u64 = 20_000;
const PROMPT: u64 = 40;

/// Each update hands a prompt over from one rank to the other. In no version do both hold it, or neither, or one a
/// part of it, or is a watermark another version's.
#[test]
fn a_reader_sees_a_version_before_an_update_or_behind_it() {
    let mut scene = Scene::new(2);
    let slots = [scene.slot(0), scene.slot(1)];
    let prompt: Vec<BlockHash> = (1..=PROMPT).map(BlockHash).collect();
    let whole = stored(Layer::GPU, None, blocks(1..=PROMPT));
    let done = AtomicBool::new(false);
    let first = scene.reader.view().version();
    let reader = scene.reader.clone();
    let read = || {
        let mut answer = Overlap::default();
        let mut seen = 0;
        while !done.load(Ordering::Relaxed) {
            let view = reader.view();
            view.overlap([&prompt], &mut answer);
            let reaches = [0, 1].map(|number| view.reach(&answer, rank(number)).unwrap().gpu() / BLOCK);
            let lives: Vec<u64> = view.ranks().map(|state| state.watermark.life.0).collect();
            let version = view.version() - first;
            let holder = (version % 2) as usize;
            if version > 0 {
                assert_eq!(
                    (reaches[holder], reaches[1 - holder]),
                    (PROMPT as u32, 0),
                    "in version {version}"
                );
                assert_eq!(lives, [version, version]);
                seen += 1;
            }
        }
        seen
    };
    let seen: u64 = std::thread::scope(|scope| {
        let readers = [scope.spawn(read), scope.spawn(read)];
        for version in 1..=UPDATES {
            let holder = (version % 2) as usize;
            scene.writer.update(|update| {
                update.apply(slots[1 - holder], &Event::Cleared);
                update.apply(slots[holder], &whole);
                for slot in slots {
                    update.mark(slot, Watermark { life: Life(version), ..Watermark::default() });
                }
            });
        }
        done.store(true, Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    });
    assert!(seen > 0, "the readers came to nothing");
}
