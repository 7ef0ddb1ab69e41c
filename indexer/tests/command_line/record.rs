//! `kvtide record`: what an engine publishes, in files that can be read whatever ended it. The bus is in tests/bus.

use std::{path::Path, process::Command, time::Duration};

use bytes::Bytes;
use kvtide::capture::{Capture, Message, read_messages};
use kvtide_tests::{Folder, harness::free_port};
use serde_json::Value;
use tokio::runtime::Runtime;
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

use crate::finished::{Finished, Running, kvtide};

/// An engine's recorded stream, published again.
struct Engine {
    messages: Vec<Message>,
    runtime: Runtime,
    socket: PubSocket,
    endpoint: String,
}

impl Engine {
    fn start() -> Engine {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/captures/vllm033_xxh_a");
        let messages = Capture::load(&folder).unwrap().workers.swap_remove(0);
        let endpoint = format!("tcp://127.0.0.1:{}", free_port());
        let runtime = Runtime::new().unwrap();
        let socket = runtime.block_on(async {
            let mut socket = PubSocket::new();
            socket.bind(&endpoint).await.unwrap();
            socket
        });
        Engine { messages, runtime, socket, endpoint }
    }

    fn send(&mut self, parts: &[&[u8]]) {
        let parts: Vec<Bytes> = parts.iter().map(|part| Bytes::copy_from_slice(part)).collect();
        self.runtime.block_on(self.socket.send(ZmqMessage::try_from(parts).unwrap())).unwrap();
        // A publisher drops what its queue cannot take; an engine is slower than this loop.
        std::thread::sleep(Duration::from_micros(200));
    }

    fn publish(&mut self, range: std::ops::Range<usize>) {
        for place in range {
            let message = self.messages[place].clone();
            self.send(&[&message.topic, &message.sequence.to_be_bytes(), &message.payload]);
        }
    }
}

fn record(arguments: &[&str]) -> Running {
    let running = Running::start(
        Command::new(env!("CARGO_BIN_EXE_kvtide"))
            .args([&["record", "--block-size", "16"], arguments].concat()),
        &[],
    );
    running.wait_for_log(
        "recording endpoint=",
        arguments.iter().filter(|&&argument| argument == "--zmq").count(),
    );
    // The subscription is on its way to the publisher.
    std::thread::sleep(Duration::from_millis(300));
    running
}

fn replayed(folder: &str) -> Value {
    let finished = kvtide(&["replay", "--json", folder]);
    assert_eq!((finished.code, finished.error.as_str()), (0, ""), "{finished:?}");
    serde_json::from_str(&finished.out).unwrap()
}

/// Nothing was dropped, and it ended well.
fn ended_well(finished: &Finished, rows: &[(&str, u64)]) {
    assert_eq!(finished.code, 0, "{finished:?}");
    assert!(finished.out.contains("Dropped: 0."), "{finished:?}");
    for (file, messages) in rows {
        let row = finished.out.lines().find(|line| line.starts_with(file)).unwrap();
        assert_eq!(row.split_whitespace().nth(1), Some(messages.to_string().as_str()), "{row}");
    }
}

#[test]
fn what_an_engine_publishes_is_recorded_as_it_comes_and_can_be_played() {
    let (mut engine, folder) = (Engine::start(), Folder::new());
    let out = folder.path("new/recording");
    let endpoint = engine.endpoint.clone();
    let running = record(&["--zmq", &endpoint, "--out", &out, "--messages", "400", "--model", "m"]);
    engine.publish(0..402);
    ended_well(&running.finish(), &[("w0.kvcap.zst", 400)]);

    let recorded = read_messages(Path::new(&format!("{out}/w0.kvcap.zst"))).unwrap();
    assert_eq!(recorded, engine.messages[..400]);
    let played = replayed(&out);
    let rank = &played["ranks"][0];
    assert_eq!(
        (&played["messages"], &played["dropped"], &played["holes"]),
        (&400.into(), &0.into(), &0.into())
    );
    assert_eq!((&rank["knowledge"], &rank["last_event_id"]), (&"complete".into(), &399.into()), "{played}");
    assert_eq!(
        (&rank["scope"]["model"], &rank["scope"]["block_size"]),
        (&"m".into(), &16.into()),
        "{played}"
    );
    assert!(rank["held_blocks"]["gpu"].as_u64().unwrap() > 0, "{played}");
    let table = kvtide(&["replay", &out]);
    assert!(table.out.contains("without answers of an engine to compare with"), "{table:?}");
    let row = table.out.lines().find(|line| line.starts_with("m ")).unwrap();
    assert_eq!(row.split_whitespace().nth(2), Some("complete"), "{row}");
}

