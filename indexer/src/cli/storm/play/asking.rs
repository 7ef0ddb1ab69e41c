//! Asks questions when they are due.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use kvtide::{Answer, Indexer, Query, serving::Failure, time_slice};

use super::{START, Window};
use crate::cli::storm::{
    ahead::Ready,
    check::Checker,
    machine::own_seconds,
    measured::Lookups,
    pace::{Pace, wait},
    plan::Question,
    series::Series,
};

/// What is not ready is not waited for.
static AT_ONCE: AtomicBool = AtomicBool::new(true);

/// What has come of it.
pub(super) struct AllAsked {
    pub(super) lookups: Lookups,
    /// From the time that each was to be asked, over time.
    pub(super) series: Series,
    /// Answers that were to be checked, for which there was no room.
    pub(super) unchecked: u64,
    /// Seconds of the processor's time.
    pub(super) cost: f64,
}

/// Asks a question when it is due. Returns its answer, and how long that took from then.
fn ask(
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
    time_slice::shorten();
    let (mut lookups, mut unchecked) = (Lookups::new()?, 0);
    let mut series = Series::new(window.start, window.every);
    while !over.load(Ordering::Relaxed)
        && let Some(question) = questions.next_if(over, |question| question.at < window.until)
    {
        // Of an earlier phase that was broken off.
        if question.at < window.from {
            continue;
        }
        let due = window.pace.due(question.at);
        let (answer, time) = ask(indexer, &question.query(), due, &mut lookups)?;
        series.note(due, time, 1)?;
        window.live.answer(time);
        if let Some(names) = question.names {
            unchecked += u64::from(!checker.answer(answer, names));
        }
    }
    Ok(AllAsked { lookups, series, unchecked, cost: own_seconds() })
}

/// Asks what is due next, as far as it is planned, while nothing is sent.
pub(super) fn run_idle(
    questions: &mut Ready<Question>,
    indexer: &Indexer,
    rate: f64,
    length: Duration,
) -> Result<Lookups, Failure> {
    time_slice::shorten();
    let mut lookups = Lookups::new()?;
    let from = questions.peek(&AT_ONCE).map(|question| question.at).unwrap_or_default();
    let pace = Pace::new(Instant::now() + START, from, rate);
    let until = pace.after(length);
    while let Some(question) = questions.next_if(&AT_ONCE, |question| question.at < until) {
        ask(indexer, &question.query(), pace.due(question.at), &mut lookups)?;
    }
    Ok(lookups)
}
