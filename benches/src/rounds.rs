//! Times several contestants in turns.

use std::time::{Duration, Instant};

/// What one contestant took.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Seconds a call in the median round.
    pub median: f64,
    /// Half the distance between the quartiles of the rounds, as a part of the median.
    pub spread: f64,
}

/// Calls each contestant for about `length` a round, in turns, and gives the timings in their order.
///
/// The round before the first only warms up and tells how many calls fill a round.
pub fn rounds(count: usize, length: Duration, contestants: &mut [&mut dyn FnMut()]) -> Vec<Timing> {
    let calls: Vec<u32> = contestants.iter_mut().map(|contestant| calls_within(length, contestant)).collect();
    let mut seconds = vec![Vec::with_capacity(count); contestants.len()];
    for _ in 0..count {
        for ((contestant, &calls), seconds) in contestants.iter_mut().zip(&calls).zip(&mut seconds) {
            let start = Instant::now();
            for _ in 0..calls {
                contestant();
            }
            seconds.push(start.elapsed().as_secs_f64() / f64::from(calls));
        }
    }
    seconds.into_iter().map(Timing::of).collect()
}

fn calls_within(length: Duration, contestant: &mut dyn FnMut()) -> u32 {
    let start = Instant::now();
    let mut calls = 0;
    while start.elapsed() < length {
        contestant();
        calls += 1;
    }
    calls.max(1)
}

impl Timing {
    fn of(mut rounds: Vec<f64>) -> Timing {
        rounds.sort_by(f64::total_cmp);
        let at = |part: usize| rounds.get((rounds.len() * part / 4).min(rounds.len().saturating_sub(1)));
        let quartile = |part| at(part).copied().unwrap_or(f64::NAN);
        let median = quartile(2);
        Timing { median, spread: (quartile(3) - quartile(1)) / 2.0 / median }
    }
}
