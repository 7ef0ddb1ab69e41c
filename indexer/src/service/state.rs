//! `GET /v1/workers` and `GET /v1/scopes`: what is known, without a prompt.

use axum::extract::State;
use serde::{Deserialize, Serialize};

use super::{Service, body::Json};
use crate::{Freshness, KnowledgeState, Scope};

/// A rank that is known.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Worker {
    /// Its scope.
    pub scope: Scope,
    /// The worker.
    pub worker_id: u64,
    /// The data-parallel rank.
    pub dp_rank: u32,
    /// How to read its numbers.
    pub knowledge: KnowledgeState,
    /// Blocks that it holds in each tier by itself, not cumulative.
    pub held_blocks: HeldBlocks,
    /// Blocks that wait for a parent or a name.
    pub parked_blocks: usize,
    /// How old this is.
    pub freshness: Freshness,
}

/// Blocks held in each tier by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
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
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WorkerList {
    /// By scope, and in it by worker and data-parallel rank.
    pub workers: Vec<Worker>,
}

#[derive(Serialize)]
pub(super) struct Scopes {
    scopes: Vec<ScopeSummary>,
}

#[derive(Serialize)]
struct ScopeSummary {
    scope: Scope,
    eagle: bool,
    version: u64,
    ranks: usize,
    runs: usize,
    held_blocks: u64,
    parked_blocks: usize,
}

pub(super) async fn workers(State(service): State<Service>) -> Json<WorkerList> {
    let now_ms = service.indexer.clock().steady_ms();
    let mut workers = Vec::new();
    for state in service.indexer.scopes() {
        for rank in &state.ranks {
            let [gpu, host, disk, external] = rank.held_blocks;
            workers.push(Worker {
                scope: state.scope.clone(),
                worker_id: rank.rank.worker_id,
                dp_rank: rank.rank.dp_rank,
                knowledge: rank.watermark.knowledge.into(),
                held_blocks: HeldBlocks { gpu, host, disk, external },
                parked_blocks: rank.parked_blocks,
                freshness: Freshness::of(&rank.watermark, state.pending(rank.rank), now_ms),
            });
        }
    }
    Json(WorkerList { workers })
}

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
