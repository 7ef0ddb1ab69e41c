//! Requests of real services (indexer/traces): when they came, and what they shared.

use std::{
    io::{BufRead, BufReader, Error, ErrorKind},
    time::Duration,
};

use serde::Deserialize;

const MOONCAKE: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/traces/conversation_trace.jsonl.zst"));
const AZURE: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/traces/azure_conversations.csv.zst"));
/// Tokens that one id of the Mooncake trace stands for.
pub(super) const ID_TOKENS: u32 = 512;

/// A request of the Mooncake trace.
#[derive(Deserialize)]
pub(super) struct Request {
    timestamp: u64,
    pub(super) input_length: u32,
    pub(super) output_length: u32,
    /// Each stands for a part of the prompt and all that is in front of it.
    pub(super) hash_ids: Vec<u32>,
}

/// The Mooncake trace.
///
/// # Errors
/// Where the trace, which is a part of the program, does not decode.
pub(super) fn mooncake() -> Result<Vec<Request>, Error> {
    let lines = BufReader::new(zstd::Decoder::new(MOONCAKE)?).lines();
    lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}

/// When the requests of a trace came, each after the one before it; played again and again, so that there are so many a second in
/// the mean.
pub(super) struct Times {
    gaps: Vec<Duration>,
    next: usize,
}

impl Times {
    pub(super) fn mooncake(requests: &[Request], per_second: f64) -> Times {
        Times::new(&requests.iter().map(|request| request.timestamp).collect::<Vec<_>>(), per_second)
    }

    /// # Errors
    /// Where the trace, which is a part of the program, does not decode.
    pub(super) fn azure(per_second: f64) -> Result<Times, Error> {
        let lines = BufReader::new(zstd::Decoder::new(AZURE)?).lines().skip(1);
        let time = |line: Result<String, Error>| {
            let line = line?;
            let time = line.split(',').next().and_then(|time| time.parse().ok());
            time.ok_or_else(|| {
                Error::new(ErrorKind::InvalidData, "expected milliseconds, context and answer tokens")
            })
        };
        Ok(Times::new(&lines.map(time).collect::<Result<Vec<u64>, Error>>()?, per_second))
    }

    fn new(times_ms: &[u64], per_second: f64) -> Times {
        let (first, last) = (times_ms.first().copied().unwrap_or(0), times_ms.last().copied().unwrap_or(0));
        let mean_ms = (last - first) as f64 / times_ms.len() as f64;
        let faster = 1000.0 / mean_ms / per_second;
        // The last one is followed by the first again, after a mean gap.
        let gaps = times_ms.windows(2).map(|pair| (pair[1] - pair[0]) as f64).chain([mean_ms]);
        Times { gaps: gaps.map(|gap| Duration::from_secs_f64(gap / 1000.0 * faster)).collect(), next: 0 }
    }

    /// From one request to the next.
    pub(super) fn gap(&mut self) -> Duration {
        let gap = self.gaps[self.next % self.gaps.len()];
        self.next += 1;
        gap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_comes_to_the_rate_that_is_asked_for_and_keeps_its_bursts() {
        let requests = mooncake().expect("the trace is built in");
        assert_eq!(requests.len(), 12_031);
        for mut times in
            [Times::mooncake(&requests, 250.0), Times::azure(250.0).expect("the trace is built in")]
        {
            let count = times.gaps.len();
            let all: Duration = (0..2 * count).map(|_| times.gap()).sum();
            let rate = 2.0 * count as f64 / all.as_secs_f64();
            assert!((249.0..251.0).contains(&rate), "{rate}");
            let mean = all / (2 * count as u32);
            let long = times.gaps.iter().filter(|&&gap| gap > 4 * mean).count();
            assert!(long > count / 200, "{long} of {count} gaps are long");
        }
    }
}
