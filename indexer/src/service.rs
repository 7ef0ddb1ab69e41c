//! The service: the indexer over HTTP, and on the bus. docs/http.md describes every route.

mod body;
mod connections;
mod contract;
mod dashboard;
mod dynamo;
mod events;
mod feedback;
mod guard;
mod lists;
mod media;
mod nats;
mod overlap;
mod pieces;
mod problem;
mod request;
mod snapshot;
mod state;
mod threads;
mod tls;
mod workers;

use std::{io, num::NonZeroUsize, sync::Arc, thread::available_parallelism, time::Duration};

use axum::{
    Router,
    extract::{DefaultBodyLimit, State},
    http::header,
    middleware::{from_fn, from_fn_with_state},
    response::IntoResponse,
};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{net::TcpListener, sync::Semaphore};
use utoipa::OpenApi;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{Indexer, Readiness, access::Role, feed::Feeds, telemetry, traces, watched::Watched};
use body::room;
use connections::Connections;
use contract::Contract;
use dynamo::Registry;
use problem::Problem;

pub use dynamo::router_events;
pub use guard::Access;
pub use nats::{NatsService, NatsServiceError};
pub use state::{HeldBlocks, Presence, Worker, WorkerList};
pub use tls::Tls;

const UPKEEP: Duration = Duration::from_secs(5);
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the service takes in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServiceLimits {
    /// Connections at the same time. Further ones wait to be accepted.
    pub connections: usize,
    /// A connection may be silent for so long before a request's head has come.
    pub idle: Duration,
    /// A request's body may take so long, and a client to read on in an answer.
    pub request: Duration,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Bytes of all bodies at the same time. Further ones wait, as long as a body may take.
    pub bodies_bytes: usize,
    /// Blocks of one event that is handed in.
    pub event_blocks: usize,
    /// Events handed in with one request.
    pub events: usize,
    /// Queries of one request.
    pub queries: usize,
    /// Requests on the bus that wait or are being answered.
    pub bus_requests: usize,
    /// Their bytes together.
    pub bus_bytes: usize,
    /// Engines that are followed, of which none further can be registered then.
    pub engines: usize,
    /// Bytes of a model's, a routing group's or an endpoint's name where it is registered.
    pub name_bytes: usize,
}

impl ServiceLimits {
    /// What is taken in if nothing is said.
    pub const DEFAULT: ServiceLimits = ServiceLimits {
        connections: 1024,
        idle: Duration::from_secs(120),
        request: Duration::from_secs(30),
        body_bytes: 64 << 20,
        bodies_bytes: 1 << 30,
        event_blocks: 1 << 20,
        events: 65_536,
        queries: 1024,
        bus_requests: 1024,
        bus_bytes: 128 << 20,
        engines: 1024,
        name_bytes: 512,
    };
}

impl Default for ServiceLimits {
    fn default() -> Self {
        ServiceLimits::DEFAULT
    }
}

/// So many parts of a snapshot are told at once.
const PARTS: usize = 4;

/// The indexer behind HTTP.
#[derive(Clone)]
pub struct Service {
    indexer: Arc<Indexer>,
    metrics: PrometheusHandle,
    limits: ServiceLimits,
    readiness: Arc<Readiness>,
    access: Access,
    /// The contract, as it goes out.
    contract: Arc<str>,
    registry: Arc<Registry>,
    /// Room for bodies.
    bodies: Arc<Semaphore>,
    /// One snapshot at a time: each takes as much memory as a scope's index.
    snapshots: Arc<Semaphore>,
    /// Parts are small, and wanted at once.
    parts: Arc<Semaphore>,
    /// Large bodies: more at once than there are cores would only make all of them late.
    large: Arc<Semaphore>,
    traced: bool,
}

impl Service {
    /// A service for an indexer. `metrics` is the recorder's handle, to be rendered at `/metrics`; `feeds` what brings its
    /// events, to which engines may be added, and of which `/readyz` tells.
    #[must_use]
    pub fn new(
        indexer: Arc<Indexer>,
        metrics: PrometheusHandle,
        limits: ServiceLimits,
        feeds: Arc<Feeds>,
    ) -> Service {
        let turns = |count| Arc::new(Semaphore::new(count));
        let readiness = feeds.readiness();
        let registry = Arc::new(Registry::new(Arc::clone(&indexer), feeds));
        let (access, contract) = (Access::Open, Arc::default());
        let (snapshots, parts, large) = (turns(1), turns(PARTS), turns(cores()));
        let bodies = room(limits.bodies_bytes);
        Service {
            indexer,
            metrics,
            limits,
            readiness,
            access,
            contract,
            registry,
            bodies,
            snapshots,
            parts,
            large,
            traced: false,
        }
    }

