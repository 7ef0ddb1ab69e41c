//! One look at a service: what it says of itself and of its ranks.

use std::time::Instant;

use kvtide::{
    KnowledgeState,
    service::{Worker, WorkerList},
    serving::Failure,
};
use serde::Deserialize;
use serde_json::Value;

use super::super::service_at::ServiceAt;

/// What a service said.
pub(super) struct Look {
    pub(super) at: Instant,
    version: String,
    /// Why it is not ready, if it is not.
    not_ready: Option<String>,
    scopes: usize,
    pub(super) workers: Vec<Worker>,
    /// None where it does not say it to this token.
    counted: Option<Counted>,
}

/// What it has counted since its start.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Counted {
    events: f64,
    queries: f64,
    /// Seconds that 99 of 100 queries stay under, of the last minutes.
    p99_s: Option<f64>,
}

/// Whoever looks, again and again.
pub(super) struct Looker {
    service: ServiceAt,
    /// Asked for once, and again where the service was away: it may have come back as another one.
    version: Option<String>,
}

impl Looker {
    pub(super) fn new(service: ServiceAt) -> Looker {
        Looker { service, version: None }
    }

    /// Asks the service.
    pub(super) fn look(&mut self) -> Result<Look, Failure> {
        let version = self.version.take();
        let version = version.map_or_else(|| version_of(&self.service), Ok)?;
        let list = WorkerList::deserialize(self.service.get("/v1/workers")?)?;
        let scopes = self.service.get("/v1/scopes")?;
        let (ready, said) = self.service.text("/readyz")?;
        let (counts, metrics) = self.service.text("/metrics")?;
        self.version = Some(version.clone());
        Ok(Look {
            at: Instant::now(),
            version,
            not_ready: (!ready).then(|| detail(&said)),
            scopes: scopes["scopes"].as_array().map_or(0, Vec::len),
            workers: list.workers,
            counted: counts.then(|| Counted::read(&metrics)),
        })
    }
}

impl Look {
    /// What stands above the table: who, how it is, and what it does; by the second where there was a look before.
    pub(super) fn header(&self, url: &str, before: Option<&Look>) -> [String; 3] {
        let ready = self.not_ready.as_ref().map_or("ready".to_owned(), |why| format!("not ready: {why}"));
        let states = KnowledgeState::ALL.into_iter().filter_map(|state| {
            let ranks = self.workers.iter().filter(|worker| worker.knowledge == state).count();
            (ranks > 0).then(|| format!("{} {}", count(ranks as u64), state.name()))
        });
        let states = states.collect::<Vec<_>>().join(", ");
        let states = if states.is_empty() { states } else { format!(": {states}") };
        [
            format!("kvtide {} at {url}, {ready}", self.version),
            format!(
                "{} ranks in {} scopes{states}",
                count(self.workers.len() as u64),
                count(self.scopes as u64)
            ),
            self.work(before),
        ]
    }

    fn work(&self, before: Option<&Look>) -> String {
        let Some(now) = self.counted else { return "what it counts is not shown to this token".into() };
        let p99 = now.p99_s.map_or("-".into(), |seconds| format!("{:.3} ms", seconds * 1000.0));
        let earlier = before.and_then(|before| Some((before.counted?, (self.at - before.at).as_secs_f64())));
        match earlier.filter(|&(_, seconds)| seconds > 0.0) {
            None => format!("{:.0} events, {:.0} queries, p99 {p99}", now.events, now.queries),
            Some((earlier, seconds)) => {
                // One that has started again counts from 0.
                let rate = |now: f64, then: f64| if now < then { now } else { now - then } / seconds;
                let events = rate(now.events, earlier.events);
                let queries = rate(now.queries, earlier.queries);
                format!("{events:.1} events/s, {queries:.1} queries/s, p99 {p99}")
            }
        }
    }
}

/// Which kvtide it is, as its contract says.
fn version_of(service: &ServiceAt) -> Result<String, Failure> {
    Ok(service.get("/openapi.json")?["info"]["version"].as_str().unwrap_or("?").to_owned())
}

/// What a problem says in words.
fn detail(problem: &str) -> String {
    let problem: Option<Value> = serde_json::from_str(problem).ok();
    problem.and_then(|problem| Some(problem["detail"].as_str()?.to_owned())).unwrap_or_default()
}

impl Counted {
    /// Reads Prometheus text.
    fn read(text: &str) -> Counted {
        let values = |name: &'static str| {
            text.lines().filter_map(move |line| {
                let rest = line.strip_prefix(name)?;
                let (labels, value) = rest.rsplit_once(' ')?;
                Some((labels, value.parse::<f64>().ok()?))
                    .filter(|_| labels.is_empty() || labels.starts_with('{'))
            })
        };
        let sum = |name| values(name).map(|(_, value)| value).sum();
        let mut quantiles = values("kvtide_query_seconds");
        Counted {
            events: sum("kvtide_events_total"),
            queries: sum("kvtide_query_seconds_count"),
            p99_s: quantiles.find(|(labels, _)| labels.contains("quantile=\"0.99\"")).map(|(_, value)| value),
        }
    }
}

/// A number with its thousands apart.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut parts: Vec<&str> = Vec::new();
    let mut rest = digits.as_str();
    while rest.len() > 3 {
        let (front, last) = rest.split_at(rest.len() - 3);
        parts.push(last);
        rest = front;
    }
    parts.push(rest);
    parts.reverse();
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::{Counted, count};

    #[test]
    fn what_is_counted_is_summed_over_streams() {
        let text = "# TYPE kvtide_events_total counter\n\
                    kvtide_events_total{stream=\"a b\"} 5\nkvtide_events_total{stream=\"c\"} 7\n\
                    kvtide_events_total_other{stream=\"c\"} 100\n\
                    kvtide_query_seconds{quantile=\"0.5\"} 0.1\nkvtide_query_seconds{quantile=\"0.99\"} 0.25\n\
                    kvtide_query_seconds_sum 3.5\nkvtide_query_seconds_count 9\n";
        let counted = Counted::read(text);
        assert_eq!(counted, Counted { events: 12.0, queries: 9.0, p99_s: Some(0.25) });
        assert_eq!(Counted::read(""), Counted { events: 0.0, queries: 0.0, p99_s: None });
    }

    #[test]
    fn thousands_stand_apart() {
        let rows = [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")];
        for (number, text) in rows {
            assert_eq!(count(number), text);
        }
    }
}
