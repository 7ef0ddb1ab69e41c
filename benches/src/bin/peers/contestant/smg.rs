//! `smg-radix-tree`: no concurrency.

use kvtide_benches::hashed;
use kvtide_radix::{BlockHash, Event, RankSettings};

use super::Contestant;

/// The tree, with its buffers for answers.
pub(crate) struct Smg {
    tree: radix_tree::RadixTree,
    holders: Vec<radix_tree::HolderId>,
    refused: usize,
    scratch: radix_tree::OverlapScratch,
    answer: Vec<radix_tree::Overlap>,
}

/// An event of `smg-radix-tree`, which takes pairs of name and content.
pub(crate) enum SmgEvent {
    Stored(Option<u64>, Vec<(u64, u64)>),
    Removed(Vec<u64>),
    Cleared,
}

impl Contestant for Smg {
    type Event = (usize, SmgEvent);
    type Hash = u64;

    fn new(ranks: usize, _: &RankSettings) -> Smg {
        let mut tree = radix_tree::RadixTree::new(radix_tree::Config::default());
        let holders = (0..ranks).map(|rank| tree.create_holder(&rank.to_string())).collect();
        Smg { tree, holders, refused: 0, scratch: radix_tree::OverlapScratch::default(), answer: Vec::new() }
    }

    fn event(rank: usize, event: &Event) -> (usize, SmgEvent) {
        let event = match event {
            Event::Stored(stored) => {
                let pairs = hashed(stored).iter().map(|block| (block.name.0, block.content.0));
                SmgEvent::Stored(stored.parent.map(|name| name.0), pairs.collect())
            }
            Event::Removed(removed) => SmgEvent::Removed(removed.names.iter().map(|name| name.0).collect()),
            Event::Cleared => SmgEvent::Cleared,
        };
        (rank, event)
    }

    fn hash(hash: BlockHash) -> u64 {
        hash.0
    }

    fn apply(&mut self, events: &mut [(usize, SmgEvent)]) {
        for (rank, event) in events {
            let holder = self.holders[*rank];
            match event {
                SmgEvent::Stored(parent, blocks) => {
                    self.refused += usize::from(self.tree.store(holder, *parent, blocks).is_err());
                }
                SmgEvent::Removed(names) => {
                    self.tree.remove(holder, names);
                }
                SmgEvent::Cleared => self.tree.clear(holder),
            }
        }
    }

    fn ask(&mut self, prompt: &[Self::Hash]) -> usize {
        self.tree.overlap(prompt, &mut self.scratch, &mut self.answer);
        self.answer.len()
    }

    fn reaches(&mut self, prompt: &[Self::Hash]) -> Vec<u32> {
        self.ask(prompt);
        let depth = |holder| self.answer.iter().find(|one| one.holder == holder).map_or(0, |one| one.depth);
        self.holders.iter().map(|&holder| depth(holder)).collect()
    }
    /// It puts nothing off.
    fn sweep(&mut self) {}

    fn refused(&self) -> Option<usize> {
        Some(self.refused)
    }
}
