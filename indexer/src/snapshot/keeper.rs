//! Keeps a snapshot on disk: from time to time, and when the process ends.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::{Peer, SnapshotError, Summary, load, save};
use crate::{Indexer, telemetry};

/// Goes on with the snapshot at `path`; if there is none that can be read, with that of the first peer that has one. Says why
/// something was refused; with nothing to go on with, starts with nothing.
pub fn resume(indexer: &Indexer, path: Option<&Path>, peers: &[Peer]) {
    if let Some(path) = path
        && report(&path.display().to_string(), load(indexer, path))
    {
        return;
    }
    for peer in peers {
        let taken =
            peer.everything().map_err(SnapshotError::from).and_then(|told| indexer.read_snapshot(told));
        if report(&peer.to_string(), taken) {
            return;
        }
    }
}

/// Whether there is something to go on with.
fn report(from: &str, outcome: Result<Summary, SnapshotError>) -> bool {
    match outcome {
        Ok(Summary { scopes, ranks, left_out }) => {
            info!(from, scopes, ranks, left_out, "goes on with a snapshot; its ranks are recovering");
            return true;
        }
        Err(SnapshotError::Io(missing)) if missing.kind() == ErrorKind::NotFound => {
            info!(from, "no snapshot yet");
        }
        Err(reason) => warn!(from, %reason, "snapshot refused"),
    }
    false
}

/// Writes snapshots until it is stopped.
pub struct Keeper {
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl Keeper {
    /// Replaces the snapshot at `path` from time to time.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn start(indexer: Arc<Indexer>, path: PathBuf, every: Duration) -> Keeper {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            while stopped.run_until_cancelled(tokio::time::sleep(every)).await.is_some() {
                keep(&indexer, &path).await;
            }
            keep(&indexer, &path).await;
        });
        Keeper { task, stop }
    }

    /// Writes the last one, and ends.
    pub async fn stop(self) {
        self.stop.cancel();
        if let Err(failed) = self.task.await {
            error!(%failed, "the last snapshot was not written");
        }
    }
}

async fn keep(indexer: &Arc<Indexer>, path: &Path) {
    let (indexer, target, started) = (Arc::clone(indexer), path.to_owned(), Instant::now());
    let saved = tokio::task::spawn_blocking(move || save(&indexer, &target)).await;
    let took = started.elapsed();
    match saved {
        Ok(Ok(summary)) => {
            debug!(path = %path.display(), ranks = summary.ranks, ?took, "snapshot written");
            telemetry::count_snapshot(true, took);
        }
        Ok(Err(reason)) => {
            error!(path = %path.display(), %reason, "snapshot not written; the last one stays");
            telemetry::count_snapshot(false, took);
        }
        Err(failed) => error!(path = %path.display(), %failed, "snapshot not written; the last one stays"),
    }
}
