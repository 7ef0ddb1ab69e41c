//! An engine's batches, and its answers to what was missed.

use kvtide_radix::Rank;

use super::{Asked, Fleet, Known, State};
use crate::vectors::BatchSpec;

/// An answer that has not come by then will not.
const PATIENCE_MS: u64 = 10_000;

/// A batch of a process that has gone may come so long after the first of the next.
const LATE_MS: u64 = 10_000;

impl Known {
    /// Whether a batch was published before one that was taken a short while ago.
    fn is_older(&self, batch: &BatchSpec, now_ms: u64) -> bool {
        self.newest.is_some_and(|(at, taken_ms)| batch.at < at && now_ms < taken_ms + LATE_MS)
    }
}

impl Fleet {
    fn rank_of(&self, batch: &BatchSpec) -> Rank {
        Rank { worker_id: 7, dp_rank: self.stream.dp_rank.unwrap_or(batch.dp_rank) }
    }

    /// The one rank of the engine, if it is known.
    fn engine(&self) -> Option<Rank> {
        self.ranks.keys().next().copied()
    }

    pub(super) fn batch(&mut self, batch: &BatchSpec) {
        if batch.unreadable {
            return self.unreadable_batch(batch);
        }
        let rank = self.rank_of(batch);
        self.meet(rank);
        let Some(number) = batch.sequence else {
            if self.of(rank).state.is_none() {
                self.begin(rank, false);
            }
            if self.of(rank).state == Some(State::Complete) {
                self.of(rank).state = Some(State::Partial);
            }
            batch.events.iter().for_each(|event| self.apply(rank, event));
            return;
        };
        let (replays, now_ms) = (self.stream.replays, self.now_ms);
        let known = self.of(rank);
        if known.recovery.is_some() && known.last.is_none() && known.is_older(batch, now_ms) {
            // It is of a process that has gone.
            return;
        }
        if let Some((_, waiting)) = &mut known.recovery {
            let newest_at = known.newest.map_or(0, |(at, _)| at);
            let taken = known.last.map(|last| (last, newest_at));
            match waiting.last().map(|(_, last)| (last.sequence.unwrap(), last.at)).or(taken) {
                Some((last, at)) if number <= last && batch.at <= at => {}
                Some((last, _)) if number <= last => {
                    known.recovery = None;
                    self.another_process(rank, batch);
                }
                Some(_) | None => waiting.push((now_ms, batch.clone())),
            }
            return;
        }
        let newest_at = known.newest.map_or(0, |(at, _)| at);
        let older = known.is_older(batch, now_ms);
        match known.last {
            Some(last) if number == last + 1 && !older => self.take(rank, batch, now_ms),
            Some(last) if number <= last && batch.at <= newest_at => {}
            Some(last) if number > last && replays => self.wait(rank, batch),
            Some(last) if number > last => self.take_unproven(rank, batch, now_ms),
            // It had published nothing so far.
            None if known.is_silent() && number == 0 => self.take(rank, batch, now_ms),
            None if known.is_silent() => self.wait(rank, batch),
            Some(_) | None => self.another_process(rank, batch),
        }
    }

    /// The first batch that is seen of a process.
    fn another_process(&mut self, rank: Rank, batch: &BatchSpec) {
        let first = batch.sequence == Some(0);
        if first || !self.stream.replays {
            self.begin(rank, first);
            self.take(rank, batch, self.now_ms);
        } else {
            self.forget_process(rank);
            self.wait(rank, batch);
        }
    }

    fn forget_process(&mut self, rank: Rank) {
        self.lose(rank);
        self.of(rank).last = None;
    }

    /// What comes now may be another process'.
    pub(super) fn reconnected(&mut self) {
        let (now_ms, replays) = (self.now_ms, self.stream.replays);
        for known in self.ranks.values_mut().filter(|_| replays) {
            known.connections += 1;
            if known.state.is_some() && known.recovery.is_none() {
                (known.recovery, known.unproven) = (Some((now_ms, Vec::new())), true);
            }
        }
    }

    fn wait(&mut self, rank: Rank, batch: &BatchSpec) {
        self.of(rank).unproven = false;
        self.of(rank).recovery = Some((self.now_ms, vec![(self.now_ms, batch.clone())]));
    }

    fn take(&mut self, rank: Rank, batch: &BatchSpec, arrived_ms: u64) {
        if self.take_number(rank, batch.sequence.unwrap(), 0) {
            let known = self.of(rank);
            if !known.is_older(batch, arrived_ms) {
                known.newest = Some((batch.at, arrived_ms));
            }
            known.last_batch = Some(batch.clone());
            known.last_event_ms = Some(arrived_ms);
            if batch.unreadable {
                self.hole(rank, 1);
            } else {
                batch.events.iter().for_each(|event| self.apply(rank, event));
            }
        }
    }

