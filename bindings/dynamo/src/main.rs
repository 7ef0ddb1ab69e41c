//! `kvtide-dynamo`: kvtide in a Dynamo fleet. The runtime is set by Dynamo's own variables; discovery says whom to follow.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use clap::{Parser, ValueEnum};
use dynamo_runtime::{DistributedRuntime, Runtime, discovery::EventTransportKind};
use kvtide::{
    Clock, Indexer, Limits, Scope,
    feed::Feeds,
    service::{Service, ServiceLimits},
    snapshot::{self, Keeper, Peer},
    telemetry,
};
use kvtide_dynamo::{DISCOVERY, Following, Planned, Workers};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;
use tracing::info;
use tracing_subscriber::EnvFilter;

/// Tells a request router how much of a prompt's KV cache every worker of a Dynamo fleet holds.
///
/// Discovery, request plane and event plane are those that Dynamo's own variables say: DYN_DISCOVERY_BACKEND,
/// DYN_REQUEST_PLANE, DYN_EVENT_PLANE=nats, NATS_SERVER, ETCD_ENDPOINTS, ...
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Address and port to listen on.
    #[arg(long, value_name = "ADDR", env = "KVTIDE_LISTEN", default_value = "127.0.0.1:8090")]
    listen: SocketAddr,
    /// Listen on other addresses than loopback too: whoever reaches them may ask for everything and change everything.
    #[arg(long, env = "KVTIDE_INSECURE")]
    insecure: bool,
    /// The NATS server of the event plane.
    #[arg(long, value_name = "URL", env = "NATS_SERVER", default_value = "nats://127.0.0.1:4222")]
    nats: String,
    /// A file to keep a snapshot in, and to go on with at the start.
    #[arg(long, value_name = "FILE", env = "KVTIDE_SNAPSHOT")]
    snapshot: Option<PathBuf>,
    /// Another kvtide, as http://HOST:PORT, to ask before workers are; repeatable.
    #[arg(long = "peer", value_name = "URL", env = "KVTIDE_PEERS", value_delimiter = ',')]
    peers: Vec<String>,
    /// The model of endpoints where no worker says which it serves.
    #[arg(long, value_name = "M", requires = "block_size")]
    model: Option<String>,
    /// Tokens a block there.
    #[arg(long, value_name = "N", requires = "model")]
    block_size: Option<u32>,
    /// How the log is written, on standard error. KVTIDE_LOG sets its level.
    #[arg(long, value_name = "FORMAT", env = "KVTIDE_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// Between one snapshot and the next.
const SNAPSHOT_EVERY: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    log(arguments.log_format);
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(reason) => return fail(&reason.into()),
    };
    match runtime.block_on(serve(arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => fail(&reason),
    }
}

fn fail(reason: &anyhow::Error) -> ExitCode {
    eprintln!("kvtide-dynamo: {reason:#}");
    ExitCode::FAILURE
}

fn log(format: LogFormat) {
    let level = EnvFilter::try_from_env("KVTIDE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(level).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}

async fn serve(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { listen, insecure, nats, snapshot, peers, model, block_size, .. } = arguments;
    if !insecure && !listen.ip().is_loopback() {
        bail!("cannot listen on {listen}: expected a loopback address, as 127.0.0.1, or --insecure");
    }
    let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
    let metrics = PrometheusBuilder::new().install_recorder()?;
    telemetry::describe();
    let dynamo = DistributedRuntime::from_settings(Runtime::from_current()?).await?;
    let events = dynamo.default_event_transport_kind();
    if events != EventTransportKind::Nats {
        bail!("expected DYN_EVENT_PLANE=nats, got {events:?}: frames are followed on NATS alone");
    }
    let configured = model.zip(block_size).map(|(model, block_size)| {
        let scope = Scope::new(&model, block_size);
        Planned { scope, eagle: false }
    });
    let stop = CancellationToken::new();
    let indexer = Arc::new(Indexer::new(Limits::default(), Clock::default()));
    let mut feeds = Feeds::new(Arc::clone(&indexer));
    let readiness = feeds.readiness();
    readiness.wait_for(DISCOVERY);
    let service = Service::new(Arc::clone(&indexer), metrics, ServiceLimits::default(), readiness);
    info!("listening on http://{}", listener.local_addr()?);
    let stopped = stop.clone();
    let served = tokio::spawn(service.serve(listener, async move { stopped.cancelled().await }));

    let peers: Vec<Peer> = peers.iter().map(|url| Peer::new(url)).collect();
    let workers = Workers::new(&dynamo).await?;
    let (asked, has_peers) = (workers.clone(), !peers.is_empty());
    feeds.ask_indexes(move |request| asked.clone().ask(request));
    let started =
        Following::start(&dynamo, Arc::clone(&indexer), &feeds, workers, configured, has_peers, stop.clone());
    let following = tokio::select! {
        started = started => started?,
        () = stopped_by_signal()? => return Ok(()),
    };
    let (resumed, path, asked) = (Arc::clone(&indexer), snapshot.clone(), peers.clone());
    tokio::task::spawn_blocking(move || snapshot::resume(&resumed, path.as_deref(), &asked)).await?;
    if has_peers {
        feeds.ask_peers(peers);
    }
    let keeper = snapshot.map(|path| Keeper::start(indexer, path, SNAPSHOT_EVERY));
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { following.run(feeds, &nats, stop).await }
    });
    stopped_by_signal()?.await;
    info!("stopping");
    stop.cancel();
    running.await?.stop().await;
    if let Some(keeper) = keeper {
        keeper.stop().await;
    }
    served.await??;
    dynamo.shutdown();
    info!("stopped");
    Ok(())
}

/// Ready at SIGTERM or Ctrl-C.
fn stopped_by_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
