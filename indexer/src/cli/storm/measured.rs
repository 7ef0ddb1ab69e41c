//! What one phase of a storm has measured.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use kvtide::serving::Failure;
use serde::Serialize;

use super::{
    series::{Series, Stretch},
    sight::Sent,
};

/// A minute, in nanoseconds: what takes longer counts as that.
const LONGEST: u64 = 60_000_000_000;

/// Times of many calls.
#[derive(Clone, Debug)]
pub(super) struct Times(Histogram<u64>);

impl Times {
    /// # Errors
    /// None: the bounds are those of a histogram.
    pub(super) fn new() -> Result<Times, Failure> {
        Ok(Times(Histogram::new_with_bounds(1, LONGEST, 3)?))
    }

    /// Notes a time, so many times over.
    pub(super) fn note(&mut self, time: Duration, count: u64) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(LONGEST);
        self.0.saturating_record_n(nanoseconds.clamp(1, LONGEST), count);
    }

    /// Takes in the times of another.
    fn take(&mut self, other: &Times) -> Result<(), Failure> {
        Ok(self.0.add(&other.0)?)
    }

    pub(super) fn count(&self) -> u64 {
        self.0.len()
    }

    /// The time that so many of a hundred did not exceed.
    pub(super) fn percentile(&self, percent: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_percentile(percent))
    }

    /// What is told of them, in units of so many nanoseconds.
    pub(super) fn percentiles(&self, unit: f64) -> Percentiles {
        let at = |percent| self.0.value_at_percentile(percent) as f64 / unit;
        Percentiles { p50: at(50.0), p99: at(99.0), p999: at(99.9), max: self.0.max() as f64 / unit }
    }

    pub(super) fn milliseconds(&self) -> Percentiles {
        self.percentiles(1e6)
    }

    pub(super) fn microseconds(&self) -> Percentiles {
        self.percentiles(1e3)
    }
}

/// How long questions took.
#[derive(Clone, Debug)]
pub(super) struct Lookups {
    /// From the time that each was to be asked until its answer was there.
    pub(super) from_schedule: Times,
    /// From the time that it was asked.
    pub(super) answering: Times,
}

impl Lookups {
    /// # Errors
    /// As [`Times::new`].
    pub(super) fn new() -> Result<Lookups, Failure> {
        Ok(Lookups { from_schedule: Times::new()?, answering: Times::new()? })
    }

    /// Notes a question that was answered just now. Returns how long it took from when it was due.
    pub(super) fn note(&mut self, due: Instant, asked: Instant) -> Duration {
        let now = Instant::now();
        let time = now.saturating_duration_since(due);
        self.from_schedule.note(time, 1);
        self.answering.note(now.saturating_duration_since(asked), 1);
        time
    }

    pub(super) fn count(&self) -> u64 {
        self.answering.count()
    }
}

/// Half of the times, all but one in a hundred, all but one in a thousand, and all were no longer.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub(super) struct Percentiles {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) max: f64,
}

/// Messages that have become visible.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// From the time that each was to be sent until it was visible, noted for each of its events.
    pub(super) lag: Times,
    /// The same over time.
    pub(super) lags: Series,
    /// Events and blocks that were visible by the end of the phase.
    pub(super) events: u64,
    pub(super) blocks: u64,
    /// Events that never were.
    pub(super) unseen_events: u64,
    /// Seconds of the processor's time that looking took.
    pub(super) cost: f64,
}

impl Seen {
    /// # Errors
    /// As [`Times::new`].
    pub(super) fn new(start: Instant, every: Duration) -> Result<Seen, Failure> {
        let lags = Series::new(start, every);
        Ok(Seen { lag: Times::new()?, lags, events: 0, blocks: 0, unseen_events: 0, cost: 0.0 })
    }

    /// Notes a message that is visible now. Returns its lag.
    ///
    /// # Errors
    /// As [`Times::new`].
    pub(super) fn note(&mut self, sent: &Sent, now: Instant, end: Instant) -> Result<Duration, Failure> {
        let lag = now.saturating_duration_since(sent.due);
        self.lag.note(lag, sent.events);
        self.lags.note(sent.due, lag, sent.events)?;
        if now <= end {
            self.events += sent.events;
            self.blocks += sent.blocks;
        }
        Ok(lag)
    }

    /// Takes in what somebody else has seen.
    ///
    /// # Errors
    /// As [`Times::new`].
    pub(super) fn take(&mut self, other: &Seen) -> Result<(), Failure> {
        self.lag.take(&other.lag)?;
        self.lags.take(&other.lags)?;
        self.events += other.events;
        self.blocks += other.blocks;
        Ok(())
    }
}

/// One phase.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) rate: f64,
    /// How long the phase was to take, or until it was broken off.
    pub(super) length: Duration,
    /// Events that were to be sent in so long.
    pub(super) offered_events: u64,
    pub(super) offered_in: Duration,
    /// How late messages were sent.
    pub(super) late: Times,
    pub(super) seen: Seen,
    pub(super) lookups: Lookups,
    /// Answers that were to be checked, for which there was no room.
    pub(super) unchecked: u64,
    /// Times that nothing was planned yet when it was due.
    pub(super) plan_waits: u64,
    /// It was broken off, since messages were sent ever later.
    pub(super) overloaded: bool,
    pub(super) cost: Cost,
    /// How it went over time.
    pub(super) stretches: Vec<Stretch>,
}

/// Seconds of the processor's time, by what they were spent on.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub(super) struct Cost {
    pub(super) planning: f64,
    /// In process this contains applying.
    pub(super) sending: f64,
    pub(super) asking: f64,
    /// Following streams and applying what comes.
    pub(super) following: f64,
    /// Looking what is visible.
    pub(super) looking: f64,
}

impl Cost {
    /// The same as cores in the mean of so long.
    pub(super) fn cores(self, length: Duration) -> Cost {
        let seconds = length.as_secs_f64();
        let Cost { planning, sending, asking, following, looking } = self;
        Cost {
            planning: planning / seconds,
            sending: sending / seconds,
            asking: asking / seconds,
            following: following / seconds,
            looking: looking / seconds,
        }
    }
}

impl Measured {
    pub(super) fn offered_events_s(&self) -> f64 {
        self.offered_events as f64 / self.offered_in.as_secs_f64()
    }

    pub(super) fn achieved_events_s(&self) -> f64 {
        self.seen.events as f64 / self.length.as_secs_f64()
    }

    pub(super) fn applied_blocks_s(&self) -> f64 {
        self.seen.blocks as f64 / self.length.as_secs_f64()
    }

    /// Whether the load was carried: nothing was lost, nearly all was visible in its time, and of a hundred events 99 within the
    /// limit.
    pub(super) fn is_carried(&self, lag_limit: Duration) -> bool {
        !self.overloaded && self.seen.unseen_events == 0 && self.seen.lag.percentile(99.0) < lag_limit
    }
}
