//! Where messages go: into an index in this process, over a bus, or through sockets as engines have them.

mod in_process;
mod line;
mod nats;
mod nats_server;
mod zmq;

use std::{
    str::FromStr,
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};

use kvtide::{
    BoundStream, Clock, EngineStream, Format, Indexer, Limits, Scope, Stream, feed::Feeds, serving::Failure,
};
use tokio::runtime::{Builder, Runtime};

use nats_server::NatsServer;

use super::{
    machine::FOLLOWING,
    plan::{Frame, MODEL, rank_of},
    scenario::{FaultKind, Publisher, Scenario},
    sight::Fleet,
};

/// How long a start waits until what is to be followed is.
const PATIENCE: Duration = Duration::from_secs(20);

/// Takes messages.
pub(super) trait Target: Send {
    /// Sends a message as of now.
    ///
    /// # Errors
    /// What keeps it from being sent.
    fn send(&mut self, frame: Frame) -> Result<Fate, Failure>;

    /// Sends messages as fast as can be, each twice: to a plain subscriber on the same bus, and to the index. None where there is no
    /// bus.
    ///
    /// # Errors
    /// What keeps them from being sent, or from coming.
    fn race(&mut self, frames: Vec<Frame>, fleet: Fleet) -> Result<Option<Race>, Failure>;

    /// Ends a part of the bus for so long. Returns at once.
    ///
    /// # Errors
    /// Where there is no bus that it has started.
    fn interrupt(&mut self, part: BusPart, down: Duration) -> Result<(), Failure>;
}

/// What of a bus may end for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BusPart {
    /// Its server, which is killed and started again.
    Server,
    /// kvtide's connection to it.
    Line,
}

/// What has become of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// It is visible.
    Visible,
    /// It will be, if it comes.
    OnTheWay,
    /// It was lost on purpose.
    Dropped,
}

/// How long it took until the last of some messages had come.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Race {
    /// To a subscriber that only counts.
    pub(super) bare: Duration,
    /// Into the index, visible.
    pub(super) visible: Duration,
    /// Events in them.
    pub(super) events: u64,
}

/// What messages are sent to, as it is said on the command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Place {
    InProcess,
    /// A server that is started for it.
    OwnNats,
    /// The server's address.
    Nats(String),
    Zmq,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        match text {
            "in-process" => Ok(Place::InProcess),
            "zmq" => Ok(Place::Zmq),
            "nats" => Ok(Place::OwnNats),
            url if url.starts_with("nats://") || url.starts_with("tls://") => Ok(Place::Nats(url.to_owned())),
            other => Err(format!("expected in-process, nats, nats://HOST:PORT or zmq, got {other}")),
        }
    }
}

impl Place {
    /// What it is called, without an address that may have credentials in it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Place::InProcess => "in-process",
            Place::OwnNats | Place::Nats(_) => "nats",
            Place::Zmq => "zmq",
        }
    }

    /// In which form events come there.
    pub(super) fn publisher(&self, planned: Publisher) -> Publisher {
        match self {
            Place::InProcess => planned,
            Place::OwnNats | Place::Nats(_) => Publisher::Dynamo,
            Place::Zmq => Publisher::Vllm,
        }
    }
}

/// An index that follows a target, and the target.
pub(super) struct Followed {
    indexer: Arc<Indexer>,
    target: Box<dyn Target>,
    feeds: Arc<Feeds>,
    runtime: Runtime,
}

impl Followed {
    /// # Errors
    /// What keeps the target from being followed.
    pub(super) fn start(place: &Place, scenario: &Scenario) -> Result<Followed, Failure> {
        let indexer = Arc::new(Indexer::new(Limits::default(), Clock::default()));
        let runtime = Builder::new_multi_thread().thread_name(FOLLOWING).enable_all().build()?;
        let feeds = {
            let _here = runtime.enter();
            Arc::new(Feeds::new(Arc::clone(&indexer)))
        };
        let streams = bind(&indexer, scenario, *place == Place::Zmq)?;
        let target: Box<dyn Target> = match place {
            Place::InProcess => Box::new(in_process::InProcess::new(Arc::clone(&indexer), streams)),
            Place::OwnNats => {
                let server = NatsServer::start()?;
                let cut = scenario.faults.iter().any(|fault| fault.kind == FaultKind::Disconnect);
                let line = cut.then(|| server.address());
                let over = nats::OverNats::start(&server.url(), line, &runtime, &feeds, &indexer, streams)?;
                Box::new(over.owning(server))
            }
            Place::Nats(url) => {
                Box::new(nats::OverNats::start(url, None, &runtime, &feeds, &indexer, streams)?)
            }
            Place::Zmq => Box::new(zmq::OverZmq::start(&runtime, &feeds, &indexer, streams)?),
        };
        Ok(Followed { indexer, target, feeds, runtime })
    }

    /// The target, the index, and what ends following it.
    pub(super) fn into_parts(self) -> (Box<dyn Target>, Arc<Indexer>, Following) {
        let Followed { indexer, target, feeds, runtime } = self;
        (target, indexer, Following { feeds, runtime })
    }
}

/// What brings messages into an index.
pub(super) struct Following {
    feeds: Arc<Feeds>,
    runtime: Runtime,
}

impl Following {
    pub(super) fn stop(self) {
        self.runtime.block_on(self.feeds.stop());
        self.runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

/// One stream for all frames of a bus, or one for each rank's engine.
fn bind(indexer: &Indexer, scenario: &Scenario, replays: bool) -> Result<Vec<Arc<BoundStream>>, Failure> {
    let scope = Scope::new(MODEL, scenario.fleet.block_size);
    let engine = |number: usize| {
        let rank = rank_of(number, scenario.fleet.dp_ranks);
        let engine =
            EngineStream { dp_rank: Some(rank.dp_rank), replays, ..EngineStream::new(rank.worker_id) };
        Stream::new(format!("storm-{number}"), scope.clone(), Format::Engine(engine))
    };
    let streams = match scenario.fleet.publisher {
        Publisher::Dynamo => vec![Stream::new("storm", scope.clone(), Format::Dynamo)],
        Publisher::Vllm => (0..scenario.ranks()).map(engine).collect(),
    };
    Ok(streams.into_iter().map(|stream| indexer.bind(stream)).collect::<Result<_, _>>()?)
}

/// Waits until something is so, and looks again after each `pause`.
fn wait_until(what: &str, pause: Duration, mut is_so: impl FnMut() -> bool) -> Result<(), Failure> {
    let started = Instant::now();
    while !is_so() {
        if started.elapsed() > PATIENCE {
            return Err(format!("{what}: not within {PATIENCE:?}").into());
        }
        sleep(pause);
    }
    Ok(())
}
