//! How old an answer's knowledge of a rank is.

use std::collections::VecDeque;

use kvtide_radix::Watermark;
use serde::{Deserialize, Serialize};

/// What is known of the age of a rank's numbers. Values that do not exist yet are none.
///
/// It says nothing of the age of the answer itself: that is [`Answer::collected_at_ms`](crate::Answer).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Freshness {
    /// Which life of its publisher the rank is in, from 1; 0 before the first.
    pub generation: u64,
    /// The last event taken in order: an event id (Dynamo) or a batch's sequence (engines).
    pub last_event_id: Option<u64>,
    /// Age of that event's arrival by our steady clock. An idle engine sends nothing, so that this alone cannot tell
    /// idle from dead.
    pub last_event_age_ms: Option<u64>,
    /// From the publisher's timestamp of that event to its being visible. Compares two machines' clocks and is
    /// negative where the publisher's is ahead.
    pub lag_ms: Option<i64>,
    /// How much that is above the smallest lag of the last minute, which tells being late from a clock that is off.
    pub lag_over_best_ms: Option<u64>,
    /// Events received and not yet visible.
    pub pending_events: u64,
    /// Events (Dynamo) or batches (engines) known lost in this life and not recovered.
    pub missing_events: u64,
    /// Age of the last proof that nothing was pending; none where no proof was ever made.
    pub verified_age_ms: Option<u64>,
}

impl Freshness {
    pub(crate) fn of(watermark: &Watermark, pending_events: u64, now_ms: u64) -> Freshness {
        let over_best =
            watermark.lag_ms.zip(watermark.best_lag_ms).map(|(lag, best)| lag.saturating_sub(best));
        Freshness {
            generation: watermark.life.0,
            last_event_id: watermark.last_event_id,
            last_event_age_ms: watermark.applied_at_ms.map(|applied| now_ms.saturating_sub(applied)),
            lag_ms: watermark.lag_ms,
            lag_over_best_ms: over_best.and_then(|over| u64::try_from(over).ok()),
            pending_events,
            missing_events: watermark.missing_events,
            verified_age_ms: None,
        }
    }
}

/// The smallest lag of the last minute.
#[derive(Debug, Default)]
pub(crate) struct BestLag {
    /// Time and lag, both growing: one that is older and larger than another can never be the smallest again.
    kept: VecDeque<(u64, i64)>,
}

const WINDOW_MS: u64 = 60_000;

impl BestLag {
    /// Notes a lag and returns the smallest of the last minute.
    pub(crate) fn note(&mut self, now_ms: u64, lag_ms: i64) -> i64 {
        while self.kept.back().is_some_and(|&(_, larger)| larger >= lag_ms) {
            self.kept.pop_back();
        }
        self.kept.push_back((now_ms, lag_ms));
        while self.kept.front().is_some_and(|&(when, _)| when + WINDOW_MS < now_ms) {
            self.kept.pop_front();
        }
        self.kept.front().map_or(lag_ms, |&(_, best)| best)
    }
}

#[cfg(test)]
mod tests {
    use super::BestLag;

    #[test]
    fn the_best_lag_is_that_of_the_last_minute() {
        let mut best = BestLag::default();
        assert_eq!(best.note(0, 5), 5);
        assert_eq!(best.note(10_000, 9), 5);
        assert_eq!(best.note(20_000, 7), 5);
        assert_eq!(best.note(60_000, 8), 5);
        assert_eq!(best.note(60_001, 8), 7);
        assert_eq!(best.note(80_001, 8), 8);
        assert_eq!(best.note(80_002, -3), -3);
    }
}
