//! Follows Dynamo's event plane over NATS core: one subscription a stream.
//!
//! Core NATS has no acknowledgement. What a connection loses is seen by the frames' own numbers.

mod probe;

use std::sync::Arc;

use async_nats::{Client, Event, Subscriber};
use futures_util::{FutureExt, StreamExt};
use tokio::task::unconstrained;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{FeedError, refusals::Refusals};
use crate::{BoundStream, Clock, Indexer, Message, Readiness, bus};
use probe::Probe;

/// Messages that wait in one subscription. Beyond it the client drops, which the frames' numbers show as a hole.
const QUEUE_MESSAGES: usize = 65_536;
/// Messages decoded before the first of them is applied, so that what waits is known as pending.
const DECODED_AHEAD: usize = 256;

/// What a start waits for.
const CONNECTION: &str = "a connection to NATS";

pub(super) async fn connect(url: &str, readiness: &Arc<Readiness>) -> Result<Client, FeedError> {
    readiness.wait_for(CONNECTION);
    let readiness = Arc::clone(readiness);
    let heard = move |event| {
        report(&event);
        if event == Event::Connected {
            readiness.heard_of(CONNECTION);
        }
    };
    Ok(bus::connect(url, "kvtide", QUEUE_MESSAGES, heard).await?)
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
            }
            let mut empty = false;
            while waiting.len() < DECODED_AHEAD && !empty {
                // Unconstrained: a task that has had its turn would find every queue empty.
                match unconstrained(subscriber.next()).now_or_never() {
                    Some(Some(message)) => waiting.push(message),
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
