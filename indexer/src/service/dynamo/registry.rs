//! Which engines are followed for which partition: those that are configured, and those that are registered and
//! unregistered while the service runs.
//!
//! Locks: `changes`, then `members`, then those of feeds and indexer. Queries take `members` alone, and shortly.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kvtide_radix::Rank;
use parking_lot::{Mutex, RwLock};

use super::{
    Refusal,
    partition::{Partition, Workers},
};
use crate::{
    BindError, BoundStream, EngineStream, Format, Indexer, QueryError, Scope, ScopeQuery, Stream,
    feed::{Feeds, FollowedEngine},
    service::problem::Problem,
};

/// An engine that is to be followed.
pub(super) struct NewEngine {
    /// Its worker, and the data-parallel rank that it is registered for.
    pub(super) rank: Rank,
    /// Whether that rank counts, and not the one that its batches name.
    pub(super) is_rank_stated: bool,
    pub(super) partition: Partition,
    pub(super) block_size: u32,
    pub(super) eagle: bool,
    pub(super) endpoint: String,
    pub(super) replay_endpoint: Option<String>,
}

/// An engine that is followed.
#[derive(Clone)]
pub(super) struct Member {
    pub(super) rank: Rank,
    pub(super) partition: Partition,
}

/// All engines that are followed.
pub(in crate::service) struct Registry {
    indexer: Arc<Indexer>,
    feeds: Arc<Feeds>,
    /// Held while an engine comes or goes.
    changes: Mutex<()>,
    /// By the names of their streams.
    members: RwLock<BTreeMap<String, Member>>,
}

impl Registry {
    /// Engines that are followed already are in the default group.
    pub(in crate::service) fn new(indexer: Arc<Indexer>, feeds: Arc<Feeds>) -> Registry {
        let configured = |engine: FollowedEngine| {
            let Stream { name, scope, format: Format::Engine(format), .. } = engine.stream().stream() else {
                return None;
            };
            let rank = Rank { worker_id: format.worker_id, dp_rank: format.dp_rank.unwrap_or(0) };
            Some((name.clone(), Member { rank, partition: Partition::of_model(&scope.model) }))
        };
        let members = feeds.engines().into_iter().filter_map(configured).collect();
        Registry { indexer, feeds, changes: Mutex::default(), members: RwLock::new(members) }
    }

    pub(super) fn feeds(&self) -> &Feeds {
        &self.feeds
    }

    /// Follows an engine from now on.
    pub(super) fn register(&self, engine: NewEngine, limit: usize) -> Result<(), Refusal> {
        let _changes = self.changes.lock();
        self.check_instance(&engine, limit)?;
        let NewEngine { rank, partition, block_size, eagle, endpoint, replay_endpoint, .. } = engine;
        let scope = Scope::new(&partition.model_name, block_size);
        self.check_scope(&partition, &scope)?;
        self.check_rank(&scope, rank)?;
        let name = format!("registered/{}/{}", rank.worker_id, rank.dp_rank);
        let format = Format::Engine(EngineStream {
            dp_rank: engine.is_rank_stated.then_some(rank.dp_rank),
            replays: replay_endpoint.is_some(),
            ..EngineStream::new(rank.worker_id)
        });
        let has_peers = !self.feeds.peers().is_empty();
        let stream =
            Stream { eagle, has_peers, registered: true, ..Stream::new(name.clone(), scope, format) };
        let bound = self.indexer.bind(stream).map_err(|error| match error {
            BindError::NoBlockSize { .. } => Refusal::bad("block_size: expected 1 token or more, got 0"),
            BindError::NameTaken { .. } | BindError::OtherHashing { .. } | BindError::ScopesFull { .. } => {
                Refusal::conflict(error.to_string())
            }
        })?;
        // Before anything comes, so that no other group ever has its ranks.
        self.members.write().insert(name.clone(), Member { rank, partition });
        let followed = self.feeds.follow_zmq(&endpoint, replay_endpoint.as_deref(), Arc::clone(&bound));
        followed.map_err(|error| {
            self.indexer.unbind(&bound);
            self.members.write().remove(&name);
            Refusal::bad(error.to_string())
        })
    }

    /// Follows engines of an instance no more, and lets their ranks go: all, or one.
    pub(super) fn unregister(
        &self,
        instance_id: u64,
        (model_name, routing_group): (&str, Option<&str>),
        dp_rank: Option<u32>,
    ) -> Result<(), Refusal> {
        let _changes = self.changes.lock();
        let members: Vec<(String, Member)> = self.members_where(|one| one.rank.worker_id == instance_id);
        let Some((_, first)) = members.first() else {
            return Err(Refusal::unknown(format!("instance {instance_id} not found")));
        };
        let is_meant = |one: &Partition| {
            one.model_name == model_name && routing_group.is_none_or(|group| one.routing_group == group)
        };
        let elsewhere = format!("instance {instance_id} is registered for {}", first.partition);
        let mut meant: Vec<_> = members.iter().filter(|(_, one)| is_meant(&one.partition)).collect();
        if meant.is_empty() {
            return Err(Refusal::unknown(elsewhere));
        }
        if let Some(dp_rank) = dp_rank {
            meant.retain(|(_, one)| one.rank.dp_rank == dp_rank);
            if meant.is_empty() {
                return Err(Refusal::unknown(format!("instance {instance_id} dp_rank {dp_rank} not found")));
            }
        }
        for (name, _) in meant {
            self.feeds.unfollow(name);
            self.members.write().remove(name);
        }
        Ok(())
    }

