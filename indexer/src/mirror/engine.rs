//! An engine's own batches: a process is a life, and its batches are numbered from 0.

use kvtide_events::{Batch, Step};
use kvtide_radix::{Knowledge, Update, Window};

use super::{Applied, Mirror, Refusal, claim, rank::RankStream};
use crate::stream::EngineStream;

impl Mirror {
    /// Applies a batch, as one version. `sequence` is its number, if it came with one.
    pub(crate) fn apply_batch(
        &mut self,
        source: u32,
        stream: &EngineStream,
        sequence: Option<u64>,
        batch: &Batch,
    ) -> Applied {
        let mut applied = Applied { ignored: batch.ignored.len() as u64, ..Applied::default() };
        if let (Some(ours), Some(theirs)) = (stream.dp_rank, batch.dp_rank) {
            applied.other_dp_rank += u64::from(ours != theirs);
        }
        let rank = stream.rank(batch);
        let published_at_ms = milliseconds(batch.published_at_s);
        let times = self.times(Some(published_at_ms));
        if self.is_refused(rank, source) {
            applied.refuse(Refusal::OtherSource, batch.events.len());
            return applied;
        }
        let ranks = &mut self.ranks;
        self.writer.update(|update| {
            let state = match claim(ranks, update, rank, source, || stream.rank_settings()) {
                Ok(state) => state,
                Err(refusal) => return applied.refuse(refusal, batch.events.len()),
            };
            if !state.take_batch(update, sequence, published_at_ms, &mut applied) {
                return;
            }
            state.learn_windows(update, stream, &batch.windows);
            for event in &batch.events {
                state.apply(update, event, &mut applied);
            }
            state.mark(update, times);
        });
        applied
    }

    /// A batch came that does not decode: its rank, which only the batch may have named, has a hole.
    pub(crate) fn lose_batch(&mut self, source: u32, sequence: Option<u64>) -> Applied {
        let mut applied = Applied::default();
        let times = self.times(None);
        let mut streams: Vec<_> = self.ranks.values_mut().filter(|stream| stream.source == source).collect();
        if streams.is_empty() {
            return applied;
        }
        self.writer.update(|update| {
            for stream in &mut streams {
                let before = match sequence.map(|sequence| stream.cursor.take(sequence)) {
                    Some(Step::Gap { missing }) => missing,
                    Some(Step::First | Step::Next | Step::Repeat) | None => 0,
                };
                stream.hole(update, before.saturating_add(1), &mut applied);
                stream.mark(update, times);
            }
        });
        applied
    }
}

impl RankStream {
    /// Settles whether a batch continues the rank's stream, and whether it starts a new life.
    fn take_batch(
        &mut self,
        update: &mut Update<'_>,
        sequence: Option<u64>,
        published_at_ms: u64,
        applied: &mut Applied,
    ) -> bool {
        let last_published_at_ms = std::mem::replace(&mut self.last_batch_at_ms, published_at_ms);
        let Some(sequence) = sequence else {
            // Without a number nothing shows what came before.
            if self.knowledge() == Knowledge::Unknown {
                self.begin_life(update, false, applied);
            }
            self.doubt();
            return true;
        };
        let restarted = match self.cursor.step(sequence) {
            Step::First => true,
            // A number that falls back with a later time: another process. With an earlier one: a repeat.
            Step::Repeat => published_at_ms > last_published_at_ms,
            Step::Next | Step::Gap { .. } => false,
        };
        if restarted {
            self.begin_life(update, sequence == 0, applied);
        }
        let taken = self.advance(update, sequence, 0, applied);
        if !taken {
            self.last_batch_at_ms = last_published_at_ms;
        }
        taken
    }

    /// Takes over the windows that events state, for groups of which none is configured.
    fn learn_windows(&mut self, update: &mut Update<'_>, stream: &EngineStream, stated: &[Window]) {
        let mut learned = false;
        for window in stated.iter().filter(|window| !stream.states_window(window.group)) {
            if !self.windows.contains(window) {
                self.windows.retain(|other| other.group != window.group);
                self.windows.push(*window);
                learned = true;
            }
        }
        if learned {
            let windows = stream.windows.iter().chain(&self.windows).copied().collect();
            update.set_windows(self.slot, windows);
        }
    }
}

/// Seconds since the Unix epoch as whole milliseconds; 0 for what is no such time.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates, and NaN becomes 0"
)]
fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1000.0) as u64
}
