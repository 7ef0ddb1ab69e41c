//! How spans get to a collector: in batches by a thread of their own, with room for so many. A collector that is away costs
//! that room, one line in the log, and the spans.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use axum::http::Uri;
use opentelemetry::{Context, Key, KeyValue, trace::TracerProvider};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{ExporterBuildError, Protocol, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{
        BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider, Span, SpanData, SpanExporter,
        SpanProcessor,
    },
};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tracing::{Subscriber, info, level_filters::LevelFilter, warn};
use tracing_subscriber::{Layer, filter::filter_fn, registry::LookupSpan};

use super::TARGET;
use crate::{
    config::TracesConfig,
    feed::without_credentials,
    serving::{Failure, NoAuthorities, trust},
    telemetry,
    watched::read_text,
};

/// Where a collector takes spans, behind its address.
const PATH: &str = "/v1/traces";
/// Spans that wait, or are on their way; about 1 kB each.
const ROOM: usize = 4096;
/// Spans of a batch.
const BATCH: usize = 512;
/// How long a batch may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a stop waits for what is on its way.
const GRACE: Duration = Duration::from_secs(3);
/// Bytes of an answer. A collector has nothing to say.
const ANSWER_BYTES: u64 = 64 << 10;
/// Between one line about a collector that is away and the next.
const QUIET: Duration = Duration::from_secs(60);

