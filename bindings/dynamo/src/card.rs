//! What a worker says of itself in discovery: which model it serves, in blocks of which size, and how many ranks it has.

use std::fmt;

use dynamo_runtime::protocols::EndpointId;
use kvtide::Scope;
use kvtide_radix::Rank;
use serde::Deserialize;

use crate::Planned;

/// Data-parallel ranks of a worker, at most: Dynamo's own limit.
const RANKS: u32 = 4096;

/// An endpoint, `namespace.component.endpoint`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Endpoint {
    /// The namespace.
    pub namespace: String,
    /// The component.
    pub component: String,
    /// The endpoint's own name.
    pub name: String,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.namespace, self.component, self.name)
    }
}

impl From<&EndpointId> for Endpoint {
    fn from(id: &EndpointId) -> Endpoint {
        Endpoint { namespace: id.namespace.clone(), component: id.component.clone(), name: id.name.clone() }
    }
}

/// The parts of a model's deployment card that matter here.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Card {
    /// The name under which the model is served.
    pub display_name: String,
    /// Tokens a block; 0 where that is not said.
    pub kv_cache_block_size: u32,
    /// An adapter's card says nothing about the worker.
    #[serde(default)]
    lora: Option<serde_json::Value>,
    /// How the engine runs.
    #[serde(default)]
    pub runtime_config: RuntimeConfig,
}

/// How a worker's engine runs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RuntimeConfig {
    /// Blocks of a rank's cache.
    pub total_kv_blocks: Option<u64>,
    /// Tokens of a batch, at most.
    pub max_num_batched_tokens: Option<u64>,
    data_parallel_start_rank: u32,
    data_parallel_size: Option<u32>,
    /// Blocks are keyed by pairs of tokens.
    pub enable_eagle: bool,
    /// The endpoint under whose name its events are published, if that is not its own.
    kv_state_endpoint: Option<EndpointId>,
}

impl Card {
    /// Whether it is about the worker, and not about an adapter.
    pub(crate) fn is_of_worker(&self) -> bool {
        self.lora.is_none()
    }

    /// The stream of its events, if it says how large its blocks are. What else a card does not say is not stated.
    pub(crate) fn planned(&self) -> Option<Planned> {
        let scope = Scope::new(&self.display_name, self.kv_cache_block_size);
        (scope.block_size > 0).then_some(Planned { scope, eagle: self.runtime_config.enable_eagle })
    }

    /// The ranks of a worker, if that can be.
    ///
    /// # Errors
    /// How many there are, where that is none or more than Dynamo has.
    pub(crate) fn ranks(&self, worker_id: u64) -> Result<impl Iterator<Item = Rank>, u32> {
        let RuntimeConfig { data_parallel_start_rank: first, data_parallel_size, .. } = self.runtime_config;
        let size = data_parallel_size.unwrap_or(1);
        match first.checked_add(size) {
            Some(end) if size > 0 && size <= RANKS => {
                Ok((first..end).map(move |dp_rank| Rank { worker_id, dp_rank }))
            }
            Some(_) | None => Err(size),
        }
    }

    /// Where its events are published.
    pub(crate) fn events_of(&self, serving: &Endpoint) -> Endpoint {
        self.runtime_config.kv_state_endpoint.as_ref().map_or_else(|| serving.clone(), Endpoint::from)
    }
}
