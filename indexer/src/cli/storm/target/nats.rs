//! Messages go over a NATS server, which an index in this process follows.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_nats::Client;
use bytes::Bytes;
use futures_util::StreamExt;
use kvtide::{
    BoundStream, Indexer,
    feed::{Bus, Feeds},
    serving::Failure,
};
use kvtide_radix::{BlockHash, Rank, SequenceHash, Tier};
use tokio::runtime::{Builder, Runtime};

use super::{BusPart, Fate, Race, Target, line::Line, nats_server::NatsServer, wait_until};
use crate::cli::{
    cache::{Change, Piece},
    storm::{
        message::{Message, Sender},
        plan::{FIRST_WORKER, Frame},
        sight::Fleet,
    },
};

/// A worker that is none of the fleet's: what it says shows that the bus is followed.
const HERALD: Rank = Rank { worker_id: FIRST_WORKER - 1, dp_rank: 0 };

/// Between one look and the next in a race.
const LOOK: Duration = Duration::from_micros(200);

/// Publishes on a subject that nobody else uses.
pub(super) struct OverNats {
    runtime: Runtime,
    client: Client,
    subject: String,
    indexer: Arc<Indexer>,
    /// The subject of a subscriber that only counts, and what it has counted.
    bare: String,
    counted: Arc<AtomicU64>,
    /// The server, if it was started for this, and the line by which it is followed, if that is to be cut.
    server: Option<Arc<NatsServer>>,
    line: Option<Line>,
}

impl OverNats {
    /// The same, with its server.
    pub(super) fn owning(self, server: NatsServer) -> OverNats {
        OverNats { server: Some(Arc::new(server)), ..self }
    }

    /// Publishes at `url`, and follows that, or by a line to the server that can be cut.
    pub(super) fn start(
        url: &str,
        line_to: Option<SocketAddr>,
        following: &Runtime,
        feeds: &Feeds,
        indexer: &Arc<Indexer>,
        streams: Vec<Arc<BoundStream>>,
    ) -> Result<OverNats, Failure> {
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("storm-bus").enable_all().build()?;
        let client = runtime.block_on(connect(url))?;
        // No other storm and no real fleet speaks there.
        let namespace = format!("storm-{:016x}", rand::random::<u64>());
        let subject = |component: &str| {
            format!("namespace.{namespace}.component.{component}.endpoint.generate.kv-events")
        };
        let line = line_to.map(|server| runtime.block_on(Line::to(server))).transpose()?;
        let bus = Bus { url: line.as_ref().map_or_else(|| url.to_owned(), Line::url), ..Bus::default() };
        let streams = streams.into_iter().map(|stream| (subject("backend"), stream)).collect();
        following.block_on(feeds.follow_nats(&bus, streams))?;
        let bare = subject("bare");
        let counted = count(url, &bare, following)?;
        let (subject, indexer) = (subject("backend"), Arc::clone(indexer));
        let over = OverNats { runtime, client, subject, indexer, bare, counted, server: None, line };
        over.herald()?;
        Ok(over)
    }

    /// Waits until what is published is visible: a subscription takes its time to be known to the server.
    fn herald(&self) -> Result<(), Failure> {
        wait_until("a message over the bus", Duration::from_millis(50), || {
            // The clock's time as an id: it is no other publisher's.
            let publisher_id = self.indexer.clock().wall_ms();
            let sender = Sender { rank: HERALD, publisher_id, sequence: 0, first_event: 1 };
            let piece = Piece { name: SequenceHash(1), content: BlockHash(1), text: 0 };
            let change = Change::Stored { tier: Tier::Gpu, parent: None, pieces: vec![piece] };
            let message = Message::frame(&sender, &[(change, Arc::default())]);
            // One that is not sent is followed by another.
            let _ = self.publish(message);
            self.indexer.scopes().iter().flat_map(|scope| &scope.ranks).any(|state| state.rank == HERALD)
        })?;
        // Those that are still on their way.
        std::thread::sleep(Duration::from_millis(100));
        self.indexer.remove(HERALD.worker_id, None);
        Ok(())
    }

    fn publish(&self, message: Message) -> Result<(), Failure> {
        let bytes = message.sent_at(self.indexer.clock().wall_ms());
        Ok(self.runtime.block_on(self.client.publish(self.subject.clone(), bytes.into()))?)
    }
}

impl OverNats {
    fn publish_all(&self, subject: &str, payloads: &[Bytes]) -> Result<(), Failure> {
        self.runtime.block_on(async {
            for payload in payloads {
                self.client.publish(subject.to_owned(), payload.clone()).await?;
            }
            Ok(())
        })
    }
}

impl Target for OverNats {
    fn send(&mut self, frame: Frame) -> Result<Fate, Failure> {
        self.publish(frame.message)?;
        Ok(Fate::OnTheWay)
    }

    fn race(&mut self, frames: Vec<Frame>, fleet: Fleet) -> Result<Option<Race>, Failure> {
        let (mut last, mut events) = (HashMap::new(), 0);
        let wall_ms = self.indexer.clock().wall_ms();
        let payloads = frames.into_iter().map(|frame| {
            last.insert(frame.rank, (frame.life, frame.position));
            events += frame.events;
            Bytes::from(frame.message.sent_at(wall_ms))
        });
        let payloads: Vec<Bytes> = payloads.collect();
        let expected = self.counted.load(Ordering::Relaxed) + payloads.len() as u64;
        let started = Instant::now();
        self.publish_all(&self.bare, &payloads)?;
        wait_until("messages to a plain subscriber", LOOK, || {
            self.counted.load(Ordering::Relaxed) >= expected
        })?;
        let bare = started.elapsed();
        let started = Instant::now();
        self.publish_all(&self.subject, &payloads)?;
        wait_until("messages to be visible", LOOK, || {
            let mut behind = last.len();
            fleet.look(&self.indexer, |number, sight| {
                behind -= usize::from(last.get(&number).is_some_and(|&last| sight >= last));
            });
            behind == 0
        })?;
        Ok(Some(Race { bare, visible: started.elapsed(), events }))
    }

    fn interrupt(&mut self, part: BusPart, down: Duration) -> Result<(), Failure> {
        let server = self.server.clone().ok_or("expected --target nats: a bus of others is left alone")?;
        match (part, &self.line) {
            (BusPart::Server, _) => {
                let restart = move || server.restart(down);
                std::thread::Builder::new().name("storm-restart".into()).spawn(restart)?;
            }
            (BusPart::Line, Some(line)) => line.cut(down),
            (BusPart::Line, None) => return Err("no line to be cut was laid at the start".into()),
        }
        Ok(())
    }
}

/// Counts what comes on a subject, and does nothing else.
fn count(url: &str, subject: &str, runtime: &Runtime) -> Result<Arc<AtomicU64>, Failure> {
    let mut subscriber = runtime.block_on(async {
        let client = connect(url).await?;
        let subscriber = client.subscribe(subject.to_owned()).await?;
        // The server knows of it when this returns.
        client.flush().await?;
        Ok::<_, Failure>(subscriber)
    })?;
    let counted = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&counted);
    runtime.spawn(async move {
        while subscriber.next().await.is_some() {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    Ok(counted)
}

async fn connect(url: &str) -> Result<Client, Failure> {
    let servers: Vec<_> = url.split(',').map(str::trim).collect();
    let connected = async_nats::ConnectOptions::new()
        .name("kvtide storm")
        // As a feed of kvtide has it.
        .subscription_capacity(65_536)
        .connect(servers)
        .await;
    connected.map_err(|error| format!("cannot connect to NATS: {error}").into())
}
