//! Feeds: what brings events to an indexer from elsewhere.

mod engines;
mod indexes;
mod nats;
mod peers;
mod refusals;
mod tap;
mod turns;
mod zmq;

use std::{
    future::Future,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::{runtime::Handle, sync::Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::warn;

use crate::{BoundStream, IndexAnswer, IndexRequest, Indexer, Readiness, snapshot::Peer};
use engines::Engines;

pub use engines::FollowedEngine;

pub use nats::Bus;
pub(crate) use nats::without_credentials;
pub use tap::{Arrival, Arrivals, Taps};

/// How long a stop waits for what is already on its way here.
const DRAIN: Duration = Duration::from_secs(5);

/// Between one look at frames that wait and the next.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// So many engines are asked at once for what was missed.
const ASKING: usize = 16;

/// Whether an engine's address is one that can be followed.
///
/// # Errors
/// [`FeedError::Endpoint`].
pub fn check_endpoint(endpoint: &str) -> Result<(), FeedError> {
    zmq::endpoint(endpoint).map(|_| ())
}

/// Subscriptions that feed an indexer until they are stopped. Engines may come and go meanwhile.
pub struct Feeds {
    indexer: Arc<Indexer>,
    asking: Arc<Semaphore>,
    readiness: Arc<Readiness>,
    /// Where they run, whoever adds one.
    runtime: Handle,
    tasks: TaskTracker,
    stop: CancellationToken,
    engines: Engines,
    /// The addresses of other kvtides that are asked.
    peers: OnceLock<Vec<String>>,
}

/// Why a source cannot be followed at all.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// The bus's address is none, or the server refuses.
    #[error("cannot connect to {url}: {error}")]
    Connect {
        /// The server's address, without credentials.
        url: String,
        /// What the client says.
        error: async_nats::ConnectError,
    },
    /// A file that is to be shown to the bus cannot be.
    #[error("{0}")]
    Secret(String),
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
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let feeds = Feeds {
            indexer,
            asking,
            readiness,
            runtime: Handle::current(),
            tasks,
            stop,
            engines: Engines::default(),
            peers: OnceLock::new(),
        };
        let (indexer, stop) = (Arc::clone(&feeds.indexer), feeds.stop.clone());
        feeds.spawn(async move {
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
    /// there yet; the client connects, and connects again, by itself. A stream that is
    /// [bound no more](Indexer::unbind) is followed no more.
    ///
    /// # Errors
    /// [`FeedError`] for an address or a subject that cannot be used at all.
    pub async fn follow_nats(
        &self,
        bus: &Bus,
        subjects: Vec<(String, Arc<BoundStream>)>,
    ) -> Result<(), FeedError> {
        let client = nats::connect(bus, &self.readiness).await?;
        for (subject, stream) in subjects {
            let clock = self.indexer.clock().clone();
            let subscription = nats::Subscription::new(&client, clock, &subject).await?;
            let (indexer, stop) = (Arc::clone(&self.indexer), self.stop.clone());
            self.spawn(async move { subscription.run(&indexer, &stream, stop).await });
        }
        Ok(())
    }

    /// Follows an engine's own publisher, and asks its replay socket, if it has one, for what was missed. Returns at
    /// once, whether or not the engine is there yet.
    ///
    /// # Errors
    /// [`FeedError::Endpoint`].
    pub fn follow_zmq(
        &self,
        endpoint: &str,
        replay: Option<&str>,
        stream: Arc<BoundStream>,
    ) -> Result<(), FeedError> {
        let engine = zmq::Engine {
            indexer: Arc::clone(&self.indexer),
            stream: Arc::clone(&stream),
            endpoint: zmq::endpoint(endpoint)?,
            replay: replay.map(zmq::endpoint).transpose()?,
            asking: Arc::clone(&self.asking),
            readiness: Arc::clone(&self.readiness),
            connected: Arc::default(),
        };
        engine.wait_for_answer();
        let stop = self.stop.child_token();
        let connected = Arc::clone(&engine.connected);
        self.engines
            .insert(FollowedEngine { stream, endpoint: endpoint.to_owned(), connected }, stop.clone());
        self.spawn(async move { engine.run(stop).await });
        Ok(())
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// Follows an engine no more, and lets its stream go with all that its ranks hold. Returns how many ranks these were;
    /// none where no stream of that name is followed.
    pub fn unfollow(&self, stream: &str) -> Option<usize> {
        let engine = self.engines.remove(stream)?;
        Some(self.indexer.unbind(&engine.stream))
    }

    /// The engines that are followed, by the names of their streams.
    #[must_use]
    pub fn engines(&self) -> Vec<FollowedEngine> {
        self.engines.list()
    }

    /// Asks other kvtides for what was missed on the bus, of streams that [have them](crate::Stream::has_peers).
    pub fn ask_peers(&self, peers: Vec<Peer>) {
        // Those that were named first are what is told of.
        self.peers.get_or_init(|| peers.iter().map(ToString::to_string).collect());
        let (indexer, stop) = (Arc::clone(&self.indexer), self.stop.clone());
        self.spawn(peers::Asking { indexer, peers, stop }.run());
    }

    /// The addresses of the other kvtides that are asked.
    #[must_use]
    pub fn peers(&self) -> &[String] {
        self.peers.get().map_or(&[], Vec::as_slice)
    }

    /// Asks workers for what their own indexes can tell, of publishers that are [announced](Indexer::announce). `ask` puts one
    /// question to its worker, and says that it has failed if there is no answer within a minute.
    pub fn ask_indexes<A>(&self, ask: impl Fn(IndexRequest) -> A + Send + 'static)
    where
        A: Future<Output = IndexAnswer> + Send + 'static,
    {
        self.spawn(indexes::run(Arc::clone(&self.indexer), ask, self.stop.clone()));
    }

    /// Takes no new messages, applies those that are here already, and ends.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(DRAIN, self.tasks.wait()).await.is_err() {
            warn!("gave up draining subscriptions after {DRAIN:?}");
        }
    }
}

/// Whoever drops them follows nothing any more.
impl Drop for Feeds {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
