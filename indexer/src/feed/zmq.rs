//! Follows an engine's own publisher over ZMQ: messages of topic, sequence and batch.
//!
//! A publisher keeps nothing for late subscribers. What was published before, or while the connection was down, is
//! seen by the batches' own numbers.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use zeromq::{Socket, SocketRecv, SubSocket, ZmqError, ZmqMessage};

use super::{FeedError, refusals::Refusals};
use crate::{BoundStream, Indexer, Message};

/// Between one attempt to connect and the next.
const RETRY: Duration = Duration::from_millis(500);

/// An endpoint that can be connected to. Engines that bind to all addresses are configured as `tcp://*:PORT`.
pub(super) fn endpoint(endpoint: &str) -> Result<String, FeedError> {
    let usable = endpoint.strip_prefix("tcp://").and_then(|address| {
        let (host, port) = address.rsplit_once(':')?;
        let port: u16 = port.parse().ok()?;
        Some(format!("tcp://{}:{port}", if host == "*" { "127.0.0.1" } else { host }))
    });
    usable.ok_or_else(|| FeedError::Endpoint { endpoint: endpoint.to_owned() })
}

pub(super) async fn run(indexer: &Indexer, endpoint: &str, stream: &BoundStream, stop: CancellationToken) {
    while stop.run_until_cancelled(connect_and_follow(indexer, endpoint, stream)).await.is_some() {
        // The engine is not there, or no longer: it may come back at any time.
        if stop.run_until_cancelled(tokio::time::sleep(RETRY)).await.is_none() {
            return;
        }
    }
}

async fn connect_and_follow(indexer: &Indexer, endpoint: &str, stream: &BoundStream) {
    let name = &stream.stream().name;
    let mut socket = SubSocket::new();
    let connected = async {
        socket.connect(endpoint).await?;
        socket.subscribe("").await
    };
    if let Err(error) = connected.await {
        warn!(stream = name, endpoint, %error, "cannot connect");
        return;
    }
    info!(stream = name, endpoint, "following");
    let mut refusals = Refusals::new();
    loop {
        match socket.recv().await {
            Ok(message) => apply(indexer, stream, endpoint, &message, &mut refusals),
            Err(ZmqError::NoMessage) => {}
            Err(error) => {
                warn!(stream = name, endpoint, %error, "connection lost");
                return;
            }
        }
    }
}

fn apply(
    indexer: &Indexer,
    stream: &BoundStream,
    endpoint: &str,
    message: &ZmqMessage,
    refusals: &mut Refusals,
) {
    let parts = match message.iter().collect::<Vec<_>>().as_slice() {
        [_topic, sequence, payload] => {
            <[u8; 8]>::try_from(sequence.as_ref()).ok().zip(Some(payload.to_vec()))
        }
        _other => None,
    };
    // Of a message without a number and a batch nothing can be applied, and something is lost with it.
    let (sequence, payload) =
        parts.map_or((None, Vec::new()), |(sequence, payload)| (Some(u64::from_be_bytes(sequence)), payload));
    if let Err(error) = indexer.apply(stream, Message::Batch { sequence, payload: &payload }) {
        refusals.report(endpoint, payload.len(), &error);
    }
}
