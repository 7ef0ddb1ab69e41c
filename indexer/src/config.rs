//! What can be set, by flags, the environment and a file: where to listen, which bus to follow, the streams with their scopes,
//! and limits. Each setting is declared once, as an argument of the command line; its environment variable is `KVTIDE_` and the
//! flag's name, and its place in the file is the argument's id.

mod file;
mod sections;
mod stream;

use std::{collections::BTreeSet, path::PathBuf};

use clap::{Args, Command};

use crate::{Limits, Stream};

pub use file::File;
pub use sections::{
    LISTEN, LimitsConfig, LogConfig, LogFormat, NatsConfig, ServerConfig, SnapshotConfig, TracesConfig,
    WorkersConfig,
};
pub use stream::{ANY_SUBJECT, CopiesConfig, StreamConfig};

/// Lets every argument of a command be set by the environment too.
#[must_use]
pub fn with_environment(command: Command) -> Command {
    command.mut_args(|argument| match argument.get_long() {
        Some(flag) => {
            let variable = format!("KVTIDE_{}", flag.to_uppercase().replace('-', "_"));
            argument.env(variable)
        }
        None => argument,
    })
}

/// Everything that can be set of a service.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// A configuration file; flags go before the environment, and that before what the file says.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "a comment here would be the help of the whole command")]
    pub server: ServerConfig,
    #[command(flatten)]
    #[expect(missing_docs, reason = "as above")]
    pub nats: NatsConfig,
    #[command(flatten)]
    #[expect(missing_docs, reason = "as above")]
    pub snapshot: SnapshotConfig,
    #[command(flatten)]
    #[expect(missing_docs, reason = "as above")]
    pub traces: TracesConfig,
    #[command(flatten)]
    #[expect(missing_docs, reason = "as above")]
    pub workers: WorkersConfig,
    #[command(flatten)]
    #[expect(missing_docs, reason = "as above")]
    pub limits: LimitsConfig,
    #[command(flatten)]
    stream: Option<StreamConfig>,
    /// The streams of the file.
    #[arg(skip)]
    pub streams: Vec<StreamConfig>,
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is not of the right form.
    #[error("{path}: {source}")]
    Malformed {
        /// The file.
        path: String,
        /// What the parser says.
        source: Box<toml::de::Error>,
    },
    /// The file has a value that is in no section.
    #[error("{path}: {got} stands alone, expected sections, as [server]")]
    Section {
        /// The file.
        path: String,
        /// Its name.
        got: String,
    },
    /// The file has something that cannot be set.
    #[error("{path}: line {line}: {got} cannot be set, expected one of {expected}")]
    Unknown {
        /// The file.
        path: String,
        /// Where in it.
        line: usize,
        /// The section and the name.
        got: String,
        /// What is known there.
        expected: String,
    },
    /// The file has a value that cannot be.
    #[error("{path}: line {line}: {setting}: {reason}")]
    Value {
        /// The file.
        path: String,
        /// Where in it.
        line: usize,
        /// The section and the name.
        setting: String,
        /// What was got, and why that cannot be.
        reason: String,
    },
    /// The environment has something that cannot be.
    #[error(transparent)]
    Environment(#[from] clap::Error),
    /// Something that needs something else.
    #[error("{given} is given without {missing}")]
    Alone {
        /// What is given.
        given: &'static str,
        /// What it needs.
        missing: &'static str,
    },
    /// A stream that says neither or both of where its messages come from.
    #[error("stream {name}: expected subject (Dynamo frames) or worker_id (an engine's batches), got {got}")]
    Source {
        /// The stream.
        name: String,
        /// What it says.
        got: &'static str,
    },
    /// A key that must be a number.
    #[error("stream {name}: {field} has the key {got:?}, expected {expected}")]
    Key {
        /// The stream.
        name: String,
        /// The table.
        field: &'static str,
        /// Its key.
        got: String,
        /// What a key must be.
        expected: &'static str,
    },
    /// Settings that only an engine's own stream has.
    #[error("stream {name}: {field} is for an engine's own stream, which has a worker_id")]
    EngineOnly {
        /// The stream.
        name: String,
        /// The setting.
        field: &'static str,
    },
    /// An engine that could be asked, and nobody to follow it.
    #[error("stream {name}: zmq_replay is for a stream with zmq, whose engine is asked for what was missed")]
    ReplayAlone {
        /// The stream.
        name: String,
    },
    /// A subject that is none.
    #[error("stream {name}: the subject is {got:?}, expected words by dots, without spaces")]
    Subject {
        /// The stream.
        name: String,
        /// What it says.
        got: String,
    },
    /// Two streams of one name.
    #[error("stream {name}: another stream has that name already; expected a name of its own")]
    SameName {
        /// The name.
        name: String,
    },
    /// A bus, and nothing to follow on it.
    #[error(
        "NATS is given, but nothing to follow there; expected --model and --block-size, or a [[stream]] with a subject, or \
         an instance to answer as"
    )]
    NoSubject,
    /// Streams with a subject, and no bus.
    #[error("stream {name} has a subject, but there is no [nats] url and no --nats")]
    NoBus {
        /// The stream.
        name: String,
    },
}

