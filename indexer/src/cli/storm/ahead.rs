//! A plan that is made on a thread of its own, so far ahead as there is room for: who plays it only takes what is ready.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use kvtide::serving::Failure;
use kvtide_radix::SequenceHash;

use super::{
    plan::{Frame, Question, Step},
    quiet::Quiet,
};

/// Bytes that are handed over at once.
const CHUNK_BYTES: usize = 256 << 10;

/// While something is measured, it is enough if one part in so many of what may be ahead is, and so many chunks.
const ENOUGH_PART: usize = 8;
const ENOUGH_CHUNKS: usize = 2;

/// Between one look at whether something is over and the next.
const PATIENCE: Duration = Duration::from_millis(20);

/// Between one look at whether all is planned and the next.
const NOTICE: Duration = Duration::from_millis(5);

/// The thread that plans, by its name.
pub(super) const THREAD: &str = "storm-plan";

/// What is planned, in the order of its time.
pub(super) struct Ahead {
    pub(super) frames: Ready<Frame>,
    pub(super) questions: Ready<Question>,
    /// Whether there is no room to plan on.
    full: Arc<AtomicBool>,
}

/// One kind of step.
pub(super) struct Ready<T> {
    chunks: Receiver<Vec<T>>,
    /// How many these are.
    ahead: Arc<AtomicUsize>,
    next: std::vec::IntoIter<T>,
    /// How often nothing was ready when it was wanted.
    pub(super) waits: u64,
}

impl Ahead {
    /// Starts a thread that plans until so many bytes are ahead, and goes on as they are taken; in quiet, only once there is not
    /// enough any more. It ends when nobody takes any more.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn start(
        plan: impl Iterator<Item = Step> + Send + 'static,
        ahead_bytes: usize,
        quiet: Quiet,
    ) -> Result<Ahead, Failure> {
        // Frames and questions come in pairs of chunks, which have so many bytes together.
        let chunks = (ahead_bytes / CHUNK_BYTES).max(2);
        let full = Arc::new(AtomicBool::new(false));
        let is_full = Arc::clone(&full);
        let (send_frames, frames) = Ready::with_room_for(chunks);
        let (send_questions, questions) = Ready::with_room_for(chunks);
        let ahead = Arc::clone(&frames.ahead);
        let enough = (chunks / ENOUGH_PART).max(ENOUGH_CHUNKS);
        let rest = move || quiet.rest(|| ahead.load(Ordering::Relaxed) > enough);
        thread::Builder::new()
            .name(THREAD.into())
            .spawn(move || make(plan, &send_frames, &send_questions, &is_full, rest))?;
        Ok(Ahead { frames, questions, full })
    }

    /// Waits until there is no room to plan on, or for so long.
    pub(super) fn fill(&self, patience: Duration) {
        let started = Instant::now();
        // The thread notices what was taken a little later.
        thread::sleep(NOTICE);
        while !self.full.load(Ordering::Relaxed) && started.elapsed() < patience {
            thread::sleep(NOTICE);
        }
    }
}

fn make(
    plan: impl Iterator<Item = Step>,
    frames: &Handing<Frame>,
    questions: &Handing<Question>,
    full: &AtomicBool,
    rest: impl Fn(),
) {
    let (mut some_frames, mut some_questions, mut bytes) = (Vec::new(), Vec::new(), 0);
    for step in plan {
        match step {
            Step::Frame(frame) => {
                bytes += frame.bytes();
                some_frames.push(frame);
            }
            Step::Question(question) => {
                bytes += question.bytes();
                some_questions.push(question);
            }
        }
        if bytes >= CHUNK_BYTES {
            // Both: what is held back of one kind may be due before what fills the other's room.
            let sent = questions.hand_over(std::mem::take(&mut some_questions), full)
                && frames.hand_over(std::mem::take(&mut some_frames), full);
            if !sent {
                return;
            }
            bytes = 0;
            rest();
        }
    }
}

/// Who hands over one kind of step.
struct Handing<T> {
    chunks: SyncSender<Vec<T>>,
    ahead: Arc<AtomicUsize>,
}

impl<T> Handing<T> {
    /// Waits where there is no room. Returns whether anybody is there.
    fn hand_over(&self, chunk: Vec<T>, full: &AtomicBool) -> bool {
        // Nobody has to take what is nothing: before the clock starts nobody asks.
        if chunk.is_empty() {
            return true;
        }
        self.ahead.fetch_add(1, Ordering::Relaxed);
        match self.chunks.try_send(chunk) {
            Ok(()) => true,
            Err(TrySendError::Full(chunk)) => {
                full.store(true, Ordering::Relaxed);
                let sent = self.chunks.send(chunk).is_ok();
                full.store(false, Ordering::Relaxed);
                sent
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }
}

impl<T> Ready<T> {
    /// Room for so many chunks, and who fills it.
    fn with_room_for(chunks: usize) -> (Handing<T>, Ready<T>) {
        let (send, chunks) = sync_channel(chunks);
        let ahead = Arc::new(AtomicUsize::new(0));
        let handing = Handing { chunks: send, ahead: Arc::clone(&ahead) };
        (handing, Ready { chunks, ahead, next: Vec::new().into_iter(), waits: 0 })
    }

    /// The next one, without taking it. None where its thread has failed, or `over` becomes true while it is waited for.
    pub(super) fn peek(&mut self, over: &AtomicBool) -> Option<&T> {
        while self.next.as_slice().is_empty() {
            let chunk = match self.chunks.try_recv() {
                Ok(chunk) => chunk,
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => {
                    self.waits += 1;
                    self.wait(over)?
                }
            };
            self.ahead.fetch_sub(1, Ordering::Relaxed);
            self.next = chunk.into_iter();
        }
        self.next.as_slice().first()
    }

    fn wait(&self, over: &AtomicBool) -> Option<Vec<T>> {
        while !over.load(Ordering::Relaxed) {
            match self.chunks.recv_timeout(PATIENCE) {
                Ok(chunk) => return Some(chunk),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        None
    }

    /// Takes the next one if it is such a one. Waits for it as [`peek`](Ready::peek) does.
    pub(super) fn next_if(&mut self, over: &AtomicBool, is_such: impl FnOnce(&T) -> bool) -> Option<T> {
        let taken = self.peek(over).is_some_and(is_such);
        taken.then(|| self.next.next()).flatten()
    }

    /// Drops all that is ready.
    pub(super) fn discard(&mut self) {
        self.next = Vec::new().into_iter();
        while self.chunks.try_recv().is_ok() {
            self.ahead.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Frame {
    /// Bytes that it takes, about.
    fn bytes(&self) -> usize {
        let deltas = self.deltas.iter().flat_map(|deltas| deltas.iter());
        let names: usize = deltas.map(|delta| delta.names.len()).sum();
        size_of::<Frame>() + self.message.len() + names * size_of::<SequenceHash>()
    }
}