#[test]
fn several_engines_are_a_file_each_and_a_topic_can_be_chosen() {
    let (mut one, mut other, folder) = (Engine::start(), Engine::start(), Folder::new());
    let out = folder.path("");
    let (first, second) = (one.endpoint.clone(), other.endpoint.clone());
    std::fs::remove_dir(&out).unwrap();
    let running = record(&["--zmq", &first, "--zmq", &second, "--out", &out, "--topic", "kv"]);
    one.send(&[b"kv-a", &0_u64.to_be_bytes(), b"\x93"]);
    one.send(&[b"other", &1_u64.to_be_bytes(), b"\x93"]);
    other.send(&[b"kv", b"no number", b"\x93", b"and more"]);
    one.send(&[b"kv", &2_u64.to_be_bytes(), b"\x93"]);
    // At most a second until it is written; Ctrl-C does not wait for that.
    std::thread::sleep(Duration::from_millis(300));
    running.signal("-INT");
    ended_well(&running.finish(), &[("w0.kvcap.zst", 2), ("w1.kvcap.zst", 1)]);
    let sequences: Vec<_> = read_messages(Path::new(&format!("{out}/w0.kvcap.zst"))).unwrap();
    assert_eq!(sequences.iter().map(|message| message.sequence).collect::<Vec<_>>(), [0, 2]);
    // What is no batch is kept as it came, and refused when it is played, as it would be live.
    let played = replayed(&out);
    assert_eq!((&played["messages"], &played["undecodable"]), (&3.into(), &3.into()), "{played}");
}

#[test]
fn a_kill_leaves_whole_files() {
    let (mut engine, folder) = (Engine::start(), Folder::new());
    let out = folder.path("recording");
    let running = record(&["--zmq", &engine.endpoint.clone(), "--out", &out]);
    engine.publish(0..200);
    // Written once a second.
    std::thread::sleep(Duration::from_millis(2500));
    running.signal("-KILL");
    assert_eq!(running.finish().code, -1);
    let recorded = read_messages(Path::new(&format!("{out}/w0.kvcap.zst"))).unwrap();
    assert_eq!(recorded, engine.messages[..200]);
    assert!(replayed(&out)["dropped"].is_null());
    assert!(kvtide(&["replay", &out]).out.contains("did not end by itself"));
}

#[test]
fn it_ends_before_there_are_more_bytes_and_in_time() {
    let (mut engine, folder) = (Engine::start(), Folder::new());
    let endpoint = engine.endpoint.clone();
    let size = |message: &Message| (message.topic.len() + 8 + message.payload.len()) as u64;
    let bytes = engine.messages[..50].iter().map(size).sum::<u64>();
    let rows = [(bytes, 50), (bytes - 1, 49), (bytes + 1, 50), (1, 0)];
    for (limit, messages) in rows {
        let out = folder.path(&limit.to_string());
        let running = record(&["--zmq", &endpoint, "--out", &out, "--bytes", &limit.to_string()]);
        engine.publish(0..60);
        ended_well(&running.finish(), &[("w0.kvcap.zst", messages)]);
        assert_eq!(replayed(&out)["messages"], messages);
    }
    let out = folder.path("in time");
    ended_well(
        &record(&["--zmq", &endpoint, "--out", &out, "--seconds", "1"]).finish(),
        &[("w0.kvcap.zst", 0)],
    );
    assert_eq!(replayed(&out)["ranks"], Value::Array(Vec::new()));
}

