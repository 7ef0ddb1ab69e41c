//! Partitions: a model and a routing group, by which Dynamo's clients name those workers that a request may go to.
//!
//! A routing group is no part of a scope: groups of one model share its tree, and an answer has only the workers of one.
//! Who belongs to no group by registration is in the group `default`.

use std::collections::BTreeSet;

use super::Refusal;

/// The group of whoever names none.
pub(super) const DEFAULT: &str = "default";

pub(super) fn default_group() -> String {
    DEFAULT.to_owned()
}

/// A model's workers of one routing group.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Partition {
    pub(super) model_name: String,
    pub(super) routing_group: String,
}

impl std::fmt::Display for Partition {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "model={} routing_group={}", self.model_name, self.routing_group)
    }
}

impl Partition {
    /// # Errors
    /// Where a name is longer than the limit `name_bytes`.
    pub(super) fn new(model_name: String, routing_group: String, limit: usize) -> Result<Self, Refusal> {
        check_name("model_name", &model_name, limit)?;
        check_name("routing_group", &routing_group, limit)?;
        Ok(Partition { model_name, routing_group })
    }

    /// The default group of a model.
    pub(super) fn of_model(model_name: &str) -> Partition {
        Partition { model_name: model_name.to_owned(), routing_group: default_group() }
    }

    pub(super) fn is_default(&self) -> bool {
        self.routing_group == DEFAULT
    }

    pub(super) fn unknown(&self) -> Refusal {
        Refusal::unknown(format!("no indexer for {self}"))
    }
}

/// What goes into errors and lists has a limit.
pub(super) fn check_name(member: &str, name: &str, limit: usize) -> Result<(), Refusal> {
    let got = name.len();
    if got <= limit {
        return Ok(());
    }
    Err(Refusal::bad(format!("{member} of {got} bytes exceeds the limit name_bytes of {limit}")))
}

/// Dynamo's indexer reads a tenant and does nothing with it, so that its answers are not that tenant's. Here tenants enter
/// the hashes of blocks, by `cache_salt`.
pub(super) fn refuse_tenant(tenant_id: Option<&str>) -> Result<(), Refusal> {
    match tenant_id {
        None | Some(DEFAULT) => Ok(()),
        Some(_) => Err(Refusal::bad(
            "tenant_id: expected none or \"default\", got another: a tenant's blocks are asked for with cache_salt, and \
             workers are set apart by routing_group",
        )),
    }
}

/// Which workers of a scope belong to a partition.
#[derive(Clone, Debug)]
pub(super) enum Workers {
    Only(BTreeSet<u64>),
    AllBut(BTreeSet<u64>),
}

impl Workers {
    pub(super) fn contain(&self, worker_id: u64) -> bool {
        match self {
            Workers::Only(workers) => workers.contains(&worker_id),
            Workers::AllBut(others) => !others.contains(&worker_id),
        }
    }
}
