//! Which workloads there are.

use std::io::Error;

use clap::ValueEnum;

use crate::{
    conversations::Conversations,
    fleet::{Fleet, Shape},
    mooncake::Mooncake,
    workload::Workload,
};

/// Requests in the Mooncake trace.
const TRACE_REQUESTS: usize = 12_031;

/// A workload by its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Kind {
    /// The Mooncake trace in blocks of 64 tokens, room for 524,288 of them.
    Mooncake64,
    /// The Mooncake trace in blocks of 16 tokens, room for 4,194,304 of them.
    Mooncake16,
    /// Conversations over shared system prompts, with answers that grow block by block.
    Conversations,
    /// The first of these, in which blocks amid a prompt are evicted, one for 50 that are stored.
    Fragmented,
    /// Conversations with room for 262,144 blocks, until that has been stored ten times over.
    Churn,
    /// The first of these, with one block an event.
    OneBlock,
    /// The first of these, read as an engine's own stream.
    Engine,
}

impl Kind {
    /// The numbers of ranks that it is meant for.
    #[must_use]
    pub fn ranks(self) -> &'static [usize] {
        match self {
            Kind::Mooncake64
            | Kind::Mooncake16
            | Kind::Fragmented
            | Kind::Churn
            | Kind::OneBlock
            | Kind::Engine => &[64],
            Kind::Conversations => &[8, 128, 1024],
        }
    }

    /// The workload, or a `part`-th of it.
    ///
    /// # Errors
    /// If the trace that is built in cannot be read.
    pub fn workload(self, ranks: usize, part: usize) -> Result<Workload, Error> {
        let mooncake = |block_tokens, room: usize, stored_per_hole| {
            let shape = Shape { ranks, room: room / part / ranks, stored_per_hole };
            Mooncake { block_tokens, requests: TRACE_REQUESTS / part, shape }.workload()
        };
        match self {
            Kind::Mooncake64 => mooncake(64, 524_288, None),
            Kind::Mooncake16 => mooncake(16, 4_194_304, None),
            Kind::Fragmented => mooncake(64, 524_288, Some(50)),
            // 256k tokens a rank, in blocks of 64.
            Kind::Conversations => Ok(conversations(ranks, 4096, 20_000 / part)),
            Kind::Churn => Ok(conversations(ranks, 262_144 / part / ranks, 160_000 / part)),
            Kind::OneBlock => Ok(mooncake(64, 524_288, None)?.one_by_one()),
            Kind::Engine => Ok(mooncake(64, 524_288, None)?.of_engines()),
        }
    }
}

