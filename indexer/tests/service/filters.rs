//! Ranks, a least reach and a limit choose from the answer without them, and change nothing else in it.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use crate::{
    served::{Served, reach_of, without_times},
    vocabulary::{Chain, fleet},
};

/// The answer without ranks, and the ranks.
fn asked(served: &Served, body: &Value) -> (Value, Vec<Value>) {
    let mut answer = without_times(served.overlap(body));
    let ranks = std::mem::take(&mut answer["ranks"]);
    (answer, ranks.as_array().unwrap().clone())
}

fn reach(rank: &Value) -> [u64; 4] {
    reach_of(rank).unwrap()
}

#[test]
fn filters_choose_from_the_answer_without_them() {
    let mut random = StdRng::seed_from_u64(11);
    let served = fleet(&mut random);
    for _prompt in 0..60 {
        let chain = Chain::random(&mut random, 8);
        let query = json!({"scope": chain.scope(), "token_ids": chain.tokens()});
        let (answer, all) = asked(&served, &query);
        assert!(all.len() > 10);
        let filtered = |name: &str, value: &Value| {
            let mut query = query.clone();
            query[name] = value.clone();
            let (rest, ranks) = asked(&served, &query);
            assert_eq!(rest, answer, "{name}");
            ranks
        };

        // One that is not known is no error, and one that is named twice comes once.
        let named = json!([[3, 0], [12, 0], [3, 0], [4, 1], [999, 0]]);
        let is_named = |rank: &&Value| rank["worker_id"] == 3 || rank["worker_id"] == 12;
        assert_eq!(filtered("ranks", &named), all.iter().filter(is_named).cloned().collect::<Vec<_>>());
        assert_eq!(filtered("ranks", &json!([])), Vec::<Value>::new());

        let least = random.random_range(0..30);
        let far = all.iter().filter(|rank| reach(rank)[3] >= least);
        assert_eq!(filtered("min_reach_tokens", &json!(least)), far.cloned().collect::<Vec<_>>());

        let limit = random.random_range(0..25);
        let mut best = all.clone();
        // A stable sort: of equals the lower worker first.
        best.sort_by_key(|rank| std::cmp::Reverse(reach(rank)));
        best.truncate(limit);
        assert_eq!(filtered("limit", &json!(limit)), best, "limit {limit}");
    }
}

#[test]
fn a_limit_prefers_the_gpu_then_the_host_then_the_disk() {
    let served = Served::start();
    let scope = json!({"model": "m", "block_size": 4});
    // How many blocks of the prompt each worker holds on its GPU, and of the rest in host memory and on disk.
    let fleet = [(1, 0, 3, 0), (2, 2, 0, 0), (3, 2, 0, 1), (4, 2, 1, 0), (5, 1, 2, 0), (6, 0, 0, 3)];
    for (worker_id, gpu, host, disk) in fleet {
        let tiers = ["gpu"; 3].into_iter().take(gpu).chain(["host"; 3].into_iter().take(host));
        let tiers = tiers.chain(["disk"; 3].into_iter().take(disk));
        let events = (1..).zip(tiers).map(|(block, tier)| {
            let parent = if block == 1 { Value::Null } else { json!(block - 1) };
            let blocks = json!([{"sequence_hash": block, "block_hash": block}]);
            json!({"type": "stored", "tier": tier, "parent": parent, "blocks": blocks})
        });
        served.tell(&scope, worker_id, Some(1), &events.collect::<Vec<_>>());
    }
    let answer = served.overlap(&json!({"block_hashes": [1, 2, 3], "limit": 5}));
    let order: Vec<u64> =
        answer["ranks"].as_array().unwrap().iter().map(|rank| rank["worker_id"].as_u64().unwrap()).collect();
    assert_eq!(order, [4, 3, 2, 5, 1]);
}
