//! What is visible by now, and what was sent and is not yet.

use std::{collections::VecDeque, time::Instant};

use kvtide::Indexer;

use super::plan::{Frame, number_of};

/// How far a rank is visible: the life of its publisher, and the position in it.
pub(super) type Sight = (u64, u64);

/// Looks how far ranks are visible.
#[derive(Clone, Copy)]
pub(super) struct Fleet {
    pub(super) ranks: usize,
    pub(super) dp_ranks: u32,
}

impl Fleet {
    /// Calls back with the number of each rank of which anything is visible.
    pub(super) fn look(self, indexer: &Indexer, mut seen: impl FnMut(usize, Sight)) {
        for state in indexer.scopes().into_iter().flat_map(|scope| scope.ranks) {
            let Some(number) = number_of(state.rank, self.dp_ranks, self.ranks) else { continue };
            if let Some(position) = state.watermark.last_event_id {
                seen(number, (state.watermark.life.0, position));
            }
        }
    }

    /// Events, or batches, of the fleet that are known to be lost.
    pub(super) fn missing(self, indexer: &Indexer) -> u64 {
        let ranks = indexer.scopes().into_iter().flat_map(|scope| scope.ranks);
        let ours = ranks.filter(|state| number_of(state.rank, self.dp_ranks, self.ranks).is_some());
        ours.map(|state| state.watermark.missing_events).sum()
    }
}

/// A message that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) rank: usize,
    /// What is visible of the rank once the message is.
    pub(super) sight: Sight,
    pub(super) events: u64,
    pub(super) blocks: u64,
    /// When it was to be sent.
    pub(super) due: Instant,
}

impl Sent {
    pub(super) fn of(frame: &Frame, due: Instant) -> Sent {
        let Frame { rank, life, position, events, blocks, .. } = *frame;
        Sent { rank, sight: (life, position), events, blocks, due }
    }
}

/// Messages that were sent and are not yet visible.
pub(super) struct Unseen {
    fleet: Fleet,
    ranks: Vec<VecDeque<Sent>>,
    count: usize,
}

impl Unseen {
    pub(super) fn new(fleet: Fleet) -> Unseen {
        Unseen { fleet, ranks: (0..fleet.ranks).map(|_| VecDeque::new()).collect(), count: 0 }
    }

    pub(super) fn add(&mut self, sent: Sent) {
        self.ranks[sent.rank].push_back(sent);
        self.count += 1;
    }

    /// Messages that are not visible yet.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Events in them.
    pub(super) fn events(&self) -> u64 {
        self.ranks.iter().flatten().map(|sent| sent.events).sum()
    }

    /// Takes out what has become visible.
    pub(super) fn look(&mut self, indexer: &Indexer, mut seen: impl FnMut(&Sent)) {
        let (ranks, count) = (&mut self.ranks, &mut self.count);
        self.fleet.look(indexer, |number, sight| {
            while let Some(sent) = ranks[number].pop_front_if(|sent| sent.sight <= sight) {
                *count -= 1;
                seen(&sent);
            }
        });
    }
}
