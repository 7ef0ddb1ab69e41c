//! Follows Dynamo's event plane over NATS core: one subscription a stream.
//!
//! Core NATS has no acknowledgement. What a connection loses is seen by the frames' own numbers.

use async_nats::{Client, ConnectOptions, Event, Subscriber};
use futures_util::StreamExt;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{FeedError, refusals::Refusals};
use crate::{BoundStream, Indexer, Message};

/// Messages that wait in one subscription. Beyond it the client drops, which the frames' numbers show as a hole.
const QUEUE_MESSAGES: usize = 65_536;
/// Messages decoded before the first of them is applied, so that what waits is known as pending.
const DECODED_AHEAD: usize = 256;

pub(super) async fn connect(url: &str) -> Result<Client, FeedError> {
    ConnectOptions::new()
        .name("kvtide")
        .retry_on_initial_connect()
        .subscription_capacity(QUEUE_MESSAGES)
        .event_callback(|event| async move { report(&event) })
        .connect(url)
        .await
        .map_err(|error| FeedError::Connect { url: without_credentials(url), error })
}

pub(super) async fn subscribe(client: &Client, subject: &str) -> Result<Subscriber, FeedError> {
    let subscriber = client.subscribe(subject.to_owned()).await;
    let subscriber =
        subscriber.map_err(|error| FeedError::Subscribe { subject: subject.to_owned(), error })?;
    info!(subject, "following");
    Ok(subscriber)
}

pub(super) async fn run(
    indexer: &Indexer,
    client: Client,
    mut subscriber: Subscriber,
    stream: &BoundStream,
    stop: CancellationToken,
) {
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
        }
        while waiting.len() < DECODED_AHEAD
            && let Some(Some(message)) = futures_util::FutureExt::now_or_never(subscriber.next())
        {
            waiting.push(message);
        }
        apply(indexer, stream, &waiting, &mut refusals);
        messages += waiting.len();
        waiting.clear();
        tokio::task::yield_now().await;
    }
    info!(stream = name, "stopped following after {messages} messages");
}

fn apply(indexer: &Indexer, stream: &BoundStream, messages: &[async_nats::Message], refusals: &mut Refusals) {
    let received: Vec<_> =
        messages.iter().map(|message| indexer.receive(stream, Message::Frame(&message.payload))).collect();
    for (message, received) in messages.iter().zip(received) {
        if let Err(error) = received.and_then(crate::Received::commit) {
            refusals.report(&message.subject, message.payload.len(), &error);
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
