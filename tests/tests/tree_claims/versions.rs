//! Readers see whole versions, whatever the writer does meanwhile.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use kvtide_radix::{BlockHash, Event, Layer, Life, Overlap, View, Watermark};
use rustix::time::{ClockId, clock_gettime};

use crate::scene::{BLOCK, Scene, blocks, rank, removed, stored};

const UPDATES: u64 = 20_000;
const PROMPT: u64 = 40;

/// Until a reader has let go of the version before, the writer has no side of its own.
#[test]
fn what_is_dumped_is_the_newest_version_whatever_readers_keep() {
    let mut scene = Scene::new(1);
    let slot = scene.slot(0);
    let mut kept = Vec::new();
    for block in 1..=PROMPT {
        kept.push(scene.reader.view());
        let parent = (block > 1).then_some(block - 1);
        scene.writer.update(|update| update.apply(slot, &stored(Layer::GPU, parent, blocks([block]))));
        let dump = scene.writer.dump(|_| true);
        let spans = dump.runs.iter().flat_map(|run| &run.held);
        let held: u64 = spans.map(|span| u64::from(span.to - span.from)).sum();
        assert_eq!(held, block, "with {} versions kept", kept.len());
    }
}

#[test]
fn collected_updates_are_one_version_that_is_seen_when_it_is_published() {
    let mut scene = Scene::new(1);
    let slot = scene.slot(0);
    let prompt: Vec<BlockHash> = (1..=PROMPT).map(BlockHash).collect();
    let reach = |view: &View| {
        let mut answer = Overlap::default();
        view.overlap([&prompt], &mut answer);
        u64::from(view.reach(&answer, rank(0)).unwrap().gpu() / BLOCK)
    };
    let first = scene.reader.view().version();
    scene.writer.collect();
    scene.writer.publish();
    assert_eq!(scene.reader.view().version(), first, "nothing was collected");
    for version in 1..=3 {
        scene.writer.collect();
        for block in 1..=PROMPT {
            let parent = (block > 1).then_some(block - 1);
            scene.writer.update(|update| {
                if block == 1 {
                    update.apply(slot, &Event::Cleared);
                }
                update.apply(slot, &stored(Layer::GPU, parent, blocks([block])));
            });
            let view = scene.reader.view();
            assert_eq!(
                (view.version(), reach(&view)),
                (first + 2 * version - 2, if version > 1 { 1 } else { 0 })
            );
        }
        scene.writer.publish();
        let view = scene.reader.view();
        assert_eq!((view.version(), reach(&view)), (first + 2 * version - 1, PROMPT));
        // What comes by itself is a version by itself.
        scene.writer.update(|update| {
            update.apply(slot, &Event::Cleared);
            update.apply(slot, &stored(Layer::GPU, None, blocks([1])));
        });
        let view = scene.reader.view();
        assert_eq!((view.version(), reach(&view)), (first + 2 * version, 1));
    }
}

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

/// Prompts of one block each, many enough that the index keeps a side in reserve.
const PROMPTS: u64 = 20_000;

/// What a view shows of every 64th prompt and of those that `changed` lately.
fn held(view: &View, answer: &mut Overlap, changed: &[u64]) -> Vec<bool> {
    let asked = (1..=PROMPTS).step_by(64).chain(changed.iter().copied());
    asked
        .map(|number| {
            view.overlap([BlockHash(number)], answer);
            view.reach(answer, rank(0)).unwrap().gpu() == BLOCK
        })
        .collect()
}

/// However many versions come and go while views of old ones are kept, each goes on showing its own.
#[test]
fn a_view_shows_its_version_for_as_long_as_it_is_kept() {
    let mut scene = Scene::new(1);
    let slot = scene.slot(0);
    let mut answer = Overlap::default();
    let one = |number: u64| stored(Layer::GPU, None, blocks([number]));
    scene.writer.update(|update| {
        (1..=PROMPTS).for_each(|number| assert_eq!(update.apply(slot, &one(number)).stored, 1));
    });
    let mut present: BTreeSet<u64> = (1..=PROMPTS).collect();
    // Numbers that jump about without chance.
    let changes: Vec<u64> = (0..14_000).map(|step| step * 7919 % PROMPTS + 1).collect();
    let mut kept: Vec<(usize, View, BTreeSet<u64>)> = Vec::new();
    for (step, &number) in changes.iter().enumerate() {
        let event = if present.remove(&number) {
            removed(Layer::GPU, [number])
        } else {
            present.insert(number);
            one(number)
        };
        scene.apply(0, &event);
        // Views of different ages: none, one, or several at a time, and times in which sides are let go again.
        if step % 97 == 0 && step % 9000 < 3000 {
            kept.push((step, scene.reader.view(), present.clone()));
        }
        if kept.len() > step / 500 % 4 {
            let (since, view, present) = kept.remove(0);
            let changed = &changes[since..=step];
            let asked = (1..=PROMPTS).step_by(64).chain(changed.iter().copied());
            let expected: Vec<bool> = asked.map(|number| present.contains(&number)).collect();
            assert_eq!(held(&view, &mut answer, changed), expected, "the version of step {since} at {step}");
        }
    }
    let expected: Vec<bool> = (1..=PROMPTS).step_by(64).map(|number| present.contains(&number)).collect();
    assert_eq!(held(&scene.reader.view(), &mut answer, &[]), expected);
}

/// For how long this thread has run. What other threads take of the processor does not count.
fn own_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap()
}

/// A reader that falls asleep while it reads, and stays so, costs the writer one copy of the runs, once; or of the few
/// that have changed lately, where there are so many runs that a side is kept in reserve.
#[test]
fn a_reader_asleep_never_stops_the_writer() {
    // Of unoptimised code, in which a copy takes ten times as long.
    const LONGEST: Duration = Duration::from_millis(20);
    // Runs before the reader falls asleep, and how many each version has changed until then.
    for (runs, changed) in [(2_000, 1), (40_000, 400)] {
        let mut scene = Scene::new(1);
        let slot = scene.slot(0);
        let mut numbers = (1..).map(|number| stored(Layer::GPU, None, blocks([number])));
        let mut version = |changed: usize| {
            let events: Vec<Event> = numbers.by_ref().take(changed).collect();
            let start = own_time();
            scene.writer.update(|update| {
                events.iter().for_each(|event| assert_eq!(update.apply(slot, event).stored, 1));
            });
            own_time() - start
        };
        for _ in 0..runs / changed {
            version(changed);
        }
        let asleep = scene.reader.view();
        let mut times: Vec<Duration> = (0..1000).map(|_| version(1)).collect();
        times.sort_unstable();
        let [.., third, _, longest] = times[..] else { unreachable!("there are a thousand") };
        assert!(longest < LONGEST, "{runs} runs: the longest update took {longest:?}");
        assert!(third < LONGEST / 10, "{runs} runs: and a third one {third:?}");
        assert_eq!(asleep.size().held_blocks, runs as u64);
        assert_eq!(scene.size().held_blocks, runs as u64 + 1000);
    }
}
