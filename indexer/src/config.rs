//! The configuration file: where to listen, which bus to follow, and the streams with their scopes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    num::NonZeroU64,
    path::{Path, PathBuf},
    time::Duration,
};

use kvtide_radix::{Copies, Group, Window};
use serde::Deserialize;

use crate::{EngineStream, Format, GapPolicy, Instance, Limits, Scope, Stream};

/// A configuration file.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The service.
    #[serde(default)]
    pub server: ServerConfig,
    /// The bus that streams with a subject are on.
    pub nats: Option<NatsConfig>,
    /// Snapshots.
    #[serde(default)]
    pub snapshot: SnapshotConfig,
    /// The workers.
    #[serde(default)]
    pub workers: WorkersConfig,
    /// The streams.
    #[serde(default, rename = "stream")]
    pub streams: Vec<StreamConfig>,
}

/// `[server]`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Address and port to listen on.
    pub listen: Option<SocketAddr>,
    /// Listen on other addresses than loopback too.
    #[serde(default)]
    pub insecure: bool,
}

/// `[snapshot]`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotConfig {
    /// The file, which is read at the start, and replaced from time to time and at the end.
    pub path: Option<PathBuf>,
    /// Other kvtides, as `http://HOST:PORT`: to take a snapshot from where there is no file, and to ask for what was missed
    /// on the bus.
    #[serde(default)]
    pub peers: Vec<String>,
    /// Seconds between one and the next.
    #[serde(default = "a_minute")]
    pub every_s: NonZeroU64,
}

fn a_minute() -> NonZeroU64 {
    const { NonZeroU64::new(60).unwrap() }
}

impl Default for SnapshotConfig {
    fn default() -> Self {
        SnapshotConfig { path: None, peers: Vec::new(), every_s: a_minute() }
    }
}

/// `[workers]`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkersConfig {
    /// Seconds after which a worker from which nothing comes is silent.
    pub silent_after_s: Option<u64>,
    /// Seconds after which, of two publishers that claim one rank, a silent one has given up.
    pub conflict_silence_s: Option<u64>,
    /// Seconds after which such a worker has gone, and its ranks are removed. Without it, never.
    pub gone_after_s: Option<u64>,
}

impl WorkersConfig {
    /// The limits, with what is configured here.
    #[must_use]
    pub fn limit(&self, limits: Limits) -> Limits {
        Limits {
            silent_after: self.silent_after_s.map_or(limits.silent_after, Duration::from_secs),
            conflict_silence: self.conflict_silence_s.map_or(limits.conflict_silence, Duration::from_secs),
            gone_after: self.gone_after_s.map(Duration::from_secs).or(limits.gone_after),
            ..limits
        }
    }
}

/// `[nats]`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NatsConfig {
    /// The server, as `nats://HOST:PORT`; several by commas.
    pub url: String,
    /// The name under which requests are answered there.
    pub instance: Option<Instance>,
}

/// `[[stream]]`: one source of events, with the fixed parts of its scope.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamConfig {
    /// Its name; by default its subject.
    pub name: Option<String>,
    /// A NATS subject of Dynamo frames; `*` stands for one part, `>` for the rest.
    pub subject: Option<String>,
    /// The address of an engine's own publisher, as tcp://HOST:PORT.
    pub zmq: Option<String>,
    /// The address of its replay socket, as tcp://HOST:PORT.
    pub zmq_replay: Option<String>,
    /// What becomes of a rank of which something is lost for good: `forget` (its blocks) or `keep`.
    #[serde(default)]
    pub gap_policy: GapPolicy,
    /// The worker of an engine's own publisher, whose batches do not name it.
    pub worker_id: Option<u64>,
    /// The data-parallel rank, if the batches' own is not to count.
    pub dp_rank: Option<u32>,
    /// The model, as it is served.
    pub model: String,
    /// Tokens a block.
    pub block_size: u32,
    /// The model's revision.
    pub revision: Option<String>,
    /// The tokenizer.
    pub tokenizer: Option<String>,
    /// The data type of the KV cache.
    pub kv_dtype: Option<String>,
    /// Layout and position scheme of the KV cache.
    pub layout: Option<String>,
    /// Blocks are keyed by pairs of tokens.
    #[serde(default)]
    pub eagle: bool,
    /// What a second announcement of a block means: `counted` (one more copy) or `set` (nothing).
    pub copies: Option<CopiesConfig>,
    /// The engine looks host blocks up in chunks of this many.
    pub host_chunk_blocks: Option<u32>,
    /// Windows in tokens, by group, 1 to 15.
    #[serde(default)]
    pub window_tokens: BTreeMap<String, u32>,
    /// Names of adapters that the engine announces by number.
    #[serde(default)]
    pub adapters: BTreeMap<String, String>,
}

/// What a second announcement of a block means.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CopiesConfig {
    /// One more copy.
    Counted,
    /// Nothing.
    Set,
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
    /// A name on the bus, and no bus.
    #[error("the instance {instance} has no bus to answer on: there is no [nats] url and no --nats")]
    InstanceAlone {
        /// The name.
        instance: Instance,
    },
    /// Streams with a subject, and no bus.
    #[error("stream {name} has a subject, but there is no [nats] url and no --nats")]
    NoBus {
        /// The stream.
        name: String,
    },
}

