//! The routes of Dynamo's standalone indexer by themselves. Beside the original they are in tests/python/test_dropin.py.

use std::time::Duration;

use kvtide_events::{Hashing, sequence_hashes};
use kvtide_radix::Seed;
use kvtide_tests::harness::{free_port, wait_for};
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

use crate::served::Served;

/// A publisher whose block n has 4 tokens n, the name n, and block n - 1 in front.
struct Engine {
    runtime: Runtime,
    socket: PubSocket,
    port: u16,
    sequence: u64,
}

impl Engine {
    fn start() -> Engine {
        let (runtime, port) = (Runtime::new().unwrap(), free_port());
        let socket = runtime.block_on(async {
            let mut socket = PubSocket::new();
            socket.bind(&format!("tcp://127.0.0.1:{port}")).await.unwrap();
            socket
        });
        Engine { runtime, socket, port, sequence: 0 }
    }

    fn endpoint(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port)
    }

    fn store(&mut self, blocks: std::ops::RangeInclusive<u32>) {
        let parent = blocks.start().checked_sub(1).filter(|&parent| parent > 0);
        let tokens: Vec<u32> = prompt(blocks.clone());
        let names: Vec<u32> = blocks.collect();
        let event = json!({"type": "BlockStored", "block_hashes": names, "parent_block_hash": parent, "token_ids": tokens,
                           "block_size": 4, "lora_id": null, "medium": "GPU", "lora_name": null});
        let batch = rmp_serde::to_vec(&json!([1e9, [event], 0])).unwrap();
        let mut message = ZmqMessage::from("kv");
        message.push_back(self.sequence.to_be_bytes().to_vec().into());
        message.push_back(batch.into());
        self.runtime.block_on(self.socket.send(message)).unwrap();
        self.sequence += 1;
    }
}

fn prompt(blocks: std::ops::RangeInclusive<u32>) -> Vec<u32> {
    blocks.flat_map(|block| [block; 4]).collect()
}

fn register(served: &Served, instance_id: u64, more: &Value) -> (u16, Value) {
    let mut body = json!({"instance_id": instance_id, "endpoint": "tcp://127.0.0.1:1", "model_name": "m", "block_size": 4});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    served.kvtide.post("/register", &body)
}

fn query(served: &Served, tokens: &[u32], more: &Value) -> (u16, Value) {
    let mut body = json!({"token_ids": tokens, "model_name": "m"});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    served.kvtide.post("/query", &body)
}

fn scores(served: &Served, tokens: &[u32], more: &Value) -> Value {
    let (status, answer) = query(served, tokens, more);
    assert_eq!(status, 200, "{answer}");
    answer["scores"].clone()
}

/// Waits until there is a connection, and the subscription has gone over it.
fn wait_until_active(served: &Served) {
    wait_for("a connection", || {
        served.get("/workers").as_array().unwrap().iter().all(|one| one["status"] == "active").then_some(())
    });
    std::thread::sleep(Duration::from_millis(500));
}

/// What is refused in Dynamo's shape, with words of the error.
fn assert_refused((status, answer): (u16, Value), expected: u16, words: &str) {
    let members = answer.as_object().map(|members| members.keys().cloned().collect::<Vec<_>>());
    assert_eq!((status, members.as_deref()), (expected, Some(&["error".to_owned()][..])), "{answer}");
    let error = answer["error"].as_str().unwrap();
    assert!(error.contains(words), "{error:?}; expected {words:?}");
}