impl Config {
    /// The limits of the indexer.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits.indexer(&self.workers)
    }

    /// The streams to be bound, each beside what is configured of it.
    ///
    /// # Errors
    /// [`ConfigError`] where settings contradict each other.
    pub fn streams(&self) -> Result<Vec<(StreamConfig, Stream)>, ConfigError> {
        self.check_pairs()?;
        let mut names = BTreeSet::new();
        let mut streams = Vec::new();
        let by_flags = self.stream.clone().map(StreamConfig::of_flags);
        for config in self.streams.iter().cloned().chain(by_flags) {
            let mut stream = config.stream()?;
            stream.has_peers = !self.snapshot.peers.is_empty();
            if !names.insert(config.name()) {
                return Err(ConfigError::SameName { name: stream.name });
            }
            if config.subject.is_some() && self.nats.url.is_none() {
                return Err(ConfigError::NoBus { name: stream.name });
            }
            streams.push((config, stream));
        }
        let follows = streams.iter().any(|(config, _)| config.subject.is_some());
        if self.nats.url.is_some() && self.nats.instance.is_none() && !follows {
            return Err(ConfigError::NoSubject);
        }
        Ok(streams)
    }

    /// Settings that mean nothing without another.
    fn check_pairs(&self) -> Result<(), ConfigError> {
        let Config { server, nats, snapshot, traces, .. } = self;
        nats.check()?;
        check_pairs([
            (
                ("[server] tls_cert", server.tls_cert.is_some()),
                ("[server] tls_key", server.tls_key.is_some()),
            ),
            (
                ("[server] tls_key", server.tls_key.is_some()),
                ("[server] tls_cert", server.tls_cert.is_some()),
            ),
            (
                ("[snapshot] peer_token", snapshot.peer_token.is_some()),
                ("[snapshot] peers", !snapshot.peers.is_empty()),
            ),
            (
                ("[snapshot] peer_tls_ca", snapshot.peer_tls_ca.is_some()),
                ("[snapshot] peers", !snapshot.peers.is_empty()),
            ),
            (
                ("[traces] otlp_tls_ca", traces.otlp_tls_ca.is_some()),
                ("[traces] otlp", traces.otlp.is_some()),
            ),
        ])
    }
}

/// A setting, and whether it is given.
type Given = (&'static str, bool);

/// Settings that mean nothing without another: each before what it needs.
fn check_pairs(pairs: impl IntoIterator<Item = (Given, Given)>) -> Result<(), ConfigError> {
    match pairs.into_iter().find(|&((_, given), (_, needed))| given && !needed) {
        Some(((given, _), (missing, _))) => Err(ConfigError::Alone { given, missing }),
        None => Ok(()),
    }
}
