//! When an engine is asked for its batches: at every connection, where one is missing, and now and then to prove that
//! nothing is.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use rand::RngExt;
use tokio::time::Instant;

use super::{
    Engine,
    replay::{ReplayError, Replayer},
};
use crate::ReplayRequest;

/// Between one proof that nothing is pending and the next.
const PROBE: Duration = Duration::from_secs(1);
/// Before an engine is asked again that has not answered: at first, and at most.
const BACKOFF: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(5)];

/// What an engine has answered.
pub(super) struct Answer {
    pub(super) request: ReplayRequest,
    pub(super) batches: Result<Vec<(u64, Bytes)>, ReplayError>,
    /// The socket, to be asked again.
    replayer: Replayer,
    backoff: Duration,
}

/// Whether an engine is being asked.
pub(super) enum Asking {
    /// It has no replay socket.
    Never,
    /// Not now.
    Later {
        /// The socket.
        replayer: Replayer,
        /// When it will be.
        when: Instant,
        /// How long to wait after a failure.
        backoff: Duration,
    },
    /// The answer is on its way.
    Now(Pin<Box<dyn Future<Output = Answer> + Send>>),
}

impl Asking {
    pub(super) fn new(replayer: Replayer) -> Asking {
        Asking::Later { replayer, when: Instant::now(), backoff: BACKOFF[0] }
    }

    /// Asks as soon as can be.
    pub(super) fn hasten(&mut self) {
        if let Asking::Later { when, .. } = self {
            *when = Instant::now();
        }
    }

    /// Ready when it is time to ask, or with the answer when it has come, or will not.
    pub(super) async fn turn(&mut self) -> Option<Answer> {
        match self {
            Asking::Never => std::future::pending().await,
            Asking::Later { when, .. } => {
                tokio::time::sleep_until(*when).await;
                None
            }
            Asking::Now(answer) => Some(answer.await),
        }
    }

    pub(super) fn start(&mut self, engine: &Engine) {
        let Asking::Later { mut replayer, backoff, .. } = std::mem::replace(self, Asking::Never) else {
            return;
        };
        let (turns, indexer, stream) =
            (Arc::clone(&engine.asking), Arc::clone(&engine.indexer), Arc::clone(&engine.stream));
        *self = Asking::Now(Box::pin(async move {
            // Nobody closes it, so that there is always a turn.
            let _turn = turns.acquire_owned().await;
            let request = indexer.replay_request(&stream);
            let batches = replayer.ask(request.from).await;
            Answer { request, batches, replayer, backoff }
        }));
    }

    /// Takes the socket back. Asks again soon if something is still missing, and ever later if there is no answer.
    pub(super) fn end(&mut self, answer: Answer, complete: bool) {
        let Answer { batches, replayer, backoff, .. } = answer;
        let (delay, backoff) = match (batches, complete) {
            (Ok(_), true) => (PROBE, BACKOFF[0]),
            (Ok(_), false) => (BACKOFF[0], BACKOFF[0]),
            (Err(_), _) => (backoff, (2 * backoff).min(BACKOFF[1])),
        };
        // A fleet that starts at once must not ask at once for ever.
        let delay = delay.mul_f64(rand::rng().random_range(0.75..1.25));
        *self = Asking::Later { replayer, when: Instant::now() + delay, backoff };
    }
}
