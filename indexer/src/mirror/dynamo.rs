//! Dynamo's frames: a publisher is a life of a rank, its frames are numbered, and so are its events.

use std::collections::HashMap;

use kvtide_events::{Cursor, Frame, Step};
use kvtide_radix::{Rank, RankSettings, Update};

use super::{Applied, Mirror, Times, claim, rank::RankStream};

/// Publishers that are remembered although no rank is theirs now.
const PUBLISHERS: usize = 65_536;
/// A retired publisher's frames may still be on their way for so long.
const LATE_MS: u64 = 200;
/// Of two publishers that claim one rank, one has given up when it has been silent for so long.
const SILENT_MS: u64 = 10_000;
/// Retired publishers that are remembered for a rank.
const RETIRED: usize = 4;

/// Where a publisher's frames stand.
#[derive(Default)]
pub(crate) struct Publisher {
    frames: Cursor,
    /// Every frame from number 0 on has been seen.
    whole: bool,
    last_published_at_ms: u64,
    /// Frames that came but did not decode, whose holes are made already.
    unreadable: u64,
    ranks: Vec<Rank>,
}

/// How a frame stands to the publisher's ones before it.
struct Taken {
    /// Frames missing in front of it.
    lost: u64,
    /// The same publisher again, from its beginning: its ranks begin a new life.
    restarted: bool,
}

/// Which publishers claim a rank.
#[derive(Default)]
pub(crate) struct Claims {
    current: Option<u64>,
    /// Former ones, latest last, and when each was last heard.
    retired: Vec<(u64, u64)>,
    changed_at_ms: u64,
    heard_at_ms: u64,
    /// Two live publishers claim the rank.
    conflict: bool,
}

/// What a frame's publisher is to a rank.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claim {
    /// The one that feeds it.
    Current,
    /// The next one: a new life.
    Successor,
    /// A former one, whose frame is only late.
    Late,
    /// A former one that lives on.
    Conflicting,
}

impl Mirror {
    /// Applies a frame, as one version.
    pub(crate) fn apply_frame(&mut self, source: u32, frame: &Frame) -> Applied {
        let times = self.times(Some(frame.published_at_ms));
        let mut applied = Applied::default();
        let publisher = known_publisher(&mut self.publishers, frame.publisher_id);
        let Some(Taken { lost, restarted }) = publisher.take(frame, &mut applied) else { return applied };
        let whole = publisher.whole;
        let (ranks, publishers) = (&mut self.ranks, &mut self.publishers);
        self.writer.update(|update| {
            if restarted {
                let publisher = known_publisher(publishers, frame.publisher_id);
                for (_, stream) in publisher.streams(frame.publisher_id, ranks) {
                    stream.begin_life(update, true, &mut applied);
                    stream.mark(update, times);
                }
            }
            let mut fed: Vec<Rank> = Vec::new();
            for event in &frame.events {
                let Some(stream) = claim(ranks, update, event.rank, source, RankSettings::default) else {
                    applied.refused += 1;
                    continue;
                };
                let starts = whole && event.event_id == 1;
                if !stream.admit(update, frame.publisher_id, starts, times, &mut applied) {
                    continue;
                }
                // Lost frames make one hole, in front of the first event behind them.
                let first = !fed.contains(&event.rank);
                if first {
                    fed.push(event.rank);
                }
                if !stream.advance(update, event.event_id, if first { lost } else { 0 }, &mut applied) {
                    continue;
                }
                match &event.change {
                    Ok(change) => stream.apply(update, change, &mut applied),
                    Err(_) => applied.ignored += 1,
                }
            }
            let publisher = known_publisher(publishers, frame.publisher_id);
            publisher.feed(&fed);
            for (rank, stream) in publisher.streams(frame.publisher_id, ranks) {
                let was_fed = fed.contains(rank);
                if lost > 0 && !was_fed {
                    stream.hole(update, lost, &mut applied);
                }
                if lost > 0 || was_fed {
                    stream.mark(update, times);
                }
            }
        });
        applied
    }

    /// A frame came that does not decode. If it says whose it was, the ranks of that publisher have a hole at once;
    /// else the publisher's next frame shows it.
    pub(crate) fn lose_frame(&mut self, publisher_id: Option<u64>) -> Applied {
        let mut applied = Applied::default();
        let times = self.times(None);
        let Some((id, publisher)) = publisher_id.and_then(|id| Some((id, self.publishers.get_mut(&id)?)))
        else {
            return applied;
        };
        publisher.unreadable += 1;
        publisher.whole = false;
        let ranks = &mut self.ranks;
        self.writer.update(|update| {
            for (_, stream) in publisher.streams(id, ranks) {
                stream.hole(update, 1, &mut applied);
                stream.mark(update, times);
            }
        });
        applied
    }
}

