//! A rank that has missed batches which its engine still has: its blocks stay as they were, and what comes meanwhile waits,
//! until the engine's answer closes the gap or there is none in time.

use std::collections::VecDeque;

use kvtide_events::{Batch, Step};
use kvtide_radix::{Knowledge, Life, Rank, Update};

use super::{
    Applied, Mirror, Source, Times, WAITING, WAITING_BYTES,
    engine::{NumberedBatch, milliseconds},
    rank::RankStream,
    saved,
};
use crate::{pending::PendingEvents, stream::EngineStream};

/// A rank waits for so long; then what is missing is lost.
pub(super) const PATIENCE_MS: u64 = 10_000;

/// What to ask an engine for: its batches from a number on. The answer goes to
/// [`Indexer::apply_replay`](crate::Indexer::apply_replay).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplayRequest {
    /// The first batch to ask for: the last one that was taken, which shows that it is still the same process, or 0.
    pub from: u64,
    /// The batch that was taken last, and its digest.
    last: Option<(u64, u64)>,
    life: Life,
    /// How often the connection had been made anew: an answer to an earlier question may be another process'.
    doubts: u64,
    asked_at_ms: u64,
}

/// One batch of an engine's answer.
pub(crate) struct ReplayedBatch {
    pub(crate) sequence: u64,
    pub(crate) digest: u64,
    /// Length of its payload.
    pub(crate) bytes: usize,
    /// None where it does not decode.
    pub(crate) batch: Option<Batch>,
}

/// A batch that waits for those in front of it.
pub(super) struct Waiting {
    pub(super) numbered: NumberedBatch,
    pub(super) times: Times,
    pub(super) bytes: usize,
    /// How often the connection had been made anew when it came.
    pub(super) doubts: u64,
    /// Its events are pending for as long as it waits, if it came by itself.
    pub(super) _pending: Option<PendingEvents>,
}

/// What a rank waits with.
pub(super) struct Recovery {
    pub(super) waiting: VecDeque<Waiting>,
    pub(super) bytes: usize,
    pub(super) until_ms: u64,
    /// Nothing is known to be missing, and nothing shows yet that the stream goes on.
    pub(super) unproven: bool,
    /// The engine has answered, and does not keep what is missing any more.
    pub(super) not_kept: bool,
}

impl Recovery {
    fn of_missed(now_ms: u64) -> Recovery {
        let until_ms = now_ms + PATIENCE_MS;
        Recovery { waiting: VecDeque::new(), bytes: 0, until_ms, unproven: false, not_kept: false }
    }

    /// Whether more waits than may.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() > WAITING || self.bytes > WAITING_BYTES
    }

    /// That of a rank whose publisher's frames wait for what other kvtides have to tell. It ends with them.
    pub(super) fn of_peers() -> Recovery {
        Recovery { until_ms: u64::MAX, ..Recovery::of_missed(0) }
    }

    pub(super) fn is_of_peers(&self) -> bool {
        self.until_ms == u64::MAX
    }

    /// That of a rank which was written down, and whose stream has to prove that it goes on.
    pub(super) fn of_saved(now_ms: u64) -> Recovery {
        Recovery { until_ms: now_ms + saved::PATIENCE_MS, unproven: true, ..Recovery::of_missed(now_ms) }
    }
}

/// What an engine's answer says about the life that it was asked about.
enum Verdict {
    /// It goes on.
    Continues,
    /// It is that of another process.
    Ended,
    /// The batch that was taken last is not there any more, so that others may be lost and nothing shows whether it is
    /// still the same process.
    Unproven,
    /// Nothing was known before, and this is all that there is, from its first batch on or not.
    Begins { whole: bool },
}

impl Mirror {
    /// What to ask a stream's engine for, so that everything that it has published until now is applied.
    pub(crate) fn replay_request(&self, source: Source) -> ReplayRequest {
        let known = self.ranks.of(source).map(|(_, stream)| stream).max_by_key(|stream| stream.heard_ms());
        let last = known.and_then(|stream| Some((stream.cursor.last()?, stream.last_digest)));
        ReplayRequest {
            from: last.map_or(0, |(sequence, _)| sequence),
            last,
            life: known.map_or(Life(0), RankStream::life),
            doubts: known.map_or(0, |stream| stream.doubts),
            asked_at_ms: self.clock.steady_ms(),
        }
    }

    /// Whether a rank of the stream waits for what it has missed and its engine may still keep.
    pub(crate) fn is_recovering(&self, source: Source) -> bool {
        let waits = |stream: &RankStream| stream.recovery.as_ref().is_some_and(|recovery| !recovery.not_kept);
        self.ranks.of(source).any(|(_, stream)| waits(stream))
    }

