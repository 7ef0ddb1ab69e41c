//! Configuration files that cannot be used: each ends the command, naming the stream, what is there and what should be.

use std::{path::Path, time::Duration};

use kvtide::{
    Format, GapPolicy, Limits,
    config::{Config, SnapshotConfig},
};
use kvtide_tests::Folder;

use crate::finished::kvtide;

const ENGINE: &str = "worker_id = 7\nmodel = \"m\"\nblock_size = 16\n";
const BUS: &str = "[nats]\nurl = \"nats://127.0.0.1:1\"\n";

/// A file with one stream that is called `one`.
fn stream(settings: &str) -> String {
    format!("{BUS}[[stream]]\nname = \"one\"\n{settings}")
}

fn engine(settings: &str) -> String {
    stream(&format!("{ENGINE}{settings}"))
}

fn dynamo(settings: &str) -> String {
    stream(&format!("subject = \"s\"\nmodel = \"m\"\nblock_size = 16\n{settings}"))
}

/// A file, and words of what is said about it.
type Row = (String, &'static [&'static str]);

fn refuse_all(rows: &[Row]) {
    let folder = Folder::new();
    for (text, words) in rows {
        let file = folder.write("kvtide.toml", text);
        // No port that matters is taken where one of them is not refused.
        let finished = kvtide(&["serve", "--listen", "127.0.0.1:0", "--config", &file]);
        assert!(finished.error.starts_with("kvtide: "), "{text}: {}", finished.error);
        finished.failed(1, words);
        kvtide(&["check-config", &file]).failed(1, words);
    }
}

#[test]
fn a_file_that_can_be_served_is_told() {
    let folder = Folder::new();
    let text = dynamo("kv_dtype = \"fp8\"\n") + "[[stream]]\n" + ENGINE;
    let finished = kvtide(&["check-config", &folder.write("kvtide.toml", &text)]);
    let lines: Vec<&str> = finished.out.lines().collect();
    assert_eq!((finished.code, lines.len()), (0, 3), "{}", finished.error);
    assert_eq!(lines[0], "one: Dynamo frames; model m, 16 tokens a block, kv_dtype fp8");
    assert_eq!(lines[1], "worker-7: an engine's batches; model m, 16 tokens a block");
    assert!(lines[2].ends_with("kvtide.toml: can be served; streams: 2, scopes: 2"), "{}", lines[2]);
    let open = folder.write("open.toml", "[server]\nlisten = \"0.0.0.0:8090\"\n");
    kvtide(&["check-config", &open]).failed(1, &["0.0.0.0:8090", "--insecure"]);
    kvtide(&["check-config", &folder.path("none.toml")]).failed(1, &["none.toml"]);
}

#[test]
fn files_of_another_form() {
    refuse_all(&[
        ("[sever]\n".into(), &["kvtide.toml", "unknown field `sever`, expected one of `server`"]),
        ("[server]\nport = 8090\n".into(), &["unknown field `port`, expected `listen` or `insecure`"]),
        ("[server]\nlisten = 8090\n".into(), &["invalid type: integer `8090`, expected socket address"]),
        ("[server]\nlisten = \"8090\"\n".into(), &["invalid socket address"]),
        ("[nats]\n".into(), &["missing field `url`"]),
        (format!("{BUS}instance = \"a.b\"\n"), &["line 3", "\"a.b\"", "expected one part of a NATS subject"]),
        (format!("{BUS}instance = 1\n"), &["invalid type: integer `1`, expected a string"]),
        ("[stream]\n".into(), &["expected a sequence"]),
        ("stream".into(), &["kvtide.toml", "line 1"]),
        (stream("subject = \"s\"\nblock_size = 16\n"), &["line 3", "[[stream]]", "missing field `model`"]),
        (stream("subject = \"s\"\nmodel = \"m\"\n"), &["missing field `block_size`"]),
        (engine("blocksize = 16\n"), &["unknown field `blocksize`, expected one of", "`block_size`"]),
        (engine("gap_policy = \"drop\"\n"), &["unknown variant `drop`, expected `forget` or `keep`"]),
        ("[snapshot]\nevery_s = 0\n".into(), &["integer `0`, expected a nonzero u64"]),
        ("[snapshot]\nfile = \"f\"\n".into(), &["unknown field `file`, expected one of `path`"]),
        ("[workers]\ngone_after_s = -1\n".into(), &["integer `-1`, expected u64"]),
        (engine("copies = \"some\"\n"), &["unknown variant `some`, expected `counted` or `set`"]),
        (stream("worker_id = -1\nmodel = \"m\"\nblock_size = 16\n"), &["integer `-1`, expected u64"]),
        (engine("dp_rank = \"0\"\n"), &["string \"0\", expected u32"]),
        (engine("window_tokens = {1 = \"all\"}\n"), &["string \"all\", expected u32"]),
    ]);
}

