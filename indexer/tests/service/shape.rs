//! The exact shape of what goes out: every name, what may be null, the order of ranks, and versions.

use serde_json::{Value, json};

use crate::served::{Served, without_times};

fn scope(model: &str) -> Value {
    json!({"model": model, "block_size": 4})
}

fn stored(name: u64) -> Value {
    json!({"type": "stored", "blocks": [{"sequence_hash": name, "block_hash": name}]})
}

#[test]
fn an_answer_has_exactly_these_names() {
    let served = Served::start();
    served.tell(&scope("m"), 7, Some(1), &[stored(1)]);
    let answer = served.overlap(&json!({"scope": {"model": "m"}, "block_hashes": [1, 2]}));
    let expected = json!({
        "scope": {"model": "m", "revision": null, "tokenizer": null, "kv_dtype": null, "layout": null,
                  "block_size": 4, "adapter": null, "tenant": null},
        "prompt": {"tokens": 8, "blocks": 2},
        "collected_at_ms": null, "took_us": null, "version": 1,
        "ranks": [
            {"worker_id": 7, "dp_rank": 0,
             "reach_tokens": {"gpu": 4, "host": 4, "disk": 4, "external": 4},
             "knowledge": "complete",
             "freshness": {"generation": 1, "last_event_id": 1, "last_event_age_ms": null, "lag_ms": null,
                           "lag_over_best_ms": null, "pending_events": 0, "missing_events": 0,
                           "verified_age_ms": null}}]
    });
    assert_eq!(without_times(answer.clone()), expected);
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let age_ms = i128::try_from(since_epoch.as_millis()).unwrap()
        - i128::from(answer["collected_at_ms"].as_u64().unwrap());
    assert!((0..20_000).contains(&age_ms), "collected {age_ms} ms ago");
    assert!(answer["took_us"].is_u64());
    assert!(answer["ranks"][0]["freshness"]["last_event_age_ms"].is_u64());
}

#[test]
fn states_have_exactly_these_names() {
    let served = Served::start();
    let scope = json!({"model": "m", "kv_dtype": "fp8", "block_size": 4});
    let on_host = json!({"type": "stored", "tier": "host", "sequence_hashes": [1]});
    let parked = json!({"type": "stored", "parent": 99, "blocks": [{"sequence_hash": 3, "block_hash": 3}]});
    let answer = served.tell(&scope, 7, Some(1), &[stored(1), on_host, parked]);
    let expected = json!({"applied_events": 3, "ignored_events": 0, "repeated_events": 0, "refused_events": 0,
                          "missing_events": 0, "stored_blocks": 3, "removed_blocks": 0, "unknown_blocks": 0,
                          "parked_blocks": 1});
    assert_eq!(answer, expected);
    let known = json!({"model": "m", "revision": null, "tokenizer": null, "kv_dtype": "fp8", "layout": null,
                       "block_size": 4});
    let workers = json!({"workers": [
        {"scope": known, "worker_id": 7, "dp_rank": 0, "presence": "seen", "knowledge": "complete",
         "held_blocks": {"gpu": 1, "host": 1, "disk": 0, "external": 0}, "parked_blocks": 1,
         "freshness": {"generation": 1, "last_event_id": 3, "last_event_age_ms": null, "lag_ms": null,
                       "lag_over_best_ms": null, "pending_events": 0, "missing_events": 0,
                       "verified_age_ms": null}, "feedback": null}]});
    assert_eq!(without_times(served.get("/v1/workers")), workers);
    let scopes = json!({"scopes": [
        {"scope": known, "eagle": false, "version": 1, "ranks": 1, "runs": 1, "held_blocks": 2,
         "parked_blocks": 1}]});
    assert_eq!(served.get("/v1/scopes"), scopes);
    assert_eq!(served.kvtide.get("/healthz"), (200, "ok\n".to_owned()));
}

#[test]
fn without_freshness_all_else_is_the_same() {
    let served = Served::start();
    served.tell(&scope("m"), 7, Some(1), &[stored(1)]);
    let mut full = served.overlap(&json!({"scope": {}, "block_hashes": [1]}));
    let short = served.overlap(&json!({"scope": {}, "block_hashes": [1], "freshness": false}));
    assert!(full["ranks"][0].as_object_mut().unwrap().remove("freshness").is_some());
    assert_eq!(without_times(short), without_times(full));
}

#[test]
fn ranks_come_by_worker_and_then_by_data_parallel_rank() {
    let served = Served::start();
    for (worker_id, dp_rank) in [(9, 1), (u64::MAX, 0), (10, 0), (9, 0), (0, 7)] {
        let events = json!({"scope": scope("m"), "worker_id": worker_id, "dp_rank": dp_rank, "events": []});
        served.ask("/v1/events", &events);
    }
    let expected = json!([[0, 7], [9, 0], [9, 1], [10, 0], [u64::MAX, 0]]);
    let pairs = |list: &Value| -> Value {
        list.as_array().unwrap().iter().map(|one| json!([one["worker_id"], one["dp_rank"]])).collect()
    };
    let answer = served.overlap(&json!({"token_ids": []}));
    assert_eq!(pairs(&answer["ranks"]), expected);
    assert_eq!(pairs(&served.get("/v1/workers")["workers"]), expected);
}

#[test]
fn a_version_grows_by_one_a_publication_of_its_own_scope() {
    let served = Served::start();
    let version = |model: &str| {
        served.overlap(&json!({"scope": {"model": model}, "token_ids": []}))["version"].as_u64().unwrap()
    };
    for round in 1..=3 {
        // However many events a request has, it is one publication.
        served.tell(&scope("a"), 1, None, &[stored(1), stored(2), stored(3)]);
        assert_eq!(version("a"), round);
    }
    served.tell(&scope("b"), 1, Some(1), &[stored(1)]);
    assert_eq!((version("a"), version("b")), (3, 1));
    served.tell(&scope("b"), 2, Some(1), &[stored(1)]);
    assert_eq!((version("a"), version("b")), (3, 2));
}
