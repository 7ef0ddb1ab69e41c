//! What Dynamo's discovery says at one moment, and what follows from it: which streams there are, who feeds which rank, which
//! ranks are known, and which workers cannot be.

use std::collections::{BTreeMap, BTreeSet};

use dynamo_runtime::{
    component::Instance,
    discovery::{DiscoveryInstance, DiscoveryInstanceId, EventScope},
};
use kvtide::{Announced, Scope};
use kvtide_radix::Rank;
use serde::Deserialize;

use crate::{Card, Endpoint};

/// The topic of KV events.
pub(crate) const TOPIC: &str = "kv-events";

/// What discovery says.
#[derive(Clone, Default, Debug)]
pub struct Fleet {
    instances: BTreeSet<(Endpoint, u64)>,
    cards: BTreeMap<(Endpoint, u64), Card>,
    sources: BTreeMap<u64, Source>,
}

/// A publisher of KV events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// Where it publishes.
    pub endpoint: Endpoint,
    /// The rank that it feeds.
    pub rank: Rank,
    /// Whom to ask for what its worker holds.
    pub target: Option<Instance>,
}

/// What follows from what discovery says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// The streams to follow, by the endpoint whose events they are.
    pub streams: BTreeMap<Endpoint, Planned>,
    /// Who publishes, and in which stream.
    pub publishers: BTreeMap<u64, (Endpoint, Announced)>,
    /// Ranks that are known, and in which stream.
    pub ranks: BTreeMap<Rank, Endpoint>,
    /// Workers that are not.
    pub refused: Vec<Refused>,
}

/// A stream to follow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Planned {
    /// The scope of its blocks.
    pub scope: Scope,
    /// Whether they are keyed by pairs of tokens.
    pub eagle: bool,
}

/// Why a worker is not known.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, thiserror::Error)]
pub enum Refused {
    /// Its blocks are of another size than its scope's.
    #[error(
        "worker {worker_id} of {endpoint} has blocks of {got} tokens, expected {expected}, as its scope's"
    )]
    BlockSize {
        /// The worker.
        worker_id: u64,
        /// Whose events it would publish.
        endpoint: Endpoint,
        /// Tokens of a block of the scope.
        expected: u32,
        /// What the worker declares.
        got: u32,
    },
    /// It serves another model than the others there.
    #[error("worker {worker_id} of {endpoint} serves {got}, expected {expected}, as the others there")]
    Model {
        /// The worker.
        worker_id: u64,
        /// Whose events it would publish.
        endpoint: Endpoint,
        /// The model of the scope.
        expected: String,
        /// What the worker serves.
        got: String,
    },
    /// It keys its blocks in another way.
    #[error(
        "worker {worker_id} of {endpoint} says enable_eagle = {got}, expected {expected}, as its scope's"
    )]
    Eagle {
        /// The worker.
        worker_id: u64,
        /// Whose events it would publish.
        endpoint: Endpoint,
        /// What the scope has.
        expected: bool,
        /// What the worker declares.
        got: bool,
    },
    /// It has no ranks, or too many.
    #[error("worker {worker_id} of {endpoint} has {got} data-parallel ranks, expected 1 to 4096")]
    Ranks {
        /// The worker.
        worker_id: u64,
        /// Whose events it would publish.
        endpoint: Endpoint,
        /// How many it declares.
        got: u32,
    },
    /// It does not say how large its blocks are, and neither do others there.
    #[error(
        "nobody says how large the blocks of worker {worker_id} of {endpoint} are, and no --block-size is given"
    )]
    NoBlockSize {
        /// The worker.
        worker_id: u64,
        /// Whose events it publishes.
        endpoint: Endpoint,
    },
    /// No worker there says which model it serves, and none is configured.
    #[error(
        "nobody says which model worker {worker_id} of {endpoint} serves, and no --model is given for it"
    )]
    NoModel {
        /// The worker.
        worker_id: u64,
        /// Whose events it publishes.
        endpoint: Endpoint,
    },
}

/// How a publisher describes itself. The frames that it sends carry the same ids.
#[derive(Deserialize)]
struct Descriptor {
    kv_state_endpoint: dynamo_runtime::protocols::EndpointId,
    worker: Worker,
    publisher_id: u64,
    #[serde(default)]
    recovery_target: Option<Instance>,
}

#[derive(Deserialize)]
struct Worker {
    worker_id: u64,
    #[serde(default)]
    dp_rank: u32,
}

impl Fleet {
    /// Something was registered, or has changed.
    ///
    /// # Errors
    /// What cannot be read of it: it counts for nothing then.
    pub fn add(&mut self, instance: DiscoveryInstance) -> Result<(), serde_json::Error> {
        match instance {
            DiscoveryInstance::Endpoint(Instance { namespace, component, endpoint, instance_id, .. }) => {
                self.instances.insert((Endpoint { namespace, component, name: endpoint }, instance_id));
            }
            DiscoveryInstance::Model {
                namespace,
                component,
                endpoint,
                instance_id,
                card_json,
                model_suffix: None,
            } => {
                let card: Card = serde_json::from_value(card_json)?;
                if card.is_of_worker() {
                    self.cards.insert((Endpoint { namespace, component, name: endpoint }, instance_id), card);
                }
            }
            DiscoveryInstance::EventSource {
                scope: EventScope::Endpoint { endpoint },
                topic,
                publisher_id,
                metadata,
            } if topic == TOPIC => {
                let told: Descriptor = serde_json::from_value(metadata)?;
                let Descriptor { worker: Worker { worker_id, dp_rank }, recovery_target: target, .. } = told;
                // One that contradicts itself is nobody's.
                if told.publisher_id == publisher_id && told.kv_state_endpoint == endpoint {
                    let rank = Rank { worker_id, dp_rank };
                    self.sources.insert(publisher_id, Source { endpoint: (&endpoint).into(), rank, target });
                }
            }
            DiscoveryInstance::Model { .. }
            | DiscoveryInstance::EventSource { .. }
            | DiscoveryInstance::EventChannel { .. } => {}
        }
        Ok(())
    }

