//! One rank's stream: which life it is in, how far it is applied, and what that makes of its numbers.
//!
//! The table of docs/freshness.md; what a rank does that waits for something missing is in `replay.rs`.

use kvtide_events::{Cursor, Step};
use kvtide_radix::{Event, Knowledge, Life, RankSlot, Tier, Update, Watermark, Window};

use super::{Applied, Source, Times, claims::Claims, engine::NewestBatch, expiry::Marks, replay::Recovery};
use crate::{GapPolicy, freshness::BestLag};

/// Where a rank's stream stands.
pub(crate) struct RankStream {
    pub(super) slot: RankSlot,
    /// The one stream that feeds the rank.
    pub(super) source: Source,
    /// Events (Dynamo, in process) or batches (engines) of this life.
    pub(super) cursor: Cursor,
    pub(super) claims: Claims,
    /// The batch of this life that was published last.
    pub(super) newest_batch: NewestBatch,
    /// What tells the batch that was taken last from another of its number.
    pub(super) last_digest: u64,
    /// How often the connection to its engine was made anew.
    pub(super) doubts: u64,
    /// Windows that are configured, and those that the rank's events have stated.
    pub(super) configured_windows: Vec<Window>,
    pub(super) windows: Vec<Window>,
    /// When blocks came that wait for a parent or a name.
    pub(super) parked_marks: Marks,
    /// Something is missing that may still come.
    pub(super) recovery: Option<Recovery>,
    watermark: Watermark,
    /// What was lost before then would have shown: an event came in order, or the worker was asked what it has published.
    in_order_at_ms: Option<u64>,
    best_lag: BestLag,
    /// Something was taken that the watermark does not show yet.
    taken: bool,
    /// Messages that did not decode, each counted as one event missing, until the next number says how many they held.
    unreadable: u64,
    /// A tier below the GPU was used in this life, so that a clear leaves open what it cleared.
    lower_tier_used: bool,
}

impl RankStream {
    pub(super) fn new(
        slot: RankSlot,
        source: Source,
        life: Life,
        configured_windows: Vec<Window>,
    ) -> RankStream {
        RankStream {
            slot,
            source,
            cursor: Cursor::default(),
            claims: Claims::default(),
            newest_batch: NewestBatch::default(),
            last_digest: 0,
            doubts: 0,
            configured_windows,
            windows: Vec::new(),
            parked_marks: Marks::default(),
            recovery: None,
            watermark: Watermark { life, ..Watermark::default() },
            in_order_at_ms: None,
            best_lag: BestLag::default(),
            taken: false,
            unreadable: 0,
            lower_tier_used: false,
        }
    }

    /// What is known of the life so far, whether or not something is being recovered.
    pub(super) fn knowledge(&self) -> Knowledge {
        self.watermark.knowledge
    }

    /// When something last came from the rank's publisher.
    pub(super) fn heard_ms(&self) -> Option<u64> {
        self.watermark.heard_at_ms
    }

    /// Something came from the rank's publisher, new or not.
    pub(super) fn hear(&mut self, times: Times) {
        self.watermark.heard_at_ms = Some(times.steady_ms);
    }

    /// What was waited for is of no use any more. An engine's rank waits for its answer in any case.
    fn end_recovery(&mut self) {
        if !self.source.replays {
            self.recovery = None;
        }
    }

    pub(super) fn lower_tier_used(&self) -> bool {
        self.lower_tier_used
    }

    /// Takes over what another process has known. Its clock says nothing here.
    pub(super) fn restore_watermark(
        &mut self,
        knowledge: Knowledge,
        saved: &Watermark,
        lower_tier_used: bool,
        now_ms: u64,
    ) {
        let Watermark { life, last_event_id, missing_events, .. } = *saved;
        // As good as heard: it has as long to speak as any other before it has gone.
        let heard_at_ms = Some(now_ms);
        self.watermark =
            Watermark { life, knowledge, last_event_id, missing_events, heard_at_ms, ..Watermark::default() };
        self.lower_tier_used = lower_tier_used;
    }

    /// Whether no life is known to have begun since the rank's publisher is known.
    pub(super) fn is_unbegun(&self) -> bool {
        self.knowledge() == Knowledge::Unknown && !self.watermark.conflict
    }

    /// Whether what was lost before then would have shown since.
    pub(super) fn was_in_order_since(&self, when_ms: u64) -> bool {
        self.in_order_at_ms > Some(when_ms)
    }

