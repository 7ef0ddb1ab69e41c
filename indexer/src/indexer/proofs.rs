//! What is asked for beside the stream of events: an engine's earlier batches, and proofs that nothing is pending.

use super::{ApplyError, BoundStream, Indexer};
use crate::{
    Applied,
    mirror::{ReplayRequest, ReplayedBatch},
    stream::Format,
    telemetry,
};

impl Indexer {
    /// What to ask an engine for, of what it has published before: at every start and connection, where a batch is
    /// missing ([`Applied::waiting`]), and now and then, to prove that nothing is. The answer is all batches that it has
    /// from [`ReplayRequest::from`] on.
    #[must_use]
    pub fn replay_request(&self, stream: &BoundStream) -> ReplayRequest {
        stream.scope.mirror.lock().replay_request(stream.source)
    }

    /// Whether a rank of the stream waits for what it has missed, so that its engine has to be asked.
    #[must_use]
    pub fn is_recovering(&self, stream: &BoundStream) -> bool {
        stream.scope.mirror.lock().is_recovering(stream.source)
    }

    /// The connection to a stream's engine was made anew: it may be another process, and what was published meanwhile is
    /// lost. What it holds counts as `recovering` until it has answered, and what comes waits. Of an engine that cannot be
    /// asked, the next batch's number has to show it.
    pub fn doubt(&self, stream: &BoundStream) {
        let applied = stream.scope.mirror.lock().doubt(stream.source);
        telemetry::count_applied(stream, &applied);
    }

    /// Applies what an engine has answered, numbers and batches in their order, as one version. What was applied before
    /// is passed over. It proves that everything is applied that had been published when the request was made.
    ///
    /// # Errors
    /// [`ApplyError::OtherFormat`] where the stream is not an engine's.
    pub fn apply_replay<B: AsRef<[u8]>>(
        &self,
        stream: &BoundStream,
        request: ReplayRequest,
        batches: impl IntoIterator<Item = (u64, B)>,
    ) -> Result<Applied, ApplyError> {
        let Format::Engine(engine) = &stream.stream.format else {
            return Err(ApplyError::OtherFormat {
                stream: stream.stream.name.clone(),
                expected: stream.stream.format.describe(),
                got: "an engine's replay",
            });
        };
        let decoder = engine.engine(stream.stream.scope.block_size);
        let replayed = |(sequence, payload): (u64, B)| ReplayedBatch {
            sequence,
            digest: digest(payload.as_ref()),
            bytes: payload.as_ref().len(),
            batch: decoder.decode(payload.as_ref()).ok(),
        };
        let batches = batches.into_iter().map(replayed).collect();
        let applied = stream.mirror()?.apply_replay(stream.source, engine, request, batches);
        telemetry::count_applied(stream, &applied);
        Ok(applied)
    }

    /// States that everything had been received that the stream's bus had delivered at `until_ms` of the indexer's steady
    /// clock, and is applied now. Where messages may have been lost at `doubted_ms`, it says nothing of a rank of which
    /// nothing has come in order since; and nothing at all of a stream that is bound no more.
    pub fn verify(&self, stream: &BoundStream, until_ms: u64, doubted_ms: Option<u64>) {
        let Ok(mut mirror) = stream.mirror() else { return };
        let applied = mirror.verify(stream.source, until_ms, doubted_ms);
        drop(mirror);
        telemetry::count_applied(stream, &applied);
    }
}

/// Tells a batch from another one of the same number.
pub(super) fn digest(payload: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(payload)
}
