//! A kvtide that ends, and another that goes on with what it has written.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    thread::sleep,
    time::Duration,
};

use kvtide::{
    Clock, Indexer, Limits,
    snapshot::{Peer, resume},
};
use kvtide_tests::{
    Folder,
    harness::{Kvtide, wait_for},
};
use serde_json::{Value, json};

fn start(arguments: &[&str]) -> Kvtide {
    Kvtide::start(env!("CARGO_BIN_EXE_kvtide"), &[&["serve"], arguments].concat())
}

/// Stores block `name` behind the one before it, as event `name` of worker 7.
fn tell(kvtide: &Kvtide, name: u64) {
    let parent = (name > 1).then(|| name - 1);
    let stored =
        json!({"type": "stored", "parent": parent, "blocks": [{"sequence_hash": name, "block_hash": name}]});
    let body = json!({"scope": {"model": "m", "block_size": 4}, "worker_id": 7, "first_event_id": name,
                      "events": [stored]});
    let (status, answer) = kvtide.post("/v1/events", &body);
    assert_eq!(status, 200, "{answer}");
}

/// What is known of worker 7, and how many leading blocks it holds.
fn known(kvtide: &Kvtide) -> Option<(String, u64, u64)> {
    let (_, body) = kvtide.get("/v1/workers");
    let worker = serde_json::from_str::<Value>(&body).unwrap()["workers"].get(0)?.clone();
    let (_, answer) = kvtide.post("/v1/overlap", &json!({"block_hashes": [1, 2, 3, 4, 5]}));
    let reach = answer["ranks"][0]["reach_tokens"]["gpu"].as_u64()? / 4;
    Some((worker["knowledge"].as_str()?.to_owned(), worker["freshness"]["generation"].as_u64()?, reach))
}

fn expect(kvtide: &Kvtide, knowledge: &str, generation: u64, reach: u64) {
    assert_eq!(known(kvtide), Some((knowledge.to_owned(), generation, reach)));
}

#[test]
fn after_a_stop_everything_is_there_and_the_next_event_proves_it() {
    let folder = Folder::new();
    let file = folder.path("kvtide.snapshot");
    let kvtide = start(&["--snapshot", &file]);
    (1..=3).for_each(|name| tell(&kvtide, name));
    expect(&kvtide, "complete", 1, 3);
    let _log = kvtide.terminate();

    let mut kvtide = start(&["--snapshot", &file]);
    kvtide.wait_for_log("goes on with a snapshot");
    expect(&kvtide, "recovering", 1, 3);
    tell(&kvtide, 4);
    expect(&kvtide, "complete", 1, 4);
    let _log = kvtide.terminate();

    let kvtide = start(&["--snapshot", &file]);
    tell(&kvtide, 6);
    expect(&kvtide, "partial", 1, 0);
}

#[test]
fn a_killed_one_goes_on_from_its_last_snapshot() {
    let folder = Folder::new();
    let file = folder.path("kvtide.snapshot");
    let config = folder.write("kvtide.toml", format!("[snapshot]\npath = \"{file}\"\nevery_s = 1\n"));
    let kvtide = start(&["--config", &config]);
    tell(&kvtide, 1);
    wait_for("a snapshot", || Path::new(&file).exists().then_some(()));
    sleep(Duration::from_millis(1500));
    // Gone at once.
    drop(kvtide);
    let kvtide = start(&["--config", &config]);
    expect(&kvtide, "recovering", 1, 1);
    tell(&kvtide, 2);
    expect(&kvtide, "complete", 1, 2);
}

#[test]
fn another_one_goes_on_with_a_peers_snapshot() {
    let first = start(&[]);
    (1..=3).for_each(|name| tell(&first, name));
    let folder = Folder::new();
    let nothing = folder.write("none.snapshot", "something else");
    let peers = format!("http://127.0.0.1:1,{}/", first.url());
    let mut second = start(&["--peer", &peers, "--snapshot", &nothing]);
    let line = second.wait_for_log("snapshot refused");
    assert!(line.contains("expected a snapshot"), "{line}");
    second.wait_for_log("goes on with a snapshot");
    expect(&second, "recovering", 1, 3);
    // Both follow the same streams from here on, each by itself.
    tell(&first, 4);
    tell(&second, 4);
    expect(&first, "complete", 1, 4);
    expect(&second, "complete", 1, 4);
    // And back again, after the first has lost everything.
    let third = start(&["--peer", second.url()]);
    expect(&third, "recovering", 1, 4);
}

