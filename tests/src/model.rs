//! The slow, obvious reference: for every rank the names it holds, and for every name what it contains.
//!
//! It is written from the rules alone (docs/events.md) and shares nothing with the tree but the vocabulary.

mod reach;

use std::collections::{BTreeMap, HashMap, VecDeque};

use kvtide_radix::{
    Block, BlockHash, Blocks, Copies, Event, Layer, Rank, RankSettings, Removed, Seed, SequenceHash, Stored,
};

pub use reach::REACH_NONE;

/// A block in its prefix: what the chain from the root up to it contains.
type Path = usize;

/// All ranks of one scope.
#[derive(Default)]
pub struct Model {
    block_size: u32,
    parked_limit: usize,
    paths: HashMap<(Option<Path>, BlockHash), Path>,
    parents: Vec<Option<Path>>,
    seeds: HashMap<Path, Seed>,
    ranks: BTreeMap<Rank, RankModel>,
}

#[derive(Default)]
struct RankModel {
    settings: RankSettings,
    /// What each name contains that is held anywhere, or was a short while ago.
    bound: HashMap<SequenceHash, Path>,
    /// How often each name is held, per layer. Never 0.
    held: HashMap<(SequenceHash, Layer), u32>,
    /// Names that are bound but no longer held, oldest first.
    recent: VecDeque<SequenceHash>,
    /// What waits for its parent or its name, oldest first, and how much ever has.
    parked: Vec<Parked>,
    arrivals: u64,
}

/// Blocks that cannot be placed yet.
struct Parked {
    layer: Layer,
    /// What they wait for.
    waits_for: SequenceHash,
    blocks: Blocks,
    /// Blocks that were removed again before they could be placed.
    cancelled: Vec<bool>,
    /// How many had waited before.
    arrival: u64,
}

impl Model {
    /// An empty scope. At most `parked_limit` blocks a rank wait for their parents.
    #[must_use]
    pub fn new(block_size: u32, parked_limit: usize) -> Model {
        Model { block_size, parked_limit, ..Model::default() }
    }

    /// Adds a rank that holds nothing.
    pub fn join(&mut self, rank: Rank, settings: RankSettings) {
        self.ranks.insert(rank, RankModel { settings, ..RankModel::default() });
    }

    /// Takes away everything that a rank holds or ever named.
    pub fn forget(&mut self, rank: Rank) {
        if let Some(state) = self.ranks.get_mut(&rank) {
            let (settings, arrivals) = (state.settings.clone(), state.arrivals);
            *state = RankModel { settings, arrivals, ..RankModel::default() };
        }
    }

    /// Removes a rank.
    pub fn leave(&mut self, rank: Rank) {
        self.ranks.remove(&rank);
    }