#[test]
fn an_engine_is_followed_from_its_registration_until_it_is_unregistered() {
    let (served, mut engine) = (Served::start(), Engine::start());
    assert_refused(query(&served, &[], &json!({})), 404, "no indexer for model=m routing_group=default");
    let answer = register(&served, 7, &json!({"endpoint": engine.endpoint()}));
    assert_eq!(answer, (201, json!({"status": "ok"})));
    wait_until_active(&served);
    engine.store(1..=2);
    wait_for("its blocks", || {
        (scores(&served, &prompt(1..=3), &json!({})) == json!({"7": {"0": 8}})).then_some(())
    });
    let expected = json!({"scores": {"7": {"0": 8}}, "frequencies": [],
        "instances": {"7": {"longest_matched": 8, "gpu": 8, "dp": {"0": 8}, "cpu": 8, "disk": 8}}});
    assert_eq!(query(&served, &prompt(1..=3), &json!({})), (200, expected.clone()));
    let hashes: Vec<i64> = Hashing { block_size: 4, eagle: false }
        .block_hashes(&prompt(1..=3), &[], Seed::PLAIN)
        .map(|hash| hash.0.cast_signed())
        .collect();
    let by_hash = served.kvtide.post("/query_by_hash", &json!({"block_hashes": hashes, "model_name": "m"}));
    assert_eq!(by_hash, (200, expected));
    let listed = json!([{"instance_id": 7, "source": "zmq", "status": "active", "model_name": "m", "routing_group": "default",
        "block_size": 4, "endpoints": {"0": engine.endpoint()},
        "listeners": {"0": {"endpoint": engine.endpoint(), "status": "active"}}}]);
    assert_eq!(served.get("/workers"), listed);
    let metrics = served.kvtide.get("/metrics").1;
    assert!(
        metrics.contains("kvtide_events_total{stream=\"registered\"} 1"),
        "engines come and go; one name counts all"
    );

    let gone = json!({"instance_id": 7, "model_name": "m"});
    assert_eq!(served.kvtide.post("/unregister", &gone), (200, json!({"status": "ok"})));
    engine.store(3..=3);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((served.get("/workers"), served.workers()), (json!([]), vec![]));
    assert_eq!(served.get("/v1/scopes"), json!({"scopes": []}), "nothing is bound to the scope any more");
    assert_refused(query(&served, &[], &json!({})), 404, "no indexer");
    assert_refused(served.kvtide.post("/unregister", &gone), 404, "instance 7 not found");
    let metrics = served.kvtide.get("/metrics").1;
    let ranks = metrics.lines().find(|line| line.starts_with("kvtide_ranks{"));
    assert!(ranks.is_none_or(|line| line.ends_with(" 0")), "{ranks:?}");

    // The same process again: it is late, and what was before is not known.
    assert_eq!(register(&served, 7, &json!({"endpoint": engine.endpoint()})).0, 201);
    wait_until_active(&served);
    engine.store(8..=8);
    wait_for("its next batch", || served.workers().first().map(|worker| worker["knowledge"] == "partial"));
    assert_eq!(scores(&served, &prompt(1..=3), &json!({})), json!({}));
}

#[test]
fn engines_of_the_configuration_are_of_the_default_group_and_may_be_let_go() {
    let mut engine = Engine::start();
    let config = format!(
        "[[stream]]\nname = \"one\"\nzmq = \"{}\"\nworker_id = 7\ndp_rank = 3\nmodel = \"m\"\nblock_size = 4\n",
        engine.endpoint()
    );
    let served = Served::configured(&config);
    wait_until_active(&served);
    engine.store(1..=2);
    wait_for("its blocks", || {
        (scores(&served, &prompt(1..=2), &json!({})) == json!({"7": {"3": 8}})).then_some(())
    });
    assert_eq!(served.get("/workers")[0]["endpoints"], json!({"3": engine.endpoint()}));
    assert_refused(
        register(&served, 7, &json!({"dp_rank": 3})),
        409,
        "instance 7 dp_rank 3 already registered",
    );
    assert_refused(
        register(&served, 7, &json!({"routing_group": "g"})),
        409,
        "is already registered for model=m",
    );
    assert_eq!(register(&served, 7, &json!({"dp_rank": 4})).0, 201);
    let one = json!({"instance_id": 7, "model_name": "m", "dp_rank": 3});
    assert_eq!(served.kvtide.post("/unregister", &one).0, 200);
    assert_refused(served.kvtide.post("/unregister", &one), 404, "instance 7 dp_rank 3 not found");
    assert_eq!(scores(&served, &prompt(1..=2), &json!({})), json!({}));
}

#[test]
fn whatever_feeds_a_model_is_answered_and_counts_as_the_default_group() {
    let served = Served::start();
    let tokens = prompt(1..=2);
    let hashes: Vec<_> = Hashing { block_size: 4, eagle: false }
        .block_hashes(&tokens, &[], Seed::of(Some("a"), Some("t")))
        .collect();
    let blocks: Vec<Value> = sequence_hashes(hashes.iter().copied())
        .zip(&hashes)
        .map(|(name, hash)| json!({"sequence_hash": name.0, "block_hash": hash.0}))
        .collect();
    let scope = json!({"model": "m", "kv_dtype": "fp8", "block_size": 4});
    served.tell(&scope, 7, Some(1), &[json!({"type": "stored", "blocks": blocks})]);
    let salted = json!({"lora_name": "a", "cache_salt": "t"});
    assert_eq!(scores(&served, &tokens, &salted), json!({"7": {"0": 8}}));
    assert_eq!(scores(&served, &tokens, &json!({})), json!({}));
    assert_refused(query(&served, &tokens, &json!({"routing_group": "g"})), 404, "routing_group=g");
    assert_eq!(served.get("/workers"), json!([]), "nobody is followed");
    // An engine that states less is not of the same scope, and of another block size least of all.
    assert_refused(register(&served, 8, &json!({})), 409, "stated kv_dtype");
    let words = "block_size mismatch for model=m routing_group=default: existing=4, requested=8";
    assert_refused(register(&served, 8, &json!({"block_size": 8})), 409, words);
    // In another group it may be, and is answered apart.
    assert_eq!(register(&served, 8, &json!({"block_size": 8, "routing_group": "g"})).0, 201);
    assert_eq!(scores(&served, &tokens, &salted), json!({"7": {"0": 8}}));
    assert_eq!(scores(&served, &tokens, &json!({"routing_group": "g"})), json!({}));
    // Of several scopes none can be chosen.
    served.tell(&json!({"model": "m", "block_size": 4}), 9, Some(1), &[]);
    assert_refused(query(&served, &tokens, &json!({})), 409, "2 scopes fit; they differ in kv_dtype");
    let dump = served.get("/dump");
    assert_eq!(
        dump["m:default"],
        json!({"error": "2 scopes of model=m routing_group=default, expected one"})
    );
    assert_eq!(dump["m:g"], json!({"block_size": 8, "events": []}));
}

