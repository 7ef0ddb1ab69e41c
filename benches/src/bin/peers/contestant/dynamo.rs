//! `dynamo-kv-router`: the compressed radix tree that Dynamo's router uses by default, and its positional index.
//!
//! Both are used without the pool of threads around them, whose queues are no part of an index. Lookups call
//! `SyncIndexer::find_matches` on the asking thread, as the pool does. It returns its answer in new memory: there is
//! no way to hand it a buffer.
//!
//! The positional index applies events on the calling thread. The tree has no such door: what applies its events is
//! `SyncIndexer::worker`, a loop over a queue, which also owns a part of the index. So one thread runs that loop. While
//! an index is built, all events are in the queue before the thread starts, so that one core works and nobody waits
//! for a sender. When prompts are asked for, the asking thread spins until the queue is empty, so that it finds its
//! own caches as it left them.

use std::{
    hint::spin_loop,
    sync::Arc,
    thread::{JoinHandle, spawn},
    time::{Duration, Instant},
};

use dynamo_kv_router::{
    indexer::{
        SyncIndexer, WorkerTask,
        concurrent_radix_tree_compressed::ConcurrentRadixTreeCompressed,
        positional::{LevelIndex, PositionalIndexer, SearchMode},
    },
    protocols::{
        ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
        KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent, WorkerWithDpRank,
    },
};
use kvtide_benches::hashed;
use kvtide_radix::{BlockHash, Event, RankSettings};
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use super::Contestant;

/// Positions that the positional index jumps ahead, as in its own tests and docs.
const JUMP: usize = 32;

/// `ConcurrentRadixTreeCompressed`.
pub(crate) struct Crtc {
    tree: Arc<ConcurrentRadixTreeCompressed>,
    queue: flume::Sender<WorkerTask>,
    worker: Option<JoinHandle<()>>,
    ranks: usize,
    answer: OverlapScores,
}

/// `PositionalIndexer`. Its blocks have to be named by Dynamo's own rolling hash, which it computes for a prompt
/// within the lookup.
pub(crate) struct Positional {
    index: PositionalIndexer,
    worker_blocks: FxHashMap<WorkerWithDpRank, LevelIndex>,
    ranks: usize,
    refused: usize,
    answer: OverlapScores,
}

fn router_event(rank: usize, event: &Event) -> RouterEvent {
    let name = |name: kvtide_radix::SequenceHash| ExternalSequenceBlockHash(name.0);
    let data = match event {
        Event::Stored(stored) => {
            let blocks = hashed(stored).iter().map(|block| KvCacheStoredBlockData {
                block_hash: name(block.name),
                tokens_hash: LocalBlockHash(block.content.0),
                mm_extra_info: None,
            });
            let (blocks, parent_hash) = (blocks.collect(), stored.parent.map(name));
            KvCacheEventData::Stored(KvCacheStoreData { parent_hash, start_position: None, blocks })
        }
        Event::Removed(removed) => {
            let block_hashes = removed.names.iter().copied().map(name).collect();
            KvCacheEventData::Removed(KvCacheRemoveData { block_hashes })
        }
        Event::Cleared => KvCacheEventData::Cleared,
    };
    RouterEvent::new(rank as u64, KvCacheEvent { event_id: 0, data, dp_rank: 0 })
}

fn reaches(ranks: usize, answer: &OverlapScores) -> Vec<u32> {
    let worker = |rank| WorkerWithDpRank::new(rank as u64, 0);
    (0..ranks).map(|rank| answer.scores.get(&worker(rank)).copied().unwrap_or(0)).collect()
}

impl Crtc {
    /// An index whose queue nobody reads yet.
    fn idle(ranks: usize) -> (Crtc, flume::Receiver<WorkerTask>) {
        let tree = Arc::new(ConcurrentRadixTreeCompressed::new());
        let (queue, tasks) = flume::unbounded();
        (Crtc { tree, queue, worker: None, ranks, answer: OverlapScores::new() }, tasks)
    }

    fn start(&mut self, tasks: flume::Receiver<WorkerTask>) {
        let tree = Arc::clone(&self.tree);
        self.worker = Some(spawn(move || {
            tree.worker(tasks, None).expect("the loop ends only when it is told to");
        }));
    }

