//! One rank: its caches, and the publisher that announces what changes in them.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use kvtide_radix::{Rank, SequenceHash, Tier};
use rand::{RngExt, rngs::StdRng};

use super::{
    message::{Announced, FRAME_EVENTS, Message, Sender},
    plan::Frame,
    prompts::Owner,
    scenario::{FleetShape, Publisher as Format},
};
use crate::cli::cache::{Caches, Change, Piece, TIERS};

/// Blocks that a message holds at most, but for an event that has more.
const FRAME_BLOCKS: usize = 8192;
/// Prompts of a rank that may be hit by a hole.
const RECENT: usize = 16;
/// How often a block for a hole is looked for.
const ATTEMPTS: usize = 4;

/// What a message does to the blocks that a rank holds in one tier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Delta {
    /// The tier's place among [`TIERS`].
    pub(super) tier: usize,
    pub(super) stored: bool,
    pub(super) names: Box<[SequenceHash]>,
}

/// A rank and its publisher.
pub(super) struct Publisher {
    rank: Rank,
    number: usize,
    pub(super) caches: Caches,
    /// Whether answers about it are held against the truth.
    checked: bool,
    /// Lives so far, this one included.
    life: u64,
    sequence: u64,
    events: u64,
    waiting: Vec<Announced>,
    /// Names of prompts that were served last.
    recent: VecDeque<Vec<SequenceHash>>,
    /// Blocks stored for which no hole was made yet.
    unholed: u32,
}

impl Publisher {
    pub(super) fn new(rank: Rank, number: usize, fleet: &FleetShape, checked: bool) -> Publisher {
        Publisher {
            rank,
            number,
            caches: caches(fleet),
            checked,
            life: 1,
            sequence: 0,
            events: 0,
            waiting: Vec::new(),
            recent: VecDeque::new(),
            unholed: 0,
        }
    }

    /// It starts again with nothing. What it had not sent yet is gone too.
    pub(super) fn restart(&mut self, fleet: &FleetShape) {
        *self =
            Publisher { life: self.life + 1, ..Publisher::new(self.rank, self.number, fleet, self.checked) };
    }

    /// Notes what is to be announced. Returns whether nothing was waiting before.
    pub(super) fn announce(&mut self, changes: Vec<Change>, owner: &Arc<Owner>) -> bool {
        let first = self.waiting.is_empty() && !changes.is_empty();
        self.waiting.extend(changes.into_iter().map(|change| (change, Arc::clone(owner))));
        first
    }

    /// The messages in which everything that waits is sent.
    pub(super) fn flush(&mut self, at: Duration, warm: bool, fleet: &FleetShape) -> Vec<Frame> {
        let waiting = std::mem::take(&mut self.waiting);
        let (mut frames, mut rest) = (Vec::new(), waiting.as_slice());
        while !rest.is_empty() {
            let mut blocks = 0;
            let fits = rest.iter().take(FRAME_EVENTS).take_while(|(change, _)| {
                blocks += change.blocks();
                blocks <= FRAME_BLOCKS
            });
            let (these, others) = rest.split_at(fits.count().max(1));
            frames.push(self.frame(these, at, warm, fleet));
            rest = others;
        }
        frames
    }

    fn frame(&mut self, changes: &[Announced], at: Duration, warm: bool, fleet: &FleetShape) -> Frame {
        let sender = Sender {
            rank: self.rank,
            // No two lives and no two ranks share one.
            publisher_id: (self.life << 32) + self.number as u64,
            sequence: self.sequence,
            first_event: self.events + 1,
        };
        self.sequence += 1;
        self.events += changes.len() as u64;
        let (message, position) = match fleet.publisher {
            Format::Dynamo => (Message::frame(&sender, changes), self.events),
            Format::Vllm => (Message::batch(&sender, changes, fleet.block_size), sender.sequence),
        };
        Frame {
            at,
            warm,
            rank: self.number,
            life: self.life,
            sequence: sender.sequence,
            position,
            events: changes.len() as u64,
            blocks: changes.iter().map(|(change, _)| change.blocks() as u64).sum(),
            message,
            deltas: self.checked.then(|| changes.iter().map(|(change, _)| Delta::of(change)).collect()),
        }
    }

    /// Evicts as many blocks as are due after what was stored: each amid a prompt that was served lately, while the next one
    /// stays. Where no such block is found, it stays due.
    pub(super) fn make_holes(
        &mut self,
        prompt: &[Piece],
        stored_per_hole: u32,
        changes: &mut Vec<Change>,
        random: &mut StdRng,
    ) {
        self.recent.push_back(prompt.iter().map(|piece| piece.name).collect());
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        let stored = changes.iter().filter(|change| matches!(change, Change::Stored { tier: Tier::Gpu, .. }));
        self.unholed += stored.map(|change| change.blocks() as u32).sum::<u32>();
        let mut attempts = ATTEMPTS * (self.unholed / stored_per_hole) as usize;
        while self.unholed >= stored_per_hole && attempts > 0 {
            attempts -= 1;
            let names = &self.recent[random.random_range(0..self.recent.len())];
            if names.len() < 3 {
                continue;
            }
            let at = random.random_range(1..names.len() - 1);
            if self.caches.has(names[at + 1]) && self.caches.evict(names[at], changes) {
                self.unholed -= stored_per_hole;
            }
        }
    }
}

fn caches(fleet: &FleetShape) -> Caches {
    Caches::new([fleet.gpu_blocks, fleet.host_blocks, fleet.disk_blocks])
}

impl Change {
    /// How many blocks it is about.
    pub(super) fn blocks(&self) -> usize {
        match self {
            Change::Stored { pieces, .. } => pieces.len(),
            Change::Removed { names, .. } => names.len(),
        }
    }
}

impl Delta {
    fn of(change: &Change) -> Delta {
        let place = |tier: Tier| TIERS.iter().position(|&one| one == tier).unwrap_or(0);
        match change {
            Change::Stored { tier, pieces, .. } => Delta {
                tier: place(*tier),
                stored: true,
                names: pieces.iter().map(|piece| piece.name).collect(),
            },
            Change::Removed { tier, names } => {
                Delta { tier: place(*tier), stored: false, names: names.as_slice().into() }
            }
        }
    }
}
