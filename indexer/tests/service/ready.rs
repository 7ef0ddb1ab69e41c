//! `/readyz`: what a start waits for, and that it is over once.

use kvtide_tests::{
    Folder,
    harness::{Kvtide, NatsServer, free_port, wait_for},
};
use serde_json::{Value, json};

fn start(arguments: &[&str]) -> Kvtide {
    Kvtide::start(env!("CARGO_BIN_EXE_kvtide"), &[&["serve"], arguments].concat())
}

fn expect_awaited(kvtide: &Kvtide, awaited: &[&str], recovering_ranks: u64) {
    let (status, body) = kvtide.get("/readyz");
    let problem: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, 503, "{body}");
    assert_eq!(problem["type"], "urn:kvtide:problem:not-ready");
    assert_eq!(
        (&problem["awaited"], &problem["recovering_ranks"]),
        (&json!(awaited), &json!(recovering_ranks))
    );
    assert_eq!(kvtide.get("/healthz").0, 200, "it lives");
}

fn tell(kvtide: &Kvtide, event_id: u64) {
    let stored = json!({"type": "stored", "blocks": [{"sequence_hash": event_id, "block_hash": event_id}]});
    let body = json!({"scope": {"model": "m", "block_size": 4}, "worker_id": 7, "first_event_id": event_id,
                      "events": [stored]});
    assert_eq!(kvtide.post("/v1/events", &body).0, 200);
}

#[test]
fn without_sources_it_is_ready_at_once() {
    assert_eq!(start(&[]).get("/readyz"), (200, "ready\n".into()));
}

#[test]
fn a_bus_has_to_be_there_once() {
    let port = free_port();
    let url = format!("nats://127.0.0.1:{port}");
    let kvtide = start(&["--nats", &url, "--model", "m", "--block-size", "4"]);
    expect_awaited(&kvtide, &["a connection to NATS"], 0);
    let bus = NatsServer::start_on(port);
    wait_for("readiness", || (kvtide.get("/readyz").0 == 200).then_some(()));
    drop(bus);
    assert_eq!(kvtide.get("/readyz").0, 200, "what is lost from here on, each answer says");
}

#[test]
fn an_engine_that_can_be_asked_has_to_be_whether_or_not_it_answers() {
    let folder = Folder::new();
    let (events, replay) = (free_port(), free_port());
    let config = format!(
        "[[stream]]\nzmq = \"tcp://127.0.0.1:{events}\"\nzmq_replay = \"tcp://127.0.0.1:{replay}\"\n\
         worker_id = 7\nmodel = \"m\"\nblock_size = 16\n"
    );
    let kvtide = start(&["--config", &folder.write("kvtide.toml", config)]);
    expect_awaited(&kvtide, &["an answer of stream worker-7"], 0);
    wait_for("readiness without an engine", || (kvtide.get("/readyz").0 == 200).then_some(()));
}

#[test]
fn one_that_is_registered_meanwhile_is_waited_for_until_it_is_unregistered() {
    let kvtide =
        start(&["--nats", &format!("nats://127.0.0.1:{}", free_port()), "--model", "m", "--block-size", "4"]);
    let engine = json!({"instance_id": 7, "endpoint": "tcp://127.0.0.1:1", "replay_endpoint": "tcp://127.0.0.1:1",
                        "model_name": "n", "block_size": 4});
    assert_eq!(kvtide.post("/register", &engine).0, 201);
    expect_awaited(&kvtide, &["a connection to NATS", "an answer of stream registered/7/0"], 0);
    assert_eq!(kvtide.post("/unregister", &json!({"instance_id": 7, "model_name": "n"})).0, 200);
    wait_for("its end", || {
        let problem: Value = serde_json::from_str(&kvtide.get("/readyz").1).unwrap();
        (problem["awaited"] == json!(["a connection to NATS"])).then_some(())
    });
}

#[test]
fn what_a_snapshot_brought_has_to_go_on_or_go() {
    let folder = Folder::new();
    let file = folder.path("kvtide.snapshot");
    let kvtide = start(&["--snapshot", &file]);
    tell(&kvtide, 1);
    let _log = kvtide.terminate();
    let kvtide = start(&["--snapshot", &file]);
    expect_awaited(&kvtide, &[], 1);
    tell(&kvtide, 2);
    assert_eq!(kvtide.get("/readyz").0, 200);
}
