//! The service: the indexer over HTTP. docs/HTTP.md describes every route.

mod body;
mod events;
mod overlap;
mod problem;
mod state;

use std::{io, sync::Arc};

use axum::{
    Router,
    extract::{DefaultBodyLimit, State},
    routing::{get, post},
};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;

use crate::{Indexer, telemetry};
use problem::Problem;

pub use state::{HeldBlocks, Worker, WorkerList};

/// What the service takes in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServiceLimits {
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Blocks of one event that is handed in.
    pub event_blocks: usize,
    /// Events handed in with one request.
    pub events: usize,
}

impl Default for ServiceLimits {
    fn default() -> Self {
        ServiceLimits { body_bytes: 64 << 20, event_blocks: 1 << 20, events: 65_536 }
    }
}

/// The indexer behind HTTP.
#[derive(Clone)]
pub struct Service {
    indexer: Arc<Indexer>,
    metrics: PrometheusHandle,
    limits: ServiceLimits,
}

impl Service {
    /// A service for an indexer. `metrics` is the recorder's handle, to be rendered at `/metrics`.
    #[must_use]
    pub fn new(indexer: Arc<Indexer>, metrics: PrometheusHandle, limits: ServiceLimits) -> Service {
        Service { indexer, metrics, limits }
    }

    fn router(self) -> Router {
        Router::new()
            .route("/v1/overlap", post(overlap::post))
            .route("/v1/events", post(events::post))
            .route("/v1/workers", get(state::workers))
            .route("/v1/scopes", get(state::scopes))
            .route("/healthz", get(async || "ok\n"))
            .route("/metrics", get(render_metrics))
            .fallback(async || Problem::no_such_route())
            .method_not_allowed_fallback(async || Problem::method_not_allowed())
            .layer(DefaultBodyLimit::max(self.limits.body_bytes))
            .with_state(self)
    }

    /// Serves until `stop` is ready, then finishes the requests that are under way.
    ///
    /// # Errors
    /// Whatever the system says of the listener.
    pub async fn serve(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        axum::serve(listener, self.router()).with_graceful_shutdown(stop).await
    }
}

async fn render_metrics(State(service): State<Service>) -> String {
    telemetry::measure(&service.indexer);
    service.metrics.run_upkeep();
    service.metrics.render()
}
