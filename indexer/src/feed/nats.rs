//! Follows Dynamo's event plane over NATS core: one subscription a stream.
//!
//! Core NATS has no acknowledgement. What a connection loses is seen by the frames' own numbers.

use std::{sync::Arc, time::Duration};

use async_nats::{Client, ConnectOptions, Event, Subscriber};
use futures_util::StreamExt;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{BoundStream, Indexer, Message};

/// Messages that wait in one subscription. Beyond it the client drops, which the frames' numbers show as a hole.
const QUEUE_MESSAGES: usize = 65_536;
/// Messages decoded before the first of them is applied, so that what waits is known as pending.
const DECODED_AHEAD: usize = 256;
/// How long a stop waits for what the server has already routed here.
const DRAIN: Duration = Duration::from_secs(5);

/// Subscriptions that feed an indexer until they are stopped.
pub struct NatsFeed {
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

/// Why a bus cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum NatsError {
    /// The address is none, or the server refuses.
    #[error("cannot connect to {url}: {error}")]
    Connect {
        /// The server's address, without credentials.
        url: String,
        /// What the client says.
        error: async_nats::ConnectError,
    },
    /// The server refuses a subscription.
    #[error("cannot subscribe to {subject}: {error}")]
    Subscribe {
        /// The subject.
        subject: String,
        /// What the client says.
        error: async_nats::SubscribeError,
    },
}

impl NatsFeed {
    /// Follows `subjects`, each feeding its stream. Returns at once, whether or not the server is there yet; the
    /// client connects, and connects again, by itself.
    ///
    /// # Errors
    /// [`NatsError`] for an address or a subject that cannot be used at all.
    pub async fn follow(
        indexer: &Arc<Indexer>,
        url: &str,
        subjects: Vec<(String, Arc<BoundStream>)>,
    ) -> Result<NatsFeed, NatsError> {
        let client = ConnectOptions::new()
            .name("kvtide")
            .retry_on_initial_connect()
            .subscription_capacity(QUEUE_MESSAGES)
            .event_callback(|event| async move { report(&event) })
            .connect(url)
            .await
            .map_err(|error| NatsError::Connect { url: without_credentials(url), error })?;
        let mut feed = NatsFeed { tasks: JoinSet::new(), stop: CancellationToken::new() };
        for (subject, stream) in subjects {
            let subscriber = client
                .subscribe(subject.clone())
                .await
                .map_err(|error| NatsError::Subscribe { subject: subject.clone(), error })?;
            info!(subject, stream = stream.stream().name, "following");
            let (indexer, client, stop) = (Arc::clone(indexer), client.clone(), feed.stop.clone());
            feed.tasks.spawn(async move { run(&indexer, client, subscriber, &stream, stop).await });
        }
        Ok(feed)
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

async fn run(
    indexer: &Indexer,
    client: Client,
    mut subscriber: Subscriber,
    stream: &BoundStream,
    stop: CancellationToken,
) {
    let mut draining = false;
    let mut waiting = Vec::new();
    let mut messages = 0;
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
        }
        while waiting.len() < DECODED_AHEAD
            && let Some(Some(message)) = futures_util::FutureExt::now_or_never(subscriber.next())
        {
            waiting.push(message);
        }
        apply(indexer, stream, &waiting);
        messages += waiting.len();
        waiting.clear();
        tokio::task::yield_now().await;
    }
    info!(stream = name, "stopped following after {messages} messages");
}

fn apply(indexer: &Indexer, stream: &BoundStream, messages: &[async_nats::Message]) {
    let received: Vec<_> =
        messages.iter().map(|message| indexer.receive(stream, Message::Frame(&message.payload))).collect();
    for (message, received) in messages.iter().zip(received) {
        if let Err(error) = received.and_then(crate::Received::commit) {
            // The client's queue is bounded, so this is at worst one line a message. Never its content.
            warn!(subject = %message.subject, bytes = message.payload.len(), %error, "frame refused");
        }
    }
}

fn report(event: &Event) {
    match event {
        Event::Connected => info!("connected to NATS"),
        other => warn!("NATS: {other}"),
    }
}

fn without_credentials(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        (None, Some((_, host))) => host.to_owned(),
        (_, None) => url.to_owned(),
    }
}
