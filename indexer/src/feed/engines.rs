//! The engines that are followed: which, from where, and whether they are there. They may be let go one by one.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::BoundStream;

/// An engine that is followed.
#[derive(Clone)]
pub struct FollowedEngine {
    pub(super) stream: Arc<BoundStream>,
    pub(super) endpoint: String,
    pub(super) connected: Arc<AtomicBool>,
}

impl FollowedEngine {
    /// The stream of its batches.
    #[must_use]
    pub fn stream(&self) -> &Arc<BoundStream> {
        &self.stream
    }

    /// Its publisher's address, as it was given.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Whether there is a connection to it.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }
}

/// All of them, by the names of their streams, each with what stops it.
#[derive(Default)]
pub(super) struct Engines {
    followed: Mutex<BTreeMap<String, (FollowedEngine, CancellationToken)>>,
}

impl Engines {
    /// One that follows the same stream already is stopped.
    pub(super) fn insert(&self, engine: FollowedEngine, stop: CancellationToken) {
        let name = engine.stream.stream().name.clone();
        if let Some((_, former)) = self.followed.lock().insert(name, (engine, stop)) {
            former.cancel();
        }
    }

    /// Stops one.
    pub(super) fn remove(&self, stream: &str) -> Option<FollowedEngine> {
        let (engine, stop) = self.followed.lock().remove(stream)?;
        stop.cancel();
        Some(engine)
    }

    pub(super) fn list(&self) -> Vec<FollowedEngine> {
        self.followed.lock().values().map(|(engine, _)| engine.clone()).collect()
    }
}
