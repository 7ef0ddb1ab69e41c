//! The truth: what each rank holds after each of its messages, as its own caches have it, and answers held against it.

use std::collections::VecDeque;

use kvtide::{Answer, KnowledgeState, RankAnswer, ReachTokens};
use kvtide_radix::SequenceHash;
use rustc_hash::FxHashMap;

use super::{plan::number_of, publisher::Delta};
use crate::cli::cache::TIERS;

/// So many wrong answers are described.
const DESCRIBED: usize = 5;

/// What a rank's message does.
pub(super) struct Note {
    pub(super) rank: usize,
    pub(super) life: u64,
    pub(super) position: u64,
    pub(super) deltas: Box<[Delta]>,
}

/// How answers compare with the truth.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Verdict {
    /// Answers about one rank that were compared.
    pub(super) compared: u64,
    /// Those that credit more, in some tier, than was held.
    pub(super) over: u64,
    /// Those that credit less in some tier, and more in none.
    pub(super) under: u64,
    /// Of these, answers of ranks that are said to be known wholly.
    pub(super) under_complete: u64,
    /// The first wrong ones, in words.
    pub(super) wrong: Vec<String>,
}

/// What ranks hold, each at the last of its messages that an answer has named.
pub(super) struct Reference {
    dp_ranks: u32,
    block_size: u32,
    ranks: Vec<Held>,
    pub(super) verdict: Verdict,
}

#[derive(Default)]
struct Held {
    /// Messages that no answer has named yet.
    ahead: VecDeque<Note>,
    life: u64,
    position: u64,
    /// The tiers in which each block is held, a bit each.
    blocks: FxHashMap<SequenceHash, u8>,
    /// Whether anything has been noted of it: not every rank is checked.
    checked: bool,
}

impl Reference {
    pub(super) fn new(ranks: usize, dp_ranks: u32, block_size: u32) -> Reference {
        let ranks = (0..ranks).map(|_| Held::default()).collect();
        Reference { dp_ranks, block_size, ranks, verdict: Verdict::default() }
    }

    /// Notes what a message does, before anybody can have seen it.
    pub(super) fn note(&mut self, note: Note) {
        let held = &mut self.ranks[note.rank];
        held.checked = true;
        held.ahead.push_back(note);
    }

    /// Holds an answer against the truth. Answers come in the order in which they were asked for.
    pub(super) fn check(&mut self, answer: &Answer, prompt: &[SequenceHash]) {
        for one in &answer.ranks {
            let Some(number) = number_of(one.rank(), self.dp_ranks, self.ranks.len()) else { continue };
            if !self.ranks[number].checked {
                continue;
            }
            // Of a rank of which nothing is known nothing is credited.
            let Some(reach) = one.reach_tokens else { continue };
            let freshness = one.freshness.as_ref();
            let said = freshness.map(|fresh| (fresh.generation, fresh.last_event_id));
            let truth = match said {
                // Its life has begun, but nothing of it is visible yet.
                Some((_, None)) | None => [0; 3],
                Some((life, Some(position))) => {
                    self.ranks[number].advance(life, position);
                    self.ranks[number].reach(prompt).map(|blocks| blocks * self.block_size)
                }
            };
            self.compare(one, reach, truth);
        }
    }

    fn compare(&mut self, one: &RankAnswer, reach: ReachTokens, truth: [u32; 3]) {
        let ReachTokens { gpu, host, disk, external } = reach;
        // Nobody has a shared store: what reaches furthest is the disk.
        let pairs = [(gpu, truth[0]), (host, truth[1]), (disk, truth[2]), (external, truth[2])];
        let verdict = &mut self.verdict;
        verdict.compared += 1;
        let over = pairs.iter().any(|(got, held)| got > held);
        let under = !over && pairs.iter().any(|(got, held)| got < held);
        verdict.over += u64::from(over);
        verdict.under += u64::from(under);
        verdict.under_complete += u64::from(under && one.knowledge == KnowledgeState::Complete);
        if (over || under) && verdict.wrong.len() < DESCRIBED {
            let (worker, dp_rank, knowledge) = (one.worker_id, one.dp_rank, one.knowledge.name());
            let at = one.freshness.as_ref().and_then(|fresh| fresh.last_event_id).unwrap_or(0);
            verdict.wrong.push(format!(
                "rank {worker}/{dp_rank}, {knowledge} at {at}: expected {truth:?} tokens on gpu, host and disk, got \
                 [{gpu}, {host}, {disk}]"
            ));
        }
    }
}

impl Held {
    /// Applies messages up to one of them, and it.
    fn advance(&mut self, life: u64, position: u64) {
        let upto = (life, position);
        while let Some(note) = self.ahead.pop_front_if(|note| (note.life, note.position) <= upto) {
            if note.life != self.life {
                self.blocks.clear();
                self.life = note.life;
            }
            self.position = note.position;
            for delta in &note.deltas {
                self.apply(delta);
            }
        }
    }

    fn apply(&mut self, Delta { tier, stored, names }: &Delta) {
        let bit = 1 << tier;
        for &name in names {
            if *stored {
                *self.blocks.entry(name).or_insert(0) |= bit;
            } else if let Some(tiers) = self.blocks.get_mut(&name) {
                *tiers &= !bit;
                if *tiers == 0 {
                    self.blocks.remove(&name);
                }
            }
        }
    }

    /// Leading blocks that are held in a tier or a faster one, for each tier.
    fn reach(&self, prompt: &[SequenceHash]) -> [u32; 3] {
        let mut reach = [0; 3];
        let mut going = (1_u8 << TIERS.len()) - 1;
        for name in prompt {
            let tiers = self.blocks.get(name).copied().unwrap_or(0);
            for (tier, blocks) in reach.iter_mut().enumerate() {
                let upto = (2_u8 << tier) - 1;
                if tiers & upto == 0 {
                    going &= !(1 << tier);
                }
                *blocks += u32::from(going >> tier & 1);
            }
            if going == 0 {
                break;
            }
        }
        reach
    }
}