#[test]
fn streams_that_contradict_themselves() {
    refuse_all(&[
        (
            stream("model = \"m\"\nblock_size = 16\n"),
            &["stream one: ", "subject", "worker_id", "got neither"],
        ),
        (dynamo("worker_id = 7\n"), &["stream one: ", "got both"]),
        (dynamo("zmq = \"tcp://h:1\"\n"), &["stream one: zmq is for an engine's own stream", "worker_id"]),
        (dynamo("dp_rank = 0\n"), &["stream one: dp_rank is for an engine's own stream"]),
        (dynamo("copies = \"set\"\n"), &["stream one: copies is for an engine's own stream"]),
        (dynamo("host_chunk_blocks = 4\n"), &["stream one: host_chunk_blocks is for an engine's own"]),
        (dynamo("window_tokens = {1 = 128}\n"), &["stream one: window_tokens is for an engine's own"]),
        (dynamo("adapters = {1 = \"sql\"}\n"), &["stream one: adapters is for an engine's own stream"]),
        (engine("window_tokens = {sliding = 9}\n"), &["stream one: window_tokens", "\"sliding\"", "1 to 15"]),
        (engine("window_tokens = {16 = 9}\n"), &["stream one: window_tokens", "\"16\"", "1 to 15"]),
        (engine("window_tokens = {0 = 9}\n"), &["stream one: window_tokens", "\"0\"", "1 to 15"]),
        (engine("adapters = {sql = \"1\"}\n"), &["stream one: adapters", "\"sql\"", "an adapter's number"]),
        (stream("subject = \"\"\nmodel = \"m\"\nblock_size = 16\n"), &["stream one: the subject is \"\""]),
        (
            stream("subject = \"a b\"\nmodel = \"m\"\nblock_size = 16\n"),
            &["stream one: ", "\"a b\"", "spaces"],
        ),
        (
            stream("worker_id = 7\nmodel = \"m\"\nblock_size = 0\n").replace(BUS, ""),
            &["stream one: ", "1 token or more, got 0"],
        ),
        (engine("zmq = \"7\"\n").replace(BUS, ""), &["stream one: ", "tcp://HOST:PORT, got 7"]),
        (
            engine("zmq = \"tcp://h:1\"\nzmq_replay = \"8\"\n").replace(BUS, ""),
            &["stream one: ", "tcp://HOST:PORT, got 8"],
        ),
        (engine("zmq_replay = \"tcp://h:1\"\n"), &["stream one: zmq_replay is for a stream with zmq"]),
        (dynamo("zmq_replay = \"tcp://h:1\"\n"), &["stream one: zmq_replay is for an engine's own stream"]),
    ]);
}

#[test]
fn streams_that_contradict_each_other() {
    let nameless = format!("[[stream]]\n{ENGINE}");
    let other = "[[stream]]\nname = \"two\"\nworker_id = 8\nmodel = \"m\"\nblock_size = 16\n";
    refuse_all(&[
        (nameless.repeat(2), &["stream worker-7: another stream has that name"]),
        (dynamo("").replace(BUS, "").repeat(2) + BUS, &["stream one: another stream has that name"]),
        (
            engine("").replace(BUS, "") + other + "eagle = true\n",
            &["stream two: expected eagle = false, as its scope's other streams have it, got true"],
        ),
        (dynamo("").replace(BUS, ""), &["stream one has a subject, but there is no [nats] url"]),
    ]);
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let folder = Folder::new();
    kvtide(&["serve", "--config", &folder.path("none.toml")]).failed(1, &["none.toml: No such file"]);
    let binary = folder.write("binary.toml", b"\xff\xfe");
    kvtide(&["serve", "--config", &binary]).failed(1, &["binary.toml: ", "UTF-8"]);
}

#[test]
fn what_is_configured_of_workers_snapshots_and_gaps_is_what_is_read() {
    let folder = Folder::new();
    let file = folder.write(
        "kvtide.toml",
        engine("gap_policy = \"keep\"\nzmq = \"tcp://h:1\"\nzmq_replay = \"tcp://h:2\"\n")
            + "[workers]\nsilent_after_s = 7\nconflict_silence_s = 8\ngone_after_s = 9\n\
               [snapshot]\npath = \"f\"\nevery_s = 10\npeers = [\"http://p\"]\n",
    );
    let config = Config::read(Path::new(&file)).unwrap();
    let limits = config.workers.limit(Limits::default());
    assert_eq!(
        (limits.silent_after, limits.conflict_silence, limits.gone_after),
        (Duration::from_secs(7), Duration::from_secs(8), Some(Duration::from_secs(9)))
    );
    let SnapshotConfig { path, peers, every_s } = &config.snapshot;
    assert_eq!((path.as_deref(), every_s.get()), (Some(Path::new("f")), 10));
    assert_eq!(peers, &["http://p"]);
    let stream = config.streams[0].stream().unwrap();
    assert_eq!(stream.gap_policy, GapPolicy::Keep);
    assert!(matches!(stream.format, Format::Engine(engine) if engine.replays));

    let nothing = Config::default();
    assert_eq!(nothing.workers.limit(Limits::default()), Limits::default());
    assert_eq!((nothing.snapshot.path, nothing.snapshot.every_s.get()), (None, 60));
}
