//! A query: whose scope, which prompt, which ranks.

use std::{borrow::Cow, collections::BTreeSet};

use hashbrown::HashMap;
use kvtide_events::{BlockMedia, Hashing, Media};
use kvtide_radix::{BlockHash, Knowledge, Overlap, Rank, RankState, Reach, Seed, Tier, View};

use crate::{
    Answer, Freshness, Scope, ScopeQuery,
    answer::{AnswerScope, Prompt, RankAnswer, Reason},
    unreached::Watch,
};

/// What is asked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Query<'a> {
    /// The scope, with the prompt's adapter and tenant.
    pub scope: ScopeQuery,
    /// The prompt.
    pub prompt: PromptContent<'a>,
    /// Whether blocks are keyed by pairs of tokens (EAGLE), where whoever asks says so: it must be as the scope has it.
    pub eagle: Option<bool>,
    /// Only these ranks, of those that are known.
    pub ranks: Option<BTreeSet<Rank>>,
    /// Only ranks that reach so far in some tier. A rank of which nothing is known reaches nowhere.
    pub min_reach_tokens: u32,
    /// Only so many, the best: by GPU, then host, then disk.
    pub limit: Option<usize>,
    /// Leave out freshness.
    pub without_freshness: bool,
}

/// A prompt. Its tokens need not be copied to be asked about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PromptContent<'a> {
    /// Its tokens.
    Tokens(Cow<'a, [u32]>),
    /// Its tokens, and the media among them.
    Multimodal {
        /// The tokens. Those that stand for a medium are whatever the engine takes for it.
        tokens: Cow<'a, [u32]>,
        /// The media.
        media: PromptMedia,
    },
    /// The hashes of its blocks, computed by whoever asks. They contain adapter, tenant and media already.
    Hashes(Vec<BlockHash>),
}

/// The media of a prompt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PromptMedia {
    /// Those of each block. Blocks behind the last have none.
    ByBlock(Vec<BlockMedia>),
    /// Those that stand for ranges of tokens.
    ByTokens(Vec<Media>),
}

impl PromptMedia {
    fn by_block(&self, block_size: u32, blocks: usize) -> Cow<'_, [BlockMedia]> {
        match self {
            PromptMedia::ByBlock(media) => media.into(),
            PromptMedia::ByTokens(media) => Media::by_block(media, block_size, blocks).into(),
        }
    }

    /// How many there are, each once for every block that it stands in.
    fn count(&self, block_size: u32, blocks: usize) -> u64 {
        let sum = |sum: u64, count: usize| sum.saturating_add(count as u64);
        match self {
            PromptMedia::ByBlock(media) => media.iter().map(|block| block.hashes().len()).fold(0, sum),
            PromptMedia::ByTokens(media) => {
                media.iter().map(|one| one.blocks(block_size, blocks)).fold(0, sum)
            }
        }
    }
}

impl Default for PromptContent<'_> {
    fn default() -> Self {
        PromptContent::Tokens(Cow::Borrowed(&[]))
    }
}

/// Why a query has no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QueryError {
    /// No scope has these fixed parts.
    #[error("of {known} known scopes none has these parts")]
    UnknownScope {
        /// How many scopes are known.
        known: usize,
    },
    /// Several scopes fit what is given.
    #[error("{} scopes fit; they differ in {}", .fitting, .differences.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "))]
    SeveralScopes {
        /// How many.
        fitting: usize,
        /// The parts in which they differ, with their values.
        differences: Vec<(&'static str, Vec<Option<String>>)>,
    },
    /// The prompt is longer than is allowed, or all of them together are.
    #[error("prompts of {got} tokens; at most {limit} are allowed")]
    TooManyTokens {
        /// Its tokens, or those of its blocks.
        got: u64,
        /// The limit.
        limit: u64,
    },
    /// The prompt has more media than are allowed, or all of them together have.
    #[error("{got} media, counted once for every block that they stand in; at most {limit} are allowed")]
    TooManyMedia {
        /// How many.
        got: u64,
        /// The limit.
        limit: u64,
    },
    /// The answers together have more ranks than are allowed.
    #[error(
        "answers of more than {limit} ranks, the most that are allowed together; expected a limit of each query, or fewer"
    )]
    TooManyRanks {
        /// The limit.
        limit: u64,
    },
    /// Blocks are keyed otherwise than whoever asks says.
    #[error("expected is_eagle = {expected}, as the scope has it, got {got}")]
    OtherHashing {
        /// What the scope says.
        expected: bool,
        /// What the query says.
        got: bool,
    },
}

/// One version of a scope's index, and what is needed to read it.
pub(crate) struct Moment<'a> {
    pub(crate) scope: &'a Scope,
    pub(crate) hashing: Hashing,
    pub(crate) view: View,
    pub(crate) steady_ms: u64,
    pub(crate) pending: HashMap<Rank, u64>,
    pub(crate) unreached: Watch<'a>,
}

