//! kvtide's tree in the place of the indexers of Dynamo's router: one tree for all tiers, written by any number of the router's
//! threads in turn, and read by all at once.
//!
//! ```
//! use dynamo_kv_router::indexer::{KvIndexerInterface, ThreadPoolIndexer};
//! use kvtide_dynamo::Tree;
//!
//! let tree = Tree::new(64);
//! let indexer = ThreadPoolIndexer::new(tree.clone(), 4, 64);
//! // `indexer` takes events and finds matches as any of Dynamo's; `tree` answers for all tiers (`TieredMatchProvider`).
//! # indexer.shutdown();
//! ```

mod dump;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use async_trait::async_trait;
use dynamo_kv_router::{
    indexer::{
        EventKind, KvIndexerMetrics, KvRouterError, LowerTierMatchDetails, MatchDetails,
        PreBoundEventCounters, SyncIndexer, TieredMatchDetails, TieredMatchProvider, WorkerLookupStats,
        WorkerTask,
    },
    protocols::{
        ExternalSequenceBlockHash, KvCacheEventError, LocalBlockHash, OverlapScores, RouterEvent,
        StorageTier, WorkerWithDpRank,
    },
};
use kvtide_radix::{
    BlockHash, Limits, Overlap, Rank, RankSettings, RankSlot, Reach, Reader, SequenceHash, Tier, Update,
    View, Writer, index,
};
use parking_lot::Mutex;
use tracing::warn;

use crate::translate;

/// Events that are applied as one version, at most.
const TOGETHER: usize = 256;

/// A tree for a router of Dynamo's. Clones are the same tree.
#[derive(Clone)]
pub struct Tree {
    block_size: u32,
    writing: Arc<Mutex<Writing>>,
    reader: Reader,
}

/// The writer's side.
struct Writing {
    writer: Writer,
    slots: BTreeMap<Rank, RankSlot>,
}

/// An event, and who waits for it.
type Waiting = (RouterEvent, Option<tokio::sync::oneshot::Sender<bool>>);

impl Tree {
    /// An empty tree of blocks of that many tokens.
    #[must_use]
    pub fn new(block_size: u32) -> Tree {
        let (writer, reader) = index(block_size, Limits::default());
        let writing = Writing { writer, slots: BTreeMap::new() };
        Tree { block_size, writing: Arc::new(Mutex::new(writing)), reader }
    }

    /// What ranks hold of a prompt, in blocks of each tier and all faster ones.
    fn reaches(&self, sequence: &[LocalBlockHash]) -> Vec<(WorkerWithDpRank, Reach)> {
        let prompt: Vec<BlockHash> = sequence.iter().map(|hash| BlockHash(hash.0)).collect();
        let (view, mut overlap) = (self.reader.view(), Overlap::default());
        view.overlap([&prompt], &mut overlap);
        let ranks = named(&view);
        overlap.reaches().filter_map(|(slot, reach)| Some((*ranks.get(&slot)?, reach))).collect()
    }

    fn blocks(&self, tokens: u32) -> u32 {
        tokens / self.block_size
    }

    fn scores(&self, reaches: &[(WorkerWithDpRank, Reach)]) -> OverlapScores {
        let mut scores = OverlapScores::new();
        let held = reaches.iter().map(|&(worker, reach)| (worker, self.blocks(reach.gpu())));
        scores.scores.extend(held.filter(|&(_, blocks)| blocks > 0));
        scores
    }

    /// Applies events as one version, and tells who waits.
    fn apply(&self, waiting: Vec<Waiting>, counters: Option<&PreBoundEventCounters>) {
        let mut writing = self.writing.lock();
        let Writing { writer, slots } = &mut *writing;
        let mut applied = Vec::with_capacity(waiting.len());
        writer.update(|update| {
            for (event, answer) in waiting {
                let kind = EventKind::of(&event.event.data);
                applied.push((kind, apply_one(update, slots, event), answer));
            }
        });
        drop(writing);
        for (kind, result, answer) in applied {
            if let Some(answer) = answer {
                // Whoever waited may have gone.
                let _unheard = answer.send(result.is_ok());
            }
            if let Some(counters) = counters {
                counters.inc(kind, result);
            }
        }
    }

    fn leave(&self, is_it: impl Fn(Rank) -> bool) {
        let mut writing = self.writing.lock();
        let Writing { writer, slots } = &mut *writing;
        let gone: Vec<Rank> = slots.keys().copied().filter(|&rank| is_it(rank)).collect();
        writer.update(|update| {
            for rank in gone {
                if let Some(slot) = slots.remove(&rank) {
                    update.leave(slot);
                }
            }
        });
    }

    fn holds(&self, worker: WorkerWithDpRank, name: ExternalSequenceBlockHash) -> bool {
        let rank = Rank { worker_id: worker.worker_id, dp_rank: worker.dp_rank };
        dump::holds(&self.writing.lock().writer.dump(|other| other == rank), SequenceHash(name.0))
    }

    fn stats(&self) -> WorkerLookupStats {
        let view = self.reader.view();
        let held = |blocks: u64| usize::try_from(blocks).unwrap_or(usize::MAX);
        let counts: Vec<_> =
            view.ranks().map(|state| (worker(state.rank), held(state.held_blocks.iter().sum()))).collect();
        WorkerLookupStats::from_worker_block_counts(counts)
    }