fn conversations(ranks: usize, room: usize, turns: usize) -> Workload {
    let mut fleet = Fleet::new(Shape { ranks, room, stored_per_hole: None });
    let mut conversations = Conversations::new(ranks);
    for _ in 0..turns {
        conversations.turn(&mut fleet);
    }
    fleet.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use kvtide_radix::{Event, Rank, SequenceHash};
    use kvtide_tests::Model;

    use super::*;
    use crate::workload::{blocks_of, hashed};

    /// Few ranks and a small part: the reference is slow.
    fn small(kind: Kind) -> Workload {
        kind.workload(4, 128).expect("the trace is built in")
    }

    fn rank(number: usize) -> Rank {
        Rank { worker_id: number as u64, dp_rank: 0 }
    }

    /// What the caches say is right is what the reference model says of the events.
    #[test]
    fn the_truth_is_that_of_the_reference_model() {
        for &kind in Kind::value_variants() {
            let workload = small(kind);
            let mut model = Model::new(1, usize::MAX);
            for number in 0..workload.ranks {
                model.join(rank(number), workload.settings.clone());
            }
            let mut applied = 0;
            assert!(workload.truths.len() > 3, "{kind:?}: {} truths", workload.truths.len());
            for truth in &workload.truths {
                let after = workload.prompts.after(truth.prompt);
                workload.events[applied..after]
                    .iter()
                    .for_each(|(number, event)| model.apply(rank(*number), event));
                applied = after;
                let prompt = workload.prompts.get(truth.prompt);
                for (number, &reach) in truth.reaches.iter().enumerate() {
                    let [gpu, ..] = model.reach(rank(number), prompt);
                    assert_eq!(reach, gpu, "{kind:?}: rank {number} on prompt {}", truth.prompt);
                }
            }
            workload.events[applied..].iter().for_each(|(number, event)| model.apply(rank(*number), event));
            let held: usize = (0..workload.ranks).map(|number| model.held_blocks(rank(number))).sum();
            assert_eq!(held, workload.held_blocks, "{kind:?}");
        }
    }

    /// Follows what each rank holds by name. Returns how many blocks were stored, and how many were removed while a
    /// block of the same rank that was stored behind them stayed.
    fn stored_and_holes(workload: &Workload) -> (usize, usize) {
        let (mut stored, mut holes) = (0, 0);
        let mut held: HashSet<(usize, SequenceHash)> = HashSet::new();
        let mut behind: HashMap<SequenceHash, Vec<SequenceHash>> = HashMap::new();
        for (rank, event) in &workload.events {
            match event {
                Event::Stored(new) => {
                    let mut parent = new.parent;
                    for block in hashed(new) {
                        assert!(held.insert((*rank, block.name)), "what is held is not stored again");
                        if let Some(parent) = parent.replace(block.name) {
                            behind.entry(parent).or_default().push(block.name);
                        }
                    }
                    stored += blocks_of(event);
                }
                Event::Removed(gone) => {
                    for &name in &gone.names {
                        assert!(held.remove(&(*rank, name)), "only what is held is removed");
                    }
                    let is_held = |name: &SequenceHash| held.contains(&(*rank, *name));
                    let hole = |name: &SequenceHash| {
                        behind.get(name).is_some_and(|behind| behind.iter().any(is_held))
                    };
                    holes += gone.names.iter().filter(|name| hole(name)).count();
                }
                Event::Cleared => panic!("no rank clears its cache"),
            }
        }
        assert_eq!(held.len(), workload.held_blocks);
        (stored, holes)
    }

    #[test]
    fn fragmented_has_a_hole_for_50_stored_blocks_and_keeps_its_residency() {
        let whole = Kind::Mooncake64.workload(16, 8).expect("the trace is built in");
        let fragmented = Kind::Fragmented.workload(16, 8).expect("the trace is built in");
        assert_eq!(stored_and_holes(&whole).1, 0);
        let (stored, holes) = stored_and_holes(&fragmented);
        let part = holes as f64 / stored as f64;
        assert!((0.0195..0.0205).contains(&part), "{holes} holes in {stored} stored blocks");
        let residency = fragmented.held_blocks as f64 / whole.held_blocks as f64;
        assert!(residency > 0.98, "{residency}");
    }

    #[test]
    fn churn_turns_the_caches_over_ten_times_and_keeps_them_full() {
        let workload = Kind::Churn.workload(64, 32).expect("nothing is read");
        let (stored, holes) = stored_and_holes(&workload);
        assert_eq!((holes, workload.held_blocks), (0, 262_144 / 32));
        assert!(stored > 10 * workload.held_blocks, "{stored}");
    }

    /// The names by which Dynamo's positional index finds blocks: the prompt's own sequence hashes.
    #[test]
    fn blocks_named_by_sequence_have_the_names_that_a_prompt_computes() {
        let workload = small(Kind::OneBlock).named_by_sequence();
        let stored = workload.events.iter().filter_map(|(_, event)| match event {
            Event::Stored(stored) => Some(hashed(stored).iter().map(|block| (block.content, block.name))),
            Event::Removed(_) | Event::Cleared => None,
        });
        let names: HashMap<_, _> = stored.flatten().collect();
        let mut known = 0;
        for prompt in 0..workload.prompts.len() {
            let contents = workload.prompts.get(prompt).iter().copied();
            for (name, content) in kvtide_events::sequence_hashes(contents.clone()).zip(contents) {
                known += usize::from(names.contains_key(&content));
                assert_eq!(names.get(&content).copied().unwrap_or(name), name);
            }
        }
        assert!(known > 1000, "{known}");
    }
}
