//! Readers beside a writer, in every order of their steps: no answer mixes versions.
//!
//! Each model is a few versions of a small index and what each rank reaches in each of them. The writer makes them one by
//! one while readers ask; whatever a reader is answered must be what its version says, in full. `docs/CONCURRENCY.md`
//! lists the invariants that these models try. Run with `make models`.

#![cfg(kvtide_loom)]
#![expect(clippy::unwrap_used, reason = "a model may stop at the first step that cannot be")]

use std::sync::Arc;

use kvtide_radix::{
    Block, BlockHash, Blocks, Event, Layer, Limits, Overlap, Rank, RankSettings, RankSlot, Removed,
    SequenceHash, Stored, View, Watermark, Writer, index,
};

/// Ranks that may exist.
const RANKS: u64 = 9;

/// Blocks, each a number: of its content, and of its name.
type Prompt = &'static [u64];

/// What happens to one rank.
#[derive(Clone, Copy, Debug)]
enum Step {
    Join(u64),
    Leave(u64),
    /// Stores the blocks behind the first so many of a prompt.
    Store(u64, Prompt, usize),
    Remove(u64, Prompt),
}
use Step::{Join, Leave, Remove, Store};

/// One version: the steps that lead to it, and, for each prompt, what some ranks reach then. All others reach nothing.
struct Version {
    steps: Vec<Step>,
    reaches: Vec<Vec<(u64, u32)>>,
}

impl Step {
    fn rank(self) -> u64 {
        match self {
            Join(rank) | Leave(rank) | Store(rank, ..) | Remove(rank, _) => rank,
        }
    }
}

impl Version {
    fn touches(&self, rank: u64) -> bool {
        self.steps.iter().any(|step| step.rank() == rank)
    }
}

fn rank(number: u64) -> Rank {
    Rank { worker_id: number, dp_rank: 0 }
}

fn block(number: u64) -> Block {
    Block { name: SequenceHash(number), content: BlockHash(number) }
}

/// An index that changes step by step.
struct Scene {
    writer: Writer,
    slots: [Option<RankSlot>; RANKS as usize],
}

impl Scene {
    fn make(&mut self, number: u64, version: &Version) {
        let slots = &mut self.slots;
        self.writer.update(|update| {
            for step in &version.steps {
                match *step {
                    Join(rank_number) => {
                        let joined = update.join(rank(rank_number), RankSettings::default());
                        slots[rank_number as usize] = joined.ok();
                    }
                    Leave(rank_number) => update.leave(slots[rank_number as usize].take().unwrap()),
                    Store(rank_number, prompt, held) => {
                        let parent = held.checked_sub(1).map(|last| SequenceHash(prompt[last]));
                        let blocks =
                            Blocks::Hashed(prompt[held..].iter().map(|&number| block(number)).collect());
                        let stored = Stored { layer: Layer::GPU, parent, blocks };
                        update.apply(slots[rank_number as usize].unwrap(), &Event::Stored(stored));
                    }
                    Remove(rank_number, blocks) => {
                        let names = blocks.iter().map(|&number| SequenceHash(number)).collect();
                        let removed = Removed { layer: Layer::GPU, names };
                        update.apply(slots[rank_number as usize].unwrap(), &Event::Removed(removed));
                    }
                }
            }
            for slot in
                slots.iter().zip(0..).filter(|(_, rank)| version.touches(*rank)).filter_map(|(slot, _)| *slot)
            {
                update.mark(slot, Watermark { last_event_id: Some(number), ..Watermark::default() });
            }
        });
    }
}

