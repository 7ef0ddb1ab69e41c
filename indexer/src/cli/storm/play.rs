//! Plays a plan in an open loop: what is due is sent and asked, whatever has become of what was before it.

mod asking;
mod looking;
mod sending;
#[cfg(test)]
mod tests;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::channel,
    },
    thread::{Builder, Scope, ScopedJoinHandle, scope, sleep},
    time::{Duration, Instant},
};

use kvtide::{Indexer, serving::Failure};

use super::{
    ahead::{self, Ahead},
    check::Checker,
    live::Live,
    machine::{FOLLOWING, seconds_of},
    measured::{Cost, Lookups, Measured},
    pace::Pace,
    quiet::Quiet,
    series::stretches,
    sight::{Fleet, Sent, Unseen},
    target::{Fate, Race, Target},
};
use sending::{Outlet, Sending};

/// How long after the last message nothing is visible before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between one look at what is visible and the next, at least.
const LOOK: Duration = Duration::from_micros(500);
/// Messages on their way where they are sent as fast as can be.
const ON_THE_WAY: usize = 16_384;
/// How long a phase waits for its plan, and for what was before it to be checked.
const PLANNING: Duration = Duration::from_secs(20);
const CHECKING: Duration = Duration::from_secs(20);
/// The thread that asks, by its name.
const ASKING: &str = "storm-ask";
/// The plan goes on for ever.
static NEVER: AtomicBool = AtomicBool::new(false);
/// A phase starts a little later, so that all its threads are there.
const START: Duration = Duration::from_millis(20);

/// What is to be done in a phase: all that is due from its start to its end.
#[derive(Clone, Copy)]
struct Window<'a> {
    live: &'a Live,
    pace: Pace,
    /// The plan's time at the start.
    from: Duration,
    start: Instant,
    /// The plan's time at the end.
    until: Duration,
    end: Instant,
    /// How long a stretch of it is.
    every: Duration,
}

/// Who plays.
pub(super) struct Player {
    ahead: Ahead,
    target: Box<dyn Target>,
    indexer: Arc<Indexer>,
    fleet: Fleet,
    checker: Checker,
    quiet: Quiet,
}

impl Player {
    pub(super) fn new(
        ahead: Ahead,
        target: Box<dyn Target>,
        indexer: Arc<Indexer>,
        fleet: Fleet,
        checker: Checker,
        quiet: Quiet,
    ) -> Player {
        Player { ahead, target, indexer, fleet, checker, quiet }
    }

    /// Sends all that is from before the clock starts, as fast as it becomes visible. Returns how many events never did.
    ///
    /// # Errors
    /// What keeps a message from being sent.
    pub(super) fn warm(&mut self) -> Result<u64, Failure> {
        let mut unseen = Unseen::new(self.fleet);
        let outlet = &mut Outlet { target: &mut *self.target, checker: &self.checker };
        while let Some(frame) = self.ahead.frames.next_if(&NEVER, |frame| frame.warm) {
            let sent = Sent::of(&frame, Instant::now());
            if outlet.send(frame)? == Fate::OnTheWay {
                unseen.add(sent);
            }
            if unseen.count() >= ON_THE_WAY {
                settle(&self.indexer, &mut unseen, ON_THE_WAY / 2);
            }
        }
        settle(&self.indexer, &mut unseen, 0);
        Ok(unseen.events())
    }

    /// Waits until so much is planned as there is room for, and all is checked.
    pub(super) fn get_ready(&self) {
        self.ahead.fill(PLANNING);
        self.checker.finish(CHECKING);
    }

