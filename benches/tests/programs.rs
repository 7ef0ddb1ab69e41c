//! What the programs say to other programs.

use std::process::Command;

use serde_json::{Map, Value};

/// Runs a program. Returns the lines that it prints, each of which has to be a JSON object.
fn lines(program: &str, arguments: &[&str]) -> Vec<Map<String, Value>> {
    let output = Command::new(program).args(arguments).output().expect("the program is built with the tests");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("the program prints text");
    text.lines().map(|line| serde_json::from_str(line).expect("one object a line")).collect()
}

#[test]
fn peers_prints_exactly_these_fields_for_each_index() {
    let arguments = ["--quick", "--json", "--workload=fragmented", "--index=kvtide,dynamo-crtc"];
    let printed = lines(env!("CARGO_BIN_EXE_peers"), &arguments);
    assert_eq!(printed.len(), 2);
    for (line, index) in printed.iter().zip(["kvtide", "dynamo-crtc"]) {
        let fields: Vec<&str> = line.keys().map(String::as_str).collect();
        let expected = [
            "allocs_per_lookup",
            "applied_mblocks_s",
            "bytes_per_held_block",
            "index",
            "lookup_ns",
            "over",
            "ranks",
            "under",
            "workload",
        ];
        assert_eq!(fields, expected);
        assert_eq!((&line["index"], &line["workload"]), (&index.into(), &"fragmented".into()));
        let lookup = line["lookup_ns"].as_object().expect("four figures");
        assert_eq!(lookup.keys().collect::<Vec<_>>(), ["mean", "p50", "p99", "p999"]);
        let numbers =
            line.iter().filter(|(field, _)| !["index", "workload", "lookup_ns"].contains(&field.as_str()));
        assert!(lookup.iter().chain(numbers).all(|(_, value)| value.is_number()), "{line:?}");
    }
    assert_eq!((&printed[0]["over"], &printed[0]["under"]), (&0.into(), &0.into()));
}

#[test]
fn an_index_that_cannot_read_an_engines_stream_is_left_out() {
    let arguments = ["--quick", "--json", "--workload=engine", "--index=kv-index"];
    assert_eq!(lines(env!("CARGO_BIN_EXE_peers"), &arguments), []);
}

#[test]
fn storm_prints_what_each_index_did_beside_a_reader() {
    let storm = lines(env!("CARGO_BIN_EXE_storm"), &["--quick", "--json", "--index=kvtide,kv-index"]);
    assert_eq!(storm.len(), 2);
    for line in &storm {
        assert!(line["writer_beside_sleeper_mblocks_s"].as_f64() > Some(0.0), "{line:?}");
        assert!(line["longest_update_beside_sleeper_us"].as_f64() > Some(0.0), "{line:?}");
    }
}

#[test]
fn soak_prints_the_drift_last() {
    let soak = lines(env!("CARGO_BIN_EXE_soak"), &["--minutes=0.01", "--json"]);
    let drift = soak.last().expect("the drift comes last");
    assert!(drift["runs_percent"].is_number() && drift["bytes_left_percent"].is_number(), "{drift:?}");
}

#[test]
fn growth_prints_a_line_a_step() {
    let arguments = ["--json", "--to=200000", "--lookups=100"];
    let growth = lines(env!("CARGO_BIN_EXE_growth"), &arguments);
    let held: Vec<Option<u64>> = growth.iter().map(|line| line["held_blocks"].as_u64()).collect();
    assert!(held[0] >= Some(100_000) && held[1] >= Some(200_000) && held.len() == 2, "{held:?}");
}

#[test]
fn http_prints_what_each_server_took_for_each_form() {
    let arguments = ["--quick", "--json", "--side=kvtide", "--form=tokens-raw,hashes"];
    let printed = lines(env!("CARGO_BIN_EXE_http"), &arguments);
    let asked: Vec<_> = printed.iter().map(|line| (line["form"].as_str(), line["side"].as_str())).collect();
    let raw = [(Some("tokens-raw"), Some("kvtide")), (Some("tokens-raw"), None)];
    let hashes = [(Some("hashes"), Some("kvtide")), (Some("hashes"), None)];
    assert_eq!(asked, [raw, hashes].concat());
    for line in &printed {
        for figure in ["request_bytes", "p50_us", "p99_us", "requests_s"] {
            assert!(line[figure].as_f64() > Some(0.0), "{figure}: {line:?}");
        }
    }
}
