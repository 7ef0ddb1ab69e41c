//! What is told of each interval, and of the whole.

use kvtide_benches::{Latency, median};
use kvtide_radix::Size;
use serde::Serialize;

/// An interval.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Interval {
    /// Since the caches were full.
    pub(crate) seconds: f64,
    pub(crate) runs: usize,
    pub(crate) pages: usize,
    pub(crate) held_blocks: u64,
    pub(crate) live_bytes: usize,
    /// Of prompts whose hashes have just been written.
    pub(crate) lookup_ns: Latency,
    pub(crate) applied_mblocks_s: f64,
    /// The same of an index that has only just been filled, measured by turns.
    pub(crate) young_lookup_ns: Latency,
    pub(crate) young_applied_mblocks_s: f64,
}

/// How the last minute differs from the second one, in percent, and what is left once everything is removed. Times
/// are those of the old index as a part of the young one's.
#[derive(Serialize)]
pub(crate) struct Drift {
    runs_percent: f64,
    bytes_percent: f64,
    lookup_p50_percent: f64,
    lookup_p99_percent: f64,
    applied_percent: f64,
    runs_left: usize,
    pages_left: usize,
    /// Of the bytes that it had when full, without those of an index that never held anything.
    bytes_left_percent: f64,
}

pub(crate) const HEADING: &str = " seconds      held     runs    pages  live bytes  lookup p50    p99 ns  Mblocks/s  of a young one: p50    p99 ns  \
     Mblocks/s";

impl Interval {
    pub(crate) fn row(&self) -> String {
        format!(
            "{:>8.0} {:>9} {:>8} {:>8} {:>11} {:>11.0} {:>9.0} {:>10.2} {:>20.0} {:>9.0} {:>10.2}",
            self.seconds,
            self.held_blocks,
            self.runs,
            self.pages,
            self.live_bytes,
            self.lookup_ns.p50,
            self.lookup_ns.p99,
            self.applied_mblocks_s,
            self.young_lookup_ns.p50,
            self.young_lookup_ns.p99,
            self.young_applied_mblocks_s
        )
    }
}

/// The index before it held anything, and after it held nothing any more.
pub(crate) struct Empty {
    pub(crate) bytes_before: usize,
    pub(crate) bytes_after: usize,
    pub(crate) size_after: Size,
}

impl Drift {
    /// The first minute does not count. Both ends are medians of the intervals of a minute, or of half of what there
    /// is.
    pub(crate) fn of(intervals: &[Interval], empty: &Empty) -> Drift {
        let begins = intervals.iter().position(|one| one.seconds > 60.0).unwrap_or(0);
        let counted = &intervals[begins..];
        let minute = counted.iter().take_while(|one| one.seconds <= counted[0].seconds + 60.0).count();
        let length = minute.min(counted.len().div_ceil(2));
        let percent = |value: fn(&Interval) -> f64| {
            let first = median(counted[..length].iter().map(value));
            let last = median(counted[counted.len() - length..].iter().map(value));
            100.0 * (last / first - 1.0)
        };
        let full = intervals.last().map_or(0, |last| last.live_bytes);
        let left = empty.bytes_after.saturating_sub(empty.bytes_before) as f64;
        Drift {
            runs_percent: percent(|one| one.runs as f64),
            bytes_percent: percent(|one| one.live_bytes as f64),
            lookup_p50_percent: percent(|one| one.lookup_ns.p50 / one.young_lookup_ns.p50),
            lookup_p99_percent: percent(|one| one.lookup_ns.p99 / one.young_lookup_ns.p99),
            applied_percent: percent(|one| one.applied_mblocks_s / one.young_applied_mblocks_s),
            runs_left: empty.size_after.runs,
            pages_left: empty.size_after.pages,
            bytes_left_percent: 100.0 * left / full.saturating_sub(empty.bytes_before) as f64,
        }
    }

    pub(crate) fn sentence(&self) -> String {
        format!(
            "drift after the first minute: runs {:+.2} %, bytes {:+.2} %, lookup p50 {:+.1} %, p99 {:+.1} %, applied \
             {:+.1} %; left \
             when empty: {} runs, {} pages, {:.2} % of the bytes",
            self.runs_percent,
            self.bytes_percent,
            self.lookup_p50_percent,
            self.lookup_p99_percent,
            self.applied_percent,
            self.runs_left,
            self.pages_left,
            self.bytes_left_percent
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(seconds: f64, runs: usize) -> Interval {
        let lookup_ns = Latency { mean: 1.0, p50: 1.0, p99: 1.0, p999: 1.0 };
        Interval {
            seconds,
            runs,
            pages: 1,
            held_blocks: 1,
            live_bytes: 2000,
            lookup_ns,
            applied_mblocks_s: 1.0,
            young_lookup_ns: lookup_ns,
            young_applied_mblocks_s: 1.0,
        }
    }

    #[test]
    fn the_first_minute_does_not_count_and_one_odd_interval_neither() {
        let runs = [1, 1, 1, 1, 1, 1, 100, 100, 900, 100, 110, 110];
        let rows = (1..).zip(runs).map(|(number, runs)| interval(10.0 * f64::from(number), runs));
        let empty = Empty { bytes_before: 1000, bytes_after: 1010, size_after: Size::default() };
        let drift = Drift::of(&rows.collect::<Vec<_>>(), &empty);
        assert!((drift.runs_percent - 10.0).abs() < 1e-9, "{}", drift.sentence());
        assert_eq!((drift.bytes_percent, drift.bytes_left_percent), (0.0, 1.0));
    }
}
