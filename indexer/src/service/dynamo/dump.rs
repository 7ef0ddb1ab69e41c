//! `GET /dump`: everything that is held, as events that would bring it about, by partition.
//!
//! Each partition is of one version of its scope. Event ids are made up, as they are there.

use std::{
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use kvtide_radix::{
    Dump, DumpedHold, DumpedPlace, DumpedRun, DumpedSpan, Group, Layer, Rank, SequenceHash, Tier,
};
use serde::Serialize;
use serde_json::json;

use super::{Refusal, Registry, partition::Partition};
use crate::{
    Indexer,
    service::{Service, guard::Asker, pieces, problem::Problem},
};

/// The other side may take so long for everything.
const PATIENCE: Duration = Duration::from_secs(300);

/// Everything that is held, as events that would bring it about.
#[utoipa::path(
    get,
    path = "/dump",
    tag = "dynamo",
    responses(
        (status = 200, description = "By partition", content_type = "application/json"),
        (status = 401, response = Problem),
        (status = 403, response = Problem),
        (status = "default", response = Refusal)
    )
)]
pub(super) async fn get(State(service): State<Service>, asker: Asker) -> Result<Response, Refusal> {
    asker.may_use_hashes()?;
    // Nobody closes it, so that there is always a turn.
    let turn = Arc::clone(&service.snapshots).acquire_owned().await;
    let body =
        pieces::send(turn, PATIENCE, move |to| write_partitions(&service.indexer, &service.registry, to));
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

fn write_partitions(indexer: &Indexer, registry: &Registry, mut to: impl Write) -> io::Result<()> {
    let mut before = "{";
    for partition in registry.partitions() {
        let Partition { model_name, routing_group } = &partition;
        let name = format!("{model_name}:{routing_group}");
        write!(to, "{before}{}:", json!(name))?;
        write_partition(indexer, registry, &partition, &mut to)?;
        before = ",";
    }
    to.write_all(if before == "{" { b"{}" } else { b"}" })?;
    to.flush()
}

fn write_partition(
    indexer: &Indexer,
    registry: &Registry,
    partition: &Partition,
    to: &mut impl Write,
) -> io::Result<()> {
    let scopes = registry.scopes_of(partition);
    let index = match scopes.as_slice() {
        [scope] => indexer.scope_index(scope),
        // It has gone since.
        [] => None,
        several => {
            let error = format!("{} scopes of {partition}, expected one", several.len());
            return write!(to, "{}", json!({"error": error}));
        }
    };
    let Some(index) = index else {
        return write!(to, "{}", json!({"error": format!("no indexer for {partition}")}));
    };
    let workers = registry.workers(partition);
    let dump = index.mirror.lock().writer.dump(|rank| workers.contain(rank.worker_id));
    write!(to, "{{\"block_size\":{},\"events\":[", index.scope.block_size)?;
    for (number, event) in router_events(&dump).enumerate() {
        if number > 0 {
            to.write_all(b",")?;
        }
        serde_json::to_writer(&mut *to, &event)?;
    }
    to.write_all(b"]}")
}

/// What the ranks of a tree hold, as router events of Dynamo's that would bring it about. Their ids are made up.
pub fn router_events(dump: &Dump) -> impl Iterator<Item = impl Serialize> {
    let held = dump.runs.iter().flat_map(|run| run.held.iter().map(move |span| (run, span)));
    let held = held.filter(|(_, span)| span.layer.group() == Group::FULL);
    let stores = held.flat_map(|(run, span)| {
        let rank = dump.ranks[span.rank as usize].rank;
        Holder { dump, run, span }.stores().into_iter().map(move |stored| (rank, span.layer, stored))
    });
    (0..).zip(stores).map(|(event_id, (rank, layer, stored))| event(rank, layer, event_id, stored))
}

/// Blocks of one run that one rank holds in one layer.
#[derive(Clone, Copy)]
struct Holder<'a> {
    dump: &'a Dump,
    run: &'a DumpedRun,
    span: &'a DumpedSpan,
}

#[derive(Serialize)]
struct Stored {
    parent_hash: Option<u64>,
    start_position: Option<u32>,
    blocks: Vec<Block>,
}

#[derive(Serialize)]
struct Block {
    block_hash: u64,
    tokens_hash: u64,
    mm_extra_info: Option<()>,
}

#[derive(Serialize)]
struct RouterEvent {
    worker_id: u64,
    storage_tier: &'static str,
    residency_domain: &'static str,
    event: Event,
}

#[derive(Serialize)]
struct Event {
    event_id: u64,
    data: Data,
    dp_rank: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Data {
    Stored(Stored),
}

fn event(rank: Rank, layer: Layer, event_id: u64, stored: Stored) -> RouterEvent {
    RouterEvent {
        worker_id: rank.worker_id,
        storage_tier: match layer.tier() {
            Tier::Gpu => "device",
            Tier::Host => "host_pinned",
            Tier::Disk => "disk",
            Tier::External => "external",
        },
        residency_domain: "worker",
        event: Event { event_id, data: Data::Stored(stored), dp_rank: rank.dp_rank },
    }
}

impl Holder<'_> {
    /// What the rank would have to announce: all blocks by one name each, and then any further names.
    fn stores(self) -> Vec<Stored> {
        let mut stores = vec![Stored {
            parent_hash: self.parent_of(self.span.from),
            start_position: None,
            blocks: Vec::new(),
        }];
        let mut further = Vec::new();
        for block in self.span.from..self.span.to {
            let names = self.names(self.run, block, Some(self.span.layer));
            let content = self.run.blocks[block as usize].content.0;
            let named =
                |name: SequenceHash| Block { block_hash: name.0, tokens_hash: content, mm_extra_info: None };
            stores[0].blocks.push(named(names[0]));
            further.extend(names[1..].iter().map(|&name| Stored {
                parent_hash: self.parent_of(block),
                start_position: None,
                blocks: vec![named(name)],
            }));
        }
        stores.append(&mut further);
        stores
    }

    /// The name of the block in front.
    fn parent_of(self, block: u32) -> Option<u64> {
        let (run, block) = match block.checked_sub(1) {
            Some(before) => (self.run, before),
            None => {
                let DumpedPlace { run, block } = self.run.parent?;
                (&self.dump.runs[run as usize], block)
            }
        };
        Some(self.names(run, block, None)[0].0)
    }

    /// By which names the rank holds a block, in a layer or at all; its own first. Where it does not hold it, the block's own.
    fn names(self, run: &DumpedRun, block: u32, layer: Option<Layer>) -> Vec<SequenceHash> {
        let own = run.blocks[block as usize].name;
        let at = |hold: &DumpedHold| (hold.rank, hold.block);
        let from = run.unusual.partition_point(|hold| at(hold) < (self.span.rank, block));
        let these = run.unusual[from..].iter().take_while(|hold| at(hold) == (self.span.rank, block));
        let mut names: Vec<SequenceHash> = these
            .filter(|hold| layer.is_none_or(|layer| hold.layer == layer))
            .map(|hold| hold.name)
            .collect();
        names.sort_unstable_by_key(|&name| (name != own, name));
        names.dedup();
        if names.is_empty() { vec![own] } else { names }
    }
}
