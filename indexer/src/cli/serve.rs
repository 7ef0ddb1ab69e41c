//! `kvtide serve`: follows event streams and answers over HTTP until it is told to stop.

use std::{future::Future, net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use clap::Args;
use kvtide::{
    BoundStream, Clock, Indexer, Instance, Limits, Readiness,
    config::{Config, ConfigError, NatsConfig, SnapshotConfig, StreamConfig},
    feed::Feeds,
    service::{NatsService, Service, ServiceLimits},
    snapshot::{self, Keeper, Peer},
    telemetry,
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::{
    net::TcpListener,
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
};
use tracing::info;

use super::Failure;

/// Where the service listens if nothing is said.
pub(super) const LISTEN: &str = "127.0.0.1:8090";
/// All endpoints of all components of all namespaces.
const ANY_SUBJECT: &str = "namespace.*.component.*.endpoint.*.kv-events";

#[derive(Args)]
pub(super) struct Arguments {
    /// A configuration file; flags go before what it says.
    #[arg(long, value_name = "FILE", env = "KVTIDE_CONFIG")]
    config: Option<PathBuf>,
    /// Address and port to listen on [default: 127.0.0.1:8090].
    #[arg(long, value_name = "ADDR", env = "KVTIDE_LISTEN")]
    listen: Option<SocketAddr>,
    /// Listen on other addresses than loopback too: whoever reaches them may ask for everything and change everything.
    #[arg(long, env = "KVTIDE_INSECURE")]
    insecure: bool,
    /// A NATS server to follow Dynamo's event plane on, as nats://HOST:PORT.
    #[arg(long, value_name = "URL", env = "KVTIDE_NATS")]
    nats: Option<String>,
    /// The name under which requests are answered on that server, at kvtide.NAME.overlap [default: the host's].
    #[arg(long, value_name = "NAME", env = "KVTIDE_INSTANCE")]
    instance: Option<Instance>,
    /// A file to keep a snapshot in, and to go on with at the start.
    #[arg(long, value_name = "FILE", env = "KVTIDE_SNAPSHOT")]
    snapshot: Option<PathBuf>,
    /// Another kvtide, as http://HOST:PORT, to take a snapshot from where there is no file, and to ask for what was missed on
    /// the bus; repeatable.
    #[arg(long = "peer", value_name = "URL", env = "KVTIDE_PEERS", value_delimiter = ',')]
    peers: Vec<String>,
    #[command(flatten)]
    stream: StreamArguments,
}

/// One stream on the bus, by flags alone.
#[derive(Args)]
struct StreamArguments {
    /// The subject to follow; * stands for one part.
    #[arg(long, value_name = "S", default_value = ANY_SUBJECT, requires = "model")]
    subject: String,
    /// The model that the subject's workers serve.
    #[arg(long, value_name = "M", requires_all = ["nats", "block_size"])]
    model: Option<String>,
    /// Tokens a block.
    #[arg(long, value_name = "N", requires = "model")]
    block_size: Option<u32>,
    /// The data type of the KV cache.
    #[arg(long, value_name = "D", requires = "model")]
    kv_dtype: Option<String>,
    /// Layout and position scheme of the KV cache.
    #[arg(long, value_name = "L", requires = "model")]
    layout: Option<String>,
    /// The tokenizer.
    #[arg(long, value_name = "T", requires = "model")]
    tokenizer: Option<String>,
    /// The model's revision.
    #[arg(long, value_name = "R", requires = "model")]
    revision: Option<String>,
}

impl Arguments {
    /// The configuration that flags and file make together.
    fn config(&self) -> Result<Config, ConfigError> {
        let mut config = match &self.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        };
        if let Some(listen) = self.listen {
            config.server.listen = Some(listen);
        }
        config.server.insecure |= self.insecure;
        if let Some(url) = &self.nats {
            let instance = config.nats.and_then(|nats| nats.instance);
            config.nats = Some(NatsConfig { url: url.clone(), instance });
        }
        match (&mut config.nats, &self.instance) {
            (_, None) => {}
            (Some(nats), Some(instance)) => nats.instance = Some(instance.clone()),
            (None, Some(instance)) => {
                return Err(ConfigError::InstanceAlone { instance: instance.clone() });
            }
        }
        if let Some(path) = &self.snapshot {
            config.snapshot.path = Some(path.clone());
        }
        config.snapshot.peers.extend(self.peers.iter().cloned());
        let given = &self.stream;
        if let (Some(model), Some(block_size)) = (&given.model, given.block_size) {
            config.streams.push(StreamConfig {
                subject: Some(given.subject.clone()),
                model: model.clone(),
                block_size,
                revision: given.revision.clone(),
                tokenizer: given.tokenizer.clone(),
                kv_dtype: given.kv_dtype.clone(),
                layout: given.layout.clone(),
                ..StreamConfig::default()
            });
        }
        Ok(config)
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let config = arguments.config()?;
    let metrics = record_metrics()?;
    let indexer = Arc::new(Indexer::new(config.workers.limit(Limits::default()), Clock::default()));
    let (mut subjects, mut engines) = (Vec::new(), Vec::new());
    for (config, stream) in config.streams()? {
        let bound = indexer.bind(stream)?;
        match (&config.subject, &config.zmq) {
            (Some(subject), _) => subjects.push((subject.clone(), bound)),
            (None, Some(endpoint)) => engines.push((endpoint.clone(), config.zmq_replay.clone(), bound)),
            // Its batches are handed in over HTTP.
            (None, None) => {}
        }
    }
    let listen = match config.server.listen {
        Some(listen) => listen,
        None => LISTEN.parse()?,
    };
    let SnapshotConfig { path, peers, every_s } = config.snapshot;
    let peers: Vec<Peer> = peers.iter().map(|url| Peer::new(url)).collect();
    snapshot::resume(&indexer, path.as_deref(), &peers);
    Runtime::new()?.block_on(async {
        let listener = bind(listen, config.server.insecure).await?;
        let mut feeds = follow(&indexer, config.nats.as_ref(), subjects, engines).await?;
        if !peers.is_empty() {
            feeds.ask_peers(peers);
        }
        let keeper =
            path.map(|path| Keeper::start(Arc::clone(&indexer), path, Duration::from_secs(every_s.get())));
        let requests = answer_requests(&indexer, config.nats).await?;
        serve_until(&indexer, metrics, listener, feeds.readiness(), stopped()?).await?;
        if let Some(requests) = requests {
            requests.stop().await;
        }
        feeds.stop().await;
        if let Some(keeper) = keeper {
            keeper.stop().await;
        }
        info!("stopped");
        Ok::<(), Failure>(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A stream and the subject that its messages come from.
type Subject = (String, Arc<BoundStream>);
/// A stream, its engine's endpoint, and that of its replay socket.
type Engine = (String, Option<String>, Arc<BoundStream>);

async fn follow(
    indexer: &Arc<Indexer>,
    nats: Option<&NatsConfig>,
    subjects: Vec<Subject>,
    engines: Vec<Engine>,
) -> Result<Feeds, Failure> {
    let mut feeds = Feeds::new(Arc::clone(indexer));
    if let Some(nats) = nats {
        feeds.follow_nats(&nats.url, subjects).await?;
    }
    for (endpoint, replay, stream) in engines {
        let name = stream.stream().name.clone();
        feeds
            .follow_zmq(&endpoint, replay.as_deref(), stream)
            .map_err(|error| format!("stream {name}: {error}"))?;
    }
    Ok(feeds)
}

/// Answers requests on the bus, where there is one.
async fn answer_requests(
    indexer: &Arc<Indexer>,
    nats: Option<NatsConfig>,
) -> Result<Option<NatsService>, Failure> {
    let Some(NatsConfig { url, instance }) = nats else { return Ok(None) };
    let (indexer, instance) = (Arc::clone(indexer), instance.unwrap_or_default());
    Ok(Some(NatsService::start(indexer, ServiceLimits::default(), &url, &instance).await?))
}

/// Refuses an address that is open to other machines, unless that is allowed.
pub(super) fn refuse_open(listen: SocketAddr, insecure: bool) -> Result<(), Failure> {
    if insecure || listen.ip().is_loopback() {
        return Ok(());
    }
    let expected = "expected a loopback address, as 127.0.0.1, or --insecure: there is no access control yet";
    Err(format!("cannot listen on {listen}: {expected}").into())
}

/// Takes the port.
pub(super) async fn bind(listen: SocketAddr, insecure: bool) -> Result<TcpListener, Failure> {
    refuse_open(listen, insecure)?;
    let bound = TcpListener::bind(listen).await;
    bound.map_err(|error| format!("cannot listen on {listen}: {error}").into())
}

/// Keeps what is counted from here on.
pub(super) fn record_metrics() -> Result<PrometheusHandle, Failure> {
    let metrics = PrometheusBuilder::new().install_recorder()?;
    telemetry::describe();
    Ok(metrics)
}

/// Serves until `stop` is ready.
pub(super) async fn serve_until(
    indexer: &Arc<Indexer>,
    metrics: PrometheusHandle,
    listener: TcpListener,
    readiness: Arc<Readiness>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Failure> {
    info!("listening on http://{}", listener.local_addr()?);
    let service = Service::new(Arc::clone(indexer), metrics, ServiceLimits::default(), readiness);
    Ok(service.serve(listener, stop).await?)
}

/// Ready at SIGTERM or Ctrl-C.
pub(super) fn stopped() -> Result<impl Future<Output = ()> + Send + 'static, Failure> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        info!("stopping");
    })
}