/// Asks one view for every prompt, and compares with what its version says.
fn check(view: &View, prompts: &[Prompt], versions: &[Version]) {
    let number = view.version();
    let version = &versions[number as usize - 1];
    for state in view.ranks() {
        let touched = (1..=number).rfind(|&one| versions[one as usize - 1].touches(state.rank.worker_id));
        assert_eq!(state.watermark.last_event_id, touched, "a watermark of another version than {number}");
    }
    let mut answer = Overlap::default();
    for (index, prompt) in prompts.iter().enumerate() {
        let hashes: Vec<BlockHash> = prompt.iter().map(|&number| BlockHash(number)).collect();
        view.overlap([&hashes], &mut answer);
        for number in 0..RANKS {
            let expected = version.reaches[index].iter().find(|&&(one, _)| one == number);
            let reach = view.reach(&answer, rank(number)).map_or(0, |reach| reach.gpu());
            let expected = expected.map_or(0, |&(_, blocks)| blocks);
            assert_eq!(reach, expected, "rank {number}, prompt {prompt:?}, version {}", view.version());
        }
    }
}

/// How a reader goes about it.
#[derive(Clone, Copy)]
enum Habit {
    /// Looks at the index and asks, twice.
    Asks,
    /// Looks at the index, falls asleep, and asks of what it saw.
    Sleeps,
}

/// Tries every order of the writer's steps from the second version on and the readers'.
fn model(prompts: &'static [Prompt], versions: fn() -> Vec<Version>, readers: &'static [Habit]) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 100_000;
    builder.check(move || {
        let (writer, reader) = index(1, Limits::default());
        let mut scene = Scene { writer, slots: [None; RANKS as usize] };
        let versions = Arc::new(versions());
        scene.make(1, &versions[0]);
        let read = |&habit: &Habit| {
            let (reader, versions) = (reader.clone(), Arc::clone(&versions));
            loom::thread::spawn(move || match habit {
                Habit::Asks => (0..2).for_each(|_| check(&reader.view(), prompts, &versions)),
                Habit::Sleeps => {
                    let view = reader.view();
                    loom::thread::yield_now();
                    check(&view, prompts, &versions);
                }
            })
        };
        let readers: Vec<_> = readers.iter().map(read).collect();
        for (number, version) in (1..).zip(&*versions).skip(1) {
            scene.make(number, version);
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        check(&reader.view(), prompts, &versions);
    });
}

fn version(steps: &[Step], reaches: &[&[(u64, u32)]]) -> Version {
    Version { steps: steps.to_vec(), reaches: reaches.iter().map(|reaches| reaches.to_vec()).collect() }
}

/// What has left the end of a run is not written over while an older version shows it, and is later.
#[test]
fn a_run_is_cut_short_and_goes_on_otherwise() {
    const OLD: Prompt = &[1, 2, 3];
    const NEW: Prompt = &[1, 4, 5];
    let versions = || {
        vec![
            version(&[Join(0), Store(0, OLD, 0)], &[&[(0, 3)], &[(0, 1)]]),
            version(&[Remove(0, &[3, 2])], &[&[(0, 1)], &[(0, 1)]]),
            version(&[Store(0, NEW, 1)], &[&[(0, 1)], &[(0, 3)]]),
            version(&[Remove(0, &[5]), Store(0, &[1, 4, 6], 2)], &[&[(0, 1)], &[(0, 2)]]),
        ]
    };
    model(&[OLD, NEW], versions, &[Habit::Asks]);
    model(&[OLD, NEW], versions, &[Habit::Sleeps]);
}

/// A page that nobody holds anything of is given out again only when no version shows it, and with another fold.
#[test]
fn a_page_is_used_again() {
    // Pages have four blocks here, so that these are compared by their folds.
    const OLD: Prompt = &[1, 2, 3, 4];
    const NEW: Prompt = &[1, 6, 7, 8];
    // Without it the memory of the page would go, and not be used again.
    const KEPT: Prompt = &[9];
    let versions = || {
        let first = [Join(0), Join(1), Store(1, KEPT, 0), Store(0, OLD, 0)];
        vec![
            version(&first, &[&[(0, 4)], &[(0, 1)], &[(1, 1)]]),
            version(&[Remove(0, OLD)], &[&[], &[], &[(1, 1)]]),
            version(&[Store(0, NEW, 0)], &[&[(0, 1)], &[(0, 4)], &[(1, 1)]]),
            version(&[Remove(0, NEW), Store(0, OLD, 0)], &[&[(0, 4)], &[(0, 1)], &[(1, 1)]]),
        ]
    };
    model(&[OLD, NEW, KEPT], versions, &[Habit::Asks]);
    model(&[OLD, NEW, KEPT], versions, &[Habit::Sleeps, Habit::Sleeps]);
}

