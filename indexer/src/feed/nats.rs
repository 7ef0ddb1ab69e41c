//! Follows Dynamo's event plane over NATS core: one subscription a stream.
//!
//! Core NATS has no acknowledgement. What a connection loses is seen by the frames' own numbers.

mod probe;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use async_nats::{Client, ConnectOptions, Event, Subscriber};
use futures_util::{FutureExt, StreamExt};
use nkeys::KeyPair;
use tokio::task::unconstrained;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{FeedError, refusals::Refusals};
use crate::{BoundStream, Clock, Indexer, Message, Readiness, Received, watched::read_text};
use probe::Probe;

/// Messages that wait in one subscription. Beyond it the client drops, which the frames' numbers show as a hole.
pub(super) const QUEUE_MESSAGES: usize = 65_536;
/// Messages that are applied together, as one version, if so many are there: about 0.5 ms of them.
const TOGETHER: usize = 256;
/// And so many bytes of them: what is together waits for its last one.
const BYTES_TOGETHER: usize = 256 << 10;

/// What a start waits for.
const CONNECTION: &str = "a connection to NATS";

/// The bus, and what it is to be shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bus {
    /// The server, as `nats://HOST:PORT`, or `tls://HOST:PORT`; several by commas.
    pub url: String,
    /// A credentials file, with a JWT and its seed.
    pub credentials: Option<PathBuf>,
    /// A file with the seed of an nkey.
    pub nkey: Option<PathBuf>,
    /// Certificates of authorities to trust the server by, as PEM.
    pub authorities: Option<PathBuf>,
    /// A certificate to show, and its key, as PEM.
    pub certificate: Option<[PathBuf; 2]>,
}

impl Bus {
    /// Whether its files can be used.
    ///
    /// # Errors
    /// [`FeedError::Secret`] for one that cannot be.
    pub fn check(&self) -> Result<(), FeedError> {
        self.options().map(|_| ())
    }

    /// A connection of that name, in whose subscriptions so many messages may wait; `heard` is told what becomes of it.
    /// Returns at once, whether or not the server is there yet.
    pub(crate) async fn connect(
        &self,
        name: &str,
        queue_messages: usize,
        heard: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<Client, FeedError> {
        let heard = move |event| {
            heard(event);
            async {}
        };
        self.options()?
            .name(name)
            .retry_on_initial_connect()
            .subscription_capacity(queue_messages)
            .event_callback(heard)
            .connect(self.url.split(',').map(str::trim).collect::<Vec<_>>())
            .await
            .map_err(|error| FeedError::Connect { url: without_credentials(&self.url), error })
    }

    /// How to connect, with what its files say.
    fn options(&self) -> Result<ConnectOptions, FeedError> {
        let text = |path: &Path| read_text(path).map_err(|reason| FeedError::Secret(reason.to_string()));
        let expected = |path: &Path, what| FeedError::Secret(format!("{}: expected {what}", path.display()));
        let mut options = ConnectOptions::new();
        if let Some(path) = &self.credentials {
            let told = options.credentials(&text(path)?);
            options = told.map_err(|_| expected(path, "a NATS credentials file, with a JWT and its seed"))?;
        }
        if let Some(path) = &self.nkey {
            let seed = text(path)?.trim().to_owned();
            KeyPair::from_seed(&seed).map_err(|_| expected(path, "the seed of an nkey"))?;
            options = options.nkey(seed);
        }
        for path in self.authorities.iter().chain(self.certificate.iter().flatten()) {
            text(path)?;
        }
        if let Some(path) = &self.authorities {
            options = options.add_root_certificates(path.clone()).require_tls(true);
        }
        if let Some([certificate, key]) = &self.certificate {
            options = options.add_client_certificate(certificate.clone(), key.clone()).require_tls(true);
        }
        Ok(options)
    }
}

pub(super) async fn connect(bus: &Bus, readiness: &Arc<Readiness>) -> Result<Client, FeedError> {
    readiness.wait_for(CONNECTION);
    let readiness = Arc::clone(readiness);
    let heard = move |event| {
        report(&event);
        if event == Event::Connected {
            readiness.heard_of(CONNECTION);
        }
    };
    bus.connect("kvtide", QUEUE_MESSAGES, heard).await
}

/// One subject that is followed.
pub(super) struct Subscription {
    client: Client,
    subscriber: Subscriber,
    probe: Probe,
}

impl Subscription {
    pub(super) async fn new(client: &Client, clock: Clock, subject: &str) -> Result<Subscription, FeedError> {
        let refused = |error| FeedError::Subscribe { subject: subject.to_owned(), error };
        let subscriber = client.subscribe(subject.to_owned()).await.map_err(refused)?;
        let probe = Probe::new(client, clock).await.map_err(refused)?;
        info!(subject, "following");
        Ok(Subscription { client: client.clone(), subscriber, probe })
    }

    pub(super) async fn run(self, indexer: &Indexer, stream: &BoundStream, stop: CancellationToken) {
        let Subscription { client, mut subscriber, mut probe } = self;
        let mut draining = false;
        let mut waiting = Vec::new();
        let mut messages = 0;
        let mut refusals = Refusals::new();
        let name = &stream.stream().name;
        loop {
            tokio::select! {
                () = stop.cancelled(), if !draining => {
                    draining = true;
                    // Ends the subscription behind the last message that was routed here.
                    if subscriber.drain().await.is_err() || client.flush().await.is_err() {
                        break;
                    }
                }
                message = subscriber.next() => match message {
                    Some(message) => waiting.push(message),
                    None => break,
                },
                () = probe.turn(), if !draining => {}
                () = stream.let_go() => break,
            }
            let mut empty = false;
            let mut bytes = waiting.iter().map(|message| message.payload.len()).sum::<usize>();
            while waiting.len() < TOGETHER && bytes < BYTES_TOGETHER && !empty {
                // Unconstrained: a task that has had its turn would find every queue empty.
                match unconstrained(subscriber.next()).now_or_never() {
                    Some(Some(message)) => {
                        bytes += message.payload.len();
                        waiting.push(message);
                    }
                    Some(None) | None => empty = true,
                }
            }
            apply(indexer, stream, &waiting, &mut refusals);
            messages += waiting.len();
            if let Some(proof) = probe.applied(waiting.len(), empty) {
                indexer.verify(stream, proof.until_ms, proof.doubted_ms);
            }
            waiting.clear();
            tokio::task::yield_now().await;
        }
        info!(stream = name, "stopped following after {messages} messages");
    }
}

fn apply(indexer: &Indexer, stream: &BoundStream, messages: &[async_nats::Message], refusals: &mut Refusals) {
    let frames = messages.iter().map(|message| Message::Frame(&message.payload));
    let committed = indexer.receive(stream, frames).and_then(Received::commit);
    let mut report = |message: &async_nats::Message, error| {
        refusals.report(&message.subject, message.payload.len(), error);
    };
    match &committed {
        Ok(committed) => committed.refused.iter().for_each(|(place, error)| report(&messages[*place], error)),
        Err(error) => messages.iter().for_each(|message| report(message, error)),
    }
}

pub(super) fn report(event: &Event) {
    match event {
        Event::Connected => info!("connected to NATS"),
        other => warn!("NATS: {other}"),
    }
}

pub(crate) fn without_credentials(urls: &str) -> String {
    urls.split(',').map(without_userinfo).collect::<Vec<_>>().join(",")
}

fn without_userinfo(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        (None, Some((_, host))) => host.to_owned(),
        (_, None) => url.to_owned(),
    }
}
