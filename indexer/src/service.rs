//! The service: the indexer over HTTP, and on the bus. docs/http.md describes every route.

mod body;
mod events;
mod feedback;
mod lists;
mod nats;
mod overlap;
mod problem;
mod request;
mod snapshot;
mod state;
mod threads;
mod workers;

use std::{io, num::NonZeroUsize, sync::Arc, thread::available_parallelism, time::Duration};

use axum::{
    Router,
    extract::{DefaultBodyLimit, State},
    http::header,
    response::IntoResponse,
    routing::{delete, get, post},
};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{Indexer, Readiness, telemetry};
use problem::Problem;
use threads::Threads;

pub use nats::{NatsService, NatsServiceError};
pub use state::{HeldBlocks, Presence, Worker, WorkerList};

/// How long a stop waits for requests that are under way.
const GRACE: Duration = Duration::from_secs(3);
const UPKEEP: Duration = Duration::from_secs(5);
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the service takes in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServiceLimits {
    /// Bytes of a request's body.
    pub body_bytes: usize,
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
}

impl Default for ServiceLimits {
    fn default() -> Self {
        ServiceLimits {
            body_bytes: 64 << 20,
            event_blocks: 1 << 20,
            events: 65_536,
            queries: 1024,
            bus_requests: 1024,
            bus_bytes: 128 << 20,
        }
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
    /// One snapshot at a time: each takes as much memory as a scope's index.
    snapshots: Arc<Semaphore>,
    /// Parts are small, and wanted at once.
    parts: Arc<Semaphore>,
    /// Large bodies: more at once than there are cores would only make all of them late.
    large: Arc<Semaphore>,
}

impl Service {
    /// A service for an indexer. `metrics` is the recorder's handle, to be rendered at `/metrics`; `readiness` what `/readyz`
    /// tells.
    #[must_use]
    pub fn new(
        indexer: Arc<Indexer>,
        metrics: PrometheusHandle,
        limits: ServiceLimits,
        readiness: Arc<Readiness>,
    ) -> Service {
        let turns = |count| Arc::new(Semaphore::new(count));
        let (snapshots, parts, large) = (turns(1), turns(PARTS), turns(cores()));
        Service { indexer, metrics, limits, readiness, snapshots, parts, large }
    }

    fn router(self) -> Router {
        Router::new()
            .route("/v1/overlap", post(overlap::post))
            .route("/v1/events", post(events::post))
            .route("/v1/workers", get(state::workers).post(workers::register))
            .route("/v1/workers/{id}", delete(workers::remove))
            .route("/v1/scopes", get(state::scopes))
            .route("/v1/snapshot", get(snapshot::get))
            .route("/v1/feedback", post(feedback::post))
            .route("/healthz", get(async || "ok\n"))
            .route("/readyz", get(is_ready))
            .route("/metrics", get(render_metrics))
            .fallback(async || Problem::no_such_route())
            .method_not_allowed_fallback(async || Problem::method_not_allowed())
            .layer(DefaultBodyLimit::max(self.limits.body_bytes))
            .with_state(self)
    }

    /// Serves until `stop` is ready, then finishes the requests that are under way, or gives up on those that take
    /// too long.
    ///
    /// # Errors
    /// Whatever the system says of the listener, or of the threads that serve.
    pub async fn serve(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let (stopping, metrics) = (CancellationToken::new(), self.metrics.clone());
        let threads = Threads::start(listener.local_addr()?, &self.router(), &stopping)?;
        tokio::select! {
            () = threads.hand_out(listener) => {}
            () = keep_up(&metrics) => {}
            () = stop => {}
        }
        stopping.cancel();
        if tokio::time::timeout(GRACE, threads.ended()).await.is_err() {
            warn!("gave up on requests that were still under way after {GRACE:?}");
        }
        Ok(())
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

async fn is_ready(State(service): State<Service>) -> Result<&'static str, Problem> {
    service.readiness.check(&service.indexer).map_err(Problem::not_ready)?;
    Ok("ready\n")
}

async fn render_metrics(State(service): State<Service>) -> impl IntoResponse {
    telemetry::measure(&service.indexer);
    service.metrics.run_upkeep();
    ([(header::CONTENT_TYPE, PROMETHEUS_TEXT)], service.metrics.render())
}
