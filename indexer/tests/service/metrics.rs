//! Every metric shows up once there is something to count, in a form that Prometheus reads.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::served::Served;

const CONFIG: &str =
    "[[stream]]\nname = \"engine \\\"7\\\"\"\nworker_id = 7\ndp_rank = 0\nmodel = \"m\\n\"\nblock_size = 4\n";
const BATCH: &str = "application/x-engine-kv-batch";

/// Does once what each metric counts.
fn use_everything(served: &Served) {
    let scope = json!({"model": "m\n", "block_size": 4});
    let stored = json!({"type": "stored", "blocks": [{"sequence_hash": 1, "block_hash": 1}]});
    let removed = json!({"type": "removed", "sequence_hashes": [1, 2]});
    served.tell(&scope, 1, Some(1), &[stored.clone(), removed, stored.clone()]);
    served.tell(&scope, 1, Some(1), std::slice::from_ref(&stored));
    served.tell(&scope, 1, Some(9), &[stored]);
    // More than may wait for what they mean.
    let names: Vec<u64> = (0..66_000).collect();
    served.tell(&scope, 2, None, &[json!({"type": "stored", "tier": "host", "sequence_hashes": names})]);
    served.overlap(&json!({"token_ids": [1, 2, 3, 4]}));
    served.refused("/v1/overlap", &json!({"scope": {"model": "x"}, "token_ids": []}), 404, "unknown-scope");
    // Of another rank than is configured, with an event that nobody knows.
    let batch = rmp_serde::to_vec(&json!([1.5, [["Moved"]], 3])).unwrap();
    for (batch, status) in [(&batch[..], 200), (b"\x80", 400)] {
        let route = "/v1/events?stream=engine%20%227%22";
        assert_eq!(served.kvtide.send("POST", route, BATCH, batch).status, status);
    }
    let refused = json!({"scope": scope, "worker_id": 7, "events": []});
    served.refused("/v1/events", &refused, 409, "refused");
}

/// Labels and a value.
type Sample = (BTreeMap<String, String>, f64);

/// Samples by name; every line of the text must be a comment or a sample of a declared metric.
fn parse(text: &str) -> BTreeMap<String, Vec<Sample>> {
    let mut kinds = BTreeMap::new();
    let mut samples: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(comment) = line.strip_prefix("# ") {
            let words: Vec<&str> = comment.splitn(3, ' ').collect();
            match words[0] {
                "TYPE" => assert!(kinds.insert(words[1].to_owned(), words[2]).is_none(), "twice: {line}"),
                "HELP" => assert!(words[2].ends_with('.'), "{line}"),
                other => panic!("{other}: {line}"),
            }
            continue;
        }
        let (name, labels, value) = sample(line);
        let of_summary = name.strip_suffix("_sum").or(name.strip_suffix("_count"));
        let declared = of_summary.filter(|base| kinds.contains_key(*base)).unwrap_or(&name);
        assert!(kinds.contains_key(declared), "no TYPE for {line}");
        samples.entry(declared.to_owned()).or_default().push((labels, value));
    }
    samples
}

/// One line: `name{label="value",...} number`, where a value escapes quotes, backslashes and line ends.
fn sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let end = line.find(|c| !word(c)).unwrap();
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, quoted) = rest.split_once("=\"").unwrap();
            assert!(label.chars().all(word), "{line}");
            let mut value = String::new();
            let mut characters = quoted.char_indices();
            let behind = loop {
                match characters.next().unwrap() {
                    (at, '"') => break at + 1,
                    (_, '\\') => match characters.next().unwrap().1 {
                        'n' => value.push('\n'),
                        escaped @ ('"' | '\\') => value.push(escaped),
                        other => panic!("\\{other} in {line}"),
                    },
                    (_, character) => value.push(character),
                }
            };
            labels.insert(label.to_owned(), value);
            rest = quoted[behind..].strip_prefix(',').unwrap_or(&quoted[behind..]);
        }
        rest = &rest[1..];
    }
    (name.to_owned(), labels, rest.trim().parse().unwrap())
}

