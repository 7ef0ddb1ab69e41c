//! What a terminal shows while a phase is played.

use std::{
    io::{IsTerminal, stderr},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

/// Between one line and the next.
const EVERY: Duration = Duration::from_millis(500);

/// A line that is written over. Nothing where standard error is no terminal.
pub(super) struct Live {
    bar: ProgressBar,
    events: AtomicU64,
    lookups: AtomicU64,
    /// The longest of each since the last line, in nanoseconds.
    longest_lag: AtomicU64,
    longest_lookup: AtomicU64,
}

impl Live {
    pub(super) fn new(length: Duration) -> Live {
        let bar = if stderr().is_terminal() {
            ProgressBar::new(milliseconds(length))
        } else {
            ProgressBar::hidden()
        };
        let style = ProgressStyle::with_template("{wide_bar} {percent:>3} %  {msg}");
        let bar = match style {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        };
        let zero = || AtomicU64::new(0);
        Live { bar, events: zero(), lookups: zero(), longest_lag: zero(), longest_lookup: zero() }
    }

    /// So many events have become visible.
    pub(super) fn see(&self, events: u64, lag: Duration) {
        self.events.fetch_add(events, Ordering::Relaxed);
        self.longest_lag.fetch_max(nanoseconds(lag), Ordering::Relaxed);
    }

    /// A question has its answer.
    pub(super) fn answer(&self, time: Duration) {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        self.longest_lookup.fetch_max(nanoseconds(time), Ordering::Relaxed);
    }

    /// Shows what has happened since the last time, if that is long enough ago.
    pub(super) fn show(&self, start: Instant, shown: &mut Instant) {
        let since = shown.elapsed();
        if since < EVERY {
            return;
        }
        *shown = Instant::now();
        let a_second = |count: &AtomicU64| count.swap(0, Ordering::Relaxed) as f64 / since.as_secs_f64();
        let ms = |longest: &AtomicU64| longest.swap(0, Ordering::Relaxed) as f64 / 1e6;
        self.bar.set_position(milliseconds(start.elapsed()));
        self.bar.set_message(format!(
            "{:.0} events/s, longest lag {:.1} ms; {:.0} lookups/s, longest {:.1} ms",
            a_second(&self.events),
            ms(&self.longest_lag),
            a_second(&self.lookups),
            ms(&self.longest_lookup)
        ));
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
