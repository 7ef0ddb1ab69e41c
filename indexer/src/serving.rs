//! What programs that serve have in common: from what is configured to a service that runs until it is told to stop.

use std::{future::Future, io::IsTerminal, net::SocketAddr, sync::Arc};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tracing::{Metadata, info};
use tracing_subscriber::{
    EnvFilter, Layer,
    filter::{FilterExt, filter_fn},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use crate::{
    Indexer,
    access::Tokens,
    config::{LogConfig, LogFormat, NatsConfig, ServerConfig, SnapshotConfig, TracesConfig},
    feed::Bus,
    service::{Access, NatsService, Service, ServiceLimits, Tls},
    snapshot::Peer,
    telemetry,
    traces::{Collector, Traces},
    watched::{Watched, read_text},
};

/// What ends a program early, in words.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Writes the log on standard error from here on, and sends spans of requests where that is configured.
///
/// # Errors
/// A level that is none, or a collector that cannot be reached as it is configured.
pub fn start_log(config: &LogConfig, traces: &TracesConfig) -> Result<Traces, Failure> {
    let traces = Traces::start(Collector::of(traces)?);
    let filter = EnvFilter::try_new(&config.level)?.and(filter_fn(is_event));
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let log = match config.format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).with_filter(filter).boxed(),
        LogFormat::Json => log.json().flatten_event(true).with_filter(filter).boxed(),
    };
    tracing_subscriber::registry().with(log).with(traces.layer()).init();
    Ok(traces)
}

/// Spans are for a collector alone: lines of the log have none, and without a collector none is made.
fn is_event(metadata: &Metadata<'_>) -> bool {
    metadata.is_event()
}

/// The bus, if there is one.
#[must_use]
pub fn bus(config: &NatsConfig) -> Option<Bus> {
    let NatsConfig { url, instance: _, credentials, nkey, tls_ca, tls_cert, tls_key } = config.clone();
    Some(Bus {
        url: url?,
        credentials,
        nkey,
        authorities: tls_ca,
        certificate: tls_cert.zip(tls_key).map(<[_; 2]>::from),
    })
}

/// Answers requests on the bus, where there is one.
///
/// # Errors
/// A bus that cannot be used.
pub async fn answer_requests(
    indexer: &Arc<Indexer>,
    config: &NatsConfig,
    limits: ServiceLimits,
    doors: &Doors,
) -> Result<Option<NatsService>, Failure> {
    let Some(bus) = bus(config) else { return Ok(None) };
    let (indexer, access) = (Arc::clone(indexer), doors.access.clone());
    let instance = config.instance.clone().unwrap_or_default();
    Ok(Some(NatsService::start(indexer, limits, access, &bus, &instance).await?))
}

/// Other kvtides, and how they are asked.
///
/// # Errors
/// What cannot be read, or is no address.
pub fn peers(config: &SnapshotConfig) -> Result<Vec<Peer>, Failure> {
    let token = config.peer_token.as_ref().map(|path| read_text(path)).transpose()?;
    let authorities = config.peer_tls_ca.as_ref().map(|path| read_text(path)).transpose()?;
    let peer = |url: &String| Peer::new(url, token.as_deref(), authorities.as_deref());
    Ok(config.peers.iter().map(peer).collect::<Result<_, _>>()?)
}

/// Text that has no certificates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected certificates of the authorities to trust it by, as PEM")]
pub struct NoAuthorities;

/// How another service is trusted over HTTPS: by the authorities whose certificates these are, as PEM, or by Mozilla's.
///
/// # Errors
/// [`NoAuthorities`].
pub fn trust(authorities: Option<&str>) -> Result<TlsConfig, NoAuthorities> {
    let tls = TlsConfig::builder();
    let Some(text) = authorities else { return Ok(tls.build()) };
    let certificates = parse_pem(text.as_bytes()).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(Ok(certificate)),
        Ok(_) => None,
        Err(_) => Some(Err(NoAuthorities)),
    });
    let certificates = certificates.collect::<Result<Vec<_>, _>>()?;
    if certificates.is_empty() {
        return Err(NoAuthorities);
    }
    Ok(tls.root_certs(RootCerts::from(certificates)).build())
}

/// Who may come in, and how.
#[derive(Default)]
pub struct Doors {
    access: Access,
    tls: Option<Arc<Watched<Tls>>>,
}

impl Doors {
    /// What is configured. An address that is open to other machines takes tokens, or has to be allowed.
    ///
    /// # Errors
    /// One that is open and not allowed; files that cannot be read.
    pub fn of(config: &ServerConfig) -> Result<Doors, Failure> {
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
///
/// # Errors
/// The address, and what was expected.
pub fn refuse_open(listen: SocketAddr, allowed: bool) -> Result<(), Failure> {
    if allowed || listen.ip().is_loopback() {
        return Ok(());
    }
    let expected = "expected a loopback address, as 127.0.0.1, --tokens, or --insecure";
    Err(format!("cannot listen on {listen}: {expected}").into())
}

/// Takes the port.
///
/// # Errors
/// What the system says.
pub async fn bind(listen: SocketAddr) -> Result<TcpListener, Failure> {
    let bound = TcpListener::bind(listen).await;
    bound.map_err(|error| format!("cannot listen on {listen}: {error}").into())
}

/// Keeps what is counted from here on.
///
/// # Errors
/// Where something else keeps it already.
pub fn record_metrics() -> Result<PrometheusHandle, Failure> {
    let metrics = PrometheusBuilder::new().install_recorder()?;
    telemetry::describe();
    Ok(metrics)
}

/// Serves until `stop` is ready, and then answers no more requests on the bus either.
///
/// # Errors
/// What the system says of the listener.
pub async fn serve_until(
    service: Service,
    listener: TcpListener,
    doors: Doors,
    requests: Option<NatsService>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Failure> {
    let scheme = if doors.tls.is_some() { "https" } else { "http" };
    info!("listening on {scheme}://{}", listener.local_addr()?);
    service.guarded(doors.access).serve(listener, doors.tls, stop).await?;
    if let Some(requests) = requests {
        requests.stop().await;
    }
    Ok(())
}

/// Ready at SIGTERM or Ctrl-C.
///
/// # Errors
/// What the system says.
pub fn stopped() -> Result<impl Future<Output = ()> + Send + 'static, Failure> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        info!("stopping");
    })
}
