//! Faults between publishers and kvtide, by a script: what is lost, comes twice, too late or cut, and a bus that ends. Workers that
//! start again are the plan's.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use kvtide::{Clock, serving::Failure};

use super::{
    plan::Frame,
    scenario::{Fault, FaultKind},
    sight::Fleet,
    target::{BusPart, Fate, Race, Target},
};

/// When faults began, by the wall's clock.
#[derive(Clone, Default)]
pub(super) struct Begun(Arc<Mutex<Vec<(Fault, Instant)>>>);

impl Begun {
    fn note(&self, fault: Fault) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((fault, Instant::now()));
    }

    /// All of them so far, in order.
    pub(super) fn all(&self) -> Vec<(Fault, Instant)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A target that messages reach with faults.
pub(super) struct Faulty {
    target: Box<dyn Target>,
    script: VecDeque<Fault>,
    begun: Begun,
    /// The plan's time when the clock started.
    start: Option<Duration>,
    /// The fault that strikes now, and how many messages it still does.
    now: Option<(FaultKind, u32)>,
    /// Held back until the next of its rank has been sent.
    late: Option<Frame>,
}

impl Faulty {
    pub(super) fn new(target: Box<dyn Target>, script: &[Fault], begun: Begun) -> Faulty {
        let mut script = script.to_vec();
        script.sort_by(|one, other| one.at_s.total_cmp(&other.at_s));
        Faulty { target, script: script.into(), begun, start: None, now: None, late: None }
    }

    /// The fault that strikes a message, if any does.
    fn strike(&mut self, frame: &Frame) -> Result<Option<FaultKind>, Failure> {
        if frame.warm {
            return Ok(None);
        }
        let start = *self.start.get_or_insert(frame.at);
        let at_s = (frame.at - start).as_secs_f64();
        while let Some(fault) = self.script.pop_front_if(|fault| fault.at_s <= at_s) {
            self.begun.note(fault);
            let down = Duration::from_millis(fault.down_ms);
            match fault.kind {
                FaultKind::RestartBus => self.target.interrupt(BusPart::Server, down)?,
                FaultKind::Disconnect => self.target.interrupt(BusPart::Line, down)?,
                // As the plan has it.
                FaultKind::RestartWorkers => {}
                kind @ (FaultKind::Drop | FaultKind::Repeat | FaultKind::Swap | FaultKind::Cut) => {
                    self.now = Some((kind, fault.messages));
                }
            }
        }
        let Some((kind, left)) = &mut self.now else { return Ok(None) };
        let kind = *kind;
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.now = None;
        }
        Ok(Some(kind))
    }
}

impl Target for Faulty {
    fn send(&mut self, mut frame: Frame) -> Result<Fate, Failure> {
        let kind = self.strike(&frame)?;
        let rank = frame.rank;
        let fate = match kind {
            None | Some(FaultKind::RestartBus | FaultKind::Disconnect | FaultKind::RestartWorkers) => {
                self.target.send(frame)?
            }
            Some(FaultKind::Drop) => Fate::Dropped,
            Some(FaultKind::Repeat) => {
                // The same bytes: at another time it would be another message.
                frame.message.stamp(Clock::default().wall_ms());
                self.target.send(frame.clone())?;
                self.target.send(frame)?
            }
            Some(FaultKind::Swap) if self.late.is_none() => {
                self.late = Some(frame);
                return Ok(Fate::OnTheWay);
            }
            Some(FaultKind::Swap) => self.target.send(frame)?,
            Some(FaultKind::Cut) => {
                frame.message.cut();
                // The index says what it thinks of it.
                let _ = self.target.send(frame);
                Fate::Dropped
            }
        };
        if let Some(late) = self.late.take_if(|late| late.rank == rank) {
            self.target.send(late)?;
        }
        Ok(fate)
    }

    fn race(&mut self, frames: Vec<Frame>, fleet: Fleet) -> Result<Option<Race>, Failure> {
        self.target.race(frames, fleet)
    }

    fn interrupt(&mut self, part: BusPart, down: Duration) -> Result<(), Failure> {
        self.target.interrupt(part, down)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::cli::storm::{
        plan::{Plan, Step},
        scenario::Scenario,
    };

    /// Tells what is sent, each message a second after the one before it.
    struct Told {
        wall_ms: u64,
        to: Sender<Vec<u8>>,
    }

    impl Target for Told {
        fn send(&mut self, frame: Frame) -> Result<Fate, Failure> {
            self.wall_ms += 1000;
            self.to.send(frame.message.sent_at(self.wall_ms))?;
            Ok(Fate::OnTheWay)
        }

        fn race(&mut self, _frames: Vec<Frame>, _fleet: Fleet) -> Result<Option<Race>, Failure> {
            Ok(None)
        }

        fn interrupt(&mut self, _part: BusPart, _down: Duration) -> Result<(), Failure> {
            Ok(())
        }
    }

    /// What comes of a scenario's first three messages, where the first two are struck.
    fn sent(kind: FaultKind) -> Vec<Vec<u8>> {
        let script = [Fault { at_s: 0.0, kind, messages: 2, down_ms: 0, workers: 1 }];
        let (to, told) = channel();
        let mut faulty = Faulty::new(Box::new(Told { wall_ms: 0, to }), &script, Begun::default());
        let plan = Plan::new(&Scenario::find("conversations").unwrap()).unwrap();
        let frames = plan.filter_map(|step| match step {
            Step::Frame(mut frame) => {
                (frame.warm, frame.rank) = (false, 0);
                Some(frame)
            }
            Step::Question(_) => None,
        });
        for frame in frames.take(3) {
            faulty.send(frame).unwrap();
        }
        drop(faulty);
        told.into_iter().collect()
    }

    #[test]
    fn messages_are_struck_as_the_script_says() {
        let rows = [(FaultKind::Drop, 1), (FaultKind::Repeat, 5), (FaultKind::Swap, 3), (FaultKind::Cut, 3)];
        for (kind, expected) in rows {
            assert_eq!(sent(kind).len(), expected, "{kind:?}");
        }
        let repeated = sent(FaultKind::Repeat);
        assert!(repeated[0] == repeated[1] && repeated[2] == repeated[3], "a repeat has the same bytes");
        assert!(repeated[1] != repeated[2] && repeated[3] != repeated[4]);
        // What is late keeps its number, and comes behind the next.
        assert_ne!(sent(FaultKind::Swap)[0][..40], sent(FaultKind::RestartBus)[0][..40]);
    }
}
