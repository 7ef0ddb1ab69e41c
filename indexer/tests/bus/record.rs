//! `kvtide record` on a bus, and the recording played: what it ends with is what a kvtide that followed the bus knew.

use std::{process::Command, time::Duration};

use kvtide_tests::{
    Folder,
    harness::{Finished, Kvtide, NatsServer, Relay, Running, wait_for},
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::frames::{Frame, SUBJECT, event, stored};

struct World {
    runtime: Runtime,
    nats: NatsServer,
    client: async_nats::Client,
    folder: Folder,
}

impl World {
    fn start() -> World {
        let nats = NatsServer::start();
        let runtime = Runtime::new().unwrap();
        let client = runtime.block_on(async_nats::connect(nats.url())).unwrap();
        World { runtime, nats, client, folder: Folder::new() }
    }

    fn record(&self, arguments: &[&str]) -> Running {
        let (url, out) = (self.nats.url(), self.folder.path("recording"));
        let common = ["record", "--block-size", "4", "--model", "m", "--out", &out];
        let bus = if arguments.contains(&"--nats") { &[][..] } else { &["--nats", &url] };
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvtide"));
        let running = Running::start(command.args([&common[..], bus, arguments].concat()), &[]);
        running.wait_for_log("connected to NATS", 1);
        std::thread::sleep(Duration::from_millis(200));
        running
    }

    fn publish(&self, subject: &str, frame: Vec<u8>) {
        self.runtime.block_on(async {
            self.client.publish(subject.to_owned(), frame.into()).await.unwrap();
            self.client.flush().await.unwrap();
        });
    }

    fn played(&self) -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvtide"));
        command.args(["replay", "--json", &self.folder.path("recording")]);
        let finished = Running::start(&mut command, &[]).finish();
        assert_eq!((finished.code, finished.error.as_str()), (0, ""), "{finished:?}");
        serde_json::from_str(&finished.out).unwrap()
    }
}

fn end(running: Running) -> Finished {
    running.signal("-TERM");
    let finished = running.finish();
    assert_eq!(finished.code, 0, "{finished:?}");
    finished
}

/// The frame of a worker that holds ever more blocks.
fn frame(worker: u64, sequence: u64) -> Vec<u8> {
    let (parent, name) = ((sequence > 0).then_some(sequence), sequence + 1);
    let events = vec![event(worker, sequence + 1, "device", &stored(parent, &[(name, 1000 + name)]))];
    Frame { publisher_id: worker, sequence, published_at: 1_793_000_000_000, events }.encode()
}

#[test]
fn a_recording_ends_with_what_a_follower_knew() {
    let world = World::start();
    let running = world.record(&[]);
    let mut following = Kvtide::start(
        env!("CARGO_BIN_EXE_kvtide"),
        &["serve", "--nats", &world.nats.url(), "--model", "m", "--block-size", "4"],
    );
    following.wait_for_log("connected to NATS");
    std::thread::sleep(Duration::from_millis(200));
    // One whole, one with a hole, one that had begun before, two frames the other way round, and what is no frame.
    for sequence in 0..20 {
        world.publish(SUBJECT, frame(1, sequence));
        if !(5..8).contains(&sequence) {
            world.publish(SUBJECT, frame(2, sequence));
        }
        world.publish(SUBJECT, frame(3, 100 + sequence));
        world.publish(SUBJECT, frame(4, sequence ^ 1));
    }
    world.publish(SUBJECT, b"no frame".to_vec());
    world.publish("namespace.x.component.y.endpoint.z.other", b"another subject".to_vec());
    let known = wait_for("the last frames", || {
        let (_, body) = following.get("/v1/workers");
        let list: Value = serde_json::from_str(&body).unwrap();
        let workers = list["workers"].as_array().unwrap().clone();
        let done = workers.len() == 4
            && workers.iter().all(|worker| worker["freshness"]["last_event_id"].as_u64() >= Some(20));
        done.then_some(workers)
    });
    let finished = end(running);
    assert!(finished.out.contains("Dropped: 0."), "{finished:?}");
    let played = world.played();
    assert_eq!((&played["messages"], &played["undecodable"]), (&json!(78), &json!(1)), "{played}");
    assert_eq!((&played["holes"], &played["missing"]), (&json!(1), &json!(3)), "{played}");
    let ranks = played["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), known.len());
    for (rank, known) in ranks.iter().zip(&known) {
        for name in ["scope", "worker_id", "dp_rank", "knowledge", "held_blocks", "parked_blocks"] {
            assert_eq!(rank[name], known[name], "{name}: {rank} {known}");
        }
        for name in ["generation", "last_event_id", "missing_events"] {
            assert_eq!(rank[name], known["freshness"][name], "{name}: {rank} {known}");
        }
    }
}

#[test]
fn a_connection_that_is_lost_is_made_again_and_a_configuration_names_the_streams() {
    let mut world = World::start();
    let relay = Relay::start(world.nats.port());
    let config = world.folder.write(
        "kvtide.toml",
        format!(
            "[nats]\nurl = \"nats://127.0.0.1:{}\"\n[[stream]]\nsubject = \"namespace.a.>\"\nmodel = \"one\"\nblock_size = 4\n\
             [[stream]]\nsubject = \"namespace.b.>\"\nmodel = \"two\"\nblock_size = 4\n",
            relay.port()
        ),
    );
    let out = world.folder.path("recording");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtide"));
    let running = Running::start(command.args(["record", "--config", &config, "--out", &out]), &[]);
    running.wait_for_log("connected to NATS", 1);
    std::thread::sleep(Duration::from_millis(200));
    world.publish("namespace.a.x", frame(1, 0));
    std::thread::sleep(Duration::from_millis(200));
    relay.cut();
    running.wait_for_log("connected to NATS", 2);
    std::thread::sleep(Duration::from_millis(200));
    world.publish("namespace.a.x", frame(1, 1));
    world.publish("namespace.b.x", frame(2, 0));
    std::thread::sleep(Duration::from_millis(200));
    end(running);
    let played = world.played();
    let ranks = played["ranks"].as_array().unwrap();
    let seen: Vec<_> = ranks
        .iter()
        .map(|rank| (rank["scope"]["model"].as_str().unwrap(), rank["last_event_id"].clone()))
        .collect();
    assert_eq!(seen, [("one", json!(2)), ("two", json!(1))], "{played}");

    // Without a server it ends all the same, in time.
    world.nats = NatsServer::start();
    let other = world.folder.path("other");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtide"));
    let alone =
        ["record", "--block-size", "4", "--nats", "nats://127.0.0.1:1", "--out", &other, "--seconds", "1"];
    assert_eq!(Running::start(command.args(alone), &[]).finish().code, 0);
}

#[test]
fn nothing_is_lost_at_a_rate_that_is_normal() {
    let world = World::start();
    let running = world.record(&["--messages", "50000"]);
    // As fast as one client can.
    world.runtime.block_on(async {
        for sequence in 0..50_000 {
            world.client.publish(SUBJECT, frame(1, sequence).into()).await.unwrap();
        }
        world.client.flush().await.unwrap();
    });
    let finished = running.finish();
    assert_eq!(finished.code, 0, "{finished:?}");
    let played = world.played();
    assert_eq!(
        (&played["messages"], &played["holes"], &played["dropped"]),
        (&json!(50_000), &json!(0), &json!(0))
    );
    assert_eq!(played["ranks"][0]["held_blocks"]["gpu"], 50_000, "{played}");
}