    /// Whether nothing was taken in this life so far.
    pub(super) fn has_had_nothing(&self) -> bool {
        self.watermark.applied_at_ms.is_none()
    }

    pub(super) fn life(&self) -> Life {
        self.watermark.life
    }

    /// A new life of the rank's publisher: nothing of the old one is left. It is known whole if it is seen from its
    /// first event on.
    pub(super) fn begin_life(&mut self, update: &mut Update<'_>, whole: bool, applied: &mut Applied) {
        update.forget(self.slot);
        self.end_recovery();
        (self.cursor, self.in_order_at_ms) = (Cursor::default(), None);
        self.best_lag = BestLag::default();
        self.unreadable = 0;
        self.newest_batch = NewestBatch::default();
        self.lower_tier_used = false;
        self.watermark = Watermark {
            life: Life(self.watermark.life.0 + 1),
            knowledge: if whole { Knowledge::Complete } else { Knowledge::Partial },
            heard_at_ms: self.watermark.heard_at_ms,
            ..Watermark::default()
        };
        applied.lives += 1;
    }

    /// Nothing about the rank can be trusted: its blocks go, and nothing is known.
    pub(super) fn lose(&mut self, update: &mut Update<'_>) {
        update.forget(self.slot);
        self.end_recovery();
        self.watermark.knowledge = Knowledge::Unknown;
    }

    /// Its publisher has gone, or is another one of which nothing has come yet.
    pub(super) fn await_life(&mut self, update: &mut Update<'_>) {
        self.lose(update);
        (self.recovery, self.cursor, self.unreadable) = (None, Cursor::default(), 0);
        self.in_order_at_ms = None;
        let Watermark { life, heard_at_ms, .. } = self.watermark;
        self.watermark = Watermark { life, heard_at_ms, ..Watermark::default() };
        self.show(update);
    }

    /// Two live publishers claim the rank. It lasts until a new life begins.
    pub(super) fn conflict(&mut self) {
        self.watermark.conflict = true;
    }

    /// Something is lost and nothing can bring it back: what is held is not known any more, so that it is forgotten,
    /// and what comes from here on is a lower bound; or it is kept, if the stream wants that.
    pub(super) fn hole(&mut self, update: &mut Update<'_>, missing: u64, applied: &mut Applied) {
        self.end_recovery();
        match (self.source.gap_policy, self.knowledge()) {
            // Two publishers claim the rank: nothing is known, hole or not.
            (_, Knowledge::Unknown) => {}
            (GapPolicy::Keep, _) => self.watermark.knowledge = Knowledge::Gap,
            (GapPolicy::Forget, _) => {
                update.forget(self.slot);
                self.watermark.knowledge = Knowledge::Partial;
            }
        }
        self.miss(missing, applied);
        applied.holes += 1;
    }

    /// Messages of the rank came that do not decode.
    pub(super) fn lose_messages(&mut self, update: &mut Update<'_>, lost: u64, applied: &mut Applied) {
        self.unreadable += lost;
        self.hole(update, lost, applied);
    }

    /// Goes on where another process has come to in the same life.
    pub(super) fn go_on(&mut self, knowledge: Knowledge, last: Option<u64>, lower_tier_used: bool) {
        self.cursor = Cursor::at(last);
        self.watermark.knowledge = knowledge;
        self.lower_tier_used = lower_tier_used;
        (self.recovery, self.unreadable) = (None, 0);
        // When the newest event of it came, only the other one knows: it is not new here, unless nothing was.
        self.taken |= self.has_had_nothing();
    }

    /// Goes on behind an event that its worker has told.
    pub(super) fn go_on_from(&mut self, knowledge: Knowledge, last: u64) {
        self.cursor = Cursor::at(Some(last));
        self.watermark.knowledge = knowledge;
        self.unreadable = 0;
    }

    /// A tier below the GPU may have been used.
    pub(super) fn use_lower_tiers(&mut self) {
        self.lower_tier_used = true;
    }

    /// Numbers are as a sender states them: sums of them may be anything.
    fn miss(&mut self, missing: u64, applied: &mut Applied) {
        self.watermark.missing_events = self.watermark.missing_events.saturating_add(missing);
        applied.missing = applied.missing.saturating_add(missing);
    }

    /// Something comes without a number, so that nothing shows what came before it: a lower bound from here on.
    pub(super) fn doubt(&mut self) {
        if self.watermark.knowledge == Knowledge::Complete {
            self.watermark.knowledge = Knowledge::Partial;
        }
    }

