//! `[[stream]]`: one source of events, with the fixed parts of its scope. By flags there is one.

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use kvtide_radix::{Copies, Group, Window};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::ConfigError;
use crate::{EngineStream, Format, GapPolicy, Scope, Stream};

/// All endpoints of all components of all namespaces.
pub const ANY_SUBJECT: &str = "namespace.*.component.*.endpoint.*.kv-events";

/// `[[stream]]`: one source of events, with the fixed parts of its scope.
#[derive(Args, Clone, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[command(next_help_heading = "[[stream]]")]
#[group(id = "stream", requires_all = ["stream.model", "stream.block_size"])]
#[serde(deny_unknown_fields)]
pub struct StreamConfig {
    /// Its name, by which frames can be handed in over HTTP and metrics are labelled; by default the subject, or worker-N.
    #[arg(id = "stream.name", long = "stream-name", value_name = "NAME")]
    pub name: Option<String>,
    /// A NATS subject of Dynamo frames; * stands for one part, > for the rest. By flags alone, all KV events.
    #[arg(id = "stream.subject", long = "subject", value_name = "S")]
    pub subject: Option<String>,
    /// Instead, the address of an engine's own publisher, as tcp://HOST:PORT. Without it, an engine's batches are handed in over
    /// HTTP.
    #[arg(id = "stream.zmq", long = "zmq", value_name = "ENDPOINT")]
    pub zmq: Option<String>,
    /// The address of the engine's replay socket: it is asked for what was missed, and for proofs that nothing was.
    #[arg(id = "stream.zmq_replay", long = "zmq-replay", value_name = "ENDPOINT")]
    pub zmq_replay: Option<String>,
    /// The model, as it is served.
    #[arg(id = "stream.model", long = "model", value_name = "M", required = false)]
    pub model: String,
    /// Tokens a block.
    #[arg(id = "stream.block_size", long = "block-size", value_name = "N", required = false)]
    pub block_size: u32,
    /// The model's revision.
    #[arg(id = "stream.revision", long = "revision", value_name = "R")]
    pub revision: Option<String>,
    /// The tokenizer.
    #[arg(id = "stream.tokenizer", long = "tokenizer", value_name = "T")]
    pub tokenizer: Option<String>,
    /// The data type of the KV cache.
    #[arg(id = "stream.kv_dtype", long = "kv-dtype", value_name = "D")]
    pub kv_dtype: Option<String>,
    /// Layout and position scheme of the KV cache.
    #[arg(id = "stream.layout", long = "layout", value_name = "L")]
    pub layout: Option<String>,
    /// Blocks are keyed by pairs of tokens; all streams of a scope agree on it.
    #[arg(id = "stream.eagle", long = "eagle")]
    #[serde(default)]
    pub eagle: bool,
    /// What becomes of a rank of which something is lost for good: its blocks are forgotten, or kept.
    #[arg(id = "stream.gap_policy", long = "gap-policy", value_name = "POLICY", default_value = "forget")]
    #[serde(default)]
    pub gap_policy: GapPolicy,
    /// Of an engine: the worker, since its batches do not name it.
    #[arg(id = "stream.worker_id", long = "worker-id", value_name = "N")]
    pub worker_id: Option<u64>,
    /// Of an engine: the data-parallel rank, if the batches' own is not to count.
    #[arg(id = "stream.dp_rank", long = "dp-rank", value_name = "N")]
    pub dp_rank: Option<u32>,
    /// Of an engine: what a second announcement of a block means: one more copy (counted, the default) or nothing (set).
    #[arg(id = "stream.copies", long = "copies", value_name = "HOW")]
    pub copies: Option<CopiesConfig>,
    /// Of an engine: it looks host blocks up in chunks of this many [default: 1].
    #[arg(id = "stream.host_chunk_blocks", long = "host-chunk-blocks", value_name = "N")]
    pub host_chunk_blocks: Option<u32>,
    /// Of an engine: windows in tokens by group, 1 to 15, as 1=128; else taken from the events. In a file as {1 = 128}.
    #[arg(id = "stream.window_tokens", long = "window-tokens", value_name = "GROUP=N", value_delimiter = ',', value_parser = pair::<u32>)]
    #[serde(default, deserialize_with = "pairs", serialize_with = "as_map")]
    pub window_tokens: Vec<(String, u32)>,
    /// Of an engine: names of adapters that it announces by number, as 1=sql. In a file as {1 = "sql"}.
    #[arg(id = "stream.adapters", long = "adapter", value_name = "N=NAME", value_delimiter = ',', value_parser = pair::<String>)]
    #[serde(default, deserialize_with = "pairs", serialize_with = "as_map")]
    pub adapters: Vec<(String, String)>,
}

/// What a second announcement of a block means.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum CopiesConfig {
    /// One more copy.
    Counted,
    /// Nothing.
    Set,
}

/// A key and its value, as `1=128`.
fn pair<V: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<(String, V), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.parse().map_err(|error: V::Err| error.to_string())?))
}

fn pairs<'a, D: Deserializer<'a>, V: Deserialize<'a>>(deserializer: D) -> Result<Vec<(String, V)>, D::Error> {
    Ok(BTreeMap::deserialize(deserializer)?.into_iter().collect())
}

fn as_map<S: Serializer, V: Serialize>(pairs: &[(String, V)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(key, value)| (key, value)))
}

impl StreamConfig {
    /// Made by flags: without anything else, Dynamo's whole event plane is meant.
    pub(super) fn of_flags(mut self) -> StreamConfig {
        if self.worker_id.is_none() && self.zmq.is_none() {
            self.subject.get_or_insert_with(|| ANY_SUBJECT.into());
        }
        self
    }

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
        Ok(Stream { eagle: self.eagle, gap_policy: self.gap_policy, ..Stream::new(name, scope, format) })
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
        let windows = self.window_tokens.iter().map(|(group, tokens)| {
            let index = group.parse().ok().and_then(Group::new).filter(|&index| index != Group::FULL);
            let index =
                index.ok_or_else(|| key("window_tokens", group, "a further group's index, 1 to 15"))?;
            Ok::<_, ConfigError>(Window { group: index, tokens: *tokens })
        });
        let adapters = self.adapters.iter().map(|(number, name)| {
            let id = number.parse().map_err(|_| key("adapters", number, "an adapter's number"))?;
            Ok::<_, ConfigError>((id, name.clone()))
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
