//! A worker that holds much and is never reached is reported.

use serde_json::json;

use crate::served::Served;

fn unreached(served: &Served) -> String {
    let metrics = served.kvtide.get("/metrics").1;
    let line = metrics.lines().find(|line| line.starts_with("kvtide_ranks_unreached{"));
    line.and_then(|line| line.rsplit(' ').next()).unwrap_or_default().to_owned()
}

#[test]
fn a_worker_with_many_blocks_that_no_query_reaches_is_reported_until_one_does() {
    let mut served = Served::start();
    let scope = json!({"model": "m", "block_size": 4});
    let chain = |first: u64, blocks: u64| {
        let blocks = (first..first + blocks).map(|n| json!({"sequence_hash": n, "block_hash": n}));
        json!({"type": "stored", "blocks": blocks.collect::<Vec<_>>()})
    };
    served.tell(&scope, 1, Some(1), &[chain(1, 300)]);
    // As of an engine whose hashes are others.
    served.tell(&scope, 2, Some(1), &[chain(10_000, 300)]);
    served.tell(&scope, 3, Some(1), &[chain(20_000, 255)]);
    // About a thousand are enough.
    for _ in 0..2000 {
        served.overlap(&json!({"block_hashes": [1, 2, 3], "limit": 1}));
    }
    assert_eq!(unreached(&served), "1");
    let line = served.kvtide.wait_for_log("no query reaches what a rank holds");
    assert!(line.contains("worker_id=2") && line.contains("held_blocks=300"), "{line}");
    served.overlap(&json!({"block_hashes": [10_000]}));
    assert_eq!(unreached(&served), "0");
}
