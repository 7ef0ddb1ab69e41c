//! Threads that serve connections, each with a runtime of its own: a request is read, answered and written by one thread,
//! and wakes no other. Feeds are not in its way, nor is it in theirs.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::Notify,
    task,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::cores;
use crate::time_slice;

/// Where one answer comes so soon behind another, the next request is waited for awake.
const THICK_US: u64 = 250;
/// For so long: a core that has gone to sleep takes 20 us and more to wake.
const AWAKE_US: u64 = 100;

/// As many threads as there are cores. They end with this, and with them whatever they still do.
pub(super) struct Threads {
    threads: Vec<Thread>,
    _running: DropGuard,
}

/// One of them.
pub(super) struct Thread {
    runtime: Handle,
    answers: Arc<Answers>,
}

/// When a thread has answered.
pub(super) struct Answers {
    start: Instant,
    last_us: AtomicU64,
    /// One came soon behind another.
    thick: Notify,
}

impl Threads {
    pub(super) fn start() -> io::Result<Threads> {
        let running = CancellationToken::new();
        let start = |index| {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let answers = Arc::new(Answers::new());
            let started = Thread { runtime: runtime.handle().clone(), answers: Arc::clone(&answers) };
            let over = running.clone();
            thread::Builder::new().name(format!("http-{index}")).spawn(move || {
                time_slice::shorten();
                runtime.block_on(over.run_until_cancelled(answers.stay_awake()));
                runtime.shutdown_background();
            })?;
            Ok(started)
        };
        let threads = (0..cores()).map(start).collect::<io::Result<_>>()?;
        Ok(Threads { threads, _running: running.drop_guard() })
    }

    /// The threads, in turns, for ever.
    pub(super) fn turns(&self) -> impl Iterator<Item = &Thread> {
        self.threads.iter().cycle()
    }
}

impl Thread {
    /// Does something there, that notes what it answers.
    pub(super) fn spawn<F>(&self, work: impl FnOnce(Arc<Answers>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.runtime.spawn(work(Arc::clone(&self.answers)));
    }
}

impl Answers {
    fn new() -> Answers {
        Answers { start: Instant::now(), last_us: AtomicU64::new(0), thick: Notify::new() }
    }

    /// One more.
    pub(super) fn note(&self) {
        let now_us = self.now_us();
        let before_us = self.last_us.swap(now_us, Ordering::Relaxed);
        if now_us.saturating_sub(before_us) <= THICK_US {
            self.thick.notify_one();
        }
    }

    /// Keeps the thread from sleeping while answers come one soon behind the other.
    async fn stay_awake(&self) {
        loop {
            self.thick.notified().await;
            while self.now_us().saturating_sub(self.last_us.load(Ordering::Relaxed)) < AWAKE_US {
                // Whoever else has something to do goes first: another thread, and then what has come to this one.
                thread::yield_now();
                task::yield_now().await;
            }
        }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        pin::pin,
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use tokio::time::sleep;

    use super::*;

    /// How often a thread looks for requests after so many answers, in the first and the second tenth of a second.
    async fn looks(answers: u32) -> [usize; 2] {
        let looks = Arc::new(AtomicUsize::new(0));
        let noted = Arc::new(Answers::new());
        let (count, waits) = (Arc::clone(&looks), Arc::clone(&noted));
        let awake = task::spawn(async move {
            let mut awake = pin!(waits.stay_awake());
            poll_fn(|context| {
                count.fetch_add(1, Ordering::Relaxed);
                awake.as_mut().poll(context)
            })
            .await;
        });
        // No answer is soon behind the start.
        sleep(Duration::from_millis(1)).await;
        let before = looks.load(Ordering::Relaxed);
        for _ in 0..answers {
            noted.note();
        }
        let mut counts = [before, 0, 0];
        for count in &mut counts[1..] {
            sleep(Duration::from_millis(100)).await;
            *count = looks.load(Ordering::Relaxed);
        }
        awake.abort();
        [counts[1] - counts[0], counts[2] - counts[1]]
    }

    #[tokio::test]
    async fn a_thread_stays_awake_for_a_moment_behind_answers_that_come_thick() {
        assert_eq!(looks(0).await, [0, 0]);
        assert_eq!(looks(1).await, [0, 0]);
        let mut stayed = false;
        for _ in 0..20 {
            let [first, second] = looks(2).await;
            assert_eq!(second, 0);
            // On a busy machine it may get to look only once.
            stayed |= first > 1;
        }
        assert!(stayed);
    }
}
