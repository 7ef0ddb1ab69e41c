//! Batches that an engine does not keep any more, and that another kvtide may have taken: what the engine does keep waits,
//! until one tells what it has come to.

use std::collections::BTreeMap;

use kvtide_radix::{Rank, Update};

use super::{
    Applied, Mirror, Times,
    engine::{NewestBatch, NumberedBatch, milliseconds},
    handover::Told,
    rank::RankStream,
    replay::{PATIENCE_MS, Recovery, ReplayedBatch, Waiting},
    saved::{SavedMirror, SavedStream},
};

/// An engine has so long to answer before others are asked too.
const ENGINE_FIRST_MS: u64 = 1000;

impl Mirror {
    /// Goes on with what another kvtide has told of an engine's rank, and then with the batches that have waited; if it has
    /// taken one of these last, and so has followed the same process.
    pub(super) fn take_over_rank(&mut self, rank: Rank, saved: &SavedMirror) -> Option<(u32, Applied)> {
        let times = self.times(None);
        let told = saved.rank(rank)?;
        let (last, digest) = (told.stream.last?, told.stream.last_digest);
        let stream = self.ranks.get_mut(rank)?;
        let doubts = stream.doubts;
        let waits = |one: &Waiting| {
            (one.numbered.sequence, one.numbered.digest, one.doubts) == (last, digest, doubts)
        };
        stream.recovery.as_ref().filter(|recovery| recovery.waiting.iter().any(waits))?;
        let mut applied = Applied::default();
        self.writer.update(|update| stream.take_over_batches(update, &told, times, &mut applied));
        Some((stream.source.id, applied))
    }
}

impl RankStream {
    /// Lets an engine's answer wait, in front of what has come meanwhile.
    pub(super) fn let_all_wait(
        &mut self,
        update: &mut Update<'_>,
        batches: Vec<ReplayedBatch>,
        times: Times,
        applied: &mut Applied,
    ) {
        let (taken, doubts) = (self.cursor.last(), self.doubts);
        if !self.is_recovering() {
            self.recover(update, false, times, applied);
        }
        let Some(recovery) = &mut self.recovery else { return };
        recovery.not_kept = true;
        // If it turns out to be lost, it is so although the numbers follow each other.
        let first = batches.first().map(|first| first.sequence);
        recovery.unproven |= taken.is_some_and(|taken| first == Some(taken + 1));
        let mut waiting: BTreeMap<u64, Waiting> = BTreeMap::new();
        // One that does not decode is missing there.
        for ReplayedBatch { sequence, digest, bytes, batch } in batches {
            if let Some(batch) = batch.filter(|_| Some(sequence) > taken) {
                let times = Times { published_at_ms: Some(milliseconds(batch.published_at_s)), ..times };
                let numbered = NumberedBatch { sequence, digest, batch };
                waiting.insert(sequence, Waiting { numbered, times, bytes, doubts, _pending: None });
            }
        }
        // What has come by itself on this connection is the same, and pending; or it was another process'.
        let newest = waiting.last_key_value().map(|(&number, last)| (number, last.times.published_at_ms));
        let came = std::mem::take(&mut recovery.waiting).into_iter().filter(|one| one.doubts == doubts);
        for one in came {
            let number = one.numbered.sequence;
            let belongs = match waiting.get(&number) {
                Some(answered) => answered.numbered.digest == one.numbered.digest,
                None => {
                    newest.is_none_or(|(last, at_ms)| number > last && one.times.published_at_ms >= at_ms)
                }
            };
            if belongs {
                waiting.insert(number, one);
            }
        }
        recovery.waiting = waiting.into_values().collect();
        recovery.bytes = recovery.waiting.iter().map(|waiting| waiting.bytes).sum();
        if recovery.is_full() {
            self.give_up(update, applied);
        }
    }

    /// Whether another kvtide should be asked: the engine does not keep what is missing, or does not answer.
    pub(super) fn wants_a_peer(&self, now_ms: u64) -> bool {
        let wants = |recovery: &Recovery| {
            let engine_had_time = now_ms + PATIENCE_MS >= recovery.until_ms + ENGINE_FIRST_MS;
            !recovery.waiting.is_empty() && (recovery.not_kept || engine_had_time)
        };
        self.source.has_peers && self.source.replays && self.recovery.as_ref().is_some_and(wants)
    }

    /// Goes on with what another kvtide has told that has followed the same process.
    fn take_over_batches(
        &mut self,
        update: &mut Update<'_>,
        told: &Told<'_>,
        times: Times,
        applied: &mut Applied,
    ) {
        let &SavedStream { last, last_digest, newest_published_at_ms, ref windows, .. } = told.stream;
        let Some(recovery) = self.recovery.take() else { return };
        if self.cursor.last().is_none() {
            self.begin_life(update, false, applied);
        }
        if self.adopt(update, told) {
            self.last_digest = last_digest;
            self.newest_batch = NewestBatch::of(newest_published_at_ms, times);
            self.windows.clone_from(windows);
            update.set_windows(self.slot, self.all_windows());
        } else {
            self.cursor.take(last.unwrap_or(0));
            self.hole(update, 1, applied);
        }
        self.recovery = Some(Recovery { unproven: false, ..recovery });
        self.end_waiting(update, applied);
        self.mark(update, times);
    }
}
