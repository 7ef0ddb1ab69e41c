//! Invented conversations: trees of prompts over shared system prompts, as users and agents grow them.

use std::{ops::Range, sync::Arc};

use kvtide_radix::{BlockHash, Seed, SequenceHash};
use rand::{RngExt, rngs::StdRng};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::scenario::Prompts;
use crate::cli::cache::Piece;

/// How often a conversation that is not being served is looked for.
const ATTEMPTS: usize = 16;

/// The tokens that a text stands for.
pub(super) fn write_tokens(text: u64, block_size: u32, tokens: &mut Vec<u32>) {
    // SplitMix64's finalizer, so that texts of consecutive numbers have nothing in common; then a generator of 64 bits of
    // state, of which 24 are shown.
    let mut state = text.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    state ^= state >> 27;
    tokens.extend((0..block_size).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u32
    }));
}

/// Whose prompts they are. Equal texts of others are other blocks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Owner {
    pub(super) adapter: Option<String>,
    pub(super) tenant: Option<String>,
}

impl Owner {
    pub(super) fn seed(&self) -> Seed {
        Seed::of(self.adapter.as_deref(), self.tenant.as_deref())
    }
}

/// Appends blocks of these texts to a prompt.
pub(super) fn extend(prompt: &mut Vec<Piece>, texts: impl Iterator<Item = u64>, block_size: u32, seed: Seed) {
    let mut tokens = Vec::new();
    for text in texts {
        tokens.clear();
        write_tokens(text, block_size, &mut tokens);
        let content = BlockHash::of(&tokens, &[], seed);
        let name = name_behind(prompt.last().map(|piece| piece.name), content);
        prompt.push(Piece { name, content, text });
    }
}

/// A block's name as Dynamo's router has it: the hash rolls on from the parent's name.
fn name_behind(parent: Option<SequenceHash>, content: BlockHash) -> SequenceHash {
    match parent {
        None => SequenceHash(content.0),
        Some(parent) => {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&parent.0.to_le_bytes());
            bytes[8..].copy_from_slice(&content.0.to_le_bytes());
            SequenceHash(xxh3_64_with_seed(&bytes, Seed::PLAIN.0))
        }
    }
}

/// One conversation.
pub(super) struct Conversation {
    pub(super) owner: Arc<Owner>,
    /// Its complete blocks so far.
    pub(super) prompt: Vec<Piece>,
    /// Tokens so far.
    tokens: u32,
    turns_left: u32,
    is_agent: bool,
    /// Calls that its agent still makes before the user's next turn.
    pub(super) calls_left: u32,
    /// The rank that it was on last.
    pub(super) rank: usize,
    /// It is being served.
    pub(super) busy: bool,
    /// How many conversations had this place before.
    pub(super) age: u64,
}

/// All conversations that are open.
pub(super) struct Conversations {
    settings: Prompts,
    block_size: u32,
    ranks: usize,
    /// The next text that nobody has seen.
    fresh: u64,
    /// Texts and tokens of the system prompts, and what the first so many of them weigh together.
    systems: Vec<(Range<u64>, u32)>,
    weights: Vec<f64>,
    pub(super) open: Vec<Conversation>,
}

impl Conversations {
    pub(super) fn new(
        settings: &Prompts,
        block_size: u32,
        ranks: usize,
        random: &mut StdRng,
    ) -> Conversations {
        let mut all = Conversations {
            settings: settings.clone(),
            block_size,
            ranks,
            fresh: 0,
            systems: Vec::new(),
            weights: Vec::new(),
            open: Vec::new(),
        };
        let mut weight = 0.0;
        for place in 1..=settings.systems {
            let tokens = within(settings.system_tokens, random);
            let blocks = u64::from(tokens / block_size);
            all.systems.push((all.fresh..all.fresh + blocks, tokens));
            all.fresh += blocks;
            weight += (place as f64).powf(-settings.zipf);
            all.weights.push(weight);
        }
        for _ in 0..settings.conversations {
            let conversation = all.begin(0, random);
            all.open.push(conversation);
        }
        all
    }

    /// A conversation whose user has something to say.
    pub(super) fn choose(&mut self, random: &mut StdRng) -> usize {
        let mut chosen = random.random_range(0..self.open.len());
        for _ in 0..ATTEMPTS {
            if !self.open[chosen].busy {
                break;
            }
            chosen = random.random_range(0..self.open.len());
        }
        // Where all are being served, somebody gives up and begins anew.
        if self.open[chosen].busy || self.open[chosen].turns_left == 0 {
            let age = self.open[chosen].age + 1;
            self.open[chosen] = self.begin(age, random);
        }
        chosen
    }

