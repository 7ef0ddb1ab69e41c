//! Whom a query asks: which scope its fixed parts name, and that adapters and tenants show nothing of each other.

use serde_json::{Value, json};

use crate::served::{Served, reach_of, without_times};

/// Four scopes. Worker N is in the Nth, and block N is all that it holds.
fn scopes() -> [Value; 4] {
    [
        json!({"model": "m", "block_size": 4}),
        json!({"model": "m", "block_size": 4, "kv_dtype": "fp8"}),
        json!({"model": "m", "block_size": 8, "revision": "r1", "tokenizer": "t"}),
        json!({"model": "n", "block_size": 4, "layout": "hnd"}),
    ]
}

fn fleet() -> Served {
    let served = Served::start();
    for (worker_id, scope) in (1_u64..).zip(scopes()) {
        let blocks = json!([{"sequence_hash": worker_id, "block_hash": worker_id}]);
        served.tell(&scope, worker_id, Some(1), &[json!({"type": "stored", "blocks": blocks})]);
    }
    served
}

#[test]
fn parts_that_fit_one_scope_name_it() {
    let served = fleet();
    let rows = [
        (json!({"model": "m", "block_size": 4, "kv_dtype": null}), 1),
        (json!({"model": "m", "kv_dtype": null, "revision": null}), 1),
        (json!({"kv_dtype": "fp8"}), 2),
        (json!({"model": "m", "block_size": 4, "kv_dtype": "fp8", "layout": null}), 2),
        (json!({"block_size": 8}), 3),
        (json!({"revision": "r1", "tokenizer": "t"}), 3),
        (json!({"model": "n"}), 4),
        (json!({"layout": "hnd", "tenant": "acme", "adapter": "sql"}), 4),
    ];
    for (scope, worker_id) in rows {
        let answer = served.overlap(&json!({"scope": scope, "block_hashes": [1]}));
        let ranks = answer["ranks"].as_array().unwrap();
        assert_eq!(ranks.len(), 1, "{scope}: {answer}");
        assert_eq!(ranks[0]["worker_id"], worker_id, "{scope}");
        // Block 1 is held in the first scope only, however equal its hash is elsewhere.
        assert_eq!(reach_of(&ranks[0]).unwrap()[0] > 0, worker_id == 1, "{scope}");
    }
}

#[test]
fn parts_that_fit_none_are_unknown() {
    let served = fleet();
    let rows = [
        json!({"model": "M"}),
        json!({"model": ""}),
        json!({"model": "m", "block_size": 16}),
        json!({"model": "n", "layout": null}),
        json!({"model": "m", "revision": "r2"}),
        json!({"kv_dtype": "FP8"}),
        json!({"model": "m", "tokenizer": ""}),
    ];
    for scope in rows {
        let problem =
            served.refused("/v1/overlap", &json!({"scope": scope, "token_ids": []}), 404, "unknown-scope");
        assert_eq!(problem["known_scopes"], 4, "{scope}");
    }
}

#[test]
fn of_several_that_fit_it_is_said_what_tells_them_apart() {
    let served = fleet();
    let rows = [
        (json!({"model": "m", "block_size": 4}), 2, json!({"kv_dtype": [null, "fp8"]})),
        (
            json!({"model": "m", "kv_dtype": null}),
            2,
            json!({"revision": [null, "r1"], "tokenizer": [null, "t"], "block_size": ["4", "8"]}),
        ),
        (
            json!({"block_size": 4, "kv_dtype": null}),
            2,
            json!({"model": ["m", "n"], "layout": [null, "hnd"]}),
        ),
        (
            json!({}),
            4,
            json!({"model": ["m", "n"], "revision": [null, "r1"], "tokenizer": [null, "t"],
                   "kv_dtype": [null, "fp8"], "layout": [null, "hnd"], "block_size": ["4", "8"]}),
        ),
    ];
    for (scope, fitting, differences) in rows {
        let ask = json!({"scope": scope, "token_ids": []});
        let problem = served.refused("/v1/overlap", &ask, 409, "several-scopes");
        assert_eq!(problem["fitting_scopes"], fitting, "{scope}");
        assert_eq!(problem["differences"], differences, "{scope}");
        for part in differences.as_object().unwrap().keys() {
            assert!(problem["detail"].as_str().unwrap().contains(part.as_str()), "{scope}: {problem}");
        }
    }
}