    /// The same with spans of its requests, or without any.
    #[must_use]
    pub fn traced(self, traced: bool) -> Service {
        Service { traced, ..self }
    }

    /// The same for those alone who may ask.
    #[must_use]
    pub fn guarded(self, access: Access) -> Service {
        Service { access, ..self }
    }

    fn router(mut self) -> Router {
        let open = OpenApiRouter::with_openapi(Contract::openapi())
            .routes(routes!(is_there))
            .routes(routes!(is_ready))
            .routes(routes!(contract::get))
            .routes(routes!(dashboard::get))
            .merge(dynamo::health());
        let query = OpenApiRouter::new()
            .routes(routes!(overlap::post))
            .routes(routes!(feedback::post))
            .merge(dynamo::queries());
        let ingest = OpenApiRouter::new().routes(routes!(events::post));
        let metrics = OpenApiRouter::new().routes(routes!(render_metrics));
        let admin = OpenApiRouter::new()
            .routes(routes!(state::workers, workers::register))
            .routes(routes!(workers::remove))
            .routes(routes!(state::scopes))
            .routes(routes!(snapshot::get))
            .merge(dynamo::administration());
        let guarded =
            [(Role::Query, query), (Role::Ingest, ingest), (Role::Metrics, metrics), (Role::Admin, admin)];
        let guarded = guarded.into_iter().map(|(role, routes)| {
            routes.route_layer(from_fn_with_state((self.access.clone(), role), guard::pass))
        });
        let (routes, contract) = guarded.fold(open, OpenApiRouter::merge).split_for_parts();
        // Of strings and numbers alone, it is always JSON.
        self.contract = contract.to_pretty_json().unwrap_or_default().into();
        let traced = self.traced;
        let routes = routes
            .fallback(async || Problem::no_such_route())
            .method_not_allowed_fallback(async || Problem::method_not_allowed())
            .layer(DefaultBodyLimit::max(self.limits.body_bytes))
            .with_state(self);
        if traced { routes.layer(from_fn(traces::over_http)) } else { routes }
    }

    /// Serves until `stop` is ready, then finishes the requests that are under way, or gives up on those that take
    /// too long. Over TLS, if there is any.
    ///
    /// # Errors
    /// Whatever the system says where it has no threads to give.
    pub async fn serve(
        self,
        listener: TcpListener,
        tls: Option<Arc<Watched<Tls>>>,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let (metrics, limits) = (self.metrics.clone(), self.limits);
        let access = self.access.clone();
        let tls_files = tls.clone();
        tokio::select! {
            served = Connections { router: self.router(), limits, tls }.serve(listener, stop) => served,
            () = keep_up(&metrics) => Ok(()),
            () = access.keep_up() => Ok(()),
            () = watch(tls_files) => Ok(()),
        }
    }
}

/// Reads files again, if there are any, for as long as it is polled.
async fn watch<T: Send + Sync + 'static>(files: Option<Arc<Watched<T>>>) {
    match files {
        Some(files) => files.watch().await,
        None => std::future::pending().await,
    }
}

/// How much can be done at once.
fn cores() -> usize {
    available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Sums up what the recorder has noted since. Without it every query's time would stay until someone asks for
/// metrics.
async fn keep_up(metrics: &PrometheusHandle) {
    let mut ticks = tokio::time::interval(UPKEEP);
    loop {
        ticks.tick().await;
        metrics.run_upkeep();
    }
}

/// Whether there is anyone.
#[utoipa::path(
    get,
    path = "/healthz",
    tag = "operation",
    security(()),
    responses((status = 200, description = "There is", body = String, content_type = "text/plain"))
)]
async fn is_there() -> &'static str {
    "ok\n"
}

/// Whether it may be asked: it has heard of its sources, and what it went on with is proven or forgotten.
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "operation",
    security(()),
    responses(
        (status = 200, description = "It may", body = String, content_type = "text/plain"),
        (status = "default", response = Problem)
    )
)]
async fn is_ready(State(service): State<Service>) -> Result<&'static str, Problem> {
    service.readiness.check(&service.indexer).map_err(Problem::not_ready)?;
    Ok("ready\n")
}

/// Metrics, as Prometheus reads them.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "operation",
    responses(
        (status = 200, description = "Metrics", body = String, content_type = "text/plain"),
        (status = "default", response = Problem)
    )
)]
async fn render_metrics(State(service): State<Service>) -> impl IntoResponse {
    telemetry::measure(&service.indexer);
    service.metrics.run_upkeep();
    ([(header::CONTENT_TYPE, PROMETHEUS_TEXT)], service.metrics.render())
}