    /// Queues events. What is returned is told when they are applied.
    fn send(&self, events: &mut [Option<RouterEvent>]) -> oneshot::Receiver<()> {
        let (applied, told) = oneshot::channel();
        let tasks = events.iter_mut().filter_map(Option::take).map(WorkerTask::Event);
        for task in tasks.chain([WorkerTask::Flush(applied)]) {
            self.queue.send(task).expect("the loop runs as long as the index is there");
        }
        told
    }
}

impl Drop for Crtc {
    fn drop(&mut self) {
        let told = self.queue.send(WorkerTask::Terminate).is_ok();
        if let Some(worker) = self.worker.take().filter(|_| told) {
            worker.join().expect("the loop ends when it is told to");
        }
    }
}

impl Contestant for Crtc {
    type Event = Option<RouterEvent>;
    type Hash = LocalBlockHash;

    fn new(ranks: usize, _: &RankSettings) -> Crtc {
        let (mut index, tasks) = Crtc::idle(ranks);
        index.start(tasks);
        index
    }

    fn event(rank: usize, event: &Event) -> Option<RouterEvent> {
        Some(router_event(rank, event))
    }

    fn hash(hash: BlockHash) -> LocalBlockHash {
        LocalBlockHash(hash.0)
    }

    fn apply(&mut self, events: &mut [Option<RouterEvent>]) {
        let mut told = self.send(events);
        while told.try_recv() == Err(oneshot::error::TryRecvError::Empty) {
            spin_loop();
        }
    }

    fn ask(&mut self, prompt: &[LocalBlockHash]) -> usize {
        self.answer = self.tree.find_matches(prompt, false);
        self.answer.scores.len()
    }

    fn reaches(&mut self, prompt: &[LocalBlockHash]) -> Vec<u32> {
        self.ask(prompt);
        reaches(self.ranks, &self.answer)
    }

    /// Nodes without workers are taken out. In service this happens every five minutes.
    fn sweep(&mut self) {
        self.tree.run_cleanup_task();
    }

    /// Its loop writes what it refuses into the log only.
    fn refused(&self) -> Option<usize> {
        None
    }

    /// It has no versions to publish, so that all events are queued at once.
    fn build(
        ranks: usize,
        _: &RankSettings,
        events: &mut [Option<RouterEvent>],
        _: usize,
    ) -> (Crtc, Duration) {
        let (mut index, tasks) = Crtc::idle(ranks);
        let told = index.send(events);
        let start = Instant::now();
        index.start(tasks);
        told.blocking_recv().expect("the loop answers each flush");
        let taken = start.elapsed();
        (index, taken)
    }
}

impl Contestant for Positional {
    type Event = Option<RouterEvent>;
    type Hash = LocalBlockHash;

    fn new(ranks: usize, _: &RankSettings) -> Positional {
        let index = PositionalIndexer::new_with_mode(JUMP, SearchMode::Strided);
        let (worker_blocks, answer) = (FxHashMap::default(), OverlapScores::new());
        Positional { index, worker_blocks, ranks, refused: 0, answer }
    }

    fn event(rank: usize, event: &Event) -> Option<RouterEvent> {
        Some(router_event(rank, event))
    }

    fn hash(hash: BlockHash) -> LocalBlockHash {
        LocalBlockHash(hash.0)
    }

    fn apply(&mut self, events: &mut [Option<RouterEvent>]) {
        for event in events.iter_mut().filter_map(Option::take) {
            let applied = self.index.apply_event(&mut self.worker_blocks, event, None);
            self.refused += usize::from(applied.is_err());
        }
    }

    fn ask(&mut self, prompt: &[LocalBlockHash]) -> usize {
        self.answer = self.index.find_matches(prompt, false);
        self.answer.scores.len()
    }

    fn reaches(&mut self, prompt: &[LocalBlockHash]) -> Vec<u32> {
        self.ask(prompt);
        reaches(self.ranks, &self.answer)
    }
    /// It puts nothing off.
    fn sweep(&mut self) {}

    fn refused(&self) -> Option<usize> {
        Some(self.refused)
    }
}