    /// Nothing shows any more that the stream's engine is still the same process.
    pub(crate) fn doubt(&mut self, source: Source) -> Applied {
        let mut applied = Applied::default();
        let now_ms = self.clock.steady_ms();
        let ranks = &mut self.ranks;
        let mut doubted = Vec::new();
        for stream in ranks.of_mut(source).filter(|stream| stream.source.replays) {
            stream.doubts += 1;
            if stream.knowledge() != Knowledge::Unknown && !stream.is_recovering() {
                doubted.push(stream);
            }
        }
        if !doubted.is_empty() {
            self.writer.update(|update| {
                for stream in &mut doubted {
                    stream.recovery = Some(Recovery { unproven: true, ..Recovery::of_missed(now_ms) });
                    stream.show(update);
                    applied.recoveries += 1;
                }
            });
        }
        applied
    }

    /// Applies an engine's answer, as one version.
    pub(crate) fn apply_replay(
        &mut self,
        source: Source,
        stream: &EngineStream,
        request: ReplayRequest,
        batches: Vec<ReplayedBatch>,
    ) -> Applied {
        let mut applied = Applied::default();
        let times = self.times(None);
        let Some(rank) = self.replayed_rank(source, stream, &batches) else { return applied };
        let ranks = &mut self.ranks;
        self.writer.update(|update| match ranks.claim(update, rank, source, || stream.rank_settings()) {
            Ok(state) => state.take_replay(update, request, batches, times, &mut applied),
            Err(refusal) => applied.refuse(refusal, batches.len()),
        });
        applied
    }

    /// Whose answer it is. Of an engine that has published nothing only the configuration can tell.
    fn replayed_rank(
        &self,
        source: Source,
        stream: &EngineStream,
        batches: &[ReplayedBatch],
    ) -> Option<Rank> {
        let known = self.ranks.of(source).next();
        let named = || batches.iter().find_map(|replayed| Some(stream.rank(replayed.batch.as_ref()?)));
        let configured = || Some(Rank { worker_id: stream.worker_id, dp_rank: stream.dp_rank? });
        named().or_else(|| known.map(|(rank, _)| rank)).or_else(configured)
    }

    /// Gives up on answers that have not come in time. Returns what that did, by source.
    pub(super) fn give_up_overdue(&mut self) -> Vec<(u32, Applied)> {
        let now_ms = self.clock.steady_ms();
        let overdue = self.ranks.iter_mut().filter(|state| state.is_overdue(now_ms));
        overdue
            .map(|state| {
                let mut applied = Applied::default();
                self.writer.update(|update| state.give_up(update, &mut applied));
                (state.source.id, applied)
            })
            .collect()
    }
}

impl RankStream {
    pub(super) fn is_recovering(&self) -> bool {
        self.recovery.is_some()
    }

    fn is_overdue(&self, now_ms: u64) -> bool {
        self.recovery.as_ref().is_some_and(|recovery| recovery.until_ms <= now_ms)
    }

    /// Something is missing that can be asked for. With `anew` it is another life, of which nothing is known yet, so that
    /// what is held of the old one goes.
    pub(super) fn recover(
        &mut self,
        update: &mut Update<'_>,
        anew: bool,
        times: Times,
        applied: &mut Applied,
    ) {
        if anew {
            self.lose(update);
            self.cursor = kvtide_events::Cursor::default();
        }
        self.recovery = Some(Recovery::of_missed(times.steady_ms));
        applied.recoveries += 1;
        self.mark(update, times);
    }

    /// Lets a batch wait for those in front of it.
    pub(super) fn wait(
        &mut self,
        update: &mut Update<'_>,
        numbered: NumberedBatch,
        (times, bytes, pending): (Times, usize, PendingEvents),
        applied: &mut Applied,
    ) {
        // Of the process that is asked nothing was taken yet: this is one that has gone.
        if self.cursor.last().is_none() && self.is_older(times) {
            applied.repeated += 1;
            return;
        }
        let taken = self.cursor.last().map(|last| (last, Some(self.newest_batch.published_at_ms)));
        let Some(recovery) = &mut self.recovery else { return };
        let waiting =
            recovery.waiting.back().map(|last| (last.numbered.sequence, last.times.published_at_ms));
        if let Some((last, published_at_ms)) = waiting.or(taken)
            && numbered.sequence <= last
        {
            if times.published_at_ms <= published_at_ms {
                applied.repeated += 1;
                return;
            }
            // The engine has started again meanwhile.
            self.recovery = None;
            if numbered.sequence == 0 {
                self.begin_life(update, true, applied);
                self.take_batch(update, numbered, times, applied);
                return;
            }
            self.recover(update, true, times, applied);
            return self.wait(update, numbered, (times, bytes, pending), applied);
        }
        applied.waiting += 1;
        recovery.bytes += bytes;
        let doubts = self.doubts;
        recovery.waiting.push_back(Waiting { numbered, times, bytes, doubts, _pending: Some(pending) });
        if recovery.is_full() {
            self.give_up(update, applied);
        }
    }

