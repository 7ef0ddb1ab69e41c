//! How a phase went over time: the same figures for each stretch of it.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use kvtide::serving::Failure;
use serde::Serialize;

/// Times of calls, by the stretch of the phase that each was due in.
#[derive(Clone, Debug)]
pub(super) struct Series {
    start: Instant,
    every: Duration,
    /// Coarser and smaller than those of the whole phase: a long one has many.
    stretches: Vec<Histogram<u32>>,
}

/// One stretch, as it is told of.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Stretch {
    /// Seconds from the start of the phase to that of the stretch.
    pub(super) at_s: f64,
    pub(super) events_s: f64,
    pub(super) lookups_s: f64,
    pub(super) lag_p50_ms: f64,
    pub(super) lag_p99_ms: f64,
    pub(super) lookup_p50_us: f64,
    pub(super) lookup_p99_us: f64,
    /// Of this process when the stretch ended.
    pub(super) rss_mb: Option<f64>,
}

impl Series {
    pub(super) fn new(start: Instant, every: Duration) -> Series {
        Series { start, every, stretches: Vec::new() }
    }

    /// Notes a time, so many times over.
    ///
    /// # Errors
    /// None: a histogram grows to what is noted.
    pub(super) fn note(&mut self, due: Instant, time: Duration, count: u64) -> Result<(), Failure> {
        let number = due.saturating_duration_since(self.start).as_secs_f64() / self.every.as_secs_f64();
        let number = number as usize;
        while self.stretches.len() <= number {
            self.stretches.push(Histogram::new(2)?);
        }
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Ok(self.stretches[number].record_n(nanoseconds, count)?)
    }

    /// Takes in the times of another that began with it.
    ///
    /// # Errors
    /// As [`Series::note`].
    pub(super) fn take(&mut self, other: &Series) -> Result<(), Failure> {
        for (number, stretch) in other.stretches.iter().enumerate() {
            match self.stretches.get_mut(number) {
                Some(own) => own.add(stretch)?,
                None => self.stretches.push(stretch.clone()),
            }
        }
        Ok(())
    }
}

/// Lags and lookups together. A stretch that is not whole is left out, but for the only one.
pub(super) fn stretches(
    lags: &Series,
    lookups: &Series,
    rss_mb: &[Option<f64>],
    length: Duration,
) -> Vec<Stretch> {
    let every = lags.every.min(length).as_secs_f64();
    let whole = ((length.as_secs_f64() / every).floor() as usize).max(1);
    let rows = lags.stretches.iter().zip(&lookups.stretches).enumerate().take(whole);
    let stretch = |(number, (lag, lookup)): (usize, (&Histogram<u32>, &Histogram<u32>))| Stretch {
        at_s: number as f64 * every,
        events_s: lag.len() as f64 / every,
        lookups_s: lookup.len() as f64 / every,
        lag_p50_ms: lag.value_at_percentile(50.0) as f64 / 1e6,
        lag_p99_ms: lag.value_at_percentile(99.0) as f64 / 1e6,
        lookup_p50_us: lookup.value_at_percentile(50.0) as f64 / 1e3,
        lookup_p99_us: lookup.value_at_percentile(99.0) as f64 / 1e3,
        rss_mb: rss_mb.get(number).copied().flatten(),
    };
    rows.map(stretch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_counts_in_the_stretch_that_it_was_due_in() {
        let start = Instant::now();
        let (mut lags, mut lookups) =
            (Series::new(start, Duration::from_secs(10)), Series::new(start, Duration::from_secs(10)));
        let at = |seconds| start + Duration::from_secs_f64(seconds);
        lags.note(at(0.0), Duration::from_millis(1), 5).unwrap();
        // Due in the first stretch, though it was long in coming.
        lags.note(at(9.9), Duration::from_secs(9), 5).unwrap();
        lags.note(at(10.0), Duration::from_millis(3), 20).unwrap();
        let mut others = Series::new(start, Duration::from_secs(10));
        others.note(at(12.0), Duration::from_millis(3), 20).unwrap();
        lags.take(&others).unwrap();
        for seconds in [1.0, 15.0, 25.0] {
            lookups.note(at(seconds), Duration::from_micros(20), 1).unwrap();
        }
        let rows = stretches(&lags, &lookups, &[Some(7.0), None], Duration::from_secs(25));
        let figures: Vec<_> =
            rows.iter().map(|row| (row.at_s, row.events_s, row.lookups_s, row.rss_mb)).collect();
        assert_eq!(figures, [(0.0, 1.0, 0.1, Some(7.0)), (10.0, 4.0, 0.1, None)]);
        assert!((8900.0..9100.0).contains(&rows[0].lag_p99_ms), "{rows:?}");
        assert!((2.9..3.1).contains(&rows[1].lag_p99_ms), "{rows:?}");
    }
}