    /// Takes the number of the next event or batch. `lost` are frames that are known to be missing in front of it.
    /// Whether it is to be applied.
    pub(super) fn advance(
        &mut self,
        update: &mut Update<'_>,
        number: u64,
        lost: u64,
        applied: &mut Applied,
    ) -> bool {
        let step = self.cursor.take(number);
        if step == Step::Repeat {
            applied.repeated += 1;
            return false;
        }
        self.taken = true;
        // The stream has shown whether it goes on.
        if !self.recovery.as_ref().is_some_and(Recovery::is_of_peers) {
            self.end_recovery();
        }
        let unreadable = std::mem::take(&mut self.unreadable);
        match step {
            // What is missing is what did not decode, whose hole is made already.
            Step::Gap { missing } if unreadable > 0 && lost == 0 => {
                self.miss(missing.saturating_sub(unreadable), applied);
            }
            Step::Gap { missing } => self.hole(update, missing, applied),
            Step::First | Step::Next if lost > 0 => self.hole(update, lost, applied),
            Step::First | Step::Next | Step::Repeat => {}
        }
        true
    }

    pub(super) fn apply(&mut self, update: &mut Update<'_>, event: &Event, applied: &mut Applied) {
        let outcome = update.apply(self.slot, event);
        self.taken = true;
        applied.events += 1;
        applied.add_blocks(outcome);
        if outcome.dropped > 0 && self.watermark.knowledge == Knowledge::Complete {
            self.hole(update, 0, applied);
        }
        match event {
            Event::Stored(stored) => self.lower_tier_used |= stored.layer.tier() != Tier::Gpu,
            Event::Removed(removed) => self.lower_tier_used |= removed.layer.tier() != Tier::Gpu,
            Event::Cleared => {
                let whole = !self.lower_tier_used;
                self.watermark.knowledge = if whole { Knowledge::Complete } else { Knowledge::Partial };
            }
        }
    }

    /// Everything that was published until then is applied.
    pub(super) fn verify(&mut self, until_ms: u64) {
        self.watermark.verified_at_ms = self.watermark.verified_at_ms.max(Some(until_ms));
    }

    /// Its worker has told everything that it had published when it was asked, perhaps newer events than any before.
    pub(super) fn prove(&mut self, asked_at_ms: u64, times: Times, is_newer: bool) {
        self.verify(asked_at_ms);
        self.in_order_at_ms = self.in_order_at_ms.max(Some(asked_at_ms));
        self.taken = is_newer;
        self.hear(times);
    }

    /// Everything that was published until then has come, if nothing could be lost since `doubted_ms` without a later
    /// event showing it.
    pub(super) fn vouch(&mut self, update: &mut Update<'_>, until_ms: u64, doubted_ms: Option<u64>) {
        let lived = self.watermark.life > Life(0) && self.knowledge() != Knowledge::Unknown;
        let in_order = doubted_ms.is_none_or(|doubted| self.was_in_order_since(doubted));
        if lived && in_order && self.recovery.is_none() {
            self.verify(until_ms);
            self.show(update);
        }
    }

    /// Publishes where the stream stands now. Its times are those of the newest event taken: what only repeats, or
    /// shows a loss, does not move them.
    pub(super) fn mark(&mut self, update: &mut Update<'_>, times: Times) {
        if self.taken {
            self.in_order_at_ms = self.in_order_at_ms.max(Some(times.steady_ms));
        }
        self.mark_told(update, times);
    }

    /// The same behind what somebody else has told, who may not have known yet what was lost meanwhile.
    pub(super) fn mark_told(&mut self, update: &mut Update<'_>, times: Times) {
        self.watermark.last_event_id = self.cursor.last();
        if std::mem::take(&mut self.taken) {
            self.hear(times);
            self.watermark.applied_at_ms = Some(times.steady_ms);
            if let Some(published) = times.published_at_ms {
                let lag = times.wall_ms.cast_signed().saturating_sub(published.cast_signed());
                self.watermark.lag_ms = Some(lag);
                self.watermark.best_lag_ms = Some(self.best_lag.note(times.steady_ms, lag));
            }
        }
        self.show(update);
    }

    /// Publishes what is known of the stream.
    pub(super) fn show(&self, update: &mut Update<'_>) {
        let knowledge =
            if self.recovery.is_some() { Knowledge::Recovering } else { self.watermark.knowledge };
        update.mark(self.slot, Watermark { knowledge, ..self.watermark });
    }
}
