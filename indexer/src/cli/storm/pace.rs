//! When things are due: a plan's time on the clock of the wall. Nothing is late because something before it was.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

/// How fast a plan is played, from when on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    start: Instant,
    /// The plan's time at the start.
    from: Duration,
    /// Seconds of the plan a second.
    rate: f64,
}

impl Pace {
    pub(super) fn new(start: Instant, from: Duration, rate: f64) -> Pace {
        Pace { start, from, rate }
    }

    /// When something is due.
    pub(super) fn due(&self, at: Duration) -> Instant {
        self.start + at.saturating_sub(self.from).div_f64(self.rate)
    }

    /// The plan's time after so long.
    pub(super) fn after(&self, time: Duration) -> Duration {
        self.from + time.mul_f64(self.rate)
    }
}

/// Sleeps until then. Returns how late it is.
pub(super) fn wait(due: Instant) -> Duration {
    let early = due.saturating_duration_since(Instant::now());
    if !early.is_zero() {
        sleep(early);
    }
    due.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_the_rate_is_half_the_time() {
        let start = Instant::now();
        let pace = Pace::new(start, Duration::from_secs(100), 2.0);
        assert_eq!(pace.due(Duration::from_secs(110)), start + Duration::from_secs(5));
        assert_eq!(
            pace.due(Duration::from_secs(1)),
            start,
            "what should have been done before is due at once"
        );
        assert_eq!(pace.after(Duration::from_secs(5)), Duration::from_secs(110));
    }
}
