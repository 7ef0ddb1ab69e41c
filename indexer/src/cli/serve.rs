//! `kvtide serve`: follows event streams and answers over HTTP until it is told to stop.

use std::{future::Future, net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use kvtide::{
    BoundStream, Clock, Indexer,
    access::Tokens,
    config::{Config, NatsConfig, ServerConfig, SnapshotConfig},
    feed::{Bus, Feeds},
    service::{Access, NatsService, Service, Tls},
    snapshot::{self, Keeper, Peer},
    telemetry,
    watched::{Watched, read_text},
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::{
    net::TcpListener,
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
};
use tracing::info;

use super::Failure;

pub(super) fn run(config: &Config) -> Result<ExitCode, Failure> {
    let metrics = record_metrics()?;
    let indexer = Arc::new(Indexer::new(config.limits(), Clock::default()));
    let (mut subjects, mut engines) = (Vec::new(), Vec::new());
    for (config, stream) in config.streams()? {
        let bound = indexer.bind(stream)?;
        match (config.subject, config.zmq) {
            (Some(subject), _) => subjects.push((subject, bound)),
            (None, Some(endpoint)) => engines.push((endpoint, config.zmq_replay, bound)),
            // Its batches are handed in over HTTP.
            (None, None) => {}
        }
    }
    let SnapshotConfig { path, every_s, .. } = &config.snapshot;
    let peers = peers(&config.snapshot)?;
    let doors = Doors::of(&config.server)?;
    snapshot::resume(&indexer, path.as_deref(), &peers);
    Runtime::new()?.block_on(async {
        let listener = bind(config.server.listen).await?;
        let feeds = Arc::new(follow(&indexer, &config.nats, subjects, engines).await?);
        let service =
            Service::new(Arc::clone(&indexer), metrics, config.limits.service(), Arc::clone(&feeds));
        if !peers.is_empty() {
            feeds.ask_peers(peers);
        }
        let keeper = path.as_ref().map(|path| {
            Keeper::start(Arc::clone(&indexer), path.clone(), Duration::from_secs(every_s.get()))
        });
        let requests = answer_requests(&indexer, config, doors.access.clone()).await?;
        serve_until(service, listener, doors, stopped()?).await?;
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
    nats: &NatsConfig,
    subjects: Vec<Subject>,
    engines: Vec<Engine>,
) -> Result<Feeds, Failure> {
    let feeds = Feeds::new(Arc::clone(indexer));
    if let Some(bus) = bus(nats) {
        feeds.follow_nats(&bus, subjects).await?;
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
    config: &Config,
    access: Access,
) -> Result<Option<NatsService>, Failure> {
    let Some(bus) = bus(&config.nats) else { return Ok(None) };
    let (indexer, limits) = (Arc::clone(indexer), config.limits.service());
    let instance = config.nats.instance.clone().unwrap_or_default();
    Ok(Some(NatsService::start(indexer, limits, access, &bus, &instance).await?))
}

/// The bus, if there is one.
pub(super) fn bus(config: &NatsConfig) -> Option<Bus> {
    let NatsConfig { url, instance: _, credentials, nkey, tls_ca, tls_cert, tls_key } = config.clone();
    Some(Bus {
        url: url?,
        credentials,
        nkey,
        authorities: tls_ca,
        certificate: tls_cert.zip(tls_key).map(<[_; 2]>::from),
    })
}

/// Other kvtides, and how they are asked.
pub(super) fn peers(config: &SnapshotConfig) -> Result<Vec<Peer>, Failure> {
    let token = config.peer_token.as_ref().map(|path| read_text(path)).transpose()?;
    let authorities = config.peer_tls_ca.as_ref().map(|path| read_text(path)).transpose()?;
    let peer = |url: &String| Peer::new(url, token.as_deref(), authorities.as_deref());
    Ok(config.peers.iter().map(peer).collect::<Result<_, _>>()?)
}

/// Who may come in, and how.
#[derive(Default)]
pub(super) struct Doors {
    access: Access,
    tls: Option<Arc<Watched<Tls>>>,
}

impl Doors {
    /// What is configured. An address that is open to other machines takes tokens, or has to be allowed.
    pub(super) fn of(config: &ServerConfig) -> Result<Doors, Failure> {
        let ServerConfig { listen, insecure, tokens, tls_cert, tls_key } = config;
        refuse_open(*listen, *insecure || tokens.is_some())?;
        let access = match tokens {
            None => Access::Open,
            Some(path) => Access::Tokens(Watched::new(vec![path.clone()], Tokens::read)?),
        };
        let tls = match (tls_cert, tls_key) {
            (Some(certificates), Some(key)) => Some(Tls::read(certificates.clone(), key.clone())?),
            (_, _) => None,
        };
        Ok(Doors { access, tls })
    }
}

/// Refuses an address that is open to other machines, unless that is allowed.
pub(super) fn refuse_open(listen: SocketAddr, allowed: bool) -> Result<(), Failure> {
    if allowed || listen.ip().is_loopback() {
        return Ok(());
    }
    let expected = "expected a loopback address, as 127.0.0.1, --tokens, or --insecure";
    Err(format!("cannot listen on {listen}: {expected}").into())
}

/// Takes the port.
pub(super) async fn bind(listen: SocketAddr) -> Result<TcpListener, Failure> {
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
    service: Service,
    listener: TcpListener,
    doors: Doors,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Failure> {
    let scheme = if doors.tls.is_some() { "https" } else { "http" };
    info!("listening on {scheme}://{}", listener.local_addr()?);
    service.guarded(doors.access).serve(listener, doors.tls, stop).await?;
    Ok(())
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
