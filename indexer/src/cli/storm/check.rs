//! Holds answers against the truth, on a thread of its own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use kvtide::{Answer, serving::Failure};
use kvtide_radix::SequenceHash;

use super::{
    plan::Frame,
    quiet::Quiet,
    reference::{Note, Reference, Verdict},
    sight::Fleet,
};

/// How much may wait to be noted or checked, and bytes of it.
const WAITING: usize = 1 << 18;
const WAITING_BYTES: usize = 256 << 20;

/// Between one look at whether all is checked and the next.
const LOOK: Duration = Duration::from_millis(5);

/// What is noted, and what is checked, in the order in which it happened.
enum Check {
    Note(Note),
    Answer(Instant, Box<Answer>, Box<[SequenceHash]>),
}

/// What waits.
#[derive(Default)]
struct Waiting {
    checks: AtomicUsize,
    /// Bytes that these take, about.
    bytes: AtomicUsize,
}

/// To whom answers are given that are to be checked.
#[derive(Clone)]
pub(super) struct Checker {
    checks: SyncSender<Check>,
    waiting: Arc<Waiting>,
}

/// The thread that checks.
pub(super) struct Checking(JoinHandle<Reference>);

impl Checker {
    /// Starts a thread that checks; in quiet, only once half of what may wait does.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn start(fleet: Fleet, block_size: u32, quiet: Quiet) -> Result<(Checker, Checking), Failure> {
        let (send, checks) = sync_channel(WAITING);
        let waiting = Arc::new(Waiting::default());
        let reference = Reference::new(fleet.ranks, fleet.dp_ranks, block_size);
        let checker = Checker { checks: send, waiting: Arc::clone(&waiting) };
        let thread = thread::Builder::new()
            .name("storm-check".into())
            .spawn(move || check(reference, &checks, &waiting, &quiet))?;
        Ok((checker, Checking(thread)))
    }

    /// Notes what a message does, before it is sent: nobody can have seen it yet.
    pub(super) fn note(&self, frame: &mut Frame) {
        if let Some(deltas) = frame.deltas.take() {
            let Frame { rank, life, position, .. } = *frame;
            let note = Check::Note(Note { rank, life, position, deltas });
            let bytes = note.bytes();
            self.waiting.add(bytes);
            // It waits where checking has fallen behind, and the message with it, which shows as being late. It fails only where
            // the thread has, which its end tells.
            if self.checks.send(note).is_err() {
                self.waiting.take(bytes);
            }
        }
    }

    /// Checks an answer, if there is room for it. Returns whether there was.
    pub(super) fn answer(&self, answer: Answer, names: Box<[SequenceHash]>) -> bool {
        let check = Check::Answer(Instant::now(), Box::new(answer), names);
        let bytes = check.bytes();
        if self.waiting.bytes.load(Ordering::Relaxed) + bytes > WAITING_BYTES {
            return false;
        }
        self.waiting.add(bytes);
        let sent = self.checks.try_send(check);
        if sent.is_err() {
            self.waiting.take(bytes);
        }
        !matches!(sent, Err(TrySendError::Full(_)))
    }

    /// Waits until all is checked, or for so long.
    pub(super) fn finish(&self, patience: Duration) {
        let started = Instant::now();
        while self.waiting.checks.load(Ordering::Relaxed) > 0 && started.elapsed() < patience {
            thread::sleep(LOOK);
        }
    }
}

impl Waiting {
    fn add(&self, bytes: usize) {
        self.checks.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn take(&self, bytes: usize) {
        self.checks.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether there is room for as much again.
    fn is_half_empty(&self) -> bool {
        self.checks.load(Ordering::Relaxed) < WAITING / 2
            && self.bytes.load(Ordering::Relaxed) < WAITING_BYTES / 2
    }
}

impl Check {
    /// Bytes that it takes, about.
    fn bytes(&self) -> usize {
        size_of::<Check>()
            + match self {
                Check::Note(note) => note.deltas.iter().map(|delta| size_of_val(&*delta.names)).sum(),
                Check::Answer(_, answer, names) => {
                    size_of::<Answer>() + size_of_val(&*answer.ranks) + size_of_val(&**names)
                }
            }
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

fn check(mut reference: Reference, checks: &Receiver<Check>, waiting: &Waiting, quiet: &Quiet) -> Reference {
    for check in checks {
        quiet.rest(|| waiting.is_half_empty());
        let bytes = check.bytes();
        match check {
            Check::Note(note) => reference.note(note),
            Check::Answer(when, answer, names) => reference.check(when, &answer, &names),
        }
        waiting.take(bytes);
    }
    reference
}
