//! Feeds: what brings events to an indexer from elsewhere.

mod nats;
mod peers;
mod refusals;
mod zmq;

use std::{sync::Arc, time::Duration};

use tokio::{sync::Semaphore, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{BoundStream, Indexer, Readiness, bus::ConnectError, snapshot::Peer};

/// How long a stop waits for what is already on its way here.
const DRAIN: Duration = Duration::from_secs(5);

/// Between one look at frames that wait and the next.
const TICK: Duration = Duration::from_millis(50);

/// So many engines are asked at once for what was missed.
const ASKING: usize = 16;

/// Whether an engine's address is one that can be followed.
///
/// # Errors
/// [`FeedError::Endpoint`].
pub fn check_endpoint(endpoint: &str) -> Result<(), FeedError> {
    zmq::endpoint(endpoint).map(|_| ())
}

/// Subscriptions that feed an indexer until they are stopped.
pub struct Feeds {
    indexer: Arc<Indexer>,
    asking: Arc<Semaphore>,
    readiness: Arc<Readiness>,
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

/// Why a source cannot be followed at all.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// There is no way to the bus.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The bus refuses a subscription.
    #[error("cannot subscribe to {subject}: {error}")]
    Subscribe {
        /// The subject.
        subject: String,
        /// What the client says.
        error: async_nats::SubscribeError,
    },
    /// An engine's address that is none.
    #[error("expected an endpoint as tcp://HOST:PORT, got {endpoint}")]
    Endpoint {
        /// The address.
        endpoint: String,
    },
}

impl Feeds {
    /// Feeds for an indexer; none yet, but its [`tick`](Indexer::tick).
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn new(indexer: Arc<Indexer>) -> Feeds {
        let (asking, readiness) = (Arc::new(Semaphore::new(ASKING)), Arc::default());
        let (tasks, stop) = (JoinSet::new(), CancellationToken::new());
        let mut feeds = Feeds { indexer, asking, readiness, tasks, stop };
        let (indexer, stop) = (Arc::clone(&feeds.indexer), feeds.stop.clone());
        feeds.tasks.spawn(async move {
            let mut ticks = tokio::time::interval(TICK);
            while stop.run_until_cancelled(ticks.tick()).await.is_some() {
                indexer.tick();
            }
        });
        feeds
    }

    /// Which of its sources have been heard of.
    #[must_use]
    pub fn readiness(&self) -> Arc<Readiness> {
        Arc::clone(&self.readiness)
    }

    /// Follows Dynamo's event plane: each subject feeds its stream. Returns at once, whether or not the server is
    /// there yet; the client connects, and connects again, by itself.
    ///
    /// # Errors
    /// [`FeedError`] for an address or a subject that cannot be used at all.
    pub async fn follow_nats(
        &mut self,
        url: &str,
        subjects: Vec<(String, Arc<BoundStream>)>,
    ) -> Result<(), FeedError> {
        let client = nats::connect(url, &self.readiness).await?;
        for (subject, stream) in subjects {
            let clock = self.indexer.clock().clone();
            let subscription = nats::Subscription::new(&client, clock, &subject).await?;
            let (indexer, stop) = (Arc::clone(&self.indexer), self.stop.clone());
            self.tasks.spawn(async move { subscription.run(&indexer, &stream, stop).await });
        }
        Ok(())
    }

    /// Follows an engine's own publisher, and asks its replay socket, if it has one, for what was missed. Returns at
    /// once, whether or not the engine is there yet.
    ///
    /// # Errors
    /// [`FeedError::Endpoint`].
    pub fn follow_zmq(
        &mut self,
        endpoint: &str,
        replay: Option<&str>,
        stream: Arc<BoundStream>,
    ) -> Result<(), FeedError> {
        let engine = zmq::Engine {
            indexer: Arc::clone(&self.indexer),
            stream,
            endpoint: zmq::endpoint(endpoint)?,
            replay: replay.map(zmq::endpoint).transpose()?,
            asking: Arc::clone(&self.asking),
            readiness: Arc::clone(&self.readiness),
        };
        engine.wait_for_answer();
        let stop = self.stop.clone();
        self.tasks.spawn(async move { engine.run(stop).await });
        Ok(())
    }

    /// Asks other kvtides for what was missed on the bus, of streams that [have them](crate::Stream::has_peers).
    pub fn ask_peers(&mut self, peers: Vec<Peer>) {
        let (indexer, stop) = (Arc::clone(&self.indexer), self.stop.clone());
        self.tasks.spawn(peers::Asking { indexer, peers, stop }.run());
    }

    /// Takes no new messages, applies those that are here already, and ends.
    pub async fn stop(mut self) {
        self.stop.cancel();
        let drained = tokio::time::timeout(DRAIN, async { while self.tasks.join_next().await.is_some() {} });
        if drained.await.is_err() {
            warn!("gave up draining subscriptions after {DRAIN:?}");
        }
    }
}
