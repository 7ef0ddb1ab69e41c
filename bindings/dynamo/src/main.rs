//! `kvtide-dynamo`: kvtide in a Dynamo fleet. The runtime is set by Dynamo's own variables; discovery says whom to follow.

use std::{process::ExitCode, sync::Arc, time::Duration};

use clap::{CommandFactory, FromArgMatches, Parser};
use dynamo_runtime::{DistributedRuntime, Runtime, discovery::EventTransportKind};
use kvtide::{
    Clock, Indexer, Scope,
    config::{
        LimitsConfig, LogConfig, NatsConfig, ServerConfig, SnapshotConfig, TracesConfig, WorkersConfig,
        with_environment,
    },
    feed::{Bus, Feeds},
    service::Service,
    serving::{
        Doors, Failure, answer_requests, bind, bus, peers, record_metrics, serve_until, start_log, stopped,
    },
    snapshot::{self, Keeper, Peer},
};
use kvtide_dynamo::{DISCOVERY, Following, Planned, Settings, Workers};
use tikv_jemallocator::Jemalloc;
use tokio_util::sync::CancellationToken;
use tracing::info;

/// As the `kvtide` command has it.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Tells a request router how much of a prompt's KV cache every worker of a Dynamo fleet holds.
///
/// Discovery, request plane and event plane are those that Dynamo's own variables say: DYN_DISCOVERY_BACKEND,
/// DYN_REQUEST_PLANE, DYN_EVENT_PLANE=nats, NATS_SERVER, ETCD_ENDPOINTS, ...
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    #[command(flatten)]
    log: LogConfig,
    #[command(flatten)]
    server: ServerConfig,
    #[command(flatten)]
    nats: NatsConfig,
    #[command(flatten)]
    snapshot: SnapshotConfig,
    #[command(flatten)]
    traces: TracesConfig,
    #[command(flatten)]
    workers: WorkersConfig,
    #[command(flatten)]
    limits: LimitsConfig,
    /// The model of endpoints where no worker says which it serves.
    #[arg(long, value_name = "M", requires = "block_size")]
    model: Option<String>,
    /// Tokens a block where no worker says that.
    #[arg(long, value_name = "N", requires = "model", value_parser = clap::value_parser!(u32).range(1..))]
    block_size: Option<u32>,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("kvtide-dynamo: {}", failure.to_string().trim_end());
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let arguments = Arguments::from_arg_matches(&with_environment(Arguments::command()).get_matches())?;
    let traces = start_log(&arguments.log, &arguments.traces)?;
    let ended = tokio::runtime::Runtime::new()?.block_on(arguments.serve());
    traces.stop();
    ended
}

/// Follows what there is from the start on, and goes on with a snapshot as soon as its streams are known. Returns who keeps the
/// next ones.
async fn follow(
    mut following: Following,
    indexer: Arc<Indexer>,
    feeds: Arc<Feeds>,
    (snapshot, peers): (SnapshotConfig, Vec<Peer>),
    bus: Bus,
    stop: CancellationToken,
) -> Option<Keeper> {
    if !following.learn(&stop).await {
        return None;
    }
    let SnapshotConfig { path, every_s, .. } = snapshot;
    let (resumed, from, asked) = (Arc::clone(&indexer), path.clone(), peers.clone());
    let resume = move || snapshot::resume(&resumed, from.as_deref(), &asked);
    if tokio::task::spawn_blocking(resume).await.is_err() || stop.is_cancelled() {
        return None;
    }
    if !peers.is_empty() {
        feeds.ask_peers(peers);
    }
    let every = Duration::from_secs(every_s.get());
    let keeper = path.map(|path| Keeper::start(indexer, path, every));
    following.run(&feeds, &bus, &stop).await;
    keeper
}

impl Arguments {
    async fn serve(self) -> Result<(), Failure> {
        let (nats, peers, doors) = (self.nats(), peers(&self.snapshot)?, Doors::of(&self.server)?);
        let bus = bus(&nats).unwrap_or_default();
        bus.check()?;
        let (listener, metrics) = (bind(self.server.listen).await?, record_metrics()?);
        let dynamo = DistributedRuntime::from_settings(Runtime::from_current()?).await?;
        let events = dynamo.default_event_transport_kind();
        if events != EventTransportKind::Nats {
            return Err(format!(
                "expected DYN_EVENT_PLANE=nats, got {events:?}: frames are followed there alone"
            )
            .into());
        }
        let indexer = Arc::new(Indexer::new(self.limits.indexer(&self.workers), Clock::default()));
        let feeds = Arc::new(Feeds::new(Arc::clone(&indexer)));
        feeds.readiness().wait_for(DISCOVERY);
        let service = Service::new(Arc::clone(&indexer), metrics, self.limits.service(), Arc::clone(&feeds))
            .traced(self.traces.otlp.is_some());
        let stop = CancellationToken::new();
        let workers = Workers::new(&dynamo).await?;
        let asked = workers.clone();
        feeds.ask_indexes(move |request| asked.clone().ask(request));
        let settings = Settings { configured: self.configured(), has_peers: !peers.is_empty() };
        let following = Following::new(&dynamo.discovery(), Arc::clone(&indexer), workers, settings, &stop);
        let following = tokio::spawn(follow(
            following,
            Arc::clone(&indexer),
            Arc::clone(&feeds),
            (self.snapshot, peers),
            bus,
            stop.clone(),
        ));
        let requests = answer_requests(&indexer, &nats, self.limits.service(), &doors).await?;
        serve_until(service, listener, doors, requests, stopped()?).await?;
        stop.cancel();
        let keeper = following.await?;
        feeds.stop().await;
        if let Some(keeper) = keeper {
            keeper.stop().await;
        }
        dynamo.shutdown();
        info!("stopped");
        Ok(())
    }

    /// The bus: what is configured, or else Dynamo's own variable, or its default.
    fn nats(&self) -> NatsConfig {
        let mut nats = self.nats.clone();
        let dynamos = || std::env::var("NATS_SERVER").unwrap_or_else(|_| "nats://localhost:4222".to_owned());
        nats.url.get_or_insert_with(dynamos);
        nats
    }

    fn configured(&self) -> Option<Planned> {
        let (model, block_size) = (self.model.as_ref()?, self.block_size?);
        Some(Planned { scope: Scope::new(model, block_size), eagle: false })
    }
}
