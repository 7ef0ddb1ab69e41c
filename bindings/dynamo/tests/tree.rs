//! kvtide's tree under Dynamo's own thread pool, beside Dynamo's own tree and beside the reference of plain sets.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first step that cannot be")]

use std::collections::BTreeMap;

use dynamo_kv_router::{
    indexer::{
        KvIndexerInterface, LowerTierIndexers, LowerTierQueryOptions, RadixTree, ThreadPoolIndexer,
        TieredMatchProvider, concurrent_radix_tree_compressed::ConcurrentRadixTreeCompressed,
        query_lower_tiers_with_options,
    },
    protocols::{
        ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
        KvCacheStoredBlockData, LocalBlockHash, RouterEvent, StorageTier, WorkerWithDpRank,
    },
};
use kvtide_dynamo::{Tree, translate};
use kvtide_radix::{BlockHash, Rank, RankSettings};
use kvtide_tests::Model;
use rand::{RngExt, SeedableRng, rngs::StdRng};

const BLOCK_SIZE: u32 = 16;
const DEVICE: StorageTier = StorageTier::Device;

/// What happens to a worker's blocks. A block is its name, and the content that it has.
#[derive(Clone)]
enum Change {
    Stored(Option<u64>, Vec<(u64, u64)>),
    Removed(Vec<u64>),
    Cleared,
}

fn event(worker_id: u64, dp_rank: u32, tier: StorageTier, change: &Change) -> RouterEvent {
    let hash = ExternalSequenceBlockHash;
    let data = match change {
        Change::Stored(parent, blocks) => KvCacheEventData::Stored(KvCacheStoreData {
            parent_hash: parent.map(hash),
            start_position: None,
            blocks: blocks
                .iter()
                .map(|&(name, content)| KvCacheStoredBlockData {
                    block_hash: hash(name),
                    tokens_hash: LocalBlockHash(content),
                    mm_extra_info: None,
                })
                .collect(),
        }),
        Change::Removed(names) => {
            let block_hashes = names.iter().copied().map(hash).collect();
            KvCacheEventData::Removed(KvCacheRemoveData { block_hashes })
        }
        Change::Cleared => KvCacheEventData::Cleared,
    };
    RouterEvent::with_storage_tier(worker_id, KvCacheEvent { event_id: 1, data, dp_rank }, tier)
}

/// Blocks `first` to `last` of one prompt, of which block n has content n and is called n + `names`.
fn stored(names: u64, first: u64, last: u64) -> Change {
    let parent = (first > 1).then(|| names + first - 1);
    Change::Stored(parent, (first..=last).map(|block| (names + block, block)).collect())
}

fn prompt(blocks: u64) -> Vec<LocalBlockHash> {
    (1..=blocks).map(LocalBlockHash).collect()
}

type Scores = BTreeMap<(u64, u32), u32>;

fn sorted(scores: impl IntoIterator<Item = (WorkerWithDpRank, u32)>) -> Scores {
    scores.into_iter().map(|(worker, blocks)| ((worker.worker_id, worker.dp_rank), blocks)).collect()
}

/// What Dynamo's default tree says of a prompt.
async fn default_tree(events: &[RouterEvent], prompt: &[LocalBlockHash]) -> Scores {
    let theirs = ThreadPoolIndexer::new(ConcurrentRadixTreeCompressed::new(), 1, BLOCK_SIZE);
    for event in events {
        theirs.apply_event(event.clone()).await;
    }
    theirs.flush().await;
    let found = theirs.find_matches(prompt.to_vec()).await.unwrap();
    theirs.shutdown();
    sorted(found.scores)
}

