//! Faults between publishers and kvtide, by a script: what is lost, comes twice, too late or cut, and a bus that ends.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use kvtide::serving::Failure;

use super::{
    plan::Frame,
    scenario::{Fault, FaultKind},
    sight::Fleet,
    target::{Fate, Race, Target},
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
            match fault.kind {
                FaultKind::RestartBus => self.target.restart(Duration::from_millis(fault.down_ms))?,
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
            None | Some(FaultKind::RestartBus) => self.target.send(frame)?,
            Some(FaultKind::Drop) => Fate::Dropped,
            Some(FaultKind::Repeat) => {
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

    fn restart(&mut self, down: Duration) -> Result<(), Failure> {
        self.target.restart(down)
    }
}
