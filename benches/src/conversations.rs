//! Invented conversations over a few system prompts: many ranks share the start of a prompt, and answers grow block
//! by block.

use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::{fleet::Fleet, workload::Number};

const SEED: u64 = 2;
/// System prompts, the k-th of them chosen with a weight of 1 / k.
const SYSTEM_PROMPTS: usize = 64;
/// Conversations that are open at the same time.
const OPEN: usize = 512;

/// Conversations without an end, always the same ones.
pub struct Conversations {
    ranks: usize,
    random: StdRng,
    /// The next block that nobody has seen.
    fresh: Number,
    systems: Vec<Vec<Number>>,
    open: Vec<Conversation>,
}

/// A conversation stays with its rank and ends after some turns.
struct Conversation {
    rank: usize,
    blocks: Vec<Number>,
    turns: u32,
}

impl Conversations {
    /// Conversations that a fleet of so many ranks serves.
    #[must_use]
    pub fn new(ranks: usize) -> Conversations {
        let random = StdRng::seed_from_u64(SEED);
        let mut all = Conversations { ranks, random, fresh: 0, systems: Vec::new(), open: Vec::new() };
        for _ in 0..SYSTEM_PROMPTS {
            let system = all.grow(8..96).collect();
            all.systems.push(system);
        }
        for _ in 0..OPEN {
            let conversation = all.begin();
            all.open.push(conversation);
        }
        all
    }

    /// The next turn of one of the conversations: its prompt is asked for and served, and its answer grows.
    pub fn turn(&mut self, fleet: &mut Fleet) {
        let at = self.random.random_range(0..self.open.len());
        let question = self.grow(2..24);
        let answer = self.grow(1..9);
        let conversation = &mut self.open[at];
        conversation.blocks.extend(question);
        fleet.ask(&conversation.blocks);
        fleet.serve(conversation.rank, &conversation.blocks);
        for number in answer {
            conversation.blocks.push(number);
            fleet.serve(conversation.rank, &conversation.blocks);
        }
        conversation.turns -= 1;
        if conversation.turns == 0 {
            self.open[at] = self.begin();
        }
    }

    fn begin(&mut self) -> Conversation {
        let total: f64 = (1..=self.systems.len()).map(|place| 1.0 / place as f64).sum();
        let mut rest = self.random.random_range(0.0..total);
        let chosen = (1..self.systems.len()).find(|&place| {
            rest -= 1.0 / place as f64;
            rest < 0.0
        });
        Conversation {
            rank: self.random.random_range(0..self.ranks),
            blocks: self.systems[chosen.unwrap_or(self.systems.len()) - 1].clone(),
            turns: self.random.random_range(1..9),
        }
    }

    /// So many fresh blocks.
    fn grow(&mut self, count: std::ops::Range<Number>) -> std::ops::Range<Number> {
        let start = self.fresh;
        self.fresh += self.random.random_range(count);
        start..self.fresh
    }
}