    /// What is missing will not come: it is lost, and what has waited is applied.
    pub(super) fn give_up(&mut self, update: &mut Update<'_>, applied: &mut Applied) {
        let Some(recovery) = self.recovery.take() else { return };
        applied.given_up += 1;
        if recovery.unproven {
            self.hole(update, 0, applied);
        }
        if self.cursor.last().is_none() {
            let first = recovery.waiting.front();
            self.begin_life(update, first.is_some_and(|first| first.numbered.sequence == 0), applied);
        }
        for Waiting { numbered, times, .. } in recovery.waiting {
            if self.cursor.step(numbered.sequence) != Step::Repeat {
                self.take_unproven(update, numbered, times, applied);
            }
        }
        self.show(update);
    }

    fn take_replay(
        &mut self,
        update: &mut Update<'_>,
        request: ReplayRequest,
        batches: Vec<ReplayedBatch>,
        times: Times,
        applied: &mut Applied,
    ) {
        // It may be about a life that has ended since, or one that has begun, or from a connection that has.
        let same_life = request.life == self.life() && request.last.is_none() == self.cursor.last().is_none();
        if !same_life || request.doubts != self.doubts {
            return;
        }
        self.hear(times);
        let verdict = self.judge(request, &batches);
        let first = batches.first().map_or(0, |first| first.sequence);
        // Nothing in it is new here, or what came live has closed the gap meanwhile.
        let says_nothing = self
            .cursor
            .last()
            .is_some_and(|last| first <= last || (first == last + 1 && !self.is_recovering()));
        match verdict {
            Verdict::Ended => return self.recover(update, true, times, applied),
            Verdict::Begins { whole: false } if self.source.has_peers => {
                return self.let_all_wait(update, batches, times, applied);
            }
            Verdict::Begins { whole } => self.begin_life(update, whole, applied),
            Verdict::Unproven if says_nothing => return,
            // Others may know what the engine does not keep.
            Verdict::Unproven if self.source.has_peers => {
                return self.let_all_wait(update, batches, times, applied);
            }
            // Where numbers are left out, the first batch behind them shows it.
            Verdict::Unproven if self.cursor.step(first) == Step::Next => self.hole(update, 0, applied),
            Verdict::Unproven | Verdict::Continues => {}
        }
        for ReplayedBatch { sequence, digest, batch, .. } in batches {
            let Some(batch) = batch else {
                self.skip_unreadable(update, sequence, digest, applied);
                continue;
            };
            let times = Times { published_at_ms: Some(milliseconds(batch.published_at_s)), ..times };
            if self.cursor.step(sequence) != Step::Repeat {
                self.take_batch(update, NumberedBatch { sequence, digest, batch }, times, applied);
            }
        }
        self.end_waiting(update, applied);
        if !self.is_recovering() {
            self.verify(request.asked_at_ms);
        }
        self.mark(update, times);
    }

    fn judge(&self, request: ReplayRequest, batches: &[ReplayedBatch]) -> Verdict {
        let first = batches.first();
        let Some((last, digest)) = request.last else {
            let waits = self.recovery.as_ref().and_then(|recovery| recovery.waiting.front());
            let first = first.map(|first| first.sequence).or(waits.map(|first| first.numbered.sequence));
            let whole = first.is_none_or(|first| first == 0);
            return if whole && self.is_silent() { Verdict::Continues } else { Verdict::Begins { whole } };
        };
        // What was taken last since then tells most.
        let taken = batches.iter().find(|replayed| Some(replayed.sequence) == self.cursor.last());
        match (first, taken) {
            (_, Some(taken)) if taken.digest != self.last_digest => Verdict::Ended,
            (_, Some(_)) => Verdict::Continues,
            (Some(first), None) if first.sequence == last && first.digest == digest => Verdict::Continues,
            (Some(first), None) if first.sequence > last => Verdict::Unproven,
            (Some(_) | None, None) => Verdict::Ended,
        }
    }

    /// A batch that the engine has and that does not decode: what it said is lost.
    fn skip_unreadable(
        &mut self,
        update: &mut Update<'_>,
        sequence: u64,
        digest: u64,
        applied: &mut Applied,
    ) {
        if self.cursor.step(sequence) != Step::Repeat {
            self.advance(update, sequence, 0, applied);
            self.last_digest = digest;
            self.hole(update, 1, applied);
        }
    }

    /// Applies what has waited, up to where something is still missing.
    pub(super) fn end_waiting(&mut self, update: &mut Update<'_>, applied: &mut Applied) {
        let Some(mut recovery) = self.recovery.take() else { return };
        while let Some(next) = recovery.waiting.front() {
            let step = self.cursor.step(next.numbered.sequence);
            if step != Step::Repeat && (matches!(step, Step::Gap { .. }) || self.is_older(next.times)) {
                self.recovery = Some(recovery);
                return;
            }
            let Some(Waiting { numbered, times, bytes, .. }) = recovery.waiting.pop_front() else { break };
            recovery.bytes -= bytes;
            if step != Step::Repeat {
                self.take_batch(update, numbered, times, applied);
            }
        }
        applied.recovered += 1;
    }
}
