//! A collector that is away, refuses or hangs disturbs nobody: requests are answered, the log has one line, and a stop is quick.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use kvtide_tests::{
    Authority, Folder,
    harness::{Kvtide, free_port, wait_for},
};

use crate::collector::{Collector, Manner, traced};

/// Spans that may wait, and those of a batch.
const ROOM: u64 = 4096;
const BATCH: u64 = 512;

/// Asks so often, over one connection. Nobody waits for a batch, which may take ten seconds.
fn ask(kvtide: &Kvtide, times: u64) {
    let agent = ureq::Agent::new_with_defaults();
    for _request in 0..times {
        let started = Instant::now();
        let mut response = agent.get(format!("{}/healthz", kvtide.url())).call().unwrap();
        assert_eq!(response.body_mut().read_to_string().unwrap(), "ok\n");
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    }
}

/// Spans sent, and dropped.
fn counted(kvtide: &Kvtide) -> (u64, u64) {
    let (_, metrics) = kvtide.get("/metrics");
    let count = |name| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().parse().unwrap()
    };
    (count("kvtide_spans_sent_total "), count("kvtide_spans_dropped_total "))
}

/// Stops it, which must be quick. Returns the lines of its log that are warnings.
fn stop(kvtide: Kvtide) -> Vec<String> {
    let started = Instant::now();
    let mut log = kvtide.terminate();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    log.retain(|line| line.contains("WARN") || line.contains("ERROR"));
    log
}

/// Waits until several batches have been tried to send and are dropped; there is one line about all of them.
fn expect_one_line(kvtide: Kvtide, words: &[&str]) {
    for batches in 1..=3 {
        ask(&kvtide, BATCH);
        wait_for("a batch that is dropped", || (counted(&kvtide).1 >= batches * BATCH).then_some(()));
    }
    assert_eq!(counted(&kvtide).0, 0);
    let warnings = stop(kvtide);
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    for word in words {
        assert!(warnings[0].contains(word), "{word}: {}", warnings[0]);
    }
}

#[test]
fn one_that_is_not_there() {
    let url = format!("http://user:secret@127.0.0.1:{}", free_port());
    let kvtide = traced(&url, &[], "debug");
    expect_one_line(kvtide, &["spans do not reach the collector at http://127.0.0.1:", "refused"]);
}

#[test]
fn one_that_refuses() {
    for (status, word) in [(StatusCode::NOT_FOUND, "404 Not Found"), (StatusCode::FOUND, "302 Found")] {
        let collector = Collector::start(Manner::Answer(status));
        expect_one_line(collector.traced(&[], "info"), &[collector.url(), word]);
    }
}

#[test]
fn one_that_hangs() {
    let collector = Collector::start(Manner::Hang);
    let kvtide = collector.traced(&[], "info");
    // The first batch is on its way, and there is room for the rest until it is full.
    ask(&kvtide, ROOM + 1000);
    let (sent, dropped) = counted(&kvtide);
    assert_eq!((sent, dropped), (0, 1000));
    let warnings = stop(kvtide);
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(warnings[0].contains("gave up on 4096 spans"), "{}", warnings[0]);
}

#[test]
fn what_arrives_is_counted_and_none_is_lost() {
    let collector = Collector::start(Manner::Answer(StatusCode::OK));
    let kvtide = collector.traced(&[], "info");
    ask(&kvtide, 3 * BATCH);
    wait_for("spans that are sent", || (counted(&kvtide).0 >= 2 * BATCH).then_some(()));
    assert_eq!(counted(&kvtide).1, 0);
    assert_eq!(stop(kvtide), Vec::<String>::new());
    let spans = collector.spans();
    assert_eq!(spans.iter().filter(|span| span.name == "GET /healthz").count() as u64, 3 * BATCH);
}

#[test]
fn over_https_it_is_trusted_by_the_authorities_that_are_named() {
    let (folder, authority) = (Folder::new(), Authority::new());
    let [certificate, key] = authority.certify(&folder, "collector");
    let (trusted, other) =
        (folder.write("ca.pem", authority.pem()), folder.write("other.pem", Authority::new().pem()));
    // Something that speaks HTTPS, and takes no spans.
    let arguments = ["serve", "--tls-cert", &certificate, "--tls-key", &key];
    let collector = Kvtide::start(env!("CARGO_BIN_EXE_kvtide"), &arguments);
    for (authorities, word) in [(&trusted, "404 Not Found"), (&other, "certificate")] {
        let kvtide = traced(collector.url(), &["--otlp-tls-ca", authorities], "info");
        ask(&kvtide, 1);
        let warnings = stop(kvtide);
        assert!(warnings.len() == 1 && warnings[0].contains(word), "{word}: {warnings:#?}");
    }
}
