//! Readers beside a writer: every answer is the reference model's at exactly the version that the answer names.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use kvtide_radix::{BlockHash, Limits, Overlap, RankSlot, Reach, Reader, Tier, Watermark, Writer, index};
use kvtide_tests::Model;
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, RngSeed, TestRunner},
};

use crate::act::{Act, BLOCK_SIZE, PARKED, RANKS, act, content, prompt, rank, settings};

const VERSIONS: usize = 10_000;
const PROMPTS: usize = 40;
/// Answers of one version that a reader keeps.
const KEPT: usize = 6;

/// What happens on the way to one version.
type Change = Vec<(usize, Act)>;

/// What one reader was told.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Told {
    version: u64,
    prompt: usize,
    /// By rank, then by tier. None: the rank is not in the index.
    reaches: Vec<Option<[u32; 4]>>,
    /// The version that last marked the rank.
    marks: Vec<Option<u64>>,
}

/// Whether a reader holds on to a version before it asks.
#[derive(Clone, Copy)]
enum Habit {
    AsksAtOnce,
    FallsAsleep(Duration),
}

fn changes(runner: &mut TestRunner) -> Vec<Change> {
    let strategy = prop::collection::vec((0..RANKS, act()), 1..6);
    (0..VERSIONS).map(|_| strategy.new_tree(runner).unwrap().current()).collect()
}

fn prompts(runner: &mut TestRunner) -> Vec<Vec<BlockHash>> {
    let strategy = (prompt(), any::<bool>());
    let drawn = (0..PROMPTS).map(|_| strategy.new_tree(runner).unwrap().current());
    drawn.map(|(prompt, salted)| prompt.iter().map(|&token| content(token, salted)).collect()).collect()
}

/// The index, changed version by version.
struct Fleet {
    writer: Writer,
    slots: Vec<Option<RankSlot>>,
}

impl Fleet {
    fn change(&mut self, version: u64, change: &Change) {
        let slots = &mut self.slots;
        self.writer.update(|update| {
            for (number, act) in change {
                let join = || update.join(rank(*number), settings(*number % 5)).unwrap();
                let slot = *slots[*number].get_or_insert_with(join);
                match act {
                    Act::Forget => update.forget(slot),
                    Act::Expire { .. } => {
                        update.expire(slot, u64::MAX);
                    }
                    // Leaves for good, so that slots change hands, and joins with what comes next.
                    Act::Return { .. } => {
                        update.leave(slot);
                        slots[*number] = None;
                        continue;
                    }
                    act => {
                        update.apply(slot, &act.event(number.is_multiple_of(2)).unwrap());
                    }
                }
                update.mark(slot, Watermark { last_event_id: Some(version), ..Watermark::default() });
            }
        });
    }
}

/// The same for the model, with the version that last marked each rank.
struct Truth {
    model: Model,
    marks: Vec<Option<u64>>,
}

impl Truth {
    fn change(&mut self, version: u64, change: &Change) {
        for (number, act) in change {
            if self.marks[*number].is_none() {
                self.model.join(rank(*number), settings(*number % 5));
            }
            self.marks[*number] = Some(version);
            match act {
                Act::Forget => self.model.forget(rank(*number)),
                Act::Expire { .. } => {
                    self.model.expire(rank(*number), u64::MAX);
                }
                Act::Return { .. } => {
                    self.model.leave(rank(*number));
                    self.marks[*number] = None;
                }
                act => self.model.apply(rank(*number), &act.event(number.is_multiple_of(2)).unwrap()),
            }
        }
    }

    fn told(&self, version: u64, prompt: usize, hashes: &[BlockHash]) -> Told {
        let reach = |number: usize| self.marks[number].map(|_| self.model.reach(rank(number), hashes));
        Told { version, prompt, reaches: (0..RANKS).map(reach).collect(), marks: self.marks.clone() }
    }
}

fn read(reader: &Reader, habit: Habit, prompts: &[Vec<BlockHash>], done: &AtomicBool) -> Vec<Told> {
    let mut told: Vec<Told> = Vec::new();
    let mut answer = Overlap::default();
    for prompt in (0..prompts.len()).cycle() {
        if done.load(Ordering::Relaxed) {
            break;
        }
        let view = reader.view();
        if let Habit::FallsAsleep(duration) = habit {
            thread::sleep(duration);
        }
        view.overlap([&prompts[prompt]], &mut answer);
        if told.len() >= KEPT && told[told.len() - KEPT].version == view.version() {
            continue;
        }
        let tokens = |reach: Reach| Tier::ALL.map(|tier| reach.tokens(tier));
        let reaches = (0..RANKS).map(|number| view.reach(&answer, rank(number)).map(tokens));
        let mut marks = vec![None; RANKS];
        for state in view.ranks() {
            marks[(state.rank.worker_id * 2) as usize + state.rank.dp_rank as usize] =
                state.watermark.last_event_id;
        }
        told.push(Told { version: view.version(), prompt, reaches: reaches.collect(), marks });
    }
    told
}

#[test]
fn every_answer_is_the_models_at_the_version_that_it_names() {
    let mut runner = TestRunner::new(Config { rng_seed: RngSeed::Fixed(5), ..Config::default() });
    let (changes, prompts) = (changes(&mut runner), prompts(&mut runner));
    let (writer, reader) =
        index(BLOCK_SIZE, Limits { ranks: RANKS, parked_blocks: PARKED, ..Limits::default() });
    let mut fleet = Fleet { writer, slots: vec![None; RANKS] };
    let done = AtomicBool::new(false);
    let habits = [
        Habit::AsksAtOnce,
        Habit::FallsAsleep(Duration::from_millis(1)),
        Habit::AsksAtOnce,
        Habit::FallsAsleep(Duration::from_micros(50)),
    ];
    let mut told: Vec<Told> = thread::scope(|scope| {
        let (prompts, done, reader) = (&prompts, &done, &reader);
        let readers = habits.map(|habit| scope.spawn(move || read(reader, habit, prompts, done)));
        for (version, change) in (1..).zip(&changes) {
            fleet.change(version, change);
            thread::sleep(Duration::from_micros(20));
        }
        done.store(true, Ordering::Relaxed);
        readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect()
    });
    told.sort_by_key(|told| (told.version, told.prompt));
    told.dedup();
    let mut truth = Truth { model: Model::new(BLOCK_SIZE, PARKED), marks: vec![None; RANKS] };
    let (mut versions, mut seen) = (0, 0);
    for told in told.chunk_by(|a, b| a.version == b.version) {
        while versions < told[0].version {
            truth.change(versions + 1, &changes[versions as usize]);
            versions += 1;
        }
        for told in told {
            assert_eq!(*told, truth.told(told.version, told.prompt, &prompts[told.prompt]));
        }
        seen += 1;
    }
    println!("{} answers in {seen} versions", told.len());
    assert!(seen > VERSIONS / 20, "readers saw {seen} of {VERSIONS} versions");
}
