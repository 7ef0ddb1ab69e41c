//! `GET /v1/workers` and `GET /v1/scopes`: what is known, without a prompt.

use std::time::Duration;

use axum::extract::State;
use kvtide_radix::{Life, Watermark};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Service, body::Json, problem::Problem};
use crate::{FeedbackState, Freshness, KnowledgeState, Reason, Scope};

/// A rank that is known.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Worker {
    /// Its scope.
    pub scope: Scope,
    /// The worker.
    pub worker_id: u64,
    /// The data-parallel rank.
    pub dp_rank: u32,
    /// Whether anything comes from it.
    pub presence: Presence,
    /// How to read its numbers.
    pub knowledge: KnowledgeState,
    /// Why nothing is known, where something came; left out otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Blocks that it holds in each tier by itself, not cumulative.
    pub held_blocks: HeldBlocks,
    /// Blocks that wait for a parent or a name.
    pub parked_blocks: usize,
    /// How old this is.
    pub freshness: Freshness,
    /// What its engine has said that it had cached, if it has.
    pub feedback: Option<FeedbackState>,
}

/// Whether anything comes from a rank's publisher.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// Nothing ever has.
    Registered,
    /// Something has, a short while ago.
    Seen,
    /// Nothing has for a while: idle, or no longer there.
    Silent,
}

/// Blocks held in each tier by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct HeldBlocks {
    /// On the GPU.
    pub gpu: u64,
    /// In host memory.
    pub host: u64,
    /// On disk.
    pub disk: u64,
    /// In the shared store.
    pub external: u64,
}

/// All ranks that are known.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct WorkerList {
    /// By scope, and in it by worker and data-parallel rank.
    pub workers: Vec<Worker>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct Scopes {
    scopes: Vec<ScopeSummary>,
}

#[derive(Serialize, ToSchema)]
struct ScopeSummary {
    scope: Scope,
    eagle: bool,
    version: u64,
    ranks: usize,
    runs: usize,
    held_blocks: u64,
    parked_blocks: usize,
}

impl Presence {
    fn of(watermark: &Watermark, now_ms: u64, silent_after: Duration) -> Presence {
        if watermark.life == Life(0) {
            return Presence::Registered;
        }
        let age = watermark.heard_at_ms.map(|heard| Duration::from_millis(now_ms.saturating_sub(heard)));
        match age {
            Some(age) if age < silent_after => Presence::Seen,
            Some(_) | None => Presence::Silent,
        }
    }
}

/// Every rank that is known.
#[utoipa::path(
    get,
    path = "/v1/workers",
    tag = "admin",
    responses(
        (status = 200, description = "Every rank, by scope", body = WorkerList),
        (status = "default", response = Problem)
    )
)]
pub(super) async fn workers(State(service): State<Service>) -> Json<WorkerList> {
    let (now_ms, silent_after) = (service.indexer.clock().steady_ms(), service.indexer.limits().silent_after);
    let mut workers = Vec::new();
    for state in service.indexer.scopes() {
        for rank in &state.ranks {
            let [gpu, host, disk, external] = rank.held_blocks;
            workers.push(Worker {
                scope: state.scope.clone(),
                worker_id: rank.rank.worker_id,
                dp_rank: rank.rank.dp_rank,
                presence: Presence::of(&rank.watermark, now_ms, silent_after),
                knowledge: rank.watermark.knowledge.into(),
                reason: Reason::of(&rank.watermark),
                held_blocks: HeldBlocks { gpu, host, disk, external },
                parked_blocks: rank.parked_blocks,
                freshness: Freshness::of(&rank.watermark, state.pending(rank.rank), now_ms),
                feedback: state.feedback(rank.rank),
            });
        }
    }
    Json(WorkerList { workers })
}

/// Every scope that is known.
#[utoipa::path(
    get,
    path = "/v1/scopes",
    tag = "admin",
    responses(
        (status = 200, description = "Every scope", body = Scopes),
        (status = "default", response = Problem)
    )
)]
pub(super) async fn scopes(State(service): State<Service>) -> Json<Scopes> {
    let summary = |state: crate::ScopeState| ScopeSummary {
        scope: state.scope,
        eagle: state.eagle,
        version: state.version,
        ranks: state.ranks.len(),
        runs: state.size.runs,
        held_blocks: state.size.held_blocks,
        parked_blocks: state.size.parked_blocks,
    };
    Json(Scopes { scopes: service.indexer.scopes().into_iter().map(summary).collect() })
}
