//! Sends messages when they are due.

use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    time::{Duration, Instant},
};

use kvtide::serving::Failure;

use super::Window;
use crate::cli::storm::{
    ahead::Ready,
    check::Checker,
    machine::own_seconds,
    measured::{Seen, Times},
    pace::wait,
    plan::Frame,
    sight::Sent,
    target::{Fate, Target},
};

/// A phase is broken off where messages are sent so much later than they should be.
const OVERLOADED: Duration = Duration::from_secs(2);

/// Where messages go, and who is told before.
pub(super) struct Outlet<'a> {
    pub(super) target: &'a mut dyn Target,
    pub(super) checker: &'a Checker,
}

impl Outlet<'_> {
    /// Sends a message, once the truth has it.
    pub(super) fn send(&mut self, mut frame: Frame) -> Result<Fate, Failure> {
        self.checker.note(&mut frame);
        self.target.send(frame)
    }
}

/// Messages of a phase.
pub(super) struct Sending<'a> {
    pub(super) frames: &'a mut Ready<Frame>,
    pub(super) outlet: Outlet<'a>,
    /// Who looks for them.
    pub(super) sends: Sender<Sent>,
    pub(super) window: Window<'a>,
    /// Nothing more is to be sent.
    pub(super) over: &'a AtomicBool,
}

/// What has come of it.
pub(super) struct AllSent {
    pub(super) events: u64,
    /// How late each message was sent.
    pub(super) late: Times,
    /// What was visible at once.
    pub(super) seen: Seen,
    /// It was broken off.
    pub(super) overloaded: bool,
    /// How long it took, and how long it was to take until the last that was sent.
    pub(super) took: Duration,
    pub(super) planned: Duration,
    /// Seconds of the processor's time.
    pub(super) cost: f64,
}

impl Sending<'_> {
    pub(super) fn run(mut self) -> Result<AllSent, Failure> {
        let (mut late, mut seen) = (Times::new()?, Seen::new(self.window.start, self.window.every)?);
        let (mut events, mut overloaded) = (0, false);
        let Window { pace, until, start, end, live, .. } = self.window;
        let mut last = start;
        while !overloaded
            && !self.over.load(Ordering::Relaxed)
            && let Some(frame) = self.frames.next_if(self.over, |frame| frame.at < until)
        {
            let due = pace.due(frame.at);
            let lateness = wait(due);
            last = due;
            late.note(lateness, 1);
            overloaded = lateness > OVERLOADED;
            let sent = Sent::of(&frame, due);
            events += sent.events;
            match self.outlet.send(frame)? {
                Fate::Visible => live.see(sent.events, seen.note(&sent, Instant::now(), end)?),
                Fate::OnTheWay => self.sends.send(sent)?,
                Fate::Dropped => {}
            }
        }
        let (took, planned) =
            if overloaded { (start.elapsed(), last - start) } else { (end - start, end - start) };
        // Questions go on until then.
        wait(start + took);
        Ok(AllSent { events, late, seen, overloaded, took, planned, cost: own_seconds() })
    }
}
