//! What engines say that they had cached, beside what was predicted: the only check on what happens before an event is
//! published.

use std::collections::VecDeque;

use hashbrown::HashMap;
use kvtide_radix::{Life, Rank, RankState};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Of so many of the latest observations is judged whether a rank's predictions have gone wrong.
const JUDGED: usize = 64;
/// So many of them must be wrong on one side.
const WRONG: usize = 8;
/// Ranks of which observations are kept.
const RANKS: usize = 65_536;

/// One request, as it went: how many of its tokens the rank was predicted to have, and how many it had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Observation {
    /// Tokens that were predicted.
    pub predicted_tokens: u32,
    /// Tokens that the engine reused.
    pub cached_tokens: u32,
    /// What may be off without being wrong: a block, since engines leave a prompt's last token to be computed.
    pub tolerance_tokens: u32,
}

/// Sums over a rank's observations, and whether it has gone wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct FeedbackState {
    /// Observations.
    pub observations: u64,
    /// Of these, predictions that were too high, and by how many tokens in all.
    pub over: u64,
    /// See [`FeedbackState::over`].
    pub over_tokens: u64,
    /// Of these, predictions that were too low, and by how many tokens in all.
    pub under: u64,
    /// See [`FeedbackState::under`].
    pub under_tokens: u64,
    /// Of the latest 64, 8 or more were wrong on one side.
    pub drifting: Option<Drift>,
}

/// On which side predictions are wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Drift {
    /// The rank has less than was predicted: removals were lost, or an engine restarted behind a relay.
    Over,
    /// The rank has more: stores were lost.
    Under,
}

#[derive(Default)]
struct Record {
    /// The life that was observed: of another it says nothing.
    life: Life,
    state: FeedbackState,
    latest: VecDeque<Option<Drift>>,
}

/// The observations of one scope's ranks.
#[derive(Default)]
pub(crate) struct Feedback {
    ranks: Mutex<HashMap<Rank, Record>>,
}

impl Observation {
    fn verdict(self) -> Option<Drift> {
        let Observation { predicted_tokens: predicted, cached_tokens: cached, tolerance_tokens } = self;
        if predicted > cached.saturating_add(tolerance_tokens) {
            Some(Drift::Over)
        } else if cached > predicted.saturating_add(tolerance_tokens) {
            Some(Drift::Under)
        } else {
            None
        }
    }
}

impl Record {
    fn note(&mut self, observation: Observation) {
        let verdict = observation.verdict();
        let off = u64::from(observation.predicted_tokens.abs_diff(observation.cached_tokens));
        let state = &mut self.state;
        state.observations += 1;
        match verdict {
            Some(Drift::Over) => {
                state.over += 1;
                state.over_tokens += off;
            }
            Some(Drift::Under) => {
                state.under += 1;
                state.under_tokens += off;
            }
            None => {}
        }
        self.latest.push_back(verdict);
        if self.latest.len() > JUDGED {
            self.latest.pop_front();
        }
        let wrong = |side: Drift| self.latest.iter().filter(|&&one| one == Some(side)).count() >= WRONG;
        // Too high is worse: work is sent where it has to be done again.
        state.drifting = [Drift::Over, Drift::Under].into_iter().find(|&side| wrong(side));
    }
}

impl Feedback {
    /// Notes an observation of a rank in some life. Returns the state before and after.
    pub(crate) fn note(&self, rank: Rank, life: Life, observation: Observation) -> [FeedbackState; 2] {
        let mut ranks = self.ranks.lock();
        if ranks.len() >= RANKS && !ranks.contains_key(&rank) {
            ranks.clear();
        }
        let record = ranks.entry(rank).or_default();
        if record.life != life {
            *record = Record { life, ..Record::default() };
        }
        let before = record.state;
        record.note(observation);
        [before, record.state]
    }

    /// Of all ranks that are known and of whose life there are observations.
    pub(crate) fn states(&self, known: &[RankState]) -> HashMap<Rank, FeedbackState> {
        let ranks = self.ranks.lock();
        let state = |known: &RankState| {
            let record = ranks.get(&known.rank).filter(|record| record.life == known.watermark.life)?;
            Some((known.rank, record.state))
        };
        known.iter().filter_map(state).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Drift, Feedback, Observation};
    use kvtide_radix::{Life, Rank};

    fn observed(predicted_tokens: u32, cached_tokens: u32) -> Observation {
        Observation { predicted_tokens, cached_tokens, tolerance_tokens: 16 }
    }

    #[test]
    fn eight_of_the_latest_sixty_four_are_an_alarm() {
        let (feedback, rank) = (Feedback::default(), Rank { worker_id: 7, dp_rank: 0 });
        let note = |predicted, cached| feedback.note(rank, Life(1), observed(predicted, cached))[1];
        for (predicted, cached) in [(160, 160), (160, 144), (144, 160), (0, 0)] {
            assert_eq!(note(predicted, cached).drifting, None);
        }
        for _ in 0..7 {
            assert_eq!(note(160, 32).drifting, None);
        }
        let state = note(160, 32);
        assert_eq!((state.observations, state.over, state.over_tokens, state.under), (12, 8, 1024, 0));
        assert_eq!(state.drifting, Some(Drift::Over));
        // The eight are among the latest 64 for 56 more.
        for _ in 0..56 {
            assert_eq!(note(160, 160).drifting, Some(Drift::Over));
        }
        assert_eq!(note(160, 160).drifting, None, "it is over");
        for _ in 0..8 {
            note(32, 160);
        }
        assert_eq!(note(160, 160).drifting, Some(Drift::Under));
        let anew = feedback.note(rank, Life(2), observed(0, 0))[1];
        assert_eq!((anew.observations, anew.drifting), (1, None), "another life is another process");
    }
}
