//! What is told of each side.

use std::fmt;

use kvtide_benches::{Latency, median};
use serde::Serialize;

use crate::{forms::Form, measure::Target, sides::Side};

/// What one side took for one form.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    form: Form,
    /// None: a server that does nothing.
    side: Option<Side>,
    request_bytes: usize,
    p50_us: f64,
    p99_us: f64,
    requests_s: f64,
    /// kvtide's figures as parts of Dynamo's, the rate as a multiple. Of kvtide, where both are asked.
    p50_ratio: Option<f64>,
    p99_ratio: Option<f64>,
    requests_ratio: Option<f64>,
}

impl Row {
    pub(crate) const HEAD: &str =
        "form            side        kB    p50 us    p99 us  requests/s   of Dynamo: p50   p99  requests/s";

    /// What a target took.
    pub(crate) fn of(side: Option<Side>, form: Form, target: Target) -> Row {
        let bytes = target.requests.iter().map(Vec::len).sum::<usize>() / target.requests.len().max(1);
        let times = Latency::of(target.times);
        let microseconds = |part: fn(&Latency) -> f64| times.as_ref().map_or(f64::NAN, part) / 1000.0;
        Row {
            form,
            side,
            request_bytes: bytes,
            p50_us: microseconds(|times| times.p50),
            p99_us: microseconds(|times| times.p99),
            requests_s: median(target.rates),
            p50_ratio: None,
            p99_ratio: None,
            requests_ratio: None,
        }
    }
}

/// Adds to kvtide's row what its figures are as parts of Dynamo's.
pub(crate) fn compare(mut rows: Vec<Row>) -> Vec<Row> {
    let of = |rows: &[Row], side| rows.iter().find(|row| row.side == Some(side)).cloned();
    if let Some(dynamo) = of(&rows, Side::Dynamo) {
        for row in rows.iter_mut().filter(|row| row.side == Some(Side::Kvtide)) {
            row.p50_ratio = Some(row.p50_us / dynamo.p50_us);
            row.p99_ratio = Some(row.p99_us / dynamo.p99_us);
            row.requests_ratio = Some(row.requests_s / dynamo.requests_s);
        }
    }
    rows
}

impl fmt::Display for Row {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { form, side, request_bytes, p50_us, p99_us, requests_s, .. } = self;
        let side = side.map_or("nothing".to_owned(), |side| format!("{side:?}").to_lowercase());
        let form = format!("{form:?}");
        write!(out, "{form:15} {side:8} {:>5}", request_bytes / 1000)?;
        write!(out, " {p50_us:>9.0} {p99_us:>9.0} {requests_s:>11.0}")?;
        match (self.p50_ratio, self.p99_ratio, self.requests_ratio) {
            (Some(p50), Some(p99), Some(requests)) => write!(out, " {p50:>16.3} {p99:>5.3} {requests:>11.2}"),
            _ => Ok(()),
        }
    }
}