/// What kvtide's tree and Dynamo's say of a prompt after the same events.
async fn both(events: &[RouterEvent], prompt: &[LocalBlockHash]) -> (Scores, Scores) {
    let ours = ThreadPoolIndexer::new(Tree::new(BLOCK_SIZE), 2, BLOCK_SIZE);
    let mut theirs = RadixTree::new();
    for event in events {
        ours.apply_event(event.clone()).await;
        // What it refuses it says; the answers are what counts here.
        let _refused = theirs.apply_event(event.clone());
    }
    ours.flush().await;
    let found = ours.find_matches(prompt.to_vec()).await.unwrap();
    ours.shutdown();
    (sorted(found.scores), sorted(theirs.find_matches(prompt.to_vec(), false).scores))
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_dynamos_tree_that_kvtides_does_not_have() {
    let on = |worker, change: Change| event(worker, 0, DEVICE, &change);
    // The case, the events, what is held, and what Dynamo's tree says.
    let rows = [
        (
            "what stands behind an evicted block is held still, and counts when the block is back",
            vec![
                on(1, stored(0, 1, 5)),
                on(1, Change::Removed(vec![3])),
                on(1, Change::Stored(Some(2), vec![(3, 3)])),
            ],
            vec![((1, 0), 5)],
            vec![((1, 0), 3)],
        ),
        (
            "two call the same content by different names, and the second removes all",
            vec![
                on(1, stored(0, 1, 4)),
                on(2, stored(100, 1, 4)),
                on(2, Change::Removed(vec![104, 103, 102, 101])),
            ],
            vec![((1, 0), 4)],
            vec![((1, 0), 4), ((2, 0), 4)],
        ),
        (
            "a store whose parent comes later is placed when it does",
            vec![on(1, stored(0, 3, 4)), on(1, stored(0, 1, 2))],
            vec![((1, 0), 4)],
            vec![((1, 0), 2)],
        ),
    ];
    for (case, events, held, dynamos) in rows {
        let (ours, theirs) = both(&events, &prompt(6)).await;
        assert_eq!(ours, held.into_iter().collect(), "{case}");
        assert_eq!(theirs, dynamos.into_iter().collect(), "{case}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_blocks_are_evicted_in_the_middle_dynamos_default_tree_credits_too_much() {
    let (mut over, mut under) = (0, 0);
    for seed in 0..30 {
        let mut random = Random { random: StdRng::seed_from_u64(seed), holes: true, held: BTreeMap::new() };
        let mut events: Vec<RouterEvent> = Vec::new();
        for _ in 0..200 {
            let (worker, change) = random.next();
            events.push(event(worker, 0, DEVICE, &change));
        }
        for _ in 0..5 {
            let prompt = random.prompt();
            let (held, theirs) = (reference(&events, &prompt), default_tree(&events, &prompt).await);
            let of = |scores: &Scores, worker| scores.get(&(worker, 0)).copied().unwrap_or(0);
            over += (1..5).filter(|&worker| of(&theirs, worker) > of(&held, worker)).count();
            under += (1..5).filter(|&worker| of(&theirs, worker) < of(&held, worker)).count();
            assert_eq!(both(&events, &prompt).await.0, held, "seed {seed}");
        }
    }
    println!("Dynamo's default tree credits too much in {over} answers, too little in {under}");
    assert!(over > 0 && under > 0, "{over} too much, {under} too little");
}

#[tokio::test]
async fn lower_tiers_count_in_whatever_order_they_stand() {
    // GPU 0 and 1, disk 2 and 3, host 4 and 5: all of it is somewhere.
    let events = [
        (DEVICE, stored(0, 1, 2)),
        (StorageTier::Disk, stored(0, 3, 4)),
        (StorageTier::HostPinned, stored(0, 5, 6)),
    ];
    let tree = Tree::new(BLOCK_SIZE);
    let ours = ThreadPoolIndexer::new(tree.clone(), 1, BLOCK_SIZE);
    let (mut device, lower) = (RadixTree::new(), LowerTierIndexers::new(1, BLOCK_SIZE));
    for (tier, change) in events {
        let event = event(1, 0, tier, &change);
        ours.apply_event(event.clone()).await;
        match tier {
            StorageTier::Device => device.apply_event(event).unwrap(),
            tier => lower.get_or_create(tier).apply_event(event).await,
        }
    }
    ours.flush().await;
    for (_, indexer) in lower.entries() {
        indexer.flush().await;
    }
    let worker = WorkerWithDpRank::new(1, 0);
    let found = tree.find_tiered_matches(&prompt(9)).await.unwrap();
    let further = |tier| found.lower_tier.get(&tier).and_then(|details| details.hits.get(&worker)).copied();
    assert_eq!(found.device.overlap_scores.scores.get(&worker), Some(&2));
    assert_eq!((further(StorageTier::HostPinned), further(StorageTier::Disk)), (None, Some(4)));

    let details = device.find_match_details(prompt(9), false);
    let theirs =
        query_lower_tiers_with_options(&lower, &prompt(9), &details, LowerTierQueryOptions::default());
    let theirs = theirs.get(&StorageTier::Disk).and_then(|details| details.hits.get(&worker)).copied();
    assert_eq!(theirs, Some(2), "Dynamo's tiers lose what stands behind a slower one");
    ours.shutdown();
}

/// Workers that store and evict at random. Without `holes` only what nothing stands behind is evicted.
struct Random {
    random: StdRng,
    holes: bool,
    /// By worker: names that are held, each with its chain's contents.
    held: BTreeMap<u64, BTreeMap<u64, Vec<u64>>>,
}

fn name_of(chain: &[u64]) -> u64 {
    chain.iter().fold(7, |name, content| (name * 31 + content) % 1_000_000_007) + 1
}

impl Random {
    fn next(&mut self) -> (u64, Change) {
        let worker = self.random.random_range(1..5);
        let held = self.held.entry(worker).or_default();
        let chains: Vec<Vec<u64>> = held.values().cloned().collect();
        let chain = chains.get(self.random.random_range(0..chains.len().max(1))).cloned();
        let is_leaf = |chain: &Vec<u64>| {
            !chains.iter().any(|other| other.len() > chain.len() && other.starts_with(chain))
        };
        match (self.random.random_range(0..100), chain) {
            (0..1, _) => {
                held.clear();
                (worker, Change::Cleared)
            }
            (1..40, Some(chain)) if self.holes || is_leaf(&chain) => {
                held.remove(&name_of(&chain));
                (worker, Change::Removed(vec![name_of(&chain)]))
            }
            (_, chain) => {
                let mut chain = chain.filter(|_| self.random.random_bool(0.8)).unwrap_or_default();
                let parent = (!chain.is_empty()).then(|| name_of(&chain));
                let mut blocks = Vec::new();
                for _ in 0..self.random.random_range(1..4) {
                    chain.push(self.random.random_range(1..4));
                    held.insert(name_of(&chain), chain.clone());
                    blocks.push((name_of(&chain), chain[chain.len() - 1]));
                }
                (worker, Change::Stored(parent, blocks))
            }
        }
    }

    fn prompt(&mut self) -> Vec<LocalBlockHash> {
        (0..8).map(|_| LocalBlockHash(self.random.random_range(1..4))).collect()
    }
}

fn reference(events: &[RouterEvent], prompt: &[LocalBlockHash]) -> Scores {
    let mut model = Model::new(BLOCK_SIZE, 65_536);
    let mut ranks = BTreeMap::new();
    for event in events {
        let event = translate(event.clone());
        let rank = event.rank;
        ranks.entry(rank).or_insert_with(|| model.join(rank, RankSettings::default()));
        model.apply(rank, &event.change.unwrap());
    }
    let prompt: Vec<BlockHash> = prompt.iter().map(|hash| BlockHash(hash.0)).collect();
    let reach = |rank: &Rank| model.reach(*rank, &prompt)[0] / BLOCK_SIZE;
    let reaches = ranks.keys().map(|rank| ((rank.worker_id, rank.dp_rank), reach(rank)));
    reaches.filter(|&(_, blocks)| blocks > 0).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn random_workers_are_answered_as_by_plain_sets_and_without_holes_as_by_dynamo() {
    for seed in 0..40 {
        let holes = seed % 2 == 0;
        let mut random = Random { random: StdRng::seed_from_u64(seed), holes, held: BTreeMap::new() };
        let mut events: Vec<RouterEvent> = Vec::new();
        for _ in 0..300 {
            let (worker, change) = random.next();
            events.push(event(worker, 0, DEVICE, &change));
        }
        for _ in 0..5 {
            let prompt = random.prompt();
            let (ours, theirs) = both(&events, &prompt).await;
            assert_eq!(ours, reference(&events, &prompt), "seed {seed}");
            assert!(holes || ours == theirs, "seed {seed}: kvtide {ours:?}, Dynamo {theirs:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_makes_the_same_tree_again() {
    let mut random = Random { random: StdRng::seed_from_u64(1), holes: false, held: BTreeMap::new() };
    let ours = ThreadPoolIndexer::new(Tree::new(BLOCK_SIZE), 3, BLOCK_SIZE);
    for _ in 0..400 {
        let (worker, change) = random.next();
        ours.apply_event(event(worker, 0, DEVICE, &change)).await;
    }
    let prompts: Vec<_> = (0..20).map(|_| random.prompt()).collect();
    let mut theirs = RadixTree::new();
    for event in ours.dump_events().await.unwrap() {
        theirs.apply_event(event).unwrap();
    }
    for prompt in &prompts {
        let found = ours.find_matches(prompt.clone()).await.unwrap();
        assert_eq!(sorted(found.scores), sorted(theirs.find_matches(prompt.clone(), false).scores));
    }
    // Other names for what others hold too, of which Dynamo's tree loses the second; and a hole.
    ours.apply_event(event(9, 1, DEVICE, &Change::Stored(None, vec![(5, 1), (6, 2), (7, 3)]))).await;
    ours.apply_event(event(9, 1, DEVICE, &Change::Removed(vec![6]))).await;
    let dumped = ours.dump_events().await.unwrap();
    let back = event(9, 1, DEVICE, &Change::Stored(Some(5), vec![(6, 2)]));
    let again: Vec<_> = dumped.into_iter().chain([back.clone()]).collect();
    ours.apply_event(back).await;
    ours.flush().await;
    for prompt in prompts.iter().chain([&prompt(3)]) {
        let found = ours.find_matches(prompt.clone()).await.unwrap();
        assert_eq!(sorted(found.scores), both(&again, prompt).await.0);
    }
    ours.shutdown();
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_and_ranks_that_go_are_gone() {
    let ours = ThreadPoolIndexer::new(Tree::new(BLOCK_SIZE), 2, BLOCK_SIZE);
    for (worker, rank) in [(1, 0), (1, 1), (2, 0)] {
        ours.apply_event(event(worker, rank, DEVICE, &stored(0, 1, 3))).await;
    }
    ours.flush().await;
    let scores = async || sorted(ours.find_matches(prompt(5)).await.unwrap().scores);
    assert_eq!(scores().await.len(), 3);
    ours.remove_worker_dp_rank(1, 1).await;
    ours.flush().await;
    assert_eq!(scores().await.into_keys().collect::<Vec<_>>(), [(1, 0), (2, 0)]);
    ours.remove_worker(1).await;
    ours.flush().await;
    assert_eq!(scores().await, BTreeMap::from([((2, 0), 3)]));
    ours.shutdown();
}
