//! What is told of the times of many calls.

use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Nanoseconds a call.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// The mean.
    pub mean: f64,
    /// Half of the calls took no longer.
    pub p50: f64,
    /// One call in a hundred took as long or longer.
    pub p99: f64,
    /// One call in a thousand took as long or longer.
    pub p999: f64,
}

impl Latency {
    /// Of single calls. None where there was no call.
    #[must_use]
    pub fn of(mut nanoseconds: Vec<u64>) -> Option<Latency> {
        nanoseconds.sort_unstable();
        let count = nanoseconds.len();
        let at = |per_mille: usize| nanoseconds.get(count * per_mille / 1000).map(|&one| one as f64);
        let mean = nanoseconds.iter().sum::<u64>() as f64 / count as f64;
        Some(Latency { mean, p50: at(500)?, p99: at(990)?, p999: at(999)? })
    }

    /// The median of several rounds, each figure by itself.
    #[must_use]
    pub fn median(rounds: &[Latency]) -> Latency {
        let of = |part: fn(&Latency) -> f64| median(rounds.iter().map(part));
        Latency {
            mean: of(|one| one.mean),
            p50: of(|one| one.p50),
            p99: of(|one| one.p99),
            p999: of(|one| one.p999),
        }
    }
}

/// The value in the middle; of an even number the upper one of the two. Not a number where there is none.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Nanoseconds between two readings of the clock: a part of every call's time.
#[must_use]
pub fn clock() -> u64 {
    let readings = (0..1000).map(|_| {
        let start = Instant::now();
        start.elapsed().as_nanos() as u64
    });
    let mut readings: Vec<u64> = readings.collect();
    readings.sort_unstable();
    readings[readings.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::{Latency, median};

    #[test]
    fn of_a_thousand_calls_the_places_are_by_rank() {
        let expected = Latency { mean: 500.5, p50: 501.0, p99: 991.0, p999: 1000.0 };
        assert_eq!(Latency::of((1..=1000).rev().collect()), Some(expected));
        assert_eq!(Latency::of(Vec::new()), None);
    }

    #[test]
    fn one_slow_round_is_not_the_median() {
        assert_eq!(median([3.0, 100.0, 2.0]), 3.0);
        assert!(median([]).is_nan());
    }
}
