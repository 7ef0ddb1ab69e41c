//! Keeps a snapshot on disk: from time to time, and when the process ends.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::{SnapshotError, load, save};
use crate::{Indexer, telemetry};

/// Goes on with the snapshot at `path`, if there is one that can be read. If not, says why, and starts with nothing.
pub fn resume(indexer: &Indexer, path: &Path) {
    let started = Instant::now();
    match load(indexer, path) {
        Ok(summary) => {
            info!(
                path = %path.display(),
                scopes = summary.scopes,
                ranks = summary.ranks,
                left_out = summary.left_out,
                took = ?started.elapsed(),
                "goes on with a snapshot; its ranks are recovering"
            );
        }
        Err(SnapshotError::Io(missing)) if missing.kind() == std::io::ErrorKind::NotFound => {
            info!(path = %path.display(), "no snapshot yet");
        }
        Err(reason) => warn!(path = %path.display(), %reason, "snapshot refused; starts with nothing"),
    }
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