impl Config {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// [`ConfigError`] where it cannot be read or has unknown or missing settings.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Io { path: shown.clone(), source })?;
        toml::from_str(&text)
            .map_err(|source| ConfigError::Malformed { path: shown, source: Box::new(source) })
    }

    /// The streams to be bound, each beside what is configured of it.
    ///
    /// # Errors
    /// [`ConfigError`] where settings contradict each other.
    pub fn streams(&self) -> Result<Vec<(&StreamConfig, Stream)>, ConfigError> {
        let mut names = BTreeSet::new();
        let mut streams = Vec::new();
        for config in &self.streams {
            let mut stream = config.stream()?;
            stream.has_peers = !self.snapshot.peers.is_empty();
            if !names.insert(config.name()) {
                return Err(ConfigError::SameName { name: stream.name });
            }
            if config.subject.is_some() && self.nats.is_none() {
                return Err(ConfigError::NoBus { name: stream.name });
            }
            streams.push((config, stream));
        }
        let follows = self.streams.iter().any(|config| config.subject.is_some());
        if self.nats.as_ref().is_some_and(|nats| nats.instance.is_none()) && !follows {
            return Err(ConfigError::NoSubject);
        }
        Ok(streams)
    }
}

impl StreamConfig {
    /// The stream's name.
    #[must_use]
    pub fn name(&self) -> String {
        let worker = || self.worker_id.map(|worker| format!("worker-{worker}"));
        let name = self.name.clone().or_else(|| self.subject.clone()).or_else(worker);
        name.unwrap_or_else(|| self.model.clone())
    }

    /// The stream to be bound.
    ///
    /// # Errors
    /// [`ConfigError`] where its settings contradict each other.
    pub fn stream(&self) -> Result<Stream, ConfigError> {
        let name = self.name();
        let format = match (&self.subject, self.worker_id) {
            (Some(subject), None) => {
                // A space would end the subject on the wire, and what follows be read as something else.
                if subject.is_empty() || subject.contains(|c: char| c.is_whitespace() || c.is_control()) {
                    return Err(ConfigError::Subject { name, got: subject.clone() });
                }
                self.refuse_engine_settings()?;
                Format::Dynamo
            }
            (None, Some(_)) if self.zmq.is_none() && self.zmq_replay.is_some() => {
                return Err(ConfigError::ReplayAlone { name });
            }
            (None, Some(worker_id)) => Format::Engine(self.engine(worker_id)?),
            (Some(_), Some(_)) => return Err(ConfigError::Source { name, got: "both" }),
            (None, None) => return Err(ConfigError::Source { name, got: "neither" }),
        };
        let scope = Scope {
            model: self.model.clone(),
            revision: self.revision.clone(),
            tokenizer: self.tokenizer.clone(),
            kv_dtype: self.kv_dtype.clone(),
            layout: self.layout.clone(),
            block_size: self.block_size,
        };
        Ok(Stream { name, scope, eagle: self.eagle, format, gap_policy: self.gap_policy, has_peers: false })
    }

    fn refuse_engine_settings(&self) -> Result<(), ConfigError> {
        let given = [
            ("zmq", self.zmq.is_some()),
            ("zmq_replay", self.zmq_replay.is_some()),
            ("dp_rank", self.dp_rank.is_some()),
            ("copies", self.copies.is_some()),
            ("host_chunk_blocks", self.host_chunk_blocks.is_some()),
            ("window_tokens", !self.window_tokens.is_empty()),
            ("adapters", !self.adapters.is_empty()),
        ];
        match given.into_iter().find(|&(_, given)| given) {
            Some((field, _)) => Err(ConfigError::EngineOnly { name: self.name(), field }),
            None => Ok(()),
        }
    }

    fn engine(&self, worker_id: u64) -> Result<EngineStream, ConfigError> {
        let key = |field, got: &String, expected| ConfigError::Key {
            name: self.name(),
            field,
            got: got.clone(),
            expected,
        };
        let windows = self.window_tokens.iter().map(|(group, &tokens)| {
            let index = group.parse().ok().and_then(Group::new).filter(|&index| index != Group::FULL);
            let index =
                index.ok_or_else(|| key("window_tokens", group, "a further group's index, 1 to 15"))?;
            Ok(Window { group: index, tokens })
        });
        let adapters = self.adapters.iter().map(|(number, name)| {
            let id = number.parse().map_err(|_| key("adapters", number, "an adapter's number"))?;
            Ok((id, name.clone()))
        });
        Ok(EngineStream {
            dp_rank: self.dp_rank,
            copies: match self.copies {
                Some(CopiesConfig::Set) => Copies::Set,
                Some(CopiesConfig::Counted) | None => Copies::Counted,
            },
            host_chunk_blocks: self.host_chunk_blocks.unwrap_or(1),
            windows: windows.collect::<Result<_, _>>()?,
            adapter_names: adapters.collect::<Result<_, _>>()?,
            replays: self.zmq_replay.is_some(),
            ..EngineStream::new(worker_id)
        })
    }
}