#[test]
fn a_rank_that_another_source_feeds_cannot_be_registered() {
    let served = Served::start();
    served.tell(&json!({"model": "m", "block_size": 4}), 7, Some(1), &[]);
    assert_refused(register(&served, 7, &json!({})), 409, "instance 7 dp_rank 0 is fed by another stream");
    assert_eq!(register(&served, 7, &json!({"dp_rank": 1})).0, 201);
}

#[test]
fn eagle_is_stated_with_the_registration_and_held_against_queries() {
    let served = Served::start();
    assert_eq!(register(&served, 7, &json!({"is_eagle": true})).0, 201);
    assert_refused(register(&served, 8, &json!({})), 409, "expected eagle = true");
    assert_refused(query(&served, &[1], &json!({"is_eagle": false})), 409, "expected is_eagle = true");
    assert_eq!(query(&served, &[1], &json!({"is_eagle": true})).0, 200);
    assert_eq!(served.get("/v1/scopes")["scopes"][0]["eagle"], true);
}

#[test]
fn limits_are_named() {
    let served = Served::start();
    let long = "x".repeat(513);
    for (member, more) in [
        ("model_name", json!({"model_name": long})),
        ("routing_group", json!({"routing_group": long})),
        ("endpoint", json!({"endpoint": format!("tcp://{long}:1")})),
        ("replay_endpoint", json!({"replay_endpoint": format!("tcp://{long}:1")})),
    ] {
        let words = format!(
            "{member} of {} bytes exceeds the limit name_bytes of 512",
            more[member].as_str().unwrap().len()
        );
        assert_refused(register(&served, 1, &more), 400, &words);
    }
    assert_refused(query(&served, &[1], &json!({"model_name": long})), 400, "the limit name_bytes of 512");
    assert_refused(query(&served, &[1], &json!({"routing_group": long})), 400, "the limit name_bytes of 512");
    for instance in 0..1024 {
        assert_eq!(register(&served, instance, &json!({})).0, 201);
    }
    assert_refused(register(&served, 1024, &json!({})), 409, "1024 are followed, the limit engines is 1024");
    assert_eq!(served.kvtide.post("/unregister", &json!({"instance_id": 5, "model_name": "m"})).0, 200);
    assert_eq!(register(&served, 1024, &json!({})).0, 201);
    let tokens = vec![0; (4 << 20) + 1];
    assert_refused(query(&served, &tokens, &json!({})), 413, "the limit query_tokens of 4194304");
    let huge = vec![b' '; (64 << 20) + 1];
    let reply = served.kvtide.send("POST", "/query", "application/json", &huge);
    assert_eq!((reply.status, reply.content_type.as_str()), (413, "application/json"));
    assert!(reply.body.contains("the limit body_bytes of 67108864"), "{}", reply.body);
}

#[test]
fn no_error_carries_tokens_or_tenants() {
    let served = Served::start();
    let rows = [
        json!({"token_ids": [4_242_424_242_u64 * 2], "model_name": "m"}),
        json!({"token_ids": [-4_242_424_242_i64], "model_name": "m"}),
        json!({"token_ids": ["4242424242"], "model_name": "m"}),
        json!({"token_ids": [4_242_424_242.5], "model_name": "m"}),
        json!({"token_ids": [], "model_name": "m", "tenant_id": "secret"}),
        json!({"token_ids": [], "model_name": "m", "cache_salt": "secret"}),
        json!({"block_hashes": [], "model_name": "m", "cache_salt": "secret"}),
    ];
    for route in ["/query", "/query_by_hash", "/register", "/unregister"] {
        for body in &rows {
            let (status, answer) = served.kvtide.post(route, body);
            let error = answer["error"].as_str().unwrap_or_default().to_owned();
            assert!((400..500).contains(&status) && !error.is_empty(), "{route} {body}: {answer}");
            assert!(!error.contains("4242") && !error.contains("secret"), "{route}: {error}");
        }
    }
}

