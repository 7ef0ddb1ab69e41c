//! What can be set, by section of the configuration file. The id of each argument is the section and the name there.

use std::{net::SocketAddr, num::NonZeroU64, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum, builder::RangedU64ValueParser, value_parser};
use tracing_subscriber::EnvFilter;

use super::{ConfigError, check_pairs};
use crate::{Instance, Limits, service::ServiceLimits};

/// Where the service listens if nothing is said.
pub const LISTEN: &str = "127.0.0.1:8090";

/// What is taken in if nothing is said.
const INDEXER: Limits = Limits::DEFAULT;
const SERVICE: ServiceLimits = ServiceLimits::DEFAULT;

/// `[log]`: what is written on standard error, of every command.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
#[command(next_help_heading = "[log]")]
pub struct LogConfig {
    /// How much is logged: error, warn, info, debug or trace, or by module, as kvtide=debug.
    #[arg(id = "log.level", long = "log", value_name = "LEVEL", default_value = "info", value_parser = parse_filter, global = true)]
    pub level: String,
    /// How the log is written.
    #[arg(
        id = "log.format",
        long = "log-format",
        value_name = "FORMAT",
        default_value = "text",
        global = true
    )]
    pub format: LogFormat,
}

/// How the log is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

fn parse_filter(text: &str) -> Result<String, String> {
    EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// `[server]`: who may ask, and where.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
#[command(next_help_heading = "[server]")]
pub struct ServerConfig {
    /// Address and port to listen on; port 0 takes a free one.
    #[arg(id = "server.listen", long = "listen", value_name = "ADDR", default_value = LISTEN)]
    pub listen: SocketAddr,
    /// Listen on other addresses than loopback without tokens: whoever reaches them may ask for everything and change
    /// everything.
    #[arg(id = "server.insecure", long = "insecure")]
    pub insecure: bool,
    /// A file with the hashes of access tokens, a line each, as `kvtide token new` prints them; read again when it changes.
    #[arg(id = "server.tokens", long = "tokens", value_name = "FILE")]
    pub tokens: Option<PathBuf>,
    /// The certificates to serve HTTPS with, as PEM: the service's own first; read again when they change.
    #[arg(id = "server.tls_cert", long = "tls-cert", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of the first certificate, as PEM.
    #[arg(id = "server.tls_key", long = "tls-key", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
}

/// `[nats]`: the bus that streams with a subject are on.
#[derive(Args, Clone, PartialEq, Eq, Debug, Default)]
#[command(next_help_heading = "[nats]")]
pub struct NatsConfig {
    /// The NATS server of Dynamo's event plane, as nats://HOST:PORT; tls:// asks for TLS; several by commas.
    #[arg(id = "nats.url", long = "nats", value_name = "URL")]
    pub url: Option<String>,
    /// The name under which requests are answered there, at kvtide.NAME.overlap: one part of a subject; by default the
    /// host's.
    #[arg(id = "nats.instance", long = "instance", value_name = "NAME")]
    pub instance: Option<Instance>,
    /// A credentials file for it, with a JWT and its seed.
    #[arg(id = "nats.credentials", long = "nats-credentials", value_name = "FILE")]
    pub credentials: Option<PathBuf>,
    /// A file with the seed of an nkey for it.
    #[arg(id = "nats.nkey", long = "nats-nkey", value_name = "FILE")]
    pub nkey: Option<PathBuf>,
    /// Certificates of authorities to trust it by, as PEM; by default the system's.
    #[arg(id = "nats.tls_ca", long = "nats-tls-ca", value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// The certificate to show to it, as PEM.
    #[arg(id = "nats.tls_cert", long = "nats-tls-cert", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of that certificate, as PEM.
    #[arg(id = "nats.tls_key", long = "nats-tls-key", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
}

impl NatsConfig {
    /// Whether nothing is given that means nothing without another.
    ///
    /// # Errors
    /// [`ConfigError::Alone`].
    pub fn check(&self) -> Result<(), ConfigError> {
        let nats = self;
        check_pairs([
            (("[nats] tls_cert", nats.tls_cert.is_some()), ("[nats] tls_key", nats.tls_key.is_some())),
            (("[nats] tls_key", nats.tls_key.is_some()), ("[nats] tls_cert", nats.tls_cert.is_some())),
            (("[nats] instance", nats.instance.is_some()), ("[nats] url", nats.url.is_some())),
            (("[nats] credentials", nats.credentials.is_some()), ("[nats] url", nats.url.is_some())),
            (("[nats] nkey", nats.nkey.is_some()), ("[nats] url", nats.url.is_some())),
            (("[nats] tls_ca", nats.tls_ca.is_some()), ("[nats] url", nats.url.is_some())),
            (("[nats] tls_cert", nats.tls_cert.is_some()), ("[nats] url", nats.url.is_some())),
        ])
    }
}

/// `[snapshot]`: what is kept beyond the process.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
#[command(next_help_heading = "[snapshot]")]
pub struct SnapshotConfig {
    /// A file to keep a snapshot in, and to go on with at the start.
    #[arg(id = "snapshot.path", long = "snapshot", value_name = "FILE")]
    pub path: Option<PathBuf>,
    /// Seconds between one snapshot and the next; one more is written at the end.
    #[arg(id = "snapshot.every_s", long = "snapshot-every-s", value_name = "N", default_value = "60")]
    pub every_s: NonZeroU64,
    /// Other kvtides, as http://HOST:PORT: to take a snapshot from where there is no file, and to ask for what was missed on
    /// the bus, or is not kept by an engine any more.
    #[arg(id = "snapshot.peers", long = "peer", value_name = "URL", value_delimiter = ',')]
    pub peers: Vec<String>,
    /// A file with the access token to show to them: one with the role admin.
    #[arg(id = "snapshot.peer_token", long = "peer-token", value_name = "FILE")]
    pub peer_token: Option<PathBuf>,
    /// Certificates of authorities to trust them by over HTTPS, as PEM; by default Mozilla's.
    #[arg(id = "snapshot.peer_tls_ca", long = "peer-tls-ca", value_name = "FILE")]
    pub peer_tls_ca: Option<PathBuf>,
}

/// `[traces]`: where spans of requests go.
#[derive(Args, Clone, PartialEq, Eq, Debug, Default)]
#[command(next_help_heading = "[traces]")]
pub struct TracesConfig {
    /// An OpenTelemetry collector to send spans of requests to, by OTLP over HTTP, as http://HOST:4318; https:// asks for
    /// TLS.
    #[arg(id = "traces.otlp", long = "otlp", value_name = "URL")]
    pub otlp: Option<String>,
    /// Certificates of authorities to trust it by over HTTPS, as PEM; by default Mozilla's.
    #[arg(id = "traces.otlp_tls_ca", long = "otlp-tls-ca", value_name = "FILE")]
    pub otlp_tls_ca: Option<PathBuf>,
}

/// `[workers]`: when one is silent, and when it has gone.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
#[command(next_help_heading = "[workers]")]
pub struct WorkersConfig {
    /// Seconds after which a worker from which nothing comes is `silent` in `/v1/workers`.
    #[arg(id = "workers.silent_after_s", long = "silent-after-s", value_name = "N", default_value_t = INDEXER.silent_after.as_secs())]
    pub silent_after_s: u64,
    /// Seconds after which, of two publishers that claim one rank, a silent one has given up.
    #[arg(id = "workers.conflict_silence_s", long = "conflict-silence-s", value_name = "N", default_value_t = INDEXER.conflict_silence.as_secs())]
    pub conflict_silence_s: u64,
    /// Seconds after which a worker from which nothing comes has gone, and its ranks are removed. An idle Dynamo worker says
    /// nothing; an engine with a replay socket answers every second.
    #[arg(id = "workers.gone_after_s", long = "gone-after-s", value_name = "N")]
    pub gone_after_s: Option<u64>,
}

/// `[limits]`: how much is taken in, and for how long. Each is named in the error that it causes.
#[derive(Args, Clone, Copy, PartialEq, Eq, Debug)]
#[command(next_help_heading = "[limits]")]
pub struct LimitsConfig {
    /// Connections to the service at the same time; further ones wait to be accepted.
    #[arg(id = "limits.connections", long = "connections", value_name = "N", default_value_t = SERVICE.connections as u64, value_parser = one_or_more())]
    pub connections: u64,
    /// Seconds that a connection may be silent before a request's head has come.
    #[arg(id = "limits.idle_s", long = "idle-s", value_name = "N", default_value_t = SERVICE.idle.as_secs(), value_parser = one_or_more())]
    pub idle_s: u64,
    /// Seconds that a request's body may take, and a client to read on in an answer.
    #[arg(id = "limits.request_s", long = "request-s", value_name = "N", default_value_t = SERVICE.request.as_secs(), value_parser = one_or_more())]
    pub request_s: u64,
    /// Bytes of a request's body.
    #[arg(id = "limits.body_bytes", long = "body-bytes", value_name = "N", default_value_t = SERVICE.body_bytes as u64, value_parser = one_or_more())]
    pub body_bytes: u64,
    /// Bytes of all bodies at the same time; further ones wait, and are refused after request_s.
    #[arg(id = "limits.bodies_bytes", long = "bodies-bytes", value_name = "N", default_value_t = SERVICE.bodies_bytes as u64, value_parser = one_or_more())]
    pub bodies_bytes: u64,
    /// Queries of one request.
    #[arg(id = "limits.queries", long = "queries", value_name = "N", default_value_t = SERVICE.queries as u64, value_parser = one_or_more())]
    pub queries: u64,
    /// Requests on the bus that wait or are being answered.
    #[arg(id = "limits.bus_requests", long = "bus-requests", value_name = "N", default_value_t = SERVICE.bus_requests as u64, value_parser = one_or_more())]
    pub bus_requests: u64,
    /// Bytes of such requests, together.
    #[arg(id = "limits.bus_bytes", long = "bus-bytes", value_name = "N", default_value_t = SERVICE.bus_bytes as u64, value_parser = one_or_more())]
    pub bus_bytes: u64,
    /// Tokens of a request's prompts, together.
    #[arg(id = "limits.query_tokens", long = "query-tokens", value_name = "N", default_value_t = INDEXER.query_tokens, value_parser = one_or_more())]
    pub query_tokens: u64,
    /// Media of a request's prompts, together, each counted once for every block that it stands in.
    #[arg(id = "limits.query_media", long = "query-media", value_name = "N", default_value_t = INDEXER.query_media, value_parser = one_or_more())]
    pub query_media: u64,
    /// Engines that are followed, beyond which none can be registered.
    #[arg(id = "limits.engines", long = "engines", value_name = "N", default_value_t = SERVICE.engines as u64, value_parser = one_or_more())]
    pub engines: u64,
    /// Bytes of a model's, a routing group's or an endpoint's name where engines are registered or asked for by it.
    #[arg(id = "limits.name_bytes", long = "name-bytes", value_name = "N", default_value_t = SERVICE.name_bytes as u64, value_parser = one_or_more())]
    pub name_bytes: u64,
    /// Ranks of a request's answers, together.
    #[arg(id = "limits.query_ranks", long = "query-ranks", value_name = "N", default_value_t = INDEXER.query_ranks, value_parser = one_or_more())]
    pub query_ranks: u64,
    /// Events handed in with one request.
    #[arg(id = "limits.events", long = "events", value_name = "N", default_value_t = SERVICE.events as u64, value_parser = one_or_more())]
    pub events: u64,
    /// Blocks of one event that is handed in.
    #[arg(id = "limits.event_blocks", long = "event-blocks", value_name = "N", default_value_t = SERVICE.event_blocks as u64, value_parser = one_or_more())]
    pub event_blocks: u64,
    /// Scopes.
    #[arg(id = "limits.scopes", long = "scopes", value_name = "N", default_value_t = INDEXER.scopes as u64, value_parser = one_or_more())]
    pub scopes: u64,
    /// Ranks of a scope.
    #[arg(id = "limits.ranks", long = "ranks", value_name = "N", default_value_t = INDEXER.index.ranks as u64, value_parser = value_parser!(u64).range(1..=65_536))]
    pub ranks: u64,
    /// Different blocks of a scope.
    #[arg(id = "limits.blocks", long = "blocks", value_name = "N", default_value_t = INDEXER.index.blocks as u64, value_parser = value_parser!(u64).range(1..=1 << 29))]
    pub blocks: u64,
    /// Blocks of a rank that wait for a parent or a name. Beyond it, those that have waited longest are dropped, and
    /// counted.
    #[arg(id = "limits.parked_blocks", long = "parked-blocks", value_name = "N", default_value_t = INDEXER.index.parked_blocks as u64, value_parser = one_or_more())]
    pub parked_blocks: u64,
    /// Bytes of such blocks, as they were announced. Beyond it, the same.
    #[arg(id = "limits.parked_bytes", long = "parked-bytes", value_name = "N", default_value_t = INDEXER.index.parked_bytes as u64, value_parser = one_or_more())]
    pub parked_bytes: u64,
}

fn one_or_more() -> RangedU64ValueParser {
    value_parser!(u64).range(1..)
}

impl LimitsConfig {
    /// Those of the service.
    #[must_use]
    pub fn service(&self) -> ServiceLimits {
        ServiceLimits {
            connections: size(self.connections),
            idle: Duration::from_secs(self.idle_s),
            request: Duration::from_secs(self.request_s),
            body_bytes: size(self.body_bytes),
            bodies_bytes: size(self.bodies_bytes),
            event_blocks: size(self.event_blocks),
            events: size(self.events),
            queries: size(self.queries),
            bus_requests: size(self.bus_requests),
            bus_bytes: size(self.bus_bytes),
            engines: size(self.engines),
            name_bytes: size(self.name_bytes),
        }
    }

    /// Those of the indexer, with what is set of its workers.
    #[must_use]
    pub fn indexer(&self, workers: &WorkersConfig) -> Limits {
        Limits {
            scopes: size(self.scopes),
            query_tokens: self.query_tokens,
            query_ranks: self.query_ranks,
            query_media: self.query_media,
            silent_after: Duration::from_secs(workers.silent_after_s),
            conflict_silence: Duration::from_secs(workers.conflict_silence_s),
            gone_after: workers.gone_after_s.map(Duration::from_secs),
            index: kvtide_radix::Limits {
                ranks: size(self.ranks),
                parked_blocks: size(self.parked_blocks),
                parked_bytes: size(self.parked_bytes),
                blocks: size(self.blocks),
            },
        }
    }
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
