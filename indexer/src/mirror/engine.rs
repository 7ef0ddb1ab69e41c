//! An engine's own batches: a process is a life, and its batches are numbered from 0.

use kvtide_events::{Batch, Step};
use kvtide_radix::{Knowledge, Update, Window};

use super::{Applied, Mirror, Refusal, Source, Times, rank::RankStream};
use crate::{pending::PendingEvents, stream::EngineStream};

/// A batch of a process that has gone may come so long after the first of the next.
const LATE_MS: u64 = 10_000;

/// A batch that has just come.
pub(crate) struct LiveBatch {
    /// Its number, if it came with one.
    pub(crate) sequence: Option<u64>,
    pub(crate) batch: Batch,
    /// Tells it from another batch of the same number.
    pub(crate) digest: u64,
    /// Length of its payload.
    pub(crate) bytes: usize,
}

/// A batch with its number.
pub(crate) struct NumberedBatch {
    pub(crate) sequence: u64,
    pub(crate) digest: u64,
    pub(crate) batch: Batch,
}

/// When a batch was published, by the engine's clock, and taken, by ours.
#[derive(Clone, Copy, Default)]
pub(super) struct NewestBatch {
    pub(super) published_at_ms: u64,
    taken_ms: u64,
}

impl NewestBatch {
    /// One that was published then, and is taken now.
    pub(super) fn of(published_at_ms: u64, times: Times) -> NewestBatch {
        NewestBatch { published_at_ms, taken_ms: times.steady_ms }
    }
}

/// How a batch's number continues its rank's stream.
#[derive(Clone, Copy)]
enum Continuity {
    /// It is the next one.
    InTurn,
    /// Others come between the last one and this, or it was published before the last one: it may be a late one of a
    /// process that has gone, of whatever number.
    Behind,
    /// The first of a process.
    Starts,
    /// A later one of a process of which none has been taken.
    Joins,
    /// Taken before.
    Repeated,
}

impl Mirror {
    /// Applies a batch, or lets it wait, where its rank is about to be given what it has missed.
    pub(crate) fn apply_batch(&mut self, source: Source, stream: &EngineStream, live: LiveBatch) -> Applied {
        let batch = &live.batch;
        let mut applied = Applied { ignored: batch.ignored.len() as u64, ..Applied::default() };
        if let (Some(ours), Some(theirs)) = (stream.dp_rank, batch.dp_rank) {
            applied.other_dp_rank += u64::from(ours != theirs);
        }
        let rank = stream.rank(batch);
        let times = self.times(Some(milliseconds(batch.published_at_s)));
        if self.ranks.is_refused(rank, source) {
            applied.refuse(Refusal::OtherSource, batch.events.len());
            return applied;
        }
        let Mirror { ranks, writer, pending, .. } = self;
        let events = batch.events.len() as u64;
        let pend = || pending.add(vec![(rank, events)]);
        writer.update(|update| match ranks.claim(update, rank, source, || stream.rank_settings()) {
            Ok(state) => state.receive(update, live, pend, times, &mut applied),
            Err(refusal) => applied.refuse(refusal, live.batch.events.len()),
        });
        applied
    }

    /// A batch came that does not decode: its rank, which only the batch may have named, has a hole.
    pub(crate) fn lose_batch(&mut self, source: Source, sequence: Option<u64>, digest: u64) -> Applied {
        let mut applied = Applied::default();
        let times = self.times(None);
        let mut streams: Vec<_> = self.ranks.of_mut(source).collect();
        if streams.is_empty() {
            return applied;
        }
        self.writer.update(|update| {
            for stream in &mut streams {
                // Its number is missing, so that the engine is asked for it and sends it again.
                if stream.is_recovering() {
                    continue;
                }
                let before = match sequence.map(|sequence| stream.cursor.take(sequence)) {
                    Some(Step::Gap { missing }) => missing,
                    Some(Step::First | Step::Next) | None => 0,
                    Some(Step::Repeat) => {
                        applied.repeated += 1;
                        continue;
                    }
                };
                stream.last_digest = digest;
                stream.hole(update, before.saturating_add(1), &mut applied);
                stream.mark(update, times);
            }
        });
        applied
    }
}

