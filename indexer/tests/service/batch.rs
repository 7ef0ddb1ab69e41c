//! Several queries in one request: each answer is the one that it would have had by itself.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use kvtide_tests::harness::Kvtide;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use crate::{
    served::{Served, without_times},
    vocabulary::{Chain, fleet},
};

fn answers(reply: Value) -> Vec<Value> {
    let Value::Object(mut reply) = reply else { panic!("{reply}") };
    let answers = reply.remove("answers").unwrap();
    assert!(reply.is_empty(), "{reply:?}");
    answers.as_array().unwrap().clone()
}

#[test]
fn each_answer_is_the_one_that_it_has_by_itself() {
    let mut random = StdRng::seed_from_u64(5);
    let served = fleet(&mut random);
    for _batch in 0..20 {
        let query = |random: &mut StdRng| {
            let chain = Chain::random(random, 8);
            json!({"scope": chain.scope(), "token_ids": chain.tokens(), "limit": random.random_range(1..5),
                   "freshness": random.random_bool(0.5), "min_reach_tokens": random.random_range(0..5)})
        };
        let queries: Vec<Value> = (0..random.random_range(0..8)).map(|_| query(&mut random)).collect();
        let alone: Vec<Value> = queries.iter().map(|query| without_times(served.overlap(query))).collect();
        let together = answers(served.overlap(&json!({"queries": queries})));
        assert_eq!(together.into_iter().map(without_times).collect::<Vec<_>>(), alone);
    }
}

#[test]
fn answers_of_one_scope_are_of_one_version() {
    let served = Served::start();
    let scope = json!({"model": "m", "block_size": 4});
    served.tell(&scope, 1, None, &[json!({"type": "cleared"})]);
    let route = format!("{}/v1/events", served.kvtide.url());
    let store = |name: u64| {
        let stored = json!({"type": "stored", "blocks": [{"sequence_hash": name, "block_hash": 9}]});
        let body = json!({"scope": &scope, "worker_id": name % 50, "events": [stored]});
        ureq::post(&route).send_json(body).unwrap();
    };
    let over = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| (2..).take_while(|_| !over.load(Ordering::Relaxed)).for_each(store));
        let queries = vec![json!({"block_hashes": [9]}); 50];
        let mut seen = BTreeSet::new();
        for _batch in 0..40 {
            let versions: BTreeSet<u64> = answers(served.overlap(&json!({"queries": queries})))
                .iter()
                .map(|answer| answer["version"].as_u64().unwrap())
                .collect();
            assert_eq!(versions.len(), 1);
            seen.extend(versions);
        }
        over.store(true, Ordering::Relaxed);
        assert!(seen.len() > 1, "nothing happened meanwhile");
    });
}

#[test]
fn what_cannot_be_asked_together_is_refused_whole() {
    let served = Served::start();
    served.tell(&json!({"model": "m", "block_size": 4}), 7, None, &[json!({"type": "cleared"})]);
    let one = json!({"token_ids": [1, 2, 3, 4]});
    let rows = [
        (json!({"queries": [one], "token_ids": [1]}), 422, "impossible"),
        (json!({"queries": [one], "limit": 1}), 422, "impossible"),
        (json!({"queries": [one], "freshness": false}), 422, "impossible"),
        (json!({"queries": [one], "scope": {"model": "m"}}), 422, "impossible"),
        (json!({"queries": [{"queries": [one]}]}), 422, "impossible"),
        (json!({"queries": [one, {}]}), 422, "impossible"),
        (json!({"queries": [one, {"token_ids": [-1]}]}), 422, "impossible"),
        (json!({"queries": one}), 400, "malformed"),
        (json!({"queries": [one, {"scope": {"model": "other"}, "token_ids": [1]}]}), 404, "unknown-scope"),
        (json!({"queries": vec![&one; 1025]}), 413, "too-large"),
        (json!({"queries": vec![json!({"token_ids": vec![7; 1 << 20]}); 5]}), 413, "too-large"),
    ];
    for (body, status, kind) in rows {
        served.refused("/v1/overlap", &body, status, kind);
    }
    assert_eq!(answers(served.overlap(&json!({"queries": vec![&one; 1024]}))).len(), 1024);
    assert_eq!(answers(served.overlap(&json!({"queries": []}))), Vec::<Value>::new());
}

#[test]
fn answers_together_have_so_many_ranks_at_most() {
    let served =
        Served { kvtide: Kvtide::start(env!("CARGO_BIN_EXE_kvtide"), &["serve", "--query-ranks", "10"]) };
    let scope = json!({"model": "m", "block_size": 4});
    served.ask("/v1/workers", &json!({"scope": scope, "worker_id": 1, "dp_ranks": [0, 1, 2, 3]}));
    let queries = |count| json!({"queries": vec![json!({"token_ids": []}); count]});
    assert_eq!(answers(served.overlap(&queries(2))).len(), 2);
    let refused = served.refused("/v1/overlap", &queries(3), 413, "too-large");
    assert_eq!((&refused["limit_name"], &refused["limit"]), (&json!("query_ranks"), &json!(10)));
    let fewer = json!({"queries": vec![json!({"token_ids": [], "limit": 1}); 10]});
    assert_eq!(answers(served.overlap(&fewer)).len(), 10);
}