/// The answer for a prompt of one tenant or adapter, without its name and without times.
fn answer_for(served: &Served, part: &str, name: &Value) -> Value {
    let ask = json!({"scope": {"model": "m", part: name}, "token_ids": [1, 2, 3, 4, 5, 6, 7, 8]});
    let mut answer = without_times(served.overlap(&ask));
    assert_eq!(answer["scope"][part].take(), *name);
    answer
}

#[test]
fn who_is_unknown_is_answered_like_who_holds_nothing() {
    for part in ["adapter", "tenant"] {
        let served = Served::start();
        let store = |worker_id: u64, name: &Value, tokens: [u32; 4]| {
            let scope = json!({"model": "m", "block_size": 4, part: name});
            let event = json!({"type": "stored", "sequence_hashes": [worker_id], "token_ids": tokens});
            served.tell(&scope, worker_id, Some(1), &[event]);
        };
        store(1, &json!("acme"), [1, 2, 3, 4]);
        store(2, &json!("globex"), [9, 9, 9, 9]);
        let acme = answer_for(&served, part, &json!("acme"));
        assert_eq!(reach_of(&acme["ranks"][0]), Some([4; 4]));
        // Globex holds something, but nothing of this prompt; nobody ever heard of the others.
        let globex = answer_for(&served, part, &json!("globex"));
        assert_eq!(globex["ranks"].as_array().unwrap().len(), 2);
        assert!(globex["ranks"].as_array().unwrap().iter().all(|rank| reach_of(rank) == Some([0; 4])));
        for name in [json!("nobody"), json!("ACME"), json!("acme "), Value::Null] {
            assert_eq!(answer_for(&served, part, &name), globex, "{part} {name}");
        }
    }
}

#[test]
fn left_out_null_and_empty_are_no_adapter_and_no_tenant() {
    let served = Served::start();
    let plain = json!({"model": "m", "block_size": 4});
    let event = json!({"type": "stored", "sequence_hashes": [1], "token_ids": [1, 2, 3, 4]});
    served.tell(&plain, 1, Some(1), &[event]);
    let rows = [
        json!({}),
        json!({"adapter": null}),
        json!({"tenant": null}),
        json!({"adapter": null, "tenant": null}),
        json!({"adapter": "", "tenant": ""}),
    ];
    for scope in rows {
        let answer = served.overlap(&json!({"scope": scope, "token_ids": [1, 2, 3, 4]}));
        assert_eq!(reach_of(&answer["ranks"][0]), Some([4; 4]), "{scope}");
    }
}

#[test]
fn blocks_behind_a_salted_one_belong_to_its_tenant() {
    let served = Served::start();
    let salted = json!({"model": "m", "block_size": 4, "tenant": "acme"});
    let plain = json!({"model": "m", "block_size": 4});
    let root = json!({"type": "stored", "sequence_hashes": [1], "token_ids": [1, 2, 3, 4]});
    // The second request does not say whose block it is; what is in front of it does.
    let child = json!({"type": "stored", "parent": 1, "sequence_hashes": [2], "token_ids": [5, 6, 7, 8]});
    served.tell(&salted, 1, Some(1), &[root]);
    served.tell(&plain, 1, Some(2), &[child]);
    let prompt = [1, 2, 3, 4, 5, 6, 7, 8];
    for (scope, reach) in [(&salted, 8), (&plain, 0)] {
        let answer = served.overlap(&json!({"scope": scope, "token_ids": prompt}));
        assert_eq!(reach_of(&answer["ranks"][0]), Some([reach; 4]), "{scope}");
    }
}