impl Query<'_> {
    /// Tokens of the prompt, or of its blocks if it is given as hashes.
    pub(crate) fn tokens(&self, block_size: u32) -> u64 {
        match &self.prompt {
            PromptContent::Tokens(tokens) | PromptContent::Multimodal { tokens, .. } => tokens.len() as u64,
            PromptContent::Hashes(hashes) => hashes.len() as u64 * u64::from(block_size),
        }
    }

    fn blocks(&self, hashing: Hashing) -> usize {
        match &self.prompt {
            PromptContent::Tokens(tokens) | PromptContent::Multimodal { tokens, .. } => {
                hashing.blocks(tokens.len())
            }
            PromptContent::Hashes(hashes) => hashes.len(),
        }
    }

    /// The prompt's media, each counted once for every block that it stands in.
    pub(crate) fn media(&self, hashing: Hashing) -> u64 {
        match &self.prompt {
            PromptContent::Multimodal { media, .. } => media.count(hashing.block_size, self.blocks(hashing)),
            PromptContent::Tokens(_) | PromptContent::Hashes(_) => 0,
        }
    }

    /// Whether blocks are keyed as whoever asks believes.
    pub(crate) fn check_hashing(&self, hashing: Hashing) -> Result<(), QueryError> {
        match self.eagle {
            Some(got) if got != hashing.eagle => {
                Err(QueryError::OtherHashing { expected: hashing.eagle, got })
            }
            Some(_) | None => Ok(()),
        }
    }

    fn overlap(&self, moment: &Moment<'_>) -> Overlap {
        let seed = Seed::of(self.scope.adapter.as_deref(), self.scope.tenant.as_deref());
        let (hashing, mut overlap) = (moment.hashing, Overlap::default());
        match &self.prompt {
            PromptContent::Tokens(tokens) => {
                moment.view.overlap(hashing.hash_groups(tokens, &[], seed), &mut overlap);
            }
            PromptContent::Multimodal { tokens, media } => {
                let media = media.by_block(hashing.block_size, self.blocks(hashing));
                moment.view.overlap(hashing.hash_groups(tokens, &media, seed), &mut overlap);
            }
            PromptContent::Hashes(hashes) => moment.view.overlap([hashes], &mut overlap),
        }
        overlap
    }

    /// Answers from one version. `collected_at_ms` and `took_us` are still to be filled in.
    pub(crate) fn answer(&self, moment: &Moment<'_>) -> Answer {
        let overlap = self.overlap(moment);
        // Reaches come by slot; ranks are many, so that each is looked up once.
        let mut reaches: Vec<_> = overlap.reaches().collect();
        reaches.sort_unstable_by_key(|&(slot, _)| slot);
        let reach = |state: &RankState| match reaches.binary_search_by_key(&state.slot, |&(slot, _)| slot) {
            Ok(index) => reaches[index].1,
            Err(_) => Reach::NONE,
        };
        let notes = moment.unreached.notes();
        let states = moment.view.ranks().map(|state| (state, reach(&state)));
        let asked = |rank: &Rank| self.ranks.as_ref().is_none_or(|ranks| ranks.contains(rank));
        let ranks = states
            .inspect(|(state, reach)| notes.note(state, *reach != Reach::NONE))
            .filter(|(state, _)| asked(&state.rank))
            .map(|(state, reach)| (state, known_reach(&state, reach)));
        let mut ranks: Vec<_> = ranks.filter(|(_, reach)| self.is_far_enough(*reach)).collect();
        if let Some(limit) = self.limit {
            let best =
                |reach: Option<Reach>| std::cmp::Reverse(reach.map(|r| Tier::ALL.map(|tier| r.tokens(tier))));
            ranks.sort_by_key(|(_, reach)| best(*reach));
            ranks.truncate(limit);
        }
        // By reference: consumed, the vector of all ranks would be kept for the few that are left of them.
        let ranks = ranks.iter().map(|(state, reach)| self.rank_answer(moment, state, *reach)).collect();
        Answer {
            scope: AnswerScope {
                fixed: moment.scope.clone(),
                adapter: self.scope.adapter.clone(),
                tenant: self.scope.tenant.clone(),
            },
            prompt: Prompt {
                tokens: self.tokens(moment.scope.block_size),
                blocks: self.blocks(moment.hashing) as u64,
            },
            collected_at_ms: 0,
            took_us: 0,
            version: moment.view.version(),
            ranks,
        }
    }

    fn is_far_enough(&self, reach: Option<Reach>) -> bool {
        reach.map_or(0, |reach| reach.external()) >= self.min_reach_tokens
    }

    fn rank_answer(&self, moment: &Moment<'_>, state: &RankState, reach: Option<Reach>) -> RankAnswer {
        let Rank { worker_id, dp_rank } = state.rank;
        let freshness = (!self.without_freshness)
            .then(|| moment.pending.get(&state.rank).copied().unwrap_or(0))
            .map(|pending| Freshness::of(&state.watermark, pending, moment.steady_ms));
        RankAnswer {
            worker_id,
            dp_rank,
            reach_tokens: reach.map(Into::into),
            knowledge: state.watermark.knowledge.into(),
            reason: Reason::of(&state.watermark),
            freshness,
        }
    }
}

/// Of a rank of which nothing is known there is no reach, which is not a reach of 0.
fn known_reach(state: &RankState, reach: Reach) -> Option<Reach> {
    match state.watermark.knowledge {
        Knowledge::Unknown => None,
        Knowledge::Complete | Knowledge::Partial | Knowledge::Recovering | Knowledge::Gap => Some(reach),
    }
}