    /// Takes a batch that may be a late one of a process that has gone: if it is older than the last, what it says is not
    /// believed.
    fn take_unproven(&mut self, rank: Rank, batch: &BatchSpec, arrived_ms: u64) {
        let known = self.of(rank);
        let (last, number) = (known.last, batch.sequence.unwrap());
        if last.is_some_and(|last| number <= last) {
            return;
        }
        if !known.is_older(batch, arrived_ms) {
            return self.take(rank, batch, arrived_ms);
        }
        if last == Some(number - 1) {
            self.hole(rank, 1);
        }
        self.take(rank, &BatchSpec { events: Vec::new(), ..batch.clone() }, arrived_ms);
    }

    fn unreadable_batch(&mut self, batch: &BatchSpec) {
        let Some(rank) = self.engine().filter(|&rank| self.ranks[&rank].recovery.is_none()) else { return };
        let known = self.of(rank);
        if batch.sequence.is_some() && batch.sequence <= known.last {
            return;
        }
        let before = match (batch.sequence, known.last) {
            (Some(number), Some(last)) if number > last => number - last - 1,
            (Some(_) | None, Some(_) | None) => 0,
        };
        known.last = known.last.max(batch.sequence);
        known.last_batch = Some(batch.clone());
        self.hole(rank, before + 1);
    }

    pub(super) fn ask(&mut self) {
        let known = self.engine().map(|rank| &self.ranks[&rank]);
        self.asked = Some(Asked {
            generation: known.map_or(0, |known| known.generation),
            last_batch: known.filter(|known| known.last.is_some()).and_then(|known| known.last_batch.clone()),
            connections: known.map_or(0, |known| known.connections),
            at_ms: self.now_ms,
        });
    }

    pub(super) fn answer(&mut self, answer: &[BatchSpec]) {
        if self.asked.is_none() {
            self.ask();
        }
        let asked = self.asked.take().unwrap();
        let named = answer.iter().find(|batch| !batch.unreadable).map(|batch| self.rank_of(batch));
        let configured = self.stream.dp_rank.map(|dp_rank| Rank { worker_id: 7, dp_rank });
        let Some(rank) = self.engine().or(named).or(configured) else { return };
        self.meet(rank);
        let known = self.of(rank);
        if asked.connections != known.connections {
            return;
        }
        if asked.generation != known.generation || asked.last_batch.is_none() != known.last.is_none() {
            return;
        }
        let first = answer.first().and_then(|batch| batch.sequence);
        // What it says of the batch that was taken last.
        let taken = answer.iter().find(|batch| known.last.is_some() && batch.sequence == known.last);
        let is_other = taken.is_some_and(|taken| Some(taken) != known.last_batch.as_ref());
        match &asked.last_batch {
            None => {
                let waits = known.recovery.as_ref().and_then(|(_, waiting)| waiting.first()?.1.sequence);
                let whole = first.or(waits).is_none_or(|first| first == 0);
                if !whole || !known.is_silent() {
                    self.begin(rank, whole);
                }
            }
            Some(_) if taken.is_some() && !is_other => {}
            Some(last) if answer.first() == Some(last) && !is_other => {}
            Some(last) if first > last.sequence && !is_other => {
                let next = known.last.map(|last| last + 1);
                if first < next || (first == next && known.recovery.is_none()) {
                    return;
                }
                // Nothing shows that it is the same process still.
                if first == next {
                    self.hole(rank, 0);
                }
            }
            Some(_) => {
                self.forget_process(rank);
                self.of(rank).recovery = Some((self.now_ms, Vec::new()));
                self.of(rank).unproven = false;
                return;
            }
        }
        answer.iter().for_each(|batch| self.take(rank, batch, self.now_ms));
        if let Some((since, mut waiting)) = self.of(rank).recovery.take() {
            while let Some((arrived_ms, next)) = waiting.first().cloned() {
                let known = self.of(rank);
                let older = known.is_older(&next, arrived_ms);
                let new = known.last.is_some_and(|last| next.sequence > Some(last));
                if known.last.is_some_and(|last| next.sequence > Some(last + 1)) || (new && older) {
                    known.recovery = Some((since, waiting));
                    return;
                }
                waiting.remove(0);
                self.take(rank, &next, arrived_ms);
            }
        }
        let known = self.of(rank);
        known.verified_ms = known.verified_ms.max(Some(asked.at_ms));
    }

    pub(super) fn answers_overdue(&mut self) {
        let now_ms = self.now_ms;
        let overdue = |since: u64| since + PATIENCE_MS <= now_ms;
        let Some(rank) = self.engine() else { return };
        let Some((_, waiting)) = self.of(rank).recovery.take_if(|(since, _)| overdue(*since)) else { return };
        if std::mem::take(&mut self.of(rank).unproven) {
            self.hole(rank, 0);
        }
        if self.of(rank).last.is_none() {
            self.begin(rank, waiting.first().is_some_and(|first| first.1.sequence == Some(0)));
        }
        for (arrived_ms, batch) in waiting {
            self.take_unproven(rank, &batch, arrived_ms);
        }
    }
}