#[test]
fn every_metric_shows_up_after_use() {
    let served = Served::configured(CONFIG);
    use_everything(&served);
    let reply = served.kvtide.send("GET", "/metrics", "", b"");
    assert_eq!(
        (reply.status, reply.content_type.as_str()),
        (200, "text/plain; version=0.0.4; charset=utf-8")
    );
    let samples = parse(&reply.body);
    let source = include_str!("../../src/telemetry.rs");
    let names: BTreeSet<&str> =
        source.split('"').filter(|text| text.starts_with("kvtide_") && !text.contains(' ')).collect();
    assert!(names.len() >= 20, "{names:?}");
    assert_eq!(samples.keys().map(String::as_str).collect::<BTreeSet<_>>(), names);

    let listed = include_str!("../../../docs/metrics.md");
    for name in names {
        assert!(listed.contains(&format!("`{name}`")), "{name} is not in docs/metrics.md");
    }

    let value = |name: &str, label: &str, wanted: &str| {
        let found = samples[name].iter().find(|(labels, _)| labels[label] == wanted);
        found.unwrap_or_else(|| panic!("{name} of {wanted}: {:?}", samples[name])).1
    };
    assert_eq!(value("kvtide_events_total", "stream", "direct"), 5.0);
    assert_eq!(value("kvtide_blocks_unknown_total", "stream", "direct"), 1.0);
    assert_eq!(value("kvtide_events_repeated_total", "stream", "direct"), 1.0);
    assert_eq!(value("kvtide_events_missing_total", "stream", "direct"), 5.0);
    assert_eq!(value("kvtide_blocks_dropped_total", "stream", "direct"), 66_000.0 - 65_536.0);
    assert_eq!(value("kvtide_other_dp_rank_total", "stream", "engine \"7\""), 1.0);
    assert_eq!(value("kvtide_messages_undecodable_total", "stream", "engine \"7\""), 1.0);
    assert_eq!(value("kvtide_holes_total", "stream", "engine \"7\""), 1.0, "what does not decode is a hole");
    assert_eq!(value("kvtide_ranks", "model", "m\n"), 3.0);
    assert_eq!(value("kvtide_parked_blocks", "model", "m\n"), 65_536.0);
    let partial = value("kvtide_ranks_by_knowledge", "knowledge", "partial");
    let all = samples["kvtide_ranks_by_knowledge"].iter().map(|(_, ranks)| ranks).sum::<f64>();
    assert_eq!((partial, all), (3.0, 3.0), "{:?}", samples["kvtide_ranks_by_knowledge"]);
    assert!(value("kvtide_verified_age_seconds", "model", "m\n").is_nan(), "nobody has proven anything");
    let queries = &samples["kvtide_query_seconds"];
    assert!(queries.iter().any(|(labels, value)| labels.is_empty() && *value == 2.0), "{queries:?}");
}

#[test]
fn labels_name_no_adapter_and_no_tenant() {
    let served = Served::start();
    let scope = json!({"model": "m", "block_size": 4, "adapter": "sql", "tenant": "acme"});
    served.tell(&scope, 1, Some(1), &[json!({"type": "cleared"})]);
    served.overlap(&json!({"scope": scope, "token_ids": [1, 2, 3, 4]}));
    let allowed = [
        "stream",
        "model",
        "revision",
        "tokenizer",
        "kv_dtype",
        "layout",
        "block_size",
        "knowledge",
        "quantile",
    ];
    for (name, samples) in parse(&served.kvtide.get("/metrics").1) {
        for (labels, _) in samples {
            assert!(labels.keys().all(|label| allowed.contains(&label.as_str())), "{name}: {labels:?}");
            assert!(labels.values().all(|value| value != "sql" && value != "acme"), "{name}: {labels:?}");
        }
    }
}
