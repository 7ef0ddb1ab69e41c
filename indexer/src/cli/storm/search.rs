//! Searches the highest load that is carried.

use std::time::Duration;

use kvtide::serving::Failure;

use super::{
    measured::Measured,
    play::Player,
    report::{Search, Trial},
};

/// The highest and the lowest rate that are tried, as parts of the first one.
const FURTHEST: f64 = 65_536.0;
/// The rate that is not carried is at most so many times the one that is.
const CLOSE: f64 = 1.1;

/// A rate is tried so many times before it counts as one that is not carried.
const ATTEMPTS: u32 = 3;

/// What is tried.
pub(super) struct Trials<'a> {
    pub(super) player: &'a mut Player,
    pub(super) length: Duration,
    pub(super) lag_limit: Duration,
    trials: Vec<Trial>,
    /// Events that no trial has shown.
    pub(super) unseen_events: u64,
}

impl<'a> Trials<'a> {
    pub(super) fn new(player: &'a mut Player, length: Duration, lag_limit: Duration) -> Trials<'a> {
        Trials { player, length, lag_limit, trials: Vec::new(), unseen_events: 0 }
    }

    /// Doubles or halves the rate until one is carried and twice as much is not, and then comes closer.
    ///
    /// # Errors
    /// What keeps messages from being sent; and where nothing is carried at all.
    pub(super) fn search(&mut self, first: f64) -> Result<Search, Failure> {
        let (mut carried, mut not_carried) = (None, None);
        let mut rate = first;
        while carried.is_none() || not_carried.is_none() {
            if !(first / FURTHEST..=first * FURTHEST).contains(&rate) {
                break;
            }
            if self.is_carried(rate)? {
                carried = Some(rate);
                rate *= 2.0;
            } else {
                not_carried = Some(rate);
                rate /= 2.0;
            }
        }
        let Some(mut carried) = carried else {
            return Err("no load is carried, however small".into());
        };
        while let Some(limit) = not_carried
            && limit / carried > CLOSE
        {
            let rate = (limit * carried).sqrt();
            if self.is_carried(rate)? {
                carried = rate;
            } else {
                not_carried = Some(rate);
            }
        }
        let trials = std::mem::take(&mut self.trials);
        let fastest = trials.iter().rfind(|trial| trial.carried && trial.rate == carried);
        let slowest_failed = trials.iter().filter(|trial| !trial.carried && trial.rate > carried);
        let next = slowest_failed.min_by(|one, other| one.rate.total_cmp(&other.rate));
        Ok(Search {
            lag_limit_ms: self.lag_limit.as_secs_f64() * 1e3,
            highest_events_s: fastest.map_or(0.0, |trial| trial.offered_events_s),
            highest_rate: carried,
            limited_by_plan: next.is_none_or(|trial| trial.plan_waits > 0),
            trials,
        })
    }

    /// A machine that does something else for a moment is not the limit: what is not carried is tried again.
    fn is_carried(&mut self, rate: f64) -> Result<bool, Failure> {
        for _ in 0..ATTEMPTS {
            if self.is_carried_now(rate)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_carried_now(&mut self, rate: f64) -> Result<bool, Failure> {
        self.player.get_ready();
        let measured: Measured = self.player.play(rate, self.length, self.length)?;
        self.unseen_events += measured.seen.unseen_events;
        let carried = measured.is_carried(self.lag_limit);
        self.trials.push(Trial::of(&measured, carried));
        Ok(carried)
    }
}
