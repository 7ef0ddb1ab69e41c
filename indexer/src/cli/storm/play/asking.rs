//! Asks questions when they are due.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use kvtide::{Answer, Indexer, Query, serving::Failure};

use super::Window;
use crate::cli::storm::{
    ahead::Ready, check::Checker, machine::own_seconds, measured::Lookups, pace::wait, plan::Question,
    series::Series,
};

/// The last questions are kept, to be asked again when nothing else happens.
const RECENT: usize = 256;

/// What has come of it.
pub(super) struct AllAsked {
    pub(super) lookups: Lookups,
    /// From the time that each was to be asked, over time.
    pub(super) series: Series,
    pub(super) recent: VecDeque<Query<'static>>,
    /// Answers that were to be checked, for which there was no room.
    pub(super) unchecked: u64,
    /// Seconds of the processor's time.
    pub(super) cost: f64,
}

/// Asks a question when it is due. Returns its answer, and how long that took from then.
pub(super) fn ask(
    indexer: &Indexer,
    query: &Query<'_>,
    due: Instant,
    lookups: &mut Lookups,
) -> Result<(Answer, Duration), Failure> {
    wait(due);
    let asked = Instant::now();
    let answer = indexer.overlap(query)?;
    Ok((answer, lookups.note(due, asked)))
}

/// Asks what is due in a phase, or until it is over.
pub(super) fn run(
    questions: &mut Ready<Question>,
    indexer: &Indexer,
    checker: &Checker,
    window: Window<'_>,
    over: &AtomicBool,
) -> Result<AllAsked, Failure> {
    let (mut lookups, mut recent, mut unchecked) = (Lookups::new()?, VecDeque::new(), 0);
    let mut series = Series::new(window.start, window.every);
    while !over.load(Ordering::Relaxed)
        && let Some(question) = questions.next_if(over, |question| question.at < window.until)
    {
        // Of an earlier phase that was broken off.
        if question.at < window.from {
            continue;
        }
        let due = window.pace.due(question.at);
        let (answer, time) = ask(indexer, &question.query, due, &mut lookups)?;
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
    Ok(AllAsked { lookups, series, recent, unchecked, cost: own_seconds() })
}
