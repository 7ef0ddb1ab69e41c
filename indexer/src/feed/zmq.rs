//! Follows an engine's own publisher over ZMQ: messages of topic, sequence and batch.
//!
//! A publisher keeps nothing for late subscribers. What was published before, or while the connection was down, is
//! seen by the batches' own numbers, and asked for on the engine's replay socket, where it has one.

mod asking;
mod replay;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use zeromq::{Socket, SocketEvent, SocketRecv, SubSocket, ZmqError, ZmqMessage};

use super::{FeedError, refusals::Refusals};
use crate::{Applied, BoundStream, Indexer, Message, Readiness};
use asking::{Answer, Asking};
use replay::Replayer;

/// How long a start waits for an engine that may not be there.
const START_PATIENCE: Duration = Duration::from_secs(5);
/// Between one attempt to connect and the next.
pub(super) const RETRY: Duration = Duration::from_millis(500);

/// An endpoint that can be connected to. Engines that bind to all addresses are configured as `tcp://*:PORT`.
pub(super) fn endpoint(endpoint: &str) -> Result<String, FeedError> {
    let usable = endpoint.strip_prefix("tcp://").and_then(|address| {
        let (host, port) = address.rsplit_once(':')?;
        let port: u16 = port.parse().ok()?;
        let bracketed = host.starts_with('[') && host.ends_with(']');
        let is_host = !host.is_empty() && (bracketed || !host.contains([':', '[', ']']));
        is_host.then_some(())?;
        Some(format!("tcp://{}:{port}", if host == "*" { "127.0.0.1" } else { host }))
    });
    usable.ok_or_else(|| FeedError::Endpoint { endpoint: endpoint.to_owned() })
}

/// A connection to a publisher, for messages whose topic starts so; and what becomes of it: the socket connects again by itself,
/// and says so only there.
pub(super) async fn subscribe(
    endpoint: &str,
    topic: &str,
) -> Result<(SubSocket, impl Stream<Item = SocketEvent> + Unpin + use<>), ZmqError> {
    let mut socket = SubSocket::new();
    let events = socket.monitor();
    socket.connect(endpoint).await?;
    socket.subscribe(topic).await?;
    Ok((socket, events))
}

/// One engine that is followed.
pub(super) struct Engine {
    pub(super) indexer: Arc<Indexer>,
    pub(super) stream: Arc<BoundStream>,
    pub(super) endpoint: String,
    pub(super) replay: Option<String>,
    /// How many engines may be asked at once.
    pub(super) asking: Arc<Semaphore>,
    pub(super) readiness: Arc<Readiness>,
    pub(super) connected: Arc<AtomicBool>,
}

impl Engine {
    /// A start waits until an engine that can be asked has been, whether or not it answers.
    pub(super) fn wait_for_answer(&self) {
        if self.replay.is_some() {
            self.readiness.wait_for(&self.awaited());
        }
    }

    fn awaited(&self) -> String {
        format!("an answer of stream {}", self.stream.stream().name)
    }

    pub(super) async fn run(&self, stop: CancellationToken) {
        let waited = stop.run_until_cancelled(async {
            tokio::time::sleep(START_PATIENCE).await;
            self.readiness.heard_of(&self.awaited());
        });
        tokio::join!(self.follow(&stop), waited);
        self.connected.store(false, Ordering::Relaxed);
        // Nobody is to wait for one that is not followed any more.
        self.readiness.heard_of(&self.awaited());
    }

    async fn follow(&self, stop: &CancellationToken) {
        loop {
            // What an engine has not answered on another connection, it is asked again.
            let mut asking = match &self.replay {
                Some(endpoint) => Asking::new(Replayer::new(endpoint.clone())),
                None => Asking::Never,
            };
            let following = self.connect_and_follow(&mut asking);
            // The engine is not there, or no longer: it may come back at any time.
            let retry = async {
                following.await;
                self.connected.store(false, Ordering::Relaxed);
                tokio::time::sleep(RETRY).await;
            };
            if stop.run_until_cancelled(retry).await.is_none() {
                return;
            }
        }
    }

