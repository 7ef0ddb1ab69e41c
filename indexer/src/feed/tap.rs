//! Brings messages as they come, unread, to whoever keeps them.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use async_nats::{Client, Event};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::{
    sync::{
        OwnedSemaphorePermit, Semaphore,
        mpsc::{self, UnboundedReceiver, UnboundedSender},
    },
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use zeromq::{SocketEvent, SocketRecv, ZmqError};

use super::{
    Bus, DRAIN, FeedError,
    nats::{self, QUEUE_MESSAGES},
    zmq,
};
use crate::Clock;

/// Bytes that may wait to be kept. Beyond it messages are dropped, and counted.
const QUEUE_BYTES: usize = 64 << 20;
/// What a message takes beside its own bytes.
const MESSAGE_BYTES: usize = 256;

/// A message that has come.
pub struct Arrival {
    /// Whose it is: the number that its source was given.
    pub source: usize,
    /// Of an engine: the parts of the message. Of a bus: the subject, when it came in milliseconds since the Unix epoch, as eight
    /// bytes, and the frame.
    pub parts: Vec<Bytes>,
    _room: OwnedSemaphorePermit,
}

/// Messages in the order in which they have come. Over once all taps are closed, and what they brought is taken.
pub struct Arrivals {
    arrivals: UnboundedReceiver<Arrival>,
    dropped: Arc<AtomicU64>,
}

/// Sources whose messages are brought until they are closed.
pub struct Taps {
    queue: Queue,
    stop: CancellationToken,
}

/// What waits to be kept.
#[derive(Clone)]
struct Queue {
    arrivals: UnboundedSender<Arrival>,
    room: Arc<Semaphore>,
    dropped: Arc<AtomicU64>,
}

impl Arrivals {
    /// The next message.
    pub async fn next(&mut self) -> Option<Arrival> {
        self.arrivals.recv().await
    }

    /// How many have come, and were dropped since too much waited.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Taps {
    /// None yet.
    #[must_use]
    pub fn new() -> (Taps, Arrivals) {
        let (sender, arrivals) = mpsc::unbounded_channel();
        let (room, dropped) = (Arc::new(Semaphore::new(QUEUE_BYTES)), Arc::default());
        let queue = Queue { arrivals: sender, room, dropped: Arc::clone(&dropped) };
        (Taps { queue, stop: CancellationToken::new() }, Arrivals { arrivals, dropped })
    }

    /// Brings the frames of subjects, each with the number of its source. Returns at once, whether or not the server is there yet.
    ///
    /// # Errors
    /// [`FeedError`] for an address or a subject that cannot be used at all.
    pub async fn add_nats(
        &self,
        bus: &Bus,
        clock: &Clock,
        subjects: Vec<(usize, String)>,
    ) -> Result<(), FeedError> {
        let dropped = Arc::clone(&self.queue.dropped);
        let heard = move |event| {
            nats::report(&event);
            // The client itself had no room.
            if let Event::SlowConsumer(_) = event {
                dropped.fetch_add(1, Ordering::Relaxed);
            }
        };
        let client = bus.connect("kvtide-record", QUEUE_MESSAGES, heard).await?;
        for (source, subject) in subjects {
            let refused = |error| FeedError::Subscribe { subject: subject.clone(), error };
            let subscriber = client.subscribe(subject.clone()).await.map_err(refused)?;
            info!(subject, "recording");
            let tap = NatsTap { source, client: client.clone(), subscriber, clock: clock.clone() };
            tokio::spawn(tap.run(self.queue.clone(), self.stop.clone()));
        }
        Ok(())
    }

    /// Brings the messages of an engine's own publisher whose topic starts so. Returns at once, whether or not the engine is there
    /// yet.
    ///
    /// # Errors
    /// [`FeedError::Endpoint`].
    pub fn add_zmq(&self, source: usize, endpoint: &str, topic: &str) -> Result<(), FeedError> {
        let tap = ZmqTap { source, endpoint: zmq::endpoint(endpoint)?, topic: topic.to_owned() };
        let (queue, stop) = (self.queue.clone(), self.stop.clone());
        tokio::spawn(async move {
            while stop.run_until_cancelled(tap.connect_and_bring(&queue)).await.is_some() {
                // The engine is not there, or no longer: it may come back at any time.
                if stop.run_until_cancelled(tokio::time::sleep(zmq::RETRY)).await.is_none() {
                    return;
                }
            }
        });
        Ok(())
    }

    /// Takes no new messages. [`Arrivals`] end behind those that are here already.
    pub fn close(self) {
        self.stop.cancel();
    }
}

