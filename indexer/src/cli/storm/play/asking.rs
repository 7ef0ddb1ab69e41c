//! Asks questions when they are due.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering},
};

use kvtide::{Indexer, Query, serving::Failure};

use super::Window;
use crate::cli::storm::{
    ahead::Ready, check::Checker, machine::own_seconds, measured::Times, pace::wait, plan::Question,
    series::Series,
};

/// The last questions are kept, to be asked again when nothing else happens.
const RECENT: usize = 256;

/// What has come of it.
pub(super) struct AllAsked {
    /// From the time that each was to be asked.
    pub(super) lookups: Times,
    /// Of these, until the question was asked.
    pub(super) late: Times,
    /// The same over time.
    pub(super) series: Series,
    pub(super) recent: VecDeque<Query<'static>>,
    /// Answers that were to be checked, for which there was no room.
    pub(super) unchecked: u64,
    /// Seconds of the processor's time.
    pub(super) cost: f64,
}

/// Asks what is due in a phase, or until it is over.
pub(super) fn run(
    questions: &mut Ready<Question>,
    indexer: &Indexer,
    checker: &Checker,
    window: Window<'_>,
    over: &AtomicBool,
) -> Result<AllAsked, Failure> {
    let (mut lookups, mut late) = (Times::new()?, Times::new()?);
    let (mut recent, mut unchecked) = (VecDeque::new(), 0);
    let mut series = Series::new(window.start, window.every);
    while !over.load(Ordering::Relaxed)
        && let Some(question) = questions.next_if(over, |question| question.at < window.until)
    {
        // Of an earlier phase that was broken off.
        if question.at < window.from {
            continue;
        }
        let due = window.pace.due(question.at);
        late.note(wait(due), 1);
        let answer = indexer.overlap(&question.query)?;
        let time = due.elapsed();
        lookups.note(time, 1);
        series.note(due, time, 1)?;
        window.live.answer(time);
        if let Some(names) = question.names {
            unchecked += u64::from(!checker.answer(answer, names));
        }
        if recent.len() == RECENT {
            recent.pop_front();
        }
        recent.push_back(question.query);
    }
    Ok(AllAsked { lookups, late, series, recent, unchecked, cost: own_seconds() })
}