/// A run that grows in place shows its new end in the new version only, on whichever side it is made.
#[test]
fn a_run_grows_in_place() {
    const PROMPT: Prompt = &[1, 2, 3, 4];
    let versions = || {
        vec![
            version(&[Join(0), Join(1), Store(1, PROMPT, 0), Store(0, &[1], 0)], &[&[(0, 1), (1, 4)]]),
            version(&[Store(0, &[1, 2], 1)], &[&[(0, 2), (1, 4)]]),
            version(&[Remove(1, &[4])], &[&[(0, 2), (1, 3)]]),
            version(&[Store(0, &[1, 2, 3], 2)], &[&[(0, 3), (1, 3)]]),
            version(&[Store(0, PROMPT, 3)], &[&[(0, 4), (1, 3)]]),
        ]
    };
    model(&[PROMPT], versions, &[Habit::Asks]);
    model(&[PROMPT], versions, &[Habit::Sleeps, Habit::Sleeps]);
}

/// A side that was passed over for some versions lacks none of them when it is its turn.
#[test]
fn a_side_that_rested_catches_up() {
    const A: Prompt = &[1];
    const B: Prompt = &[2];
    let versions = || {
        vec![
            version(&[Join(0), Join(1), Store(0, A, 0)], &[&[(0, 1)], &[]]),
            version(&[Store(1, B, 0)], &[&[(0, 1)], &[(1, 1)]]),
            version(&[Store(0, B, 0)], &[&[(0, 1)], &[(0, 1), (1, 1)]]),
            version(&[Remove(0, A)], &[&[], &[(0, 1), (1, 1)]]),
            version(&[Remove(1, B)], &[&[], &[(0, 1)]]),
            version(&[Store(1, A, 0)], &[&[(1, 1)], &[(0, 1)]]),
        ]
    };
    model(&[A, B], versions, &[Habit::Sleeps, Habit::Sleeps]);
}

/// Where eight ranks stop a run is cut, and joined again when they go on.
#[test]
fn a_run_is_cut_in_two_and_joined_again() {
    const PROMPT: Prompt = &[1, 2];
    let versions = || {
        let all = |blocks| (0..RANKS).map(|rank| (rank, blocks)).collect::<Vec<_>>();
        let first: Vec<Step> = (0..RANKS).flat_map(|rank| [Join(rank), Store(rank, PROMPT, 0)]).collect();
        let cut: Vec<Step> = (0..RANKS - 1).map(|rank| Remove(rank, &[2])).collect();
        let joined: Vec<Step> = (0..RANKS - 1).map(|rank| Store(rank, PROMPT, 1)).collect();
        let mut short = all(1);
        short[RANKS as usize - 1].1 = 2;
        vec![version(&first, &[&all(2)]), version(&cut, &[&short]), version(&joined, &[&all(2)])]
    };
    model(&[PROMPT], versions, &[Habit::Asks]);
    model(&[PROMPT], versions, &[Habit::Sleeps]);
}

/// A slot is another rank's in a later version, and each version knows whose it is.
#[test]
fn a_ranks_slot_is_used_again() {
    const OLD: Prompt = &[1, 2];
    const NEW: Prompt = &[1, 3];
    let versions = || {
        vec![
            version(&[Join(0), Store(0, OLD, 0)], &[&[(0, 2)], &[(0, 1)]]),
            version(&[Leave(0), Join(1), Store(1, NEW, 0)], &[&[(1, 1)], &[(1, 2)]]),
            version(&[Leave(1), Join(0), Store(0, NEW, 0)], &[&[(0, 1)], &[(0, 2)]]),
        ]
    };
    model(&[OLD, NEW], versions, &[Habit::Asks]);
    model(&[OLD, NEW], versions, &[Habit::Sleeps]);
}