#[test]
fn where_no_snapshot_can_be_written_it_says_so_and_goes_on() {
    let folder = Folder::new();
    let file = folder.path("there/is/no/such/folder");
    let config = folder.write("kvtide.toml", format!("[snapshot]\npath = \"{file}\"\nevery_s = 1\n"));
    let mut kvtide = start(&["--config", &config]);
    tell(&kvtide, 1);
    kvtide.wait_for_log("snapshot not written");
    expect(&kvtide, "complete", 1, 1);
    let failed = || kvtide.get("/metrics").1.lines().any(|line| line == "kvtide_snapshots_failed_total 0");
    assert!(!failed());
}

#[test]
fn a_full_disk_leaves_the_last_snapshot_as_it_is() {
    let folder = Folder::new();
    let file = folder.path("kvtide.snapshot");
    let kvtide = start(&["--snapshot", &file]);
    tell(&kvtide, 1);
    let _log = kvtide.terminate();
    let whole = std::fs::read(&file).unwrap();
    // As little as may be written is too little for a snapshot of many blocks.
    let limited =
        format!("trap '' XFSZ; ulimit -f 8; exec \"$0\" serve --snapshot {file} --listen 127.0.0.1:0");
    let mut kvtide = Kvtide::start_command("bash", &["-c", &limited, env!("CARGO_BIN_EXE_kvtide")]);
    tell(&kvtide, 2);
    let blocks: Vec<Value> =
        (100..4000).map(|n: u64| json!({"sequence_hash": n, "block_hash": n * 7_919_117})).collect();
    let body = json!({"scope": {"model": "m", "block_size": 4}, "worker_id": 8,
                      "events": [{"type": "stored", "blocks": blocks}]});
    assert_eq!(kvtide.post("/v1/events", &body).0, 200);
    kvtide.signal("-TERM");
    kvtide.wait_for_log("snapshot not written; the last one stays");
    assert_eq!(std::fs::read(&file).unwrap(), whole);
    let left = std::fs::read_dir(Path::new(&file).parent().unwrap()).unwrap().count();
    assert_eq!(left, 1, "nothing half written is left");
}

#[test]
fn whoever_takes_no_more_of_a_snapshot_does_not_keep_others_from_theirs() {
    // More than all buffers on the way hold.
    const BLOCKS: u64 = 700_000;
    let kvtide = start(&[]);
    let block = |n: u64| json!({"sequence_hash": n, "block_hash": format!("{:x}", n.wrapping_mul(0x9E37_79B9_7F4A_7C15))});
    let blocks: Vec<Value> = (1..=BLOCKS).map(block).collect();
    let body = json!({"scope": {"model": "m", "block_size": 4}, "worker_id": 8,
                      "events": [{"type": "stored", "blocks": blocks}]});
    assert_eq!(kvtide.post("/v1/events", &body).0, 200);
    let mut stalled = TcpStream::connect(kvtide.url().trim_start_matches("http://")).unwrap();
    stalled.write_all(b"GET /v1/snapshot HTTP/1.1\r\nHost: kvtide\r\n\r\n").unwrap();
    let mut head = [0; 1000];
    stalled.read_exact(&mut head).unwrap();
    sleep(Duration::from_millis(500));
    drop(stalled);
    let indexer = Indexer::new(Limits::default(), Clock::default());
    let peer = Peer::new(kvtide.url(), None, None).unwrap();
    resume(&indexer, None, &[peer]);
    let [scope] = indexer.scopes().try_into().unwrap();
    assert_eq!((scope.size.held_blocks, scope.ranks.len()), (BLOCKS, 1));
}
