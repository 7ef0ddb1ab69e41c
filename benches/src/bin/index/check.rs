//! Whether an index answers right: a bench of wrong answers measures nothing.

use kvtide_tests::Model;
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::{
    contestant::{Contestant, rank},
    workload::{Prompts, Workload},
};

/// Prompts whose answers are compared.
const PROMPTS: usize = 24;
/// Ranks whose reach is compared: the model is slow, and ranks do not depend on each other in it.
const RANKS: usize = 2;
const SEED: u64 = 3;

/// What the reference model answers on a sample of prompts and ranks.
pub(crate) struct Truth {
    /// Prompt, rank, blocks.
    reaches: Vec<(usize, usize, u32)>,
}

impl Truth {
    pub(crate) fn of(workload: &Workload) -> Truth {
        let mut random = StdRng::seed_from_u64(SEED);
        let ranks: Vec<usize> = (0..RANKS).map(|_| random.random_range(0..workload.ranks)).collect();
        let mut model = Model::new(1, usize::MAX);
        for &number in &ranks {
            model.join(rank(number), workload.settings.clone());
        }
        for (number, event) in workload.events.iter().filter(|(number, _)| ranks.contains(number)) {
            model.apply(rank(*number), event);
        }
        let mut reaches = Vec::new();
        for _ in 0..PROMPTS {
            let index = random.random_range(0..workload.prompts.len());
            for &number in &ranks {
                let [gpu, ..] = model.reach(rank(number), workload.prompts.get(index));
                reaches.push((index, number, gpu));
            }
        }
        Truth { reaches }
    }

    /// # Panics
    /// If the index answers otherwise.
    pub(crate) fn hold<C: Contestant>(&self, index: &mut C, prompts: &Prompts<C::Hash>) {
        for &(prompt, rank, blocks) in &self.reaches {
            let reaches = index.reaches(prompts.get(prompt));
            assert_eq!(reaches[rank], blocks, "{}: rank {rank} on prompt {prompt}", C::NAME);
        }
    }
}