    async fn connect_and_follow(&self, asking: &mut Asking) {
        let (name, endpoint) = (&self.stream.stream().name, &self.endpoint);
        let (mut socket, mut events) = match subscribe(endpoint, "").await {
            Ok(connection) => connection,
            Err(error) => {
                warn!(stream = name, endpoint, %error, "cannot connect");
                return;
            }
        };
        info!(stream = name, endpoint, "following");
        self.connected.store(true, Ordering::Relaxed);
        let mut refusals = Refusals::new();
        // Whether it is still the same process, and what was published meanwhile, the engine has to be asked.
        let mut doubtful = true;
        loop {
            tokio::select! {
                biased;
                Some(event) = events.next() => match event {
                    SocketEvent::Disconnected(_) => {
                        warn!(stream = name, endpoint, "connection lost");
                        self.connected.store(false, Ordering::Relaxed);
                        doubtful = true;
                    }
                    SocketEvent::Connected(..) => {
                        self.connected.store(true, Ordering::Relaxed);
                        self.ask_if(&mut doubtful, asking);
                    }
                    _ => {}
                },
                turn = asking.turn() => match turn {
                    None => asking.start(self),
                    Some(mut answer) => {
                        let complete = self.take(&mut answer).await;
                        self.readiness.heard_of(&self.awaited());
                        asking.end(answer, complete);
                    }
                },
                message = socket.recv() => match message {
                    Ok(message) => {
                        self.ask_if(&mut doubtful, asking);
                        if self.apply(&message, &mut refusals).recoveries > 0 {
                            asking.hasten();
                        }
                    }
                    Err(ZmqError::NoMessage) => {}
                    Err(error) => {
                        warn!(stream = name, endpoint, %error, "connection lost");
                        return;
                    }
                },
            }
        }
    }

    /// Believes nothing that comes on a new connection before the engine has been asked.
    fn ask_if(&self, doubtful: &mut bool, asking: &mut Asking) {
        if std::mem::take(doubtful) {
            self.indexer.doubt(&self.stream);
            asking.hasten();
        }
    }

    /// Applies an answer, beside what else runs here: it may be all that an engine has kept. Whether nothing is missing now.
    async fn take(&self, answer: &mut Answer) -> bool {
        let (name, from) = (&self.stream.stream().name, answer.request.from);
        let batches = match &mut answer.batches {
            Ok(batches) => std::mem::take(batches),
            Err(error) => {
                warn!(stream = name, from, %error, "no replay");
                return false;
            }
        };
        let (answered, request) = (batches.len(), answer.request);
        let (indexer, stream) = (Arc::clone(&self.indexer), Arc::clone(&self.stream));
        let applied =
            tokio::task::spawn_blocking(move || indexer.apply_replay(&stream, request, batches)).await;
        match applied {
            Ok(Ok(applied)) if applied.recovered > 0 => {
                info!(stream = name, from, batches = answered, "recovered");
            }
            Ok(Ok(_)) => debug!(stream = name, from, batches = answered, "replayed"),
            Ok(Err(error)) => warn!(stream = name, %error, "replay refused"),
            Err(failed) => warn!(stream = name, %failed, "replay not applied"),
        }
        // Something may have been published between the answer and what had waited for it, or it is another process.
        !self.indexer.is_recovering(&self.stream)
    }

    fn apply(&self, message: &ZmqMessage, refusals: &mut Refusals) -> Applied {
        let parts: Vec<&Bytes> = message.iter().collect();
        let applied = self.indexer.apply(&self.stream, Message::of_parts(&parts));
        applied.unwrap_or_else(|error| {
            refusals.report(&self.endpoint, parts.last().map_or(0, |part| part.len()), &error);
            Applied::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::endpoint;

    #[test]
    fn an_endpoint_is_a_host_and_a_port() {
        let usable = ["tcp://10.0.0.7:5557", "tcp://engine-7.example:1", "tcp://[::1]:65535"];
        for one in usable {
            assert_eq!(endpoint(one).ok().as_deref(), Some(one));
        }
        assert_eq!(endpoint("tcp://*:5557").ok().as_deref(), Some("tcp://127.0.0.1:5557"));
        let others = [
            "",
            "7",
            "127.0.0.1:1",
            "http://a:1",
            "ipc:///tmp/engine",
            "tcp://",
            "tcp://a",
            "tcp://a:",
            "tcp://:1",
            "tcp://a:65536",
            "tcp://a:-1",
            "tcp://::1:1",
            "tcp://[::1:1",
            "tcp://::1]:1",
        ];
        for one in others {
            assert!(endpoint(one).is_err(), "{one}");
        }
    }
}
