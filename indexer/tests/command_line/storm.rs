//! `kvtide storm`: every scenario runs and is right, whatever the target, and what is wrong with a file or an argument is said.

use std::thread;

use kvtide_tests::{Folder, harness::NatsServer};
use serde_json::{Value, json};

use crate::finished::kvtide;

/// A short run that must be right. Returns what it printed.
fn right(scenario: &str, target: &str, seconds: &str, more: &[&str]) -> Value {
    let arguments = [
        "storm",
        scenario,
        "--target",
        target,
        "--seconds",
        seconds,
        "--ahead-mb",
        "16",
        "--json",
        "--log",
        "error",
    ];
    let finished = kvtide(&[&arguments, more].concat());
    assert_eq!((finished.code, finished.error.as_str()), (0, ""), "{scenario}: {finished:?}");
    let report: Value = serde_json::from_str(&finished.out).unwrap();
    for (name, expected) in [("over", 0), ("under", 0), ("lost", 0)] {
        assert_eq!(report[name], expected, "{scenario}: {name} in {report}");
    }
    assert_eq!(report["scenario"], scenario);
    for name in
        ["checked", "offered_events_s", "achieved_events_s", "applied_blocks_s", "lookups_idle", "rss_mb"]
    {
        assert!(report[name].as_f64().unwrap() > 0.0, "{scenario}: {name} in {report}");
    }
    for times in ["lag_ms", "lookup_us", "lookup_idle_us", "answer_us", "answer_idle_us"] {
        let [p50, p99, p999, max] =
            ["p50", "p99", "p999", "max"].map(|part| report[times][part].as_f64().unwrap());
        assert!(0.0 < p50 && p50 <= p99 && p99 <= p999 && p999 <= max, "{scenario}: {times} in {report}");
    }
    report
}