#[test]
fn a_full_disk_is_said_and_what_was_written_before_stays() {
    let (mut engine, folder) = (Engine::start(), Folder::new());
    let out = folder.path("recording");
    // A file may not grow beyond 32 KiB there, which is what a full disk does.
    let kvtide = env!("CARGO_BIN_EXE_kvtide");
    let script = format!(
        "trap '' XFSZ; ulimit -f 64; exec {kvtide} record --block-size 16 --zmq {} --out {out}",
        engine.endpoint
    );
    let running = Running::start(Command::new("sh").args(["-c", &script]), &[]);
    running.wait_for_log("recording endpoint=", 1);
    std::thread::sleep(Duration::from_millis(300));
    engine.publish(0..20);
    std::thread::sleep(Duration::from_millis(1500));
    engine.publish(20..1400);
    let finished = running.finish();
    assert_eq!(finished.code, 1, "{finished:?}");
    assert!(finished.error.contains("w0.kvcap.zst: File too large"), "{finished:?}");
    let recorded = read_messages(Path::new(&format!("{out}/w0.kvcap.zst"))).unwrap();
    assert!(recorded.len() >= 20, "{}", recorded.len());
    assert_eq!(recorded, engine.messages[..recorded.len()]);
    assert!(replayed(&out)["dropped"].is_null());
}

#[test]
fn what_is_there_is_never_overwritten() {
    let folder = Folder::new();
    for name in ["recording.json", "w0.kvcap.zst"] {
        let out = folder.path(&format!("with {name}"));
        std::fs::create_dir(&out).unwrap();
        std::fs::write(format!("{out}/{name}"), "mine").unwrap();
        let arguments = ["record", "--zmq", "tcp://127.0.0.1:1", "--block-size", "16", "--out", &out];
        kvtide(&arguments).failed(1, &[name, "File exists"]);
        assert_eq!(std::fs::read_to_string(format!("{out}/{name}")).unwrap(), "mine");
    }
    let file = folder.write("file", "");
    kvtide(&["record", "--zmq", "tcp://127.0.0.1:1", "--block-size", "16", "--out", &file])
        .failed(1, &["file", "File exists"]);
    // Prompts are nobody else's business.
    let out = folder.path("mine");
    kvtide(&["record", "--zmq", "tcp://127.0.0.1:1", "--block-size", "16", "--out", &out, "--seconds", "1"]);
    let mode = |name: &str| {
        std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(format!("{out}/{name}")).unwrap().permissions(),
        )
    };
    assert_eq!((mode("w0.kvcap.zst") & 0o777, mode("recording.json") & 0o777), (0o600, 0o600));
}

#[test]
fn wrong_arguments_are_named() {
    let folder = Folder::new();
    let out = folder.path("never");
    let config = folder.write(
        "kvtide.toml",
        "[[stream]]\nsubject = \"a.b\"\nmodel = \"m\"\nblock_size = 4\n[[stream]]\nworker_id = 7\nmodel = \"m\"\nblock_size = 4\n",
    );
    let handed_in =
        folder.write("handed_in.toml", "[[stream]]\nworker_id = 7\nmodel = \"m\"\nblock_size = 4\n");
    let rows: [(&[&str], i32, &[&str]); 12] = [
        (&["--zmq", "tcp://a:1"], 2, &["--block-size"]),
        (&["--block-size", "16"], 1, &["nothing to record", "--zmq, --nats, or --config"]),
        (&["--block-size", "0", "--zmq", "tcp://a:1"], 2, &["--block-size", "0"]),
        (&["--block-size", "16", "--zmq", "7"], 1, &["tcp://HOST:PORT, got 7"]),
        (&["--block-size", "16", "--subject", "a"], 1, &["stream a has a subject, but there is no --nats"]),
        (&["--block-size", "16", "--nats", "nats://127.0.0.1:1", "--subject", "a b"], 1, &["\"a b\""]),
        (
            &["--block-size", "16", "--zmq", "tcp://a:1", "--nats-nkey", "x"],
            1,
            &["[nats] nkey", "[nats] url"],
        ),
        (
            &["--block-size", "16", "--nats", "nats://127.0.0.1:1", "--nats-nkey", "/none"],
            1,
            &["/none: No such file"],
        ),
        (&["--config", "/none.toml"], 1, &["/none.toml: No such file"]),
        (&["--config", &config], 1, &["stream a.b has a subject, but there is no --nats"]),
        (&["--config", &handed_in], 1, &["not recorded", "nothing to record"]),
        (&["--config", &config, "--zmq", "tcp://a:1"], 1, &["--block-size"]),
    ];
    for (arguments, code, words) in rows {
        kvtide(&[&["record", "--out", &out], arguments].concat()).failed(code, words);
    }
    kvtide(&["record", "--block-size", "16", "--zmq", "tcp://a:1"]).failed(2, &["--out"]);
}
