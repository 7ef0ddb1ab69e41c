//! Streams that are bound no more: what is left of them, and of their scopes.

use std::sync::Arc;

use parking_lot::MutexGuard;

use super::{ApplyError, BoundStream, Indexer};
use crate::{mirror::Mirror, telemetry};

impl BoundStream {
    /// The mirror that its messages are applied to.
    pub(crate) fn mirror(&self) -> Result<MutexGuard<'_, Mirror>, ApplyError> {
        let mirror = self.scope.mirror.lock();
        if self.let_go.is_cancelled() {
            return Err(ApplyError::LetGo { stream: self.stream.name.clone() });
        }
        Ok(mirror)
    }

    /// Waits until the stream is bound no more.
    pub(crate) async fn let_go(&self) {
        self.let_go.cancelled().await;
    }
}

impl Indexer {
    /// Lets a stream go with all ranks that it feeds, and its scope if no other stream is bound to it. Returns how many
    /// ranks these were. Messages of the stream that are still on their way are refused.
    pub fn unbind(&self, stream: &Arc<BoundStream>) -> usize {
        let mut streams = self.streams.write();
        let name = &stream.stream.name;
        if !streams.get(name).is_some_and(|bound| Arc::ptr_eq(bound, stream)) {
            return 0;
        }
        streams.remove(name);
        if !streams.values().any(|other| Arc::ptr_eq(&other.scope, &stream.scope)) {
            self.scopes.write().remove(&stream.scope.scope);
            telemetry::dismiss(&stream.scope.scope);
        }
        drop(streams);
        let mut mirror = stream.scope.mirror.lock();
        stream.let_go.cancel();
        mirror.remove_source(stream.source)
    }

    /// All streams that are bound.
    pub(crate) fn streams(&self) -> Vec<Arc<BoundStream>> {
        self.streams.read().values().cloned().collect()
    }
}