/// Why spans cannot be sent at all.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    /// Its address is none.
    #[error("expected a collector's address as http://HOST:PORT or https://HOST:PORT, got {got}")]
    Url {
        /// What was given.
        got: String,
    },
    /// It could not be trusted.
    #[error(transparent)]
    Authorities(#[from] NoAuthorities),
    /// OpenTelemetry's own variables say something that cannot be.
    #[error(transparent)]
    Variables(#[from] ExporterBuildError),
}

/// A collector, and how it is reached.
pub struct Collector {
    exporter: opentelemetry_otlp::SpanExporter,
}

impl Collector {
    /// The one that is configured, if one is.
    ///
    /// # Errors
    /// [`CollectorError`], or a file that cannot be read.
    pub fn of(config: &TracesConfig) -> Result<Option<Collector>, Failure> {
        let Some(url) = &config.otlp else { return Ok(None) };
        let authorities = config.otlp_tls_ca.as_ref().map(|path| read_text(path)).transpose()?;
        let of_setting = |error| format!("[traces] otlp: {error}");
        Ok(Some(Collector::new(url, authorities.as_deref()).map_err(of_setting)?))
    }

    fn new(url: &str, authorities: Option<&str>) -> Result<Collector, CollectorError> {
        let endpoint = endpoint(url).ok_or_else(|| CollectorError::Url { got: without_credentials(url) })?;
        let agent = ureq::Agent::config_builder()
            .tls_config(trust(authorities)?)
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            // Spans go where they were told to go.
            .max_redirects(0)
            .max_redirects_will_error(false);
        let client =
            Client { shown: without_credentials(url), agent: agent.build().into(), told: Mutex::default() };
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_endpoint(endpoint)
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(PATIENCE)
            .build()?;
        Ok(Collector { exporter })
    }
}

/// Where spans are posted, with an address of a collector or just that.
fn endpoint(url: &str) -> Option<String> {
    let parsed: Uri = url.parse().ok()?;
    let authority = parsed.authority()?;
    let is_http = matches!(parsed.scheme_str(), Some("http" | "https"));
    // Of a port that is none, nothing is told.
    let has_port = authority.port_u16().is_some_and(|port| port > 0);
    let has_none = authority.as_str().rsplit('@').next() == Some(authority.host());
    if !is_http || !(has_port || has_none) || authority.host().is_empty() || parsed.query().is_some() {
        return None;
    }
    let url = url.trim_end_matches('/');
    Some(if url.ends_with(PATH) { url.to_owned() } else { format!("{url}{PATH}") })
}

/// What sends spans, until it is stopped.
#[must_use = "spans that wait are lost where it is not stopped"]
pub struct Traces {
    sent: Option<(SdkTracerProvider, Arc<Semaphore>)>,
}

impl Traces {
    /// Sends spans to a collector from here on, if there is one.
    pub fn start(collector: Option<Collector>) -> Traces {
        let start = |Collector { exporter }| {
            let room = Arc::new(Semaphore::new(ROOM));
            let exporter = Counted { exporter, room: Arc::clone(&room) };
            let batches = BatchConfigBuilder::default()
                .with_max_queue_size(ROOM)
                .with_max_export_batch_size(BATCH)
                .build();
            let batches = BatchSpanProcessor::builder(exporter).with_batch_config(batches).build();
            let processor = Bounded { batches, room: Arc::clone(&room) };
            let provider =
                SdkTracerProvider::builder().with_resource(resource()).with_span_processor(processor);
            (provider.build(), room)
        };
        Traces { sent: collector.map(start) }
    }

    /// What makes spans of requests, and of nothing else.
    pub fn layer<S>(&self) -> Option<impl Layer<S> + use<S>>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        let (provider, _) = self.sent.as_ref()?;
        let of_requests = filter_fn(|metadata| metadata.is_span() && metadata.target() == TARGET);
        let layer = tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("kvtide"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_context_activation(false);
        Some(layer.with_filter(of_requests.with_max_level_hint(LevelFilter::INFO)))
    }

    /// Sends what waits, for a few seconds at most.
    pub fn stop(self) {
        let Some((provider, room)) = self.sent else { return };
        if provider.shutdown_with_timeout(GRACE).is_err() {
            let left = ROOM.saturating_sub(room.available_permits());
            warn!("gave up on {left} spans that had not reached the collector after {GRACE:?}");
        }
    }
}

/// Who sends: kvtide, unless OpenTelemetry's own variables have another name.
fn resource() -> Resource {
    let host = gethostname::gethostname().to_string_lossy().into_owned();
    let known =
        [KeyValue::new("service.version", env!("CARGO_PKG_VERSION")), KeyValue::new("host.name", host)];
    let stated = Resource::builder().with_attributes(known);
    let name = Resource::builder().build().get(&Key::from_static_str("service.name"));
    let is_stated = name.is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    if is_stated { stated.build() } else { stated.with_service_name("kvtide").build() }
}

/// Counts spans that it has sent, or not, and gives their room back.
#[derive(Debug)]
struct Counted {
    exporter: opentelemetry_otlp::SpanExporter,
    room: Arc<Semaphore>,
}

impl SpanExporter for Counted {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let exported = self.exporter.export(batch).await;
        self.room.add_permits(count);
        telemetry::count_spans(count, exported.is_ok());
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// Drops spans for which there is no room, and counts them: the library drops them too, but tells nobody how many.
#[derive(Debug)]
struct Bounded {
    batches: BatchSpanProcessor,
    room: Arc<Semaphore>,
}

impl SpanProcessor for Bounded {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.batches.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        match self.room.try_acquire() {
            Ok(place) => {
                place.forget();
                self.batches.on_end(span);
            }
            Err(_) => telemetry::count_spans(1, false),
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

/// Posts batches, and says when they do not arrive.
#[derive(Debug)]
struct Client {
    /// The address, without what nobody may read.
    shown: String,
    agent: ureq::Agent,
    told: Mutex<Told>,
}

/// What was said last.
#[derive(Default, Debug)]
struct Told {
    is_away: bool,
    warned: Option<Instant>,
}

#[async_trait]
impl HttpClient for Client {
    /// Waits, which the thread that calls it is there for.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = self.send(request);
        let fault = match &sent {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("it answers {}", response.status())),
            Err(error) => Some(error.to_string()),
        };
        self.tell(fault);
        Ok(sent?)
    }
}

impl Client {
    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let (head, body) = request.into_parts();
        let (head, mut body) = self.agent.run(Request::from_parts(head, &body[..]))?.into_parts();
        let answer = body.with_config().limit(ANSWER_BYTES).read_to_vec()?;
        Ok(Response::from_parts(head, answer.into()))
    }

    /// Says that spans do not arrive, or do so again, once and not of each batch.
    fn tell(&self, fault: Option<String>) {
        let (shown, mut told) = (&self.shown, self.told.lock());
        match fault {
            Some(fault) if !told.is_away && told.warned.is_none_or(|at| at.elapsed() > QUIET) => {
                *told = Told { is_away: true, warned: Some(Instant::now()) };
                warn!("spans do not reach the collector at {shown}, and are dropped meanwhile: {fault}");
            }
            None if told.is_away => {
                told.is_away = false;
                info!("spans reach the collector at {shown} again");
            }
            Some(_) | None => {}
        }
    }
}