    /// Plays so much of the plan as is due in that time, so many times as fast as it is, and tells of each stretch of `every`.
    ///
    /// # Errors
    /// What keeps a message from being sent.
    pub(super) fn play(&mut self, rate: f64, length: Duration, every: Duration) -> Result<Measured, Failure> {
        let Player { ahead: Ahead { frames, questions, .. }, target, indexer, fleet, checker, quiet, .. } =
            self;
        let kept = quiet.keep();
        let from = frames.peek(&NEVER).map(|frame| frame.at).unwrap_or_default();
        let waits = frames.waits;
        let before = [seconds_of(ahead::THREAD), seconds_of(FOLLOWING)];
        let start = Instant::now() + START;
        let pace = Pace::new(start, from, rate);
        let live = Live::new(length);
        let window =
            Window { live: &live, pace, from, start, until: pace.after(length), end: start + length, every };
        let (sends, sent) = channel();
        // All is sent, or nothing more is to be, since an answer was none.
        let over = AtomicBool::new(false);
        let (indexer, fleet): (&Indexer, Fleet) = (indexer, *fleet);
        let (sending, asking, looking) = scope(|scope| {
            let outlet = Outlet { target: &mut **target, checker };
            let sending = Sending { frames, outlet, sends, window, over: &over };
            let sending = spawn(scope, "storm-send", || {
                let sent = sending.run();
                over.store(true, Ordering::Relaxed);
                sent
            })?;
            let asking = spawn(scope, ASKING, || {
                let asked = asking::run(questions, indexer, checker, window, &over);
                over.fetch_or(asked.is_err(), Ordering::Relaxed);
                asked
            })?;
            let looking = spawn(scope, "storm-look", move || looking::run(indexer, &sent, fleet, window))?;
            Ok::<_, Failure>((join(sending)?, join(asking)?, join(looking)?))
        })?;
        drop(kept);
        live.end();
        let (sent, asked, (mut seen, rss_mb)) = (sending?, asking?, looking?);
        seen.take(&sent.seen)?;
        let stretches = stretches(&seen.lags, &asked.series, &rss_mb, sent.took);
        let [planning, following] =
            [seconds_of(ahead::THREAD) - before[0], seconds_of(FOLLOWING) - before[1]];
        let cost = Cost { planning, sending: sent.cost, asking: asked.cost, following, looking: seen.cost };
        let plan_waits = self.ahead.frames.waits - waits;
        Ok(Measured {
            rate,
            length: sent.took,
            offered_events: sent.events,
            offered_in: sent.planned,
            late: sent.late,
            seen,
            lookups: asked.lookups,
            unchecked: asked.unchecked,
            plan_waits,
            overloaded: sent.overloaded,
            cost,
            stretches,
        })
    }

    /// Asks on at that rate while nothing is sent.
    ///
    /// # Errors
    /// An answer that is none.
    pub(super) fn ask_idle(&mut self, rate: f64, length: Duration) -> Result<Lookups, Failure> {
        let Player { ahead: Ahead { questions, .. }, indexer, quiet, .. } = self;
        let _kept = quiet.keep();
        scope(|scope| join(spawn(scope, ASKING, || asking::run_idle(questions, indexer, rate, length))?)?)
    }

    /// Sends the next messages as fast as can be, to a plain subscriber and into the index in turns. None where there is no bus.
    ///
    /// # Errors
    /// What keeps them from being sent, or from coming.
    pub(super) fn race(&mut self, rounds: u32) -> Result<Vec<Race>, Failure> {
        let mut races = Vec::new();
        for _ in 0..rounds {
            let mut frames = Vec::new();
            while frames.len() < ON_THE_WAY
                && let Some(mut frame) = self.ahead.frames.next_if(&NEVER, |_| true)
            {
                // Nobody asks meanwhile, and the plan does not go on where there is no room.
                self.ahead.questions.discard();
                self.checker.note(&mut frame);
                frames.push(frame);
            }
            // Planning takes a core, and would take it from one of the two.
            self.get_ready();
            match self.target.race(frames, self.fleet)? {
                Some(race) => races.push(race),
                None => break,
            }
        }
        Ok(races)
    }

    /// Events, or batches of engines, that are known to be lost.
    pub(super) fn missing(&self) -> u64 {
        self.fleet.missing(&self.indexer)
    }
}

/// Waits until no more than so many messages are on their way, or none comes any more.
fn settle(indexer: &Indexer, unseen: &mut Unseen, few: usize) {
    let mut last = Instant::now();
    while unseen.count() > few && last.elapsed() < PATIENCE {
        unseen.look(indexer, |_| last = Instant::now());
        sleep(LOOK);
    }
}

fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    run: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, Failure> {
    Ok(Builder::new().name(name.into()).spawn_scoped(scope, run)?)
}

fn join<T>(thread: ScopedJoinHandle<'_, T>) -> Result<T, Failure> {
    let name = thread.thread().name().unwrap_or("a thread").to_owned();
    thread.join().map_err(|_| format!("{name} has failed").into())
}
