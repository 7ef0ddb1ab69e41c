//! Asks workers for what their own indexes hold, over Dynamo's request plane: the endpoint that each publisher announces beside
//! itself.

use std::{collections::HashMap, sync::Arc, time::Duration};

use anyhow::Context as _;
use dynamo_kv_router::{
    indexer::{WorkerKvQueryKind, WorkerKvQueryRequest, WorkerKvQueryResponse},
    protocols::{ResetScope, ResidencyDomain, RouterEvent},
};
use dynamo_runtime::{
    component::Instance,
    pipeline::{AddressedPushRouter, AddressedRequest, AsyncEngine, ManyOut, SingleIn},
    traits::DistributedRuntimeProvider,
};
use futures_util::StreamExt;
use kvtide::{IndexAnswer, IndexRequest};
use parking_lot::RwLock;
use tracing::debug;

use crate::translate;

/// A worker has so long to answer one question: it may have millions of blocks to tell.
const PATIENCE: Duration = Duration::from_secs(50);
/// So often a worker may tell what it holds before it has told what came meanwhile.
const DUMPS: usize = 3;

/// The workers that can be asked.
#[derive(Clone)]
pub struct Workers {
    router: Arc<AddressedPushRouter>,
    /// By publisher.
    targets: Arc<RwLock<HashMap<u64, Instance>>>,
}

impl Workers {
    /// None yet.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn new(runtime: &impl DistributedRuntimeProvider) -> anyhow::Result<Workers> {
        let router = AddressedPushRouter::from_runtime_provider(runtime).await?;
        Ok(Workers { router, targets: Arc::default() })
    }

    /// From now on these are the ones to ask, by publisher.
    pub(crate) fn replace(&self, targets: HashMap<u64, Instance>) {
        *self.targets.write() = targets;
    }

    /// Puts a question to its worker.
    pub async fn ask(self, request: IndexRequest) -> IndexAnswer {
        let target = self.targets.read().get(&request.publisher_id).cloned();
        let Some(target) = target else { return IndexAnswer::Failed };
        let answer = tokio::time::timeout(PATIENCE, self.tell(&target, request)).await;
        let answer = answer.context("no answer in time").and_then(|answer| answer);
        answer.unwrap_or_else(|reason| {
            let (worker_id, dp_rank) = (request.rank.worker_id, request.rank.dp_rank);
            debug!(worker_id, dp_rank, reason = format!("{reason:#}"), "a worker's index does not answer");
            IndexAnswer::Failed
        })
    }

    async fn tell(&self, target: &Instance, request: IndexRequest) -> anyhow::Result<IndexAnswer> {
        let mut answer = self.query(target, request, request.first_event_id).await?;
        for _ in 0..DUMPS {
            let (holds, last_event_id) = match answer {
                WorkerKvQueryResponse::Events { events, last_event_id } => {
                    return Ok(IndexAnswer::Events { events: translated(events), last_event_id });
                }
                WorkerKvQueryResponse::TooNew { newest_available: last_event_id, .. } => {
                    return Ok(IndexAnswer::Nothing { last_event_id });
                }
                WorkerKvQueryResponse::TreeDump {
                    events,
                    last_event_id,
                    reset_scope: ResetScope::All | ResetScope::Domain(ResidencyDomain::Worker),
                } => (events, last_event_id),
                other => anyhow::bail!("{}", refusal(&other)),
            };
            // The dump may be ahead of its number: what came since sets that right.
            let next = last_event_id.saturating_add(1);
            answer = match self.query(target, request, Some(next)).await? {
                WorkerKvQueryResponse::TooNew { newest_available, .. }
                    if newest_available == last_event_id =>
                {
                    return Ok(IndexAnswer::Dump {
                        holds: translated(holds),
                        last_event_id,
                        behind: Vec::new(),
                    });
                }
                WorkerKvQueryResponse::TreeDump { last_event_id: 0, .. } if last_event_id == 0 => {
                    return Ok(IndexAnswer::Dump { holds: Vec::new(), last_event_id, behind: Vec::new() });
                }
                WorkerKvQueryResponse::Events { events, last_event_id: newest }
                    if events.first().is_some_and(|first| first.event.event_id == next) =>
                {
                    let behind = translated(events);
                    debug!(newest, "events behind what a worker holds");
                    return Ok(IndexAnswer::Dump { holds: translated(holds), last_event_id, behind });
                }
                other => other,
            };
        }
        anyhow::bail!("it has told what it holds {DUMPS} times, and each time lost what came meanwhile")
    }

    async fn query(
        &self,
        target: &Instance,
        request: IndexRequest,
        start_event_id: Option<u64>,
    ) -> anyhow::Result<WorkerKvQueryResponse> {
        let query = WorkerKvQueryRequest {
            worker_id: request.rank.worker_id,
            dp_rank: request.rank.dp_rank,
            start_event_id,
            end_event_id: None,
            supports_tree_dump_failed: true,
            kind: WorkerKvQueryKind::Recovery,
        };
        let addressed =
            SingleIn::new(query).map(|query| AddressedRequest::for_instance(query, target.clone()));
        let mut answers: ManyOut<WorkerKvQueryResponse> = self.router.generate(addressed).await?;
        answers.next().await.context("an answer without anything in it")
    }
}

fn translated(events: Vec<RouterEvent>) -> Vec<kvtide_events::RouterEvent> {
    events.into_iter().map(translate).collect()
}

/// Why an answer tells nothing.
fn refusal(answer: &WorkerKvQueryResponse) -> String {
    match answer {
        WorkerKvQueryResponse::TreeDumpFailed { message, .. } => format!("its dump has failed: {message}"),
        WorkerKvQueryResponse::InvalidRange { start_id, end_id } => {
            format!("it takes events {start_id} to {end_id} for no range")
        }
        WorkerKvQueryResponse::Error(message) => message.clone(),
        WorkerKvQueryResponse::TreeDump { .. } => "it holds blocks of others alone".to_owned(),
        // The type is open: later versions may say more.
        _ => "an answer of a kind that was not asked for".to_owned(),
    }
}
