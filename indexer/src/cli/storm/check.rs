//! Holds answers against the truth, on a thread of its own.

use std::{
    sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    thread::{self, JoinHandle},
    time::Instant,
};

use kvtide::{Answer, serving::Failure};
use kvtide_radix::SequenceHash;

use super::{
    plan::Frame,
    reference::{Note, Reference, Verdict},
    sight::Fleet,
};

/// What may wait to be noted or checked.
const WAITING: usize = 1 << 18;

/// What is noted, and what is checked, in the order in which it happened.
enum Check {
    Note(Note),
    Answer(Instant, Box<Answer>, Box<[SequenceHash]>),
}

/// To whom answers are given that are to be checked.
#[derive(Clone)]
pub(super) struct Checker(SyncSender<Check>);

/// The thread that checks.
pub(super) struct Checking(JoinHandle<Reference>);

impl Checker {
    /// # Errors
    /// What the system says.
    pub(super) fn start(fleet: Fleet, block_size: u32) -> Result<(Checker, Checking), Failure> {
        let (send, checks) = sync_channel(WAITING);
        let reference = Reference::new(fleet.ranks, fleet.dp_ranks, block_size);
        let thread =
            thread::Builder::new().name("storm-check".into()).spawn(move || check(reference, &checks))?;
        Ok((Checker(send), Checking(thread)))
    }

    /// Notes what a message does, before it is sent: nobody can have seen it yet.
    pub(super) fn note(&self, frame: &mut Frame) {
        if let Some(deltas) = frame.deltas.take() {
            let Frame { rank, life, position, .. } = *frame;
            // It waits where checking has fallen behind, and the message with it, which shows as being late. It fails only where
            // the thread has, which its end tells.
            let _ = self.0.send(Check::Note(Note { rank, life, position, deltas }));
        }
    }

    /// Checks an answer, if there is room for it. Returns whether there was.
    pub(super) fn answer(&self, answer: Answer, names: Box<[SequenceHash]>) -> bool {
        let sent = self.0.try_send(Check::Answer(Instant::now(), Box::new(answer), names));
        !matches!(sent, Err(TrySendError::Full(_)))
    }
}

impl Checking {
    /// What has come of all checks, once nobody has anything to check any more.
    ///
    /// # Errors
    /// Where the thread has failed.
    pub(super) fn end(self) -> Result<Verdict, Failure> {
        let reference = self.0.join().map_err(|_| "checking has failed")?;
        Ok(reference.verdict)
    }
}

fn check(mut reference: Reference, checks: &Receiver<Check>) -> Reference {
    for check in checks {
        match check {
            Check::Note(note) => reference.note(note),
            Check::Answer(when, answer, names) => reference.check(when, &answer, &names),
        }
    }
    reference
}