    /// The scope and the workers that a query of a partition is about.
    pub(super) fn find(&self, partition: &Partition) -> Result<(ScopeQuery, Workers), Refusal> {
        let workers = self.workers(partition);
        let any = ScopeQuery { model: Some(partition.model_name.clone()), ..ScopeQuery::default() };
        match &workers {
            // Nobody of the model is in another group.
            Workers::AllBut(others) if others.is_empty() => return Ok((any, workers)),
            Workers::Only(these) if these.is_empty() => return Err(partition.unknown()),
            Workers::AllBut(_) | Workers::Only(_) => {}
        }
        match self.scopes_of(partition).as_slice() {
            [] => Err(partition.unknown()),
            [scope] => Ok((ScopeQuery::from(scope), workers)),
            several => {
                let differences = Scope::differences(&several.iter().collect::<Vec<_>>());
                let fitting = several.len();
                Err(Problem::from(QueryError::SeveralScopes { fitting, differences }).into())
            }
        }
    }

    /// The workers of a partition.
    pub(super) fn workers(&self, partition: &Partition) -> Workers {
        let members = self.members.read();
        let of_model = members.values().filter(|one| one.partition.model_name == partition.model_name);
        let is_in = |one: &&Member| one.partition.routing_group == partition.routing_group;
        let ids = |these: Vec<&Member>| -> BTreeSet<u64> {
            these.into_iter().map(|one| one.rank.worker_id).collect()
        };
        if partition.is_default() {
            Workers::AllBut(ids(of_model.filter(|one| !is_in(one)).collect()))
        } else {
            Workers::Only(ids(of_model.filter(is_in).collect()))
        }
    }

    /// All partitions.
    pub(super) fn partitions(&self) -> BTreeSet<Partition> {
        let members = self.members.read();
        let of = |stream: Arc<BoundStream>| {
            let Stream { name, scope, .. } = stream.stream();
            let registered = members.get(name).map(|one| one.partition.clone());
            registered.unwrap_or_else(|| Partition::of_model(&scope.model))
        };
        self.indexer.streams().into_iter().map(of).collect()
    }

    /// The engines that are followed.
    pub(super) fn engines(&self) -> Vec<(Member, FollowedEngine)> {
        let members = self.members.read();
        let of =
            |engine: FollowedEngine| Some((members.get(&engine.stream().stream().name)?.clone(), engine));
        self.feeds.engines().into_iter().filter_map(of).collect()
    }

    /// The scopes of a partition: one, unless what is configured has several of a model.
    pub(super) fn scopes_of(&self, partition: &Partition) -> Vec<Scope> {
        let members = self.members.read();
        let is_in = |stream: &Stream| match members.get(&stream.name) {
            Some(one) => one.partition == *partition,
            None => partition.is_default() && stream.scope.model == partition.model_name,
        };
        let mut scopes: Vec<Scope> = Vec::new();
        for stream in self.indexer.streams() {
            let scope = &stream.stream().scope;
            if is_in(stream.stream()) && !scopes.contains(scope) {
                scopes.push(scope.clone());
            }
        }
        scopes
    }

    fn members_where(&self, is_it: impl Fn(&Member) -> bool) -> Vec<(String, Member)> {
        let members = self.members.read();
        let these = members.iter().filter(|(_, one)| is_it(one));
        these.map(|(name, one)| (name.clone(), one.clone())).collect()
    }

    /// An instance is in one partition, and each of its ranks is followed once.
    fn check_instance(&self, engine: &NewEngine, limit: usize) -> Result<(), Refusal> {
        let Rank { worker_id, dp_rank } = engine.rank;
        let followed = self.members.read().len();
        for (_, one) in self.members_where(|one| one.rank.worker_id == worker_id) {
            if one.partition != engine.partition {
                let there = one.partition;
                return Err(Refusal::conflict(format!(
                    "instance {worker_id} is already registered for {there}"
                )));
            }
            if one.rank == engine.rank {
                return Err(Refusal::conflict(format!(
                    "instance {worker_id} dp_rank {dp_rank} already registered"
                )));
            }
        }
        if followed >= limit {
            return Err(Refusal::conflict(format!(
                "no room for another engine: {followed} are followed, the limit engines is {limit}"
            )));
        }
        Ok(())
    }

    /// A partition has one scope. What Dynamo's clients state of it is the model and the block size.
    fn check_scope(&self, partition: &Partition, scope: &Scope) -> Result<(), Refusal> {
        for known in self.scopes_of(partition) {
            let (existing, requested) = (known.block_size, scope.block_size);
            if existing != requested {
                return Err(Refusal::conflict(format!(
                    "block_size mismatch for {partition}: existing={existing}, requested={requested}"
                )));
            }
            if known != *scope {
                let differences = Scope::differences(&[&known, scope]);
                let parts: Vec<_> = differences.iter().map(|(part, _)| *part).collect();
                return Err(Refusal::conflict(format!(
                    "{partition} is known with a stated {}, which cannot be stated here; expected another routing_group, or \
                     the engine to be configured",
                    parts.join(", ")
                )));
            }
        }
        Ok(())
    }

    /// A rank has one source.
    fn check_rank(&self, scope: &Scope, rank: Rank) -> Result<(), Refusal> {
        if self.indexer.is_fed(scope, rank) {
            let Rank { worker_id, dp_rank } = rank;
            return Err(Refusal::conflict(format!(
                "instance {worker_id} dp_rank {dp_rank} is fed by another stream"
            )));
        }
        Ok(())
    }
}