    /// Does what is no event. Whether the thread goes on.
    fn run(&self, task: WorkerTask) -> bool {
        match task {
            WorkerTask::RemoveWorker { worker_id, resp, .. } => {
                self.leave(|rank| rank.worker_id == worker_id);
                let _unheard = resp.send(());
            }
            WorkerTask::RemoveWorkerDpRank { worker_id, dp_rank, .. } => {
                self.leave(|rank| rank == Rank { worker_id, dp_rank });
            }
            // The tree is shared: `dump_events` tells all of it, once.
            WorkerTask::DumpEvents(answer) => drop(answer.send(Ok(Vec::new()))),
            WorkerTask::Stats(answer) => drop(answer.send(self.stats())),
            WorkerTask::ContainsWorkerBlock { worker, block_hash, resp } => {
                let _unheard = resp.send(self.holds(worker, block_hash));
            }
            WorkerTask::Flush(answer) => drop(answer.send(())),
            WorkerTask::Terminate => return false,
            // Whoever waits for it learns that it was dropped.
            WorkerTask::ApproximateLru(_) => warn!("kvtide's tree keeps no leases: it goes by events alone"),
            WorkerTask::Anchor { worker, .. } => warn!(?worker, "kvtide's tree is not cut into shards"),
            WorkerTask::CleanupStaleChildren | WorkerTask::Event(_) | WorkerTask::EventWithAck { .. } => {}
        }
        true
    }
}

fn apply_one(
    update: &mut Update<'_>,
    slots: &mut BTreeMap<Rank, RankSlot>,
    event: RouterEvent,
) -> Result<(), KvCacheEventError> {
    let event = translate(event);
    let Ok(change) = event.change else { return Err(KvCacheEventError::InvalidBlockSequence) };
    let slot = match slots.get(&event.rank) {
        Some(&slot) => slot,
        None => {
            let joined = update.join(event.rank, RankSettings::default());
            let slot = joined.map_err(|_| KvCacheEventError::CapacityExhausted)?;
            slots.insert(event.rank, slot);
            slot
        }
    };
    let outcome = update.apply(slot, &change);
    match outcome {
        outcome if outcome.dropped > 0 => Err(KvCacheEventError::CapacityExhausted),
        // Blocks that wait for their parent are no error: they are placed when it comes.
        outcome if outcome.unknown > 0 => Err(KvCacheEventError::BlockNotFound),
        _ => Ok(()),
    }
}

fn worker(rank: Rank) -> WorkerWithDpRank {
    WorkerWithDpRank { worker_id: rank.worker_id, dp_rank: rank.dp_rank }
}

/// The ranks of a view, by their slots.
fn named(view: &View) -> HashMap<RankSlot, WorkerWithDpRank> {
    view.ranks().map(|state| (state.slot, worker(state.rank))).collect()
}

impl SyncIndexer for Tree {
    fn worker(
        &self,
        event_receiver: flume::Receiver<WorkerTask>,
        metrics: Option<Arc<KvIndexerMetrics>>,
    ) -> anyhow::Result<()> {
        let counters = metrics.as_ref().map(|metrics| metrics.prebind());
        let mut next = event_receiver.recv().ok();
        while let Some(first) = next.take() {
            let mut waiting: Vec<Waiting> = Vec::new();
            let mut task = Some(first);
            // What is here already is one version; what is no event keeps its place.
            while let Some(one) = task.take() {
                match one {
                    WorkerTask::Event(event) => waiting.push((event, None)),
                    WorkerTask::EventWithAck { event, resp } => waiting.push((event, Some(resp))),
                    other => {
                        next = Some(other);
                        break;
                    }
                }
                if waiting.len() < TOGETHER {
                    task = event_receiver.try_recv().ok();
                }
            }
            if !waiting.is_empty() {
                self.apply(waiting, counters.as_ref());
            }
            if let Some(other) = next.take()
                && !self.run(other)
            {
                return Ok(());
            }
            next = event_receiver.recv().ok();
        }
        Ok(())
    }

    fn find_matches(&self, sequence: &[LocalBlockHash], _early_exit: bool) -> OverlapScores {
        self.scores(&self.reaches(sequence))
    }

    /// Decisions that no event confirms are not kept.
    fn supports_routing_decision_pruning(&self) -> bool {
        false
    }

    fn dump_events(&self) -> Option<Vec<RouterEvent>> {
        let dump = self.writing.lock().writer.dump(|_| true);
        Some(dump::events(&dump))
    }
}

#[async_trait]
impl TieredMatchProvider for Tree {
    /// The device's overlap, and how much further each lower tier reaches: what is in a tier or a faster one counts, in whatever
    /// order. Hashes to continue from are left out: nothing has to be looked up behind this.
    async fn find_tiered_matches(
        &self,
        sequence: &[LocalBlockHash],
    ) -> Result<TieredMatchDetails, KvRouterError> {
        let reaches = self.reaches(sequence);
        let tiers = [
            (StorageTier::HostPinned, Tier::Gpu, Tier::Host),
            (StorageTier::Disk, Tier::Host, Tier::Disk),
            (StorageTier::External, Tier::Disk, Tier::External),
        ];
        let mut lower_tier = HashMap::new();
        for (name, faster, tier) in tiers {
            let further = |reach: &Reach| self.blocks(reach.tokens(tier) - reach.tokens(faster));
            let hits = reaches.iter().map(|(worker, reach)| (*worker, further(reach) as usize));
            let hits: rustc_hash::FxHashMap<_, _> = hits.filter(|&(_, blocks)| blocks > 0).collect();
            if !hits.is_empty() {
                lower_tier.insert(name, LowerTierMatchDetails { hits, ..LowerTierMatchDetails::default() });
            }
        }
        let device = MatchDetails { overlap_scores: self.scores(&reaches), ..MatchDetails::new() };
        Ok(TieredMatchDetails { device, lower_tier })
    }
}