impl RankStream {
    /// Takes a batch, or lets it wait: then it is pending.
    fn receive(
        &mut self,
        update: &mut Update<'_>,
        live: LiveBatch,
        pend: impl FnOnce() -> PendingEvents,
        times: Times,
        applied: &mut Applied,
    ) {
        let LiveBatch { sequence, batch, digest, bytes } = live;
        let Some(sequence) = sequence else {
            // Without a number nothing shows what came before.
            if self.knowledge() == Knowledge::Unknown {
                self.begin_life(update, false, applied);
            }
            self.doubt();
            self.apply_events(update, &batch, times, applied);
            return;
        };
        let numbered = NumberedBatch { sequence, digest, batch };
        if self.is_recovering() && self.source.replays {
            self.wait(update, numbered, (times, bytes, pend()), applied);
            return;
        }
        match self.stands(sequence, times) {
            Continuity::Repeated => applied.repeated += 1,
            Continuity::InTurn => self.take_batch(update, numbered, times, applied),
            Continuity::Starts => {
                self.begin_life(update, true, applied);
                self.take_batch(update, numbered, times, applied);
            }
            continuity @ (Continuity::Behind | Continuity::Joins) => {
                let joins = matches!(continuity, Continuity::Joins);
                if self.source.replays {
                    self.recover(update, joins, times, applied);
                    self.wait(update, numbered, (times, bytes, pend()), applied);
                    return;
                }
                if joins {
                    self.begin_life(update, false, applied);
                }
                self.take_unproven(update, numbered, times, applied);
            }
        }
    }

    fn stands(&self, sequence: u64, times: Times) -> Continuity {
        let starts = if sequence == 0 { Continuity::Starts } else { Continuity::Joins };
        match self.cursor.step(sequence) {
            Step::First if !self.is_silent() => starts,
            Step::First if sequence > 0 => Continuity::Behind,
            Step::First => Continuity::InTurn,
            Step::Next if !self.is_older(times) => Continuity::InTurn,
            Step::Next | Step::Gap { .. } => Continuity::Behind,
            // A number that falls back with a later time: another process. With an earlier one: a repeat.
            Step::Repeat if times.published_at_ms > Some(self.newest_batch.published_at_ms) => starts,
            Step::Repeat => Continuity::Repeated,
        }
    }

    /// Whether a batch was published before another that was taken a short while ago. After a while it is the engine's
    /// clock that was set back.
    pub(super) fn is_older(&self, times: Times) -> bool {
        let newest = self.newest_batch;
        times.published_at_ms < Some(newest.published_at_ms) && times.steady_ms < newest.taken_ms + LATE_MS
    }

    /// Takes a batch that nothing vouches for. Of an older one than the last the number is taken, and what it says is not
    /// believed.
    pub(super) fn take_unproven(
        &mut self,
        update: &mut Update<'_>,
        numbered: NumberedBatch,
        times: Times,
        applied: &mut Applied,
    ) {
        if self.is_older(times) {
            let in_turn = self.cursor.step(numbered.sequence) == Step::Next;
            if in_turn {
                self.hole(update, 1, applied);
            }
            let nothing = NumberedBatch { batch: Batch::default(), ..numbered };
            self.take_batch(update, nothing, times, applied);
        } else {
            self.take_batch(update, numbered, times, applied);
        }
    }

    /// Whether the engine is known to have published nothing so far.
    pub(super) fn is_silent(&self) -> bool {
        self.knowledge() == Knowledge::Complete && self.has_had_nothing()
    }

    /// Takes a batch that was not taken before. What is missing in front of it is lost.
    pub(super) fn take_batch(
        &mut self,
        update: &mut Update<'_>,
        numbered: NumberedBatch,
        times: Times,
        applied: &mut Applied,
    ) {
        let NumberedBatch { sequence, digest, batch } = numbered;
        self.advance(update, sequence, 0, applied);
        let published_at_ms = times.published_at_ms.unwrap_or(0);
        if published_at_ms >= self.newest_batch.published_at_ms || !self.is_older(times) {
            self.newest_batch = NewestBatch::of(published_at_ms, times);
        }
        self.last_digest = digest;
        self.apply_events(update, &batch, times, applied);
    }

    fn apply_events(&mut self, update: &mut Update<'_>, batch: &Batch, times: Times, applied: &mut Applied) {
        self.learn_windows(update, &batch.windows);
        for event in &batch.events {
            self.apply(update, event, applied);
        }
        self.mark(update, times);
    }

    /// The windows that are configured, and those that events have stated.
    pub(super) fn all_windows(&self) -> Vec<Window> {
        self.configured_windows.iter().chain(&self.windows).copied().collect()
    }

    /// Takes over the windows that events state, for groups of which none is configured.
    fn learn_windows(&mut self, update: &mut Update<'_>, stated: &[Window]) {
        let mut learned = false;
        let configured = |group| self.configured_windows.iter().any(|window| window.group == group);
        for window in stated.iter().filter(|window| !configured(window.group)) {
            if !self.windows.contains(window) {
                self.windows.retain(|other| other.group != window.group);
                self.windows.push(*window);
                learned = true;
            }
        }
        if learned {
            update.set_windows(self.slot, self.all_windows());
        }
    }
}

/// Seconds since the Unix epoch as whole milliseconds; 0 for what is no such time.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates, and NaN becomes 0"
)]
pub(super) fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1000.0) as u64
}