impl Queue {
    fn push(&self, source: usize, parts: Vec<Bytes>) {
        let bytes = parts.iter().map(Bytes::len).sum::<usize>() + MESSAGE_BYTES;
        // One that is larger than everything has it for itself.
        let permits = u32::try_from(bytes.min(QUEUE_BYTES)).unwrap_or(u32::MAX);
        match Arc::clone(&self.room).try_acquire_many_owned(permits) {
            // Nobody may take them any more, where writing has failed.
            Ok(room) => drop(self.arrivals.send(Arrival { source, parts, _room: room })),
            Err(_) => _ = self.dropped.fetch_add(1, Ordering::Relaxed),
        }
    }
}

struct NatsTap {
    source: usize,
    client: Client,
    subscriber: async_nats::Subscriber,
    clock: Clock,
}

impl NatsTap {
    async fn run(mut self, queue: Queue, stop: CancellationToken) {
        if stop.run_until_cancelled(self.bring(&queue)).await.is_some() {
            return;
        }
        let left = async {
            // Ends the subscription behind the last message that was routed here.
            if self.subscriber.drain().await.is_ok() && self.client.flush().await.is_ok() {
                self.bring(&queue).await;
            }
        };
        if timeout(DRAIN, left).await.is_err() {
            warn!("gave up draining a subscription after {DRAIN:?}");
        }
    }

    async fn bring(&mut self, queue: &Queue) {
        while let Some(message) = self.subscriber.next().await {
            let subject = Bytes::copy_from_slice(message.subject.as_bytes());
            let at_ms = Bytes::copy_from_slice(&self.clock.wall_ms().to_be_bytes());
            queue.push(self.source, vec![subject, at_ms, message.payload]);
        }
    }
}

struct ZmqTap {
    source: usize,
    endpoint: String,
    topic: String,
}

impl ZmqTap {
    async fn connect_and_bring(&self, queue: &Queue) {
        let endpoint = &self.endpoint;
        let (mut socket, mut events) = match zmq::subscribe(endpoint, &self.topic).await {
            Ok(connection) => connection,
            Err(error) => {
                warn!(endpoint, %error, "cannot connect");
                return;
            }
        };
        info!(endpoint, "recording");
        loop {
            tokio::select! {
                Some(event) = events.next() => match event {
                    SocketEvent::Disconnected(_) => warn!(endpoint, "connection lost"),
                    SocketEvent::Connected(..) => info!(endpoint, "connected"),
                    _ => {}
                },
                message = socket.recv() => match message {
                    Ok(message) => queue.push(self.source, message.into_vec()),
                    Err(ZmqError::NoMessage) => {}
                    Err(error) => {
                        warn!(endpoint, %error, "connection lost");
                        return;
                    }
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::{MESSAGE_BYTES, QUEUE_BYTES, Taps};

    #[tokio::test]
    async fn what_comes_beyond_the_room_is_counted_and_what_was_taken_makes_room() {
        let (taps, mut arrivals) = Taps::new();
        let quarter = Bytes::from(vec![0; QUEUE_BYTES / 4 - MESSAGE_BYTES]);
        for source in 0..6 {
            taps.queue.push(source, vec![quarter.clone()]);
        }
        assert_eq!(arrivals.dropped(), 2);
        assert_eq!(arrivals.next().await.map(|arrival| arrival.source), Some(0));
        taps.queue.push(6, vec![quarter.clone()]);
        taps.queue.push(7, vec![Bytes::new()]);
        assert_eq!(arrivals.dropped(), 3);
        taps.close();
        let mut left = Vec::new();
        while let Some(arrival) = arrivals.next().await {
            left.push(arrival.source);
        }
        assert_eq!(left, [1, 2, 3, 6]);
    }

    #[tokio::test]
    async fn a_message_larger_than_the_room_has_it_for_itself_and_empty_ones_take_some_too() {
        let (taps, mut arrivals) = Taps::new();
        let huge = Bytes::from(vec![0; QUEUE_BYTES + 1]);
        taps.queue.push(0, vec![huge.clone()]);
        taps.queue.push(1, Vec::new());
        assert_eq!(arrivals.dropped(), 1);
        assert_eq!(arrivals.next().await.map(|arrival| arrival.parts), Some(vec![huge]));
        for _ in 0..=QUEUE_BYTES / MESSAGE_BYTES {
            taps.queue.push(2, Vec::new());
        }
        assert_eq!(arrivals.dropped(), 2);
    }
}