    /// Something has gone.
    pub fn remove(&mut self, id: DiscoveryInstanceId) {
        match id {
            DiscoveryInstanceId::Endpoint(id) => {
                let endpoint =
                    Endpoint { namespace: id.namespace, component: id.component, name: id.endpoint };
                self.instances.remove(&(endpoint, id.instance_id));
            }
            DiscoveryInstanceId::Model(id) if id.model_suffix.is_none() => {
                let endpoint =
                    Endpoint { namespace: id.namespace, component: id.component, name: id.endpoint };
                self.cards.remove(&(endpoint, id.instance_id));
            }
            DiscoveryInstanceId::EventSource(id) if id.topic == TOPIC => {
                self.sources.remove(&id.publisher_id);
            }
            DiscoveryInstanceId::Model(_)
            | DiscoveryInstanceId::EventSource(_)
            | DiscoveryInstanceId::EventChannel(_) => {}
        }
    }

    /// Forgets all of a kind, before all of that kind are told anew.
    pub fn forget(&mut self, kind: Kind) {
        match kind {
            Kind::Endpoints => self.instances.clear(),
            Kind::Models => self.cards.clear(),
            Kind::Sources => self.sources.clear(),
        }
    }

    /// A publisher's own description.
    #[must_use]
    pub fn source(&self, publisher_id: u64) -> Option<&Source> {
        self.sources.get(&publisher_id)
    }

    /// What follows. `configured` is the scope of endpoints of which nobody says which model is served there; streams that are
    /// followed `so_far` keep their scope for as long as anybody is there.
    #[must_use]
    pub fn plan(&self, configured: Option<&Planned>, so_far: &BTreeMap<Endpoint, Planned>) -> Plan {
        let mut plan = Plan::default();
        let mut refused = BTreeSet::new();
        // A card counts once its worker can be reached.
        let served = self.cards.iter().filter(|(worker, _)| self.instances.contains(worker));
        let served = served.map(|((serving, worker_id), card)| (card.events_of(serving), *worker_id, card));
        for (endpoint, _, card) in served.clone() {
            if let Some(planned) = so_far.get(&endpoint).cloned().or_else(|| card.planned()) {
                plan.streams.entry(endpoint).or_insert(planned);
            }
        }
        for (endpoint, worker_id, card) in served {
            let Some(stream) = plan.streams.get(&endpoint).or(configured).cloned() else {
                refused.insert((endpoint.clone(), worker_id));
                plan.refused.push(Refused::NoBlockSize { worker_id, endpoint });
                continue;
            };
            plan.streams.entry(endpoint.clone()).or_insert_with(|| stream.clone());
            if let Some(reason) = stream.refuse(worker_id, &endpoint, card) {
                refused.insert((endpoint, worker_id));
                plan.refused.push(reason);
                continue;
            }
            match card.ranks(worker_id) {
                Ok(ranks) => plan.ranks.extend(ranks.map(|rank| (rank, endpoint.clone()))),
                Err(got) => {
                    refused.insert((endpoint.clone(), worker_id));
                    plan.refused.push(Refused::Ranks { worker_id, endpoint, got });
                }
            }
        }
        for (&publisher_id, source) in &self.sources {
            let Source { endpoint, rank, target } = source;
            let worker_id = rank.worker_id;
            if refused.contains(&(endpoint.clone(), worker_id)) {
                continue;
            }
            if !plan.streams.contains_key(endpoint) {
                let Some(planned) = so_far.get(endpoint).or(configured) else {
                    plan.refused.push(Refused::NoModel { worker_id, endpoint: endpoint.clone() });
                    continue;
                };
                plan.streams.insert(endpoint.clone(), planned.clone());
            }
            let announced = Announced { publisher_id, rank: *rank, keeps_index: target.is_some() };
            plan.ranks.insert(*rank, endpoint.clone());
            plan.publishers.insert(publisher_id, (endpoint.clone(), announced));
        }
        plan.refused.sort();
        plan.refused.dedup();
        plan
    }

    /// How the engine of a worker runs, if it says so.
    #[must_use]
    pub fn card(&self, worker_id: u64) -> Option<&Card> {
        self.cards.iter().find(|((_, id), _)| *id == worker_id).map(|(_, card)| card)
    }
}

/// What discovery is watched for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// Where workers can be reached.
    Endpoints,
    /// What they serve.
    Models,
    /// Who publishes events.
    Sources,
}

impl Planned {
    /// Why a worker's blocks may not be compared with those of the scope, if that is so.
    fn refuse(&self, worker_id: u64, endpoint: &Endpoint, card: &Card) -> Option<Refused> {
        let endpoint = endpoint.clone();
        let (expected, got) = (self.scope.block_size, card.kv_cache_block_size);
        if expected != got && got > 0 {
            return Some(Refused::BlockSize { worker_id, endpoint, expected, got });
        }
        if self.scope.model != card.display_name {
            let (expected, got) = (self.scope.model.clone(), card.display_name.clone());
            return Some(Refused::Model { worker_id, endpoint, expected, got });
        }
        let (expected, got) = (self.eagle, card.runtime_config.enable_eagle);
        (expected != got).then_some(Refused::Eagle { worker_id, endpoint, expected, got })
    }
}