    /// The ranks, in order.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> {
        self.ranks.keys().copied()
    }

    /// Blocks that a rank holds, counted once per layer and content.
    #[must_use]
    pub fn held_blocks(&self, rank: Rank) -> usize {
        let state = &self.ranks[&rank];
        let places = state.held.keys().map(|(name, layer)| (state.bound[name], *layer));
        places.collect::<std::collections::HashSet<_>>().len()
    }

    /// Blocks that wait for a parent or a name.
    #[must_use]
    pub fn parked_blocks(&self, rank: Rank) -> usize {
        self.ranks[&rank].parked.iter().map(Parked::waiting).sum()
    }

    /// How many stores of a rank have ever had to wait.
    #[must_use]
    pub fn arrivals(&self, rank: Rank) -> u64 {
        self.ranks[&rank].arrivals
    }

    /// Numbers what waits anew, up to `arrivals`, as after a restart.
    pub fn set_arrivals(&mut self, rank: Rank, arrivals: u64) {
        let state = self.ranks.get_mut(&rank).unwrap();
        state.parked.retain(|one| one.waiting() > 0);
        let first = arrivals - state.parked.len() as u64;
        state.arrivals = arrivals;
        (first..).zip(&mut state.parked).for_each(|(arrival, parked)| parked.arrival = arrival);
    }

    /// Drops what had to wait before so many others had. Returns how many blocks, and how many names alone.
    pub fn expire(&mut self, rank: Rank, before: u64) -> [usize; 2] {
        let state = self.ranks.get_mut(&rank).unwrap();
        let (expired, parked): (Vec<_>, Vec<_>) =
            state.parked.drain(..).partition(|one| one.arrival < before);
        state.parked = parked;
        let waiting = |names: bool| {
            let these = expired.iter().filter(|one| matches!(one.blocks, Blocks::Named(_)) == names);
            these.map(Parked::waiting).sum()
        };
        [waiting(false), waiting(true)]
    }

    /// Applies one event of a rank that has joined.
    pub fn apply(&mut self, rank: Rank, event: &Event) {
        match event {
            Event::Stored(stored) => self.store(rank, stored),
            Event::Removed(removed) => self.ranks.get_mut(&rank).unwrap().remove(removed),
            Event::Cleared => self.ranks.get_mut(&rank).unwrap().clear(),
        }
    }

    fn store(&mut self, rank: Rank, stored: &Stored) {
        let mut due = vec![Parked {
            layer: stored.layer,
            waits_for: SequenceHash(0),
            blocks: stored.blocks.clone(),
            cancelled: vec![false; stored.blocks.len()],
            arrival: 0,
        }];
        let mut parent = stored.parent;
        while !due.is_empty() {
            let one = due.remove(0);
            for name in self.place(rank, parent, one) {
                let state = self.ranks.get_mut(&rank).unwrap();
                if !state.bound.contains_key(&name) {
                    continue;
                }
                let (ready, parked) = state.parked.drain(..).partition(|one| one.waits_for == name);
                state.parked = parked;
                due.extend::<Vec<Parked>>(ready);
            }
            parent = due.first().map(|one| one.waits_for);
        }
    }

    /// Places blocks behind their parent, or parks them. Returns the names whose bindings may be new.
    fn place(&mut self, rank: Rank, parent: Option<SequenceHash>, one: Parked) -> Vec<SequenceHash> {
        if let Blocks::Named(names) = &one.blocks {
            let state = self.ranks.get_mut(&rank).unwrap();
            for (&name, &cancelled) in names.iter().zip(&one.cancelled) {
                if state.bound.contains_key(&name) && !cancelled {
                    state.hold(name, one.layer);
                } else if !cancelled {
                    let blocks = Blocks::Named(vec![name]);
                    state.park(Parked {
                        layer: one.layer,
                        waits_for: name,
                        blocks,
                        cancelled: vec![false],
                        arrival: 0,
                    });
                }
            }
            self.limit_parked(rank);
            return Vec::new();
        }
        let state = &self.ranks[&rank];
        let mut path = None;
        if let Some(parent) = parent {
            path = state.bound.get(&parent).copied();
            if path.is_none() {
                let parked = Parked { waits_for: parent, ..one };
                self.ranks.get_mut(&rank).unwrap().park(parked);
                self.limit_parked(rank);
                return Vec::new();
            }
        }
        let blocks = self.hashed(path, &one.blocks);
        for (index, block) in blocks.iter().enumerate() {
            let next = self.child(path, block.content);
            if let (None, Blocks::Tokens(tokens)) = (path, &one.blocks) {
                self.seeds.entry(next).or_insert(tokens.root_seed);
            }
            path = Some(next);
            if !one.cancelled[index] {
                let state = self.ranks.get_mut(&rank).unwrap();
                let only_recent = state.recent.contains(&block.name);
                if only_recent || !state.bound.contains_key(&block.name) {
                    state.bound.insert(block.name, next);
                }
                state.hold(block.name, one.layer);
            }
        }
        blocks.iter().map(|block| block.name).collect()
    }

    fn hashed(&self, parent: Option<Path>, blocks: &Blocks) -> Vec<Block> {
        match blocks {
            Blocks::Hashed(blocks) => blocks.clone(),
            Blocks::Tokens(tokens) => {
                let root = parent.map(|path| self.root(path));
                let seed = root.and_then(|root| self.seeds.get(&root)).copied();
                tokens.hash(seed.unwrap_or(tokens.root_seed))
            }
            Blocks::Named(_) => Vec::new(),
        }
    }

    fn child(&mut self, parent: Option<Path>, content: BlockHash) -> Path {
        *self.paths.entry((parent, content)).or_insert_with(|| {
            self.parents.push(parent);
            self.parents.len() - 1
        })
    }

    fn root(&self, mut path: Path) -> Path {
        while let Some(parent) = self.parents[path] {
            path = parent;
        }
        path
    }

    /// Drops what has waited longest while more waits than may.
    fn limit_parked(&mut self, rank: Rank) {
        let limit = self.parked_limit;
        let state = self.ranks.get_mut(&rank).unwrap();
        while state.parked.iter().map(Parked::waiting).sum::<usize>() > limit {
            state.parked.remove(0);
        }
    }
}

