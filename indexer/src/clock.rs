//! The only place that reads clocks: a steady one for ages, the wall clock for what others timestamp.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// A source of time. Clones tell the same time.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System { start: Instant },
    Manual { steady_ms: Arc<AtomicU64>, wall_ms: Arc<AtomicU64> },
}

impl Default for Clock {
    fn default() -> Self {
        Clock(Source::System { start: Instant::now() })
    }
}

impl Clock {
    /// A clock that stands still until it is [advanced](Clock::advance), for tests and replays.
    #[must_use]
    pub fn manual(wall_ms: u64) -> Clock {
        let (steady_ms, wall_ms) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(wall_ms)));
        Clock(Source::Manual { steady_ms, wall_ms })
    }

    /// Moves a manual clock on. The system's clock moves by itself.
    pub fn advance(&self, ms: u64) {
        if let Source::Manual { steady_ms, wall_ms } = &self.0 {
            steady_ms.fetch_add(ms, Ordering::Relaxed);
            wall_ms.fetch_add(ms, Ordering::Relaxed);
        }
    }

    /// Sets a manual clock's wall, as when somebody sets a machine's. The steady clock goes on as it was.
    pub fn set_wall(&self, ms: u64) {
        if let Source::Manual { wall_ms, .. } = &self.0 {
            wall_ms.store(ms, Ordering::Relaxed);
        }
    }

    /// Milliseconds since this clock was made. Never goes back.
    #[must_use]
    pub fn steady_ms(&self) -> u64 {
        match &self.0 {
            Source::System { start } => u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX),
            Source::Manual { steady_ms, .. } => steady_ms.load(Ordering::Relaxed),
        }
    }

    /// Milliseconds since the Unix epoch, as this machine has it.
    #[must_use]
    pub fn wall_ms(&self) -> u64 {
        match &self.0 {
            Source::System { .. } => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
            }
            Source::Manual { wall_ms, .. } => wall_ms.load(Ordering::Relaxed),
        }
    }
}
