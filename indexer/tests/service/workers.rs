//! Workers that are registered, seen, silent and gone, and what their engines say of predictions.

use serde_json::{Value, json};

use crate::served::{Served, problem};

fn scope() -> Value {
    json!({"model": "m", "block_size": 4})
}

fn stored(name: u64) -> Value {
    json!({"type": "stored", "blocks": [{"sequence_hash": name, "block_hash": name}]})
}

fn register(served: &Served, worker_id: u64, dp_ranks: &[u32]) -> Value {
    let body = json!({"scope": scope(), "worker_id": worker_id, "dp_ranks": dp_ranks});
    served.ask("/v1/workers", &body)["new_ranks"].clone()
}

fn remove(served: &Served, route: &str) -> kvtide_tests::harness::Reply {
    served.kvtide.send("DELETE", route, "", b"")
}

fn presence(served: &Served) -> Vec<Value> {
    let of = |worker: Value| {
        json!([worker["worker_id"], worker["dp_rank"], worker["presence"], worker["knowledge"]])
    };
    served.workers().into_iter().map(of).collect()
}

#[test]
fn a_registered_worker_is_unknown_until_something_comes() {
    let served = Served::start();
    assert_eq!(register(&served, 7, &[0, 1]), 2);
    assert_eq!(register(&served, 7, &[1, 2]), 1, "one of them was known");
    assert_eq!(presence(&served)[0], json!([7, 0, "registered", "unknown"]));
    let answer = served.overlap(&json!({"block_hashes": [1]}));
    assert_eq!(answer["ranks"][0]["reach_tokens"], Value::Null, "which is not 0");
    served.tell(&scope(), 7, Some(1), &[stored(1)]);
    assert_eq!(
        presence(&served),
        [
            json!([7, 0, "seen", "complete"]),
            json!([7, 1, "registered", "unknown"]),
            json!([7, 2, "registered", "unknown"])
        ]
    );
    assert_eq!(served.overlap(&json!({"block_hashes": [1]}))["ranks"][0]["reach_tokens"]["gpu"], 4);
}

#[test]
fn a_removed_worker_leaves_nothing_and_comes_back_in_another_generation() {
    let served = Served::start();
    register(&served, 7, &[1]);
    served.tell(&scope(), 7, Some(1), &[stored(1), stored(2)]);
    served.tell(&scope(), 8, Some(1), &[stored(1)]);
    let removed = remove(&served, "/v1/workers/7");
    assert_eq!((removed.status, removed.body.as_str()), (200, "{\"removed_ranks\":2}"));
    assert_eq!(presence(&served), [json!([8, 0, "seen", "complete"])]);
    assert_eq!(served.get("/v1/scopes")["scopes"][0]["held_blocks"], 1);
    problem(&remove(&served, "/v1/workers/7"), 404, "unknown-worker");
    served.tell(&scope(), 7, Some(1), &[stored(1)]);
    assert_eq!(served.workers()[0]["freshness"]["generation"], 2);
    // Whether or not it is registered in between.
    assert_eq!(remove(&served, "/v1/workers/7").status, 200);
    register(&served, 7, &[0]);
    served.tell(&scope(), 7, Some(1), &[stored(1)]);
    assert_eq!(served.workers()[0]["freshness"]["generation"], 3);
}

#[test]
fn one_rank_of_a_worker_may_go_alone() {
    let served = Served::start();
    register(&served, 7, &[0, 1, 2]);
    assert_eq!(remove(&served, "/v1/workers/7?dp_rank=1").status, 200);
    problem(&remove(&served, "/v1/workers/7?dp_rank=1"), 404, "unknown-worker");
    assert_eq!(presence(&served).len(), 2);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let served = Served::start();
    served.tell(&scope(), 7, Some(1), &[stored(1)]);
    let before = served.state();
    served.refused("/v1/workers", &json!({"scope": {"model": "m"}, "worker_id": 9}), 422, "impossible");
    served.refused(
        "/v1/workers",
        &json!({"scope": {"model": "m", "block_size": 0}, "worker_id": 9}),
        422,
        "impossible",
    );
    served.refused("/v1/workers", &json!({"scope": scope()}), 400, "malformed");
    served.refused("/v1/workers", &json!({"scope": scope(), "worker_id": 9, "ranks": 1}), 400, "malformed");
    problem(&remove(&served, "/v1/workers/seven"), 400, "malformed");
    problem(&remove(&served, "/v1/workers/7?rank=1"), 400, "malformed");
    let more = json!({"worker_id": 7, "predicted_tokens": 1, "cached_tokens": 1, "scope": {"model": "x"}});
    served.refused("/v1/feedback", &more, 404, "unknown-scope");
    served.refused(
        "/v1/feedback",
        &json!({"worker_id": 7, "predicted_tokens": -1, "cached_tokens": 1}),
        422,
        "impossible",
    );
    served.refused("/v1/feedback", &json!({"worker_id": 7, "predicted_tokens": 1}), 400, "malformed");
    assert_eq!(served.state(), before);
}

#[test]
fn what_engines_had_cached_is_held_against_predictions() {
    let served = Served::start();
    served.tell(&scope(), 7, Some(1), &[stored(1)]);
    let observe = |predicted: u32, cached: u32| {
        served.ask(
            "/v1/feedback",
            &json!({"worker_id": 7, "predicted_tokens": predicted, "cached_tokens": cached}),
        )
    };
    assert_eq!(
        observe(40, 36),
        json!({"observations": 1, "over": 0, "over_tokens": 0, "under": 0, "under_tokens": 0, "drifting": null}),
        "a block is none"
    );
    observe(36, 41);
    for _ in 0..8 {
        observe(40, 0);
    }
    let expected = json!({"observations": 10, "over": 8, "over_tokens": 320, "under": 1, "under_tokens": 5, "drifting": "over"});
    assert_eq!(served.workers()[0]["feedback"], expected);
    let metrics = served.kvtide.get("/metrics").1;
    for line in [
        "kvtide_observations_total 10",
        "kvtide_predictions_over_total 8",
        "kvtide_predictions_under_total 1",
    ] {
        assert!(metrics.lines().any(|one| one == line), "{line}");
    }
    assert!(metrics.lines().any(|line| line.starts_with("kvtide_ranks_drifting{") && line.ends_with(" 1")));
    remove(&served, "/v1/workers/7");
    served.tell(&scope(), 7, Some(1), &[stored(1)]);
    assert_eq!(served.workers()[0]["feedback"], Value::Null, "what was observed before says nothing of it");
}