#[test]
fn a_dump_has_every_tier_and_every_name_of_a_block() {
    let served = Served::start();
    let scope = json!({"model": "m", "block_size": 4});
    let block = |name: u64, hash: u64| json!({"sequence_hash": name, "block_hash": hash});
    let stored = |tier: &str, parent: Option<u64>, blocks: Vec<Value>| json!({"type": "stored", "tier": tier, "parent": parent, "blocks": blocks});
    served.tell(
        &scope,
        1,
        Some(1),
        &[
            stored("gpu", None, vec![block(11, 1), block(12, 2)]),
            stored("host", Some(12), vec![block(13, 3)]),
            stored("disk", Some(13), vec![block(14, 4)]),
            stored("external", Some(14), vec![block(15, 5)]),
        ],
    );
    // The second worker has names of its own, and two of them for one block.
    served.tell(
        &scope,
        2,
        Some(1),
        &[stored("gpu", None, vec![block(21, 1), block(22, 2)]), stored("gpu", Some(21), vec![block(32, 2)])],
    );
    let dump = served.get("/dump");
    assert_eq!(dump["m:default"]["block_size"], 4);
    let mut held: Vec<Value> = Vec::new();
    for (number, event) in dump["m:default"]["events"].as_array().unwrap().iter().enumerate() {
        assert_eq!(
            (&event["event"]["event_id"], &event["residency_domain"]),
            (&json!(number), &json!("worker")),
            "{event}"
        );
        let stored = &event["event"]["data"]["stored"];
        assert_eq!(stored["start_position"], Value::Null);
        let mut parent = stored["parent_hash"].clone();
        for block in stored["blocks"].as_array().unwrap() {
            assert_eq!(block["mm_extra_info"], Value::Null);
            held.push(json!([
                event["worker_id"],
                event["event"]["dp_rank"],
                event["storage_tier"],
                parent,
                block["block_hash"],
                block["tokens_hash"]
            ]));
            parent = block["block_hash"].clone();
        }
    }
    held.sort_by_key(ToString::to_string);
    let mut expected = vec![
        json!([1, 0, "device", null, 11, 1]),
        json!([1, 0, "device", 11, 12, 2]),
        json!([1, 0, "host_pinned", 12, 13, 3]),
        json!([1, 0, "disk", 13, 14, 4]),
        json!([1, 0, "external", 14, 15, 5]),
        json!([2, 0, "device", null, 21, 1]),
        json!([2, 0, "device", 21, 22, 2]),
        json!([2, 0, "device", 21, 32, 2]),
    ];
    expected.sort_by_key(ToString::to_string);
    assert_eq!(held, expected);
}

#[test]
fn peers_are_those_of_the_configuration() {
    let served = Served::configured("snapshot = { peers = [\"http://127.0.0.1:1/\"] }\n");
    assert_eq!(served.get("/peers"), json!(["http://127.0.0.1:1"]));
    let (there, other) = (json!({"url": "http://127.0.0.1:1"}), json!({"url": "http://127.0.0.1:2"}));
    assert_eq!(served.kvtide.post("/register_peer", &there), (201, json!({"status": "ok"})));
    assert_refused(served.kvtide.post("/register_peer", &other), 409, "expected one of --peer");
    assert_refused(served.kvtide.post("/deregister_peer", &other), 404, "peer not found");
    assert_refused(served.kvtide.post("/deregister_peer", &there), 409, "is configured");
    assert_refused(served.kvtide.post("/register_peer", &json!({})), 422, "missing field `url`");
}

#[test]
fn arbitrary_bodies_change_nothing() {
    let (served, mut random) = (Served::start(), StdRng::seed_from_u64(9));
    assert_eq!(register(&served, 7, &json!({})).0, 201);
    let state = || (served.get("/workers"), served.get("/dump"), served.state());
    let before = state();
    let valid = json!({"token_ids": [1, 2], "model_name": "m", "instance_id": 7, "endpoint": "tcp://127.0.0.1:1",
                       "block_size": 4, "block_hashes": [1], "block_mm_infos": [null, {"mm_objects": [{"mm_hash": 1}]}]})
    .to_string();
    for number in 0..200 {
        let mut body = valid.clone().into_bytes();
        if number % 2 == 0 {
            body = vec![0; random.random_range(0..2000)];
            random.fill_bytes(&mut body);
        } else {
            body.truncate(random.random_range(0..body.len()));
        }
        for route in
            ["/query", "/query_by_hash", "/register", "/unregister", "/register_peer", "/deregister_peer"]
        {
            let reply = served.kvtide.send("POST", route, "application/json", &body);
            // A body that begins with a number is of another type.
            assert!([400, 422].contains(&reply.status), "{route}: {reply:?}");
            assert_eq!(reply.content_type, "application/json", "{route}: {reply:?}");
        }
    }
    assert_eq!(state(), before);
}
