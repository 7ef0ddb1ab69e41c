//! The answer to a query, as it goes out.

use kvtide_radix::{Knowledge, Rank, Reach, Tier, Watermark};
use serde::{Deserialize, Serialize};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{RefOr, Schema},
};

use crate::{Freshness, Scope};

/// How much of one prompt every rank of a scope already holds. Of one consistent version of the index.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Answer {
    /// The scope that was asked, with the prompt's adapter and tenant.
    pub scope: AnswerScope,
    /// The prompt that was asked about.
    pub prompt: Prompt,
    /// When this was collected by this machine's clock, milliseconds since the Unix epoch. The age of the answer, not
    /// of what it says: that is each rank's [`Freshness`].
    pub collected_at_ms: u64,
    /// How long the lookup took, in microseconds, hashing included.
    pub took_us: u64,
    /// The version of the index. Grows by one with each publication of its scope.
    pub version: u64,
    /// Ranks, ordered by worker and data-parallel rank, or with a limit best first.
    pub ranks: Vec<RankAnswer>,
}

/// The scope of an answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AnswerScope {
    /// Its fixed parts.
    #[serde(flatten)]
    pub fixed: Scope,
    /// The prompt's adapter.
    pub adapter: Option<String>,
    /// The prompt's tenant.
    pub tenant: Option<String>,
}

/// Its schema: that of the fixed parts, and two members more.
impl PartialSchema for AnswerScope {
    fn schema() -> RefOr<Schema> {
        let mut schema = Scope::schema();
        if let RefOr::T(Schema::Object(form)) = &mut schema {
            for name in ["adapter", "tenant"] {
                form.properties.insert(name.into(), Option::<String>::schema());
            }
        }
        schema
    }
}

impl ToSchema for AnswerScope {}

/// The prompt of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Prompt {
    /// Its tokens; of a prompt given as hashes, those of its blocks.
    pub tokens: u64,
    /// Its complete blocks.
    pub blocks: u64,
}

/// What one rank holds of the prompt.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct RankAnswer {
    /// The worker.
    pub worker_id: u64,
    /// The data-parallel rank.
    pub dp_rank: u32,
    /// Leading tokens that it could reuse. Null where nothing is known, which is not 0.
    pub reach_tokens: Option<ReachTokens>,
    /// How to read the numbers.
    pub knowledge: KnowledgeState,
    /// Why nothing is known, where something came; left out otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// How old they are; left out if the query says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freshness: Option<Freshness>,
}

/// Leading tokens that a rank could reuse with a tier **and all faster ones**: cumulative, never to be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReachTokens {
    /// On the GPU.
    pub gpu: u32,
    /// On the GPU or in host memory.
    pub host: u32,
    /// On the GPU, in host memory or on disk.
    pub disk: u32,
    /// Anywhere, the shared store included.
    pub external: u32,
}

impl From<Reach> for ReachTokens {
    fn from(reach: Reach) -> ReachTokens {
        let [gpu, host, disk, external] = Tier::ALL.map(|tier| reach.tokens(tier));
        ReachTokens { gpu, host, disk, external }
    }
}

/// Why nothing is known of a rank from which something came.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Two live publishers claim the rank. It ends when one of them has been silent for long enough.
    ConflictingPublishers,
}

impl Reason {
    pub(crate) fn of(watermark: &Watermark) -> Option<Reason> {
        watermark.conflict.then_some(Reason::ConflictingPublishers)
    }
}

/// How to read a rank's numbers, as it goes out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum KnowledgeState {
    /// Nothing known: the reach is null.
    Unknown,
    /// Everything that the publisher has published in this life is applied.
    Complete,
    /// A lower bound.
    Partial,
    /// Numbers of before a break, frozen while the missing part is fetched.
    Recovering,
    /// Numbers may be wrong either way.
    Gap,
}

impl KnowledgeState {
    /// All of them.
    pub const ALL: [KnowledgeState; 5] = [
        KnowledgeState::Unknown,
        KnowledgeState::Complete,
        KnowledgeState::Partial,
        KnowledgeState::Recovering,
        KnowledgeState::Gap,
    ];

    /// Its name, as it goes out.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            KnowledgeState::Unknown => "unknown",
            KnowledgeState::Complete => "complete",
            KnowledgeState::Partial => "partial",
            KnowledgeState::Recovering => "recovering",
            KnowledgeState::Gap => "gap",
        }
    }
}

impl From<Knowledge> for KnowledgeState {
    fn from(knowledge: Knowledge) -> KnowledgeState {
        match knowledge {
            Knowledge::Unknown => KnowledgeState::Unknown,
            Knowledge::Complete => KnowledgeState::Complete,
            Knowledge::Partial => KnowledgeState::Partial,
            Knowledge::Recovering => KnowledgeState::Recovering,
            Knowledge::Gap => KnowledgeState::Gap,
        }
    }
}

impl RankAnswer {
    /// The rank that this is about.
    #[must_use]
    pub fn rank(&self) -> Rank {
        Rank { worker_id: self.worker_id, dp_rank: self.dp_rank }
    }
}