    /// The user says something, perhaps to an earlier answer.
    pub(super) fn ask(&mut self, chosen: usize, random: &mut StdRng) {
        let Prompts { user_tokens, agent_calls, branch, .. } = self.settings;
        let conversation = &mut self.open[chosen];
        conversation.turns_left -= 1;
        if random.random_bool(branch) {
            conversation.tokens = random.random_range(0..=conversation.tokens);
            conversation.prompt.truncate((conversation.tokens / self.block_size) as usize);
        }
        if conversation.is_agent {
            conversation.calls_left = within(agent_calls, random);
        }
        self.grow(chosen, within(user_tokens, random));
    }

    /// A tool has answered an agent. Returns how long that has taken, in milliseconds.
    pub(super) fn call_tool(&mut self, chosen: usize, random: &mut StdRng) -> u32 {
        self.open[chosen].calls_left -= 1;
        self.grow(chosen, within(self.settings.tool_tokens, random));
        within(self.settings.tool_ms, random)
    }

    /// How many tokens an answer has.
    pub(super) fn answer_tokens(&self, random: &mut StdRng) -> u32 {
        within(self.settings.answer_tokens, random)
    }

    /// How many tokens complete the next block.
    pub(super) fn to_next_block(&self, chosen: usize) -> u32 {
        self.block_size - self.open[chosen].tokens % self.block_size
    }

    /// So many tokens more. Returns whether a block has become complete.
    pub(super) fn grow(&mut self, chosen: usize, tokens: u32) -> bool {
        let conversation = &mut self.open[chosen];
        conversation.tokens += tokens;
        let blocks = u64::from(conversation.tokens / self.block_size) - conversation.prompt.len() as u64;
        let texts = self.fresh..self.fresh + blocks;
        self.fresh += blocks;
        let seed = conversation.owner.seed();
        extend(&mut conversation.prompt, texts, self.block_size, seed);
        blocks > 0
    }

    /// A recorded request, in the place of a conversation that is over: its prompt's texts and tokens.
    pub(super) fn record(
        &mut self,
        texts: impl Iterator<Item = u64>,
        tokens: u32,
        random: &mut StdRng,
    ) -> usize {
        let over = self.open.iter().position(|conversation| !conversation.busy);
        let age = over.map_or(0, |over| self.open[over].age + 1);
        let mut conversation = self.begin(age, random);
        let seed = conversation.owner.seed();
        conversation.prompt.clear();
        extend(&mut conversation.prompt, texts, self.block_size, seed);
        (conversation.tokens, conversation.turns_left, conversation.is_agent) = (tokens, 0, false);
        match over {
            Some(over) => self.open[over] = conversation,
            None => self.open.push(conversation),
        }
        over.unwrap_or(self.open.len() - 1)
    }

    fn begin(&self, age: u64, random: &mut StdRng) -> Conversation {
        let all = self.weights.last().copied().unwrap_or_default();
        let at = random.random_range(0.0..all);
        let system = self.weights.partition_point(|&weight| weight <= at).min(self.systems.len() - 1);
        let one_of = |count: u32, word: &str, random: &mut StdRng| {
            let chosen = random.random_range(0..=count);
            (chosen > 0).then(|| format!("{word}-{chosen}"))
        };
        let owner = Owner {
            adapter: one_of(self.settings.adapters, "adapter", random),
            tenant: one_of(self.settings.tenants, "tenant", random),
        };
        let (texts, tokens) = self.systems[system].clone();
        let mut prompt = Vec::new();
        extend(&mut prompt, texts, self.block_size, owner.seed());
        Conversation {
            owner: Arc::new(owner),
            prompt,
            tokens,
            turns_left: within(self.settings.turns, random),
            is_agent: random.random_bool(self.settings.agents),
            calls_left: 0,
            rank: random.random_range(0..self.ranks),
            busy: false,
            age,
        }
    }
}

fn within([least, most]: [u32; 2], random: &mut StdRng) -> u32 {
    random.random_range(least..=most)
}

#[cfg(test)]
mod tests {
    use kvtide_events::sequence_hashes;

    use super::*;

    #[test]
    fn names_are_those_that_a_prompt_computes() {
        let mut prompt = Vec::new();
        extend(&mut prompt, 0..5, 16, Seed::PLAIN);
        let names: Vec<_> = sequence_hashes(prompt.iter().map(|piece| piece.content)).collect();
        assert_eq!(prompt.iter().map(|piece| piece.name).collect::<Vec<_>>(), names);
    }
}
