//! How old an answer's knowledge of a rank is.

use std::collections::VecDeque;

use kvtide_radix::Watermark;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::KnowledgeState;

/// What is known of the age of a rank's numbers. Values that do not exist yet are none.
///
/// It says nothing of the age of the answer itself: that is [`Answer::collected_at_ms`](crate::Answer).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
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
            verified_age_ms: watermark.verified_at_ms.map(|verified| now_ms.saturating_sub(verified)),
        }
    }
}

/// How old and how incomplete a rank's numbers may be for a selector to go by them. What is not stated may be anything.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FreshnessLimits {
    /// The most that [`Freshness::lag_over_best_ms`] may be.
    pub lag_over_best_ms: Option<u64>,
    /// The most that [`Freshness::verified_age_ms`] may be. Where no proof was ever made, it is too much.
    pub verified_age_ms: Option<u64>,
    /// The most that [`Freshness::missing_events`] may be.
    pub missing_events: Option<u64>,
    /// States other than `complete` that are good enough. `unknown` never is: there is no number.
    pub knowledge: Vec<KnowledgeState>,
}

/// Why a rank's numbers are not to be gone by: the first limit that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unusable {
    /// What is known is not enough.
    #[error("knowledge is {got:?}")]
    Knowledge {
        /// What is known.
        got: KnowledgeState,
    },
    /// Too many events are lost.
    #[error("{got} events are missing, at most {limit} may be")]
    MissingEvents {
        /// How many are.
        got: u64,
        /// How many may be.
        limit: u64,
    },
    /// The last proof that nothing was pending is too old, or there is none.
    #[error("verified {got:?} ms ago, expected at most {limit}")]
    VerifiedAge {
        /// Its age.
        got: Option<u64>,
        /// The most that it may be.
        limit: u64,
    },
    /// The newest event took too long to become visible.
    #[error("{got} ms behind the best lag, at most {limit} may be")]
    Lag {
        /// How long beyond the best of the last minute.
        got: u64,
        /// The most that it may be.
        limit: u64,
    },
}

impl Freshness {
    /// Whether a selector may go by a rank's numbers, of which this is known.
    ///
    /// # Errors
    /// [`Unusable`]: the first limit that failed.
    pub fn usable(&self, knowledge: KnowledgeState, limits: &FreshnessLimits) -> Result<(), Unusable> {
        let enough = match knowledge {
            KnowledgeState::Complete => true,
            KnowledgeState::Unknown => false,
            KnowledgeState::Partial | KnowledgeState::Recovering | KnowledgeState::Gap => {
                limits.knowledge.contains(&knowledge)
            }
        };
        if !enough {
            return Err(Unusable::Knowledge { got: knowledge });
        }
        if let Some(limit) = limits.missing_events.filter(|&limit| self.missing_events > limit) {
            return Err(Unusable::MissingEvents { got: self.missing_events, limit });
        }
        let too_old = |&limit: &u64| self.verified_age_ms.is_none_or(|age| age > limit);
        if let Some(limit) = limits.verified_age_ms.filter(too_old) {
            return Err(Unusable::VerifiedAge { got: self.verified_age_ms, limit });
        }
        match (self.lag_over_best_ms, limits.lag_over_best_ms) {
            (Some(got), Some(limit)) if got > limit => Err(Unusable::Lag { got, limit }),
            (Some(_) | None, Some(_) | None) => Ok(()),
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