fn shipped() -> Vec<String> {
    let list = kvtide(&["storm", "--list"]);
    assert_eq!((list.code, list.error.as_str()), (0, ""));
    list.out.lines().map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

#[test]
fn every_shipped_scenario_is_right_in_process() {
    let scenarios = shipped();
    assert_eq!(scenarios.len(), 13);
    for some in scenarios.chunks(3) {
        thread::scope(|scope| {
            for name in some {
                scope.spawn(|| {
                    let report = right(name, "in-process", "1", &[]);
                    assert!(report["bare_client_events_s"].is_null(), "{report}");
                });
            }
        });
    }
}

#[test]
fn over_a_bus_it_is_right_too_and_is_compared_with_a_plain_subscriber() {
    let nats = NatsServer::start();
    let report = right("restarts", &nats.url(), "1", &[]);
    assert_eq!(report["target"], "nats");
    for name in ["bare_client_events_s", "visible_events_s"] {
        assert!(report[name].as_f64().unwrap() > 0.0, "{name} in {report}");
    }
}

#[test]
fn over_the_sockets_of_engines_it_is_right_too() {
    let report = right("tenants", "zmq", "1", &[]);
    assert_eq!(report["target"], "zmq");
}

#[test]
fn a_search_ends_with_half_of_the_highest_load() {
    let folder = Folder::new();
    let file = folder.write(
        "small.toml",
        "description = 'small'\n[fleet]\nworkers = 2\nblock_size = 64\ngpu_blocks = 512\n[load]\n\
         requests_per_second = 2000\nwarm_requests = 50\n[prompts]\n",
    );
    let search = ["--search", "--lag-limit-ms", "500"];
    let report = right(&file, "in-process", "0.1", &search);
    let search = &report["search"];
    let trials = search["trials"].as_array().unwrap();
    assert!(trials.iter().any(|trial| trial["carried"] == true), "{report}");
    assert!(search["highest_events_s"].as_f64().unwrap() > 0.0, "{report}");
    let part = report["rate"].as_f64().unwrap() / search["highest_rate"].as_f64().unwrap();
    assert!((part - 0.5).abs() < 1e-9, "{report}");
}

#[test]
fn a_bus_of_its_own_is_restarted_and_what_goes_wrong_is_told() {
    let folder = Folder::new();
    let file = folder.write(
        "faults.toml",
        "description = 'faults'\n[fleet]\nworkers = 4\nblock_size = 64\ngpu_blocks = 512\n[load]\n\
         requests_per_second = 100\nwarm_requests = 200\nqueries_per_check = 1\n[prompts]\n\
         [[fault]]\nat_s = 0.2\nkind = 'repeat'\n[[fault]]\nat_s = 0.5\nkind = 'restart-bus'\ndown_ms = 200\n\
         [[fault]]\nat_s = 1\nkind = 'disconnect'\ndown_ms = 100\n\
         [[fault]]\nat_s = 1.5\nkind = 'drop'\n[[fault]]\nat_s = 1.7\nkind = 'cut'\n\
         [[fault]]\nat_s = 2\nkind = 'restart-workers'\nworkers = 2\n",
    );
    let page = folder.path("page.html");
    let arguments = ["storm", &file, "--target", "nats", "--seconds", "2.5", "--json", "--log", "off"];
    let finished = kvtide(&[&arguments[..], &["--every", "0.5", "--html", &page]].concat());
    assert_eq!(finished.code, 0, "{finished:?}");
    let report: Value = serde_json::from_str(&finished.out).unwrap();
    assert_eq!((&report["over"], &report["under_complete"]), (&json!(0), &json!(0)), "{report}");
    assert!(report["lost"].as_u64().unwrap() > 0, "{report}");
    let faults = report["faults"].as_array().unwrap();
    let kinds: Vec<_> = faults.iter().map(|fault| fault["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["repeat", "restart-bus", "disconnect", "drop", "cut", "restart-workers"], "{report}");
    assert!(faults[0]["exact_again_ms"].as_f64().unwrap() < 300.0, "{report}");
    assert_eq!(report["stretches"].as_array().unwrap().len(), 5, "{report}");
    let page = std::fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("<svg").count(), 5, "{page}");
    assert!(page.contains("<polyline") && !page.contains("<script") && !page.contains("NaN"), "{page}");

    // A bus of others stays as it is.
    let nats = NatsServer::start();
    kvtide(&["storm", &file, "--target", &nats.url(), "--seconds", "1", "--log", "off"])
        .failed(1, &["expected --target nats", "a bus of others is left alone"]);
}

#[test]
fn a_report_for_people_has_the_same_figures() {
    let finished = kvtide(&["storm", "conversations", "--seconds", "0.5", "--log", "error"]);
    assert_eq!((finished.code, finished.error.as_str()), (0, ""), "{finished:?}");
    for words in [
        "conversations into in-process",
        "offered/s",
        "lag, ms",
        "lookup, us",
        "0 over, 0 under",
        "lost       0",
    ] {
        assert!(finished.out.contains(words), "{words}: {}", finished.out);
    }
}

#[test]
fn what_is_wrong_is_said() {
    let folder = Folder::new();
    let unknown = folder.write("unknown.toml", "description = 'd'\n[flet]\n");
    kvtide(&["storm"]).failed(2, &["<SCENARIO>"]);
    kvtide(&["storm", "nothing"])
        .failed(1, &["scenario nothing", "expected a file or one of conversations,"]);
    kvtide(&["storm", &unknown]).failed(1, &["unknown.toml", "unknown field `flet`"]);
    kvtide(&["storm", "conversations", "--target", "tcp://x"]).failed(2, &["tcp://x", "expected in-process"]);
    kvtide(&["storm", "wide", "--target", "zmq"]).failed(1, &["at most 1024 ranks over ZMQ, got 10000"]);
    let secret = "nats://user:secret@127.0.0.1:1";
    let finished = kvtide(&["storm", "conversations", "--target", secret]);
    finished.failed(1, &["cannot connect to NATS"]);
    assert!(!finished.error.contains("secret"), "{}", finished.error);
    for (flag, value) in [
        ("--seconds", "0"),
        ("--rate", "-1"),
        ("--rate", "inf"),
        ("--lag-limit-ms", "x"),
        ("--ahead-mb", "0"),
    ] {
        kvtide(&["storm", "conversations", &format!("{flag}={value}")]).failed(2, &[value, flag]);
    }
}