impl Parked {
    /// Blocks that still wait.
    fn waiting(&self) -> usize {
        self.cancelled.iter().filter(|&&cancelled| !cancelled).count()
    }

    fn names(&self) -> Vec<SequenceHash> {
        match &self.blocks {
            Blocks::Hashed(blocks) => blocks.iter().map(|block| block.name).collect(),
            Blocks::Tokens(tokens) => tokens.names.clone(),
            Blocks::Named(names) => names.clone(),
        }
    }
}

impl RankModel {
    fn park(&mut self, parked: Parked) {
        self.parked.push(Parked { arrival: self.arrivals, ..parked });
        self.arrivals += 1;
    }

    fn hold(&mut self, name: SequenceHash, layer: Layer) {
        self.recent.retain(|&recent| recent != name);
        let copies = self.held.entry((name, layer)).or_insert(0);
        match self.settings.copies {
            Copies::Set => *copies = 1,
            Copies::Counted => *copies += 1,
        }
    }

    fn remove(&mut self, removed: &Removed) {
        for &name in &removed.names {
            let held = self.held.get_mut(&(name, removed.layer));
            match (self.settings.copies, held) {
                (Copies::Counted, Some(copies)) if *copies > 1 => *copies -= 1,
                (Copies::Counted, Some(_)) => self.release(name, removed.layer),
                (Copies::Counted, None) => {
                    self.cancel(name, removed.layer);
                }
                (Copies::Set, held) => {
                    if held.is_some() {
                        self.release(name, removed.layer);
                    }
                    while self.cancel(name, removed.layer) {}
                }
            }
        }
        self.parked.retain(|one| one.waiting() > 0);
    }

    fn release(&mut self, name: SequenceHash, layer: Layer) {
        self.held.remove(&(name, layer));
        if !self.held.keys().any(|&(held, _)| held == name) {
            self.remember(name);
        }
    }

    /// Keeps the name of a block that is no longer held, and drops the oldest such name where there are too many.
    fn remember(&mut self, name: SequenceHash) {
        self.recent.push_back(name);
        while self.recent.len() > self.settings.recent_names {
            let oldest = self.recent.pop_front().unwrap();
            self.bound.remove(&oldest);
        }
    }

    /// Cancels the block of that name that has waited longest.
    fn cancel(&mut self, name: SequenceHash, layer: Layer) -> bool {
        for one in self.parked.iter_mut().filter(|one| one.layer == layer) {
            for (index, waiting) in one.names().into_iter().enumerate() {
                if waiting == name && !one.cancelled[index] {
                    one.cancelled[index] = true;
                    return true;
                }
            }
        }
        false
    }

    fn clear(&mut self) {
        self.parked.clear();
        let mut names: Vec<SequenceHash> = self.held.drain().map(|((name, _), _)| name).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            self.remember(name);
        }
    }
}
