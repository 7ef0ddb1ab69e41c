//! Asks Dynamo's workers for what their own indexes can tell: what was published before they were announced, and what was lost.

use std::{future::Future, sync::Arc};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::turns::{LOOK, Turns};
use crate::{IndexAnswer, IndexRequest, Indexer, snapshot::Wanted};

/// Asks until it is stopped. `ask` puts one question to its worker; it ends in time whatever happens.
pub(super) async fn run<A>(
    indexer: Arc<Indexer>,
    ask: impl Fn(IndexRequest) -> A + Send + 'static,
    stop: CancellationToken,
) where
    A: Future<Output = IndexAnswer> + Send + 'static,
{
    let mut turns = Turns::default();
    let mut answers: JoinSet<()> = JoinSet::new();
    let mut looks = tokio::time::interval(LOOK);
    while stop.run_until_cancelled(looks.tick()).await.is_some() {
        for wanted in turns.due(indexer.wanted_indexes(), &mut answers) {
            let Some(request) = indexer.index_request(&wanted) else { continue };
            let (answer, indexer, one) = (ask(request), Arc::clone(&indexer), wanted.clone());
            let task = answers.spawn(async move { take(&indexer, &one, request, answer.await).await });
            turns.ask(wanted, task.id());
        }
    }
}

/// Applies an answer beside the tasks that wait for sockets: it may be long.
async fn take(indexer: &Arc<Indexer>, wanted: &Wanted, request: IndexRequest, answer: IndexAnswer) {
    let (indexer, wanted) = (Arc::clone(indexer), wanted.clone());
    let taken = tokio::task::spawn_blocking(move || indexer.apply_index(&wanted, request, answer)).await;
    let (worker_id, dp_rank) = (request.rank.worker_id, request.rank.dp_rank);
    match taken {
        Ok(true) => info!(worker_id, dp_rank, "goes on with what a worker's index has told"),
        Ok(false) => debug!(worker_id, dp_rank, "a worker's index could not tell"),
        Err(failed) => debug!(worker_id, dp_rank, %failed, "an answer was not applied"),
    }
}