fn known_publisher(publishers: &mut HashMap<u64, Publisher>, id: u64) -> &mut Publisher {
    if publishers.len() >= PUBLISHERS && !publishers.contains_key(&id) {
        publishers.retain(|_, publisher| !publisher.ranks.is_empty());
    }
    publishers.entry(id).or_default()
}

impl Publisher {
    /// Takes a frame's number; none if it is a repeat.
    fn take(&mut self, frame: &Frame, applied: &mut Applied) -> Option<Taken> {
        let step = self.frames.step(frame.sequence);
        let starts = frame.sequence == 0 && frame.events.first().is_none_or(|event| event.event_id == 1);
        let restarted = step == Step::Repeat && starts && frame.published_at_ms > self.last_published_at_ms;
        if restarted {
            *self = Publisher { ranks: std::mem::take(&mut self.ranks), ..Publisher::default() };
        } else if step == Step::Repeat {
            applied.repeated += 1;
            return None;
        }
        let lost = match self.frames.take(frame.sequence) {
            Step::First => {
                self.whole = frame.sequence == 0;
                0
            }
            Step::Next | Step::Repeat => 0,
            Step::Gap { missing } => {
                self.whole = false;
                missing.saturating_sub(std::mem::take(&mut self.unreadable))
            }
        };
        self.last_published_at_ms = self.last_published_at_ms.max(frame.published_at_ms);
        Some(Taken { lost, restarted })
    }

    /// The streams of the ranks that this publisher feeds.
    fn streams<'a>(
        &'a self,
        id: u64,
        ranks: &'a mut HashMap<Rank, RankStream>,
    ) -> impl Iterator<Item = (&'a Rank, &'a mut RankStream)> {
        let theirs = ranks.iter_mut().filter(move |(rank, _)| self.ranks.contains(rank));
        theirs.filter(move |(_, stream)| stream.claims.current == Some(id))
    }

    fn feed(&mut self, ranks: &[Rank]) {
        for rank in ranks {
            if !self.ranks.contains(rank) {
                self.ranks.push(*rank);
            }
        }
    }
}

impl RankStream {
    /// Settles whether a publisher's event is for this rank, and whether it starts a new life.
    fn admit(
        &mut self,
        update: &mut Update<'_>,
        publisher: u64,
        starts: bool,
        times: Times,
        applied: &mut Applied,
    ) -> bool {
        match self.claims.claim(publisher, times.steady_ms) {
            Claim::Current => true,
            Claim::Successor => {
                self.begin_life(update, starts, applied);
                true
            }
            Claim::Late => {
                applied.repeated += 1;
                false
            }
            Claim::Conflicting => {
                self.lose(update);
                self.mark(update, times);
                applied.refused += 1;
                false
            }
        }
    }
}

impl Claims {
    fn claim(&mut self, publisher: u64, now_ms: u64) -> Claim {
        if self.current == Some(publisher) && !self.conflict {
            self.heard_at_ms = now_ms;
            return Claim::Current;
        }
        let retired = self.retired.iter_mut().find(|(id, _)| *id == publisher);
        match retired {
            None if self.current == Some(publisher) => {}
            None => {
                self.succeed(publisher, now_ms);
                return Claim::Successor;
            }
            Some((_, heard)) => *heard = now_ms,
        }
        if !self.conflict && now_ms < self.changed_at_ms + LATE_MS {
            return Claim::Late;
        }
        if self.current == Some(publisher) {
            self.heard_at_ms = now_ms;
        }
        // Whoever speaks when all others have been silent for long has the rank.
        let current = self.current.map(|id| (id, self.heard_at_ms));
        let mut others = self.retired.iter().copied().chain(current).filter(|&(id, _)| id != publisher);
        self.conflict = others.any(|(_, heard)| now_ms < heard + SILENT_MS);
        if self.conflict {
            return Claim::Conflicting;
        }
        self.retired.retain(|&(id, _)| id != publisher);
        if self.current != Some(publisher) {
            self.succeed(publisher, now_ms);
        }
        Claim::Successor
    }

    fn succeed(&mut self, publisher: u64, now_ms: u64) {
        if let Some(former) = self.current.replace(publisher) {
            self.retired.push((former, self.heard_at_ms));
            if self.retired.len() > RETIRED {
                self.retired.remove(0);
            }
        }
        (self.changed_at_ms, self.heard_at_ms, self.conflict) = (now_ms, now_ms, false);
    }
}
