//! Discovery and workers' own indexes in the fault simulation: announcements come late and in any order, and so do answers.

use std::collections::BTreeMap;

use kvtide::{Announced, IndexAnswer, IndexRequest, snapshot::Wanted};
use kvtide_events::{Ignored, RouterEvent};
use kvtide_radix::Rank;
use kvtide_tests::vectors::{BLOCK_SIZE, Kind, rank};
use rand::RngExt;

use super::{
    Sent, World,
    publisher::{Publisher, name_of},
};
use crate::wire::{Announced as Change, content};

/// Something that discovery says next.
#[derive(Clone, Copy)]
pub(super) enum Said {
    Lives { worker: u64, id: u64 },
    Gone { id: u64 },
}

impl World {
    /// A publisher starts again, and discovery comes to know of it.
    pub(super) fn restart_publisher(&mut self, publisher: usize) {
        let Publisher { worker, id: former, .. } = self.publishers[publisher];
        // A frame 0 that waits for its announcement hides another one.
        let known = !self.stream.stream().announced || self.announced.contains(&(worker, former));
        let again = self.kind == Kind::Dynamo && known && self.random.random_bool(0.3);
        self.publishers[publisher].restart(again);
        if again {
            // Nothing of the former process is under way by the time that another has started.
            let of_others = |sent: &Sent| sent.publisher != publisher;
            self.on_the_way.retain(of_others);
            self.peer.iter_mut().for_each(|peer| peer.on_the_way.retain(of_others));
            return;
        }
        let Publisher { worker, id, .. } = self.publishers[publisher];
        let mut said = [Said::Gone { id: former }, Said::Lives { worker, id }];
        if self.random.random_bool(0.5) {
            said.reverse();
        }
        self.to_be_said.extend(said);
    }

    /// Discovery says what it has to, or a part of it.
    pub(super) fn hear_discovery(&mut self, everything: bool) {
        while !self.to_be_said.is_empty() && (everything || self.random.random_bool(0.4)) {
            match self.to_be_said.remove(0) {
                Said::Lives { worker, id } => self.announced.push((worker, id)),
                Said::Gone { id } => self.announced.retain(|&(_, other)| other != id),
            }
            self.announce_all();
        }
    }

    /// Tells kvtide and its peer who is announced; what they know already changes nothing.
    pub(super) fn announce_all(&mut self) {
        for to_peer in [false, true] {
            let Some((indexer, stream)) = self.of(to_peer) else { continue };
            if !stream.stream().announced {
                continue;
            }
            let gone =
                self.once_announced.iter().filter(|id| !self.announced.iter().any(|(_, one)| one == *id));
            gone.for_each(|&id| indexer.withdraw(stream, id));
            for &(worker, publisher_id) in &self.announced {
                let announced = Announced { publisher_id, rank: rank(worker), keeps_index: self.keeps_index };
                indexer.announce(stream, announced).unwrap();
            }
        }
        self.once_announced = self.announced.iter().map(|&(_, id)| id).collect();
    }

    /// kvtide, or its peer, asks workers for what it has missed.
    pub(super) fn ask_indexes(&mut self, faulty: bool, to_peer: bool) {
        let Some((indexer, _)) = self.of(to_peer) else { return };
        let wanted = indexer.wanted_indexes();
        let questions: Vec<(Wanted, IndexRequest)> =
            wanted.into_iter().filter_map(|one| Some((one.clone(), indexer.index_request(&one)?))).collect();
        for (wanted, request) in questions {
            let answer = self.tell(request, faulty);
            // It is long on its way.
            while faulty && self.random.random_bool(0.3) {
                self.publish();
                self.deliver(true);
                self.deliver_to_peer(true);
                self.hear_discovery(false);
            }
            let Some((indexer, _)) = self.of(to_peer) else { return };
            indexer.apply_index(&wanted, request, answer);
        }
    }

    /// What the worker answers, as Dynamo's does.
    fn tell(&mut self, request: IndexRequest, faulty: bool) -> IndexAnswer {
        let asked = self.publishers.iter().position(|publisher| publisher.id == request.publisher_id);
        let Some(asked) = asked.filter(|_| !faulty || self.random.random_bool(0.9)) else {
            return IndexAnswer::Failed;
        };
        // The answer of a process whose beginning has not come yet may go on where the one before it ended.
        let peers = self.peer.iter().flat_map(|peer| &peer.on_the_way);
        if self.on_the_way.iter().chain(peers).any(|sent| sent.publisher == asked && sent.safe) {
            return IndexAnswer::Failed;
        }
        let kept =
            if faulty && self.random.random_bool(0.5) { self.random.random_range(0..8) } else { usize::MAX };
        let publisher = &self.publishers[asked];
        let first_kept = publisher.log.len().saturating_sub(kept) as u64 + 1;
        match request.first_event_id {
            Some(first) if !publisher.log.is_empty() && first > publisher.event_id => {
                IndexAnswer::Nothing { last_event_id: publisher.event_id }
            }
            Some(first) if !publisher.log.is_empty() && first >= first_kept => {
                let events = publisher.events_from(first);
                let clear = events.iter().rposition(|event| event.change == Ok(kvtide_radix::Event::Cleared));
                let events = events[clear.unwrap_or(0)..].to_vec();
                IndexAnswer::Events { events, last_event_id: publisher.event_id }
            }
            Some(_) | None => self.dump(asked),
        }
    }

    /// What the worker holds. Its number is of a moment before, and events come while it is told.
    fn dump(&mut self, asked: usize) -> IndexAnswer {
        let ahead = self.random.random_range(0..4);
        let last_event_id = self.publishers[asked].event_id.saturating_sub(ahead);
        let holds = self.publishers[asked].holds();
        let life = self.publishers[asked].truths.len();
        while self.random.random_bool(0.3) {
            self.publish();
        }
        let publisher = &self.publishers[asked];
        if publisher.truths.len() != life {
            return IndexAnswer::Failed;
        }
        IndexAnswer::Dump { holds, last_event_id, behind: publisher.events_from(last_event_id + 1) }
    }
}

impl Publisher {
    fn events_from(&self, first: u64) -> Vec<RouterEvent> {
        let numbered = self.log.iter().filter(|(event_id, _)| *event_id >= first);
        numbered.map(|(event_id, change)| routed(self.worker, *event_id, change)).collect()
    }

    /// Stores on the GPU, parents first: nothing behind a block that was removed.
    fn holds(&self) -> Vec<RouterEvent> {
        let chains: BTreeMap<(usize, u64), &Vec<u32>> =
            self.chains.iter().map(|(name, tokens)| ((tokens.len(), *name), tokens)).collect();
        let mut told = Vec::new();
        for ((_, name), tokens) in chains {
            let prompt: Vec<_> = tokens.iter().copied().map(content).collect();
            let [gpu, ..] = self.held.reach(rank(self.worker), &prompt);
            if gpu as usize == tokens.len() * BLOCK_SIZE as usize {
                let parent = (tokens.len() > 1).then(|| name_of(&tokens[..tokens.len() - 1], self.id));
                let blocks = vec![(name, tokens[tokens.len() - 1])];
                told.push(routed(self.worker, 0, &Change::Stored { parent, blocks, host: false }));
            }
        }
        told
    }
}

fn routed(worker: u64, event_id: u64, change: &Change) -> RouterEvent {
    let rank: Rank = rank(worker);
    RouterEvent { rank, event_id, change: change.meaning(Kind::Dynamo).ok_or(Ignored::UnknownEvent) }
}
