//! Invented conversations over a few system prompts: many ranks share the start of a prompt, and answers grow block
//! by block.

use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::workload::{Fleet, Number, Workload};

const SEED: u64 = 2;
/// System prompts, the k-th of them chosen with a weight of 1 / k.
const SYSTEM_PROMPTS: usize = 64;
/// Conversations that are open at the same time.
const OPEN: usize = 512;
/// Blocks a rank has room for: 256k tokens in blocks of 64.
const ROOM: usize = 4096;

/// How many conversations there are, and who serves them.
pub(crate) struct Conversations {
    pub(crate) ranks: usize,
    /// Turns of all conversations together.
    pub(crate) requests: usize,
}

/// A conversation stays with its rank and ends after some turns.
struct Conversation {
    rank: usize,
    blocks: Vec<Number>,
    turns: u32,
}

impl Conversations {
    pub(crate) fn workload(&self) -> Workload {
        let mut random = StdRng::seed_from_u64(SEED);
        let mut fleet = Fleet::new(self.ranks, ROOM);
        let mut numbers = 0..Number::MAX;
        let systems: Vec<Vec<Number>> = (0..SYSTEM_PROMPTS)
            .map(|_| numbers.by_ref().take(random.random_range(8..96)).collect())
            .collect();
        let mut open: Vec<Conversation> = (0..OPEN).map(|_| self.begin(&systems, &mut random)).collect();
        for _ in 0..self.requests {
            let at = random.random_range(0..open.len());
            let conversation = &mut open[at];
            conversation.blocks.extend(numbers.by_ref().take(random.random_range(2..24)));
            fleet.ask(&conversation.blocks);
            fleet.serve(conversation.rank, &conversation.blocks);
            for number in numbers.by_ref().take(random.random_range(1..9)) {
                conversation.blocks.push(number);
                fleet.serve(conversation.rank, &conversation.blocks);
            }
            conversation.turns -= 1;
            if conversation.turns == 0 {
                *conversation = self.begin(&systems, &mut random);
            }
        }
        fleet.finish("conversations".to_owned())
    }

    fn begin(&self, systems: &[Vec<Number>], random: &mut StdRng) -> Conversation {
        let total: f64 = (1..=systems.len()).map(|place| 1.0 / place as f64).sum();
        let mut rest = random.random_range(0.0..total);
        let chosen = (1..systems.len()).find(|&place| {
            rest -= 1.0 / place as f64;
            rest < 0.0
        });
        Conversation {
            rank: random.random_range(0..self.ranks),
            blocks: systems[chosen.unwrap_or(systems.len()) - 1].clone(),
            turns: random.random_range(1..9),
        }
    }
}
