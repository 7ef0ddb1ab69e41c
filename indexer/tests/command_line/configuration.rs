//! Configuration files that cannot be used: each ends the command, naming the stream, what is there and what should be.

use std::{path::Path, time::Duration};

use kvtide::{Format, GapPolicy, Limits, config::File, service::ServiceLimits};
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
        (
            "[sever]\n".into(),
            &["kvtide.toml: line 1: [sever] cannot be set, expected one of log, server, nats"],
        ),
        (
            "[server]\nport = 8090\n".into(),
            &["line 2: [server] port cannot be set, expected one of listen, insecure"],
        ),
        (
            "[server]\nlisten = 8090\n".into(),
            &["line 2: [server] listen: invalid value '8090' for '--listen <ADDR>': invalid socket address"],
        ),
        ("[server]\nlisten = \"8090\"\n".into(), &["invalid socket address"]),
        (
            "[server]\ninsecure = \"yes\"\n".into(),
            &["[server] insecure: expected true or false, got a string"],
        ),
        ("[nats]\nurl = true\n".into(), &["[nats] url: expected a string or a number, got true or false"]),
        (
            "[snapshot]\npeers = \"p\"\n".into(),
            &["[snapshot] peers: expected an array of strings, got a string"],
        ),
        (
            "[snapshot]\npeers = [[1]]\n".into(),
            &["[snapshot] peers: expected an array of strings, got an array of"],
        ),
        ("[limits]\nranks = 99999\n".into(), &["line 2: [limits] ranks: invalid value '99999'", "1..=65536"]),
        (
            "[limits]\nscopes = 1979-05-27\n".into(),
            &["[limits] scopes: expected a string or a number, got a time"],
        ),
        ("server = 1\n".into(), &["kvtide.toml: server stands alone, expected sections, as [server]"]),
        ("[stream]\n".into(), &["expected a sequence"]),
        ("stream".into(), &["kvtide.toml", "line 1"]),
        (stream("subject = \"s\"\nblock_size = 16\n"), &["line 3", "[[stream]]", "missing field `model`"]),
        (stream("subject = \"s\"\nmodel = \"m\"\n"), &["missing field `block_size`"]),
        (engine("blocksize = 16\n"), &["unknown field `blocksize`, expected one of", "`block_size`"]),
        (engine("gap_policy = \"drop\"\n"), &["unknown variant `drop`, expected `forget` or `keep`"]),
        ("[snapshot]\nevery_s = 0\n".into(), &["line 2: [snapshot] every_s: invalid value '0'"]),
        (
            "[snapshot]\nfile = \"f\"\n".into(),
            &["line 2: [snapshot] file cannot be set, expected one of path, every_s"],
        ),
        ("[workers]\ngone_after_s = -1\n".into(), &["line 2: [workers] gone_after_s: invalid value '-1'"]),
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
fn settings_that_mean_nothing_without_another() {
    let nats = "[nats]\nurl = \"nats://127.0.0.1:1\"\n";
    refuse_all(&[
        ("[nats]\nnkey = \"f\"\n".into(), &["[nats] nkey is given without [nats] url"]),
        ("[nats]\ninstance = \"i\"\n".into(), &["[nats] instance is given without [nats] url"]),
        (
            format!("{nats}instance = \"a.b\"\n"),
            &["[nats] instance", "\"a.b\"", "expected one part of a NATS subject"],
        ),
        ("[nats]\ncredentials = \"f\"\n".into(), &["[nats] credentials is given without [nats] url"]),
        ("[nats]\ntls_ca = \"f\"\n".into(), &["[nats] tls_ca is given without [nats] url"]),
        (format!("{nats}tls_cert = \"f\"\n"), &["[nats] tls_cert is given without [nats] tls_key"]),
        (format!("{nats}tls_key = \"f\"\n"), &["[nats] tls_key is given without [nats] tls_cert"]),
        ("[server]\ntls_cert = \"f\"\n".into(), &["[server] tls_cert is given without [server] tls_key"]),
        ("[server]\ntls_key = \"f\"\n".into(), &["[server] tls_key is given without [server] tls_cert"]),
        (
            "[snapshot]\npeer_token = \"f\"\n".into(),
            &["[snapshot] peer_token is given without [snapshot] peers"],
        ),
        (
            "[snapshot]\npeer_tls_ca = \"f\"\n".into(),
            &["[snapshot] peer_tls_ca is given without [snapshot] peers"],
        ),
        ("[traces]\notlp_tls_ca = \"f\"\n".into(), &["[traces] otlp_tls_ca is given without [traces] otlp"]),
    ]);
}

#[test]
fn files_that_are_named_have_to_be_there_and_of_their_kind() {
    let folder = Folder::new();
    let junk = folder.write("junk", "canary");
    let dynamo = dynamo("");
    let nats = |setting: &str, file: &str| {
        dynamo.replace("[[stream]]", &format!("{setting} = {file:?}\n[[stream]]"))
    };
    let none = folder.path("none");
    let server = |setting: &str, file: &str| format!("[server]\n{setting} = {file:?}\n");
    let peers =
        |setting: &str, file: &str| format!("[snapshot]\npeers = [\"http://h:1\"]\n{setting} = {file:?}\n");
    let traces = |file: &str| format!("[traces]\notlp = \"https://h\"\notlp_tls_ca = {file:?}\n");
    refuse_all(&[
        (server("tokens", &none), &["none: No such file"]),
        (server("tokens", &junk), &["junk: line 1: expected an object with sha256"]),
        (server("tls_cert", &none) + &format!("tls_key = {none:?}\n"), &["none: No such file"]),
        (
            server("tls_cert", &junk) + &format!("tls_key = {junk:?}\n"),
            &["junk: expected a certificate as PEM"],
        ),
        (nats("nkey", &none), &["none: No such file"]),
        (nats("nkey", &junk), &["junk: expected the seed of an nkey"]),
        (nats("credentials", &none), &["none: No such file"]),
        (nats("credentials", &junk), &["junk: expected a NATS credentials file"]),
        (nats("tls_ca", &none), &["none: No such file"]),
        (peers("peer_token", &none), &["none: No such file"]),
        (peers("peer_tls_ca", &junk), &["expected certificates of the authorities"]),
        (traces(&none), &["none: No such file"]),
        (traces(&junk), &["expected certificates of the authorities"]),
        (
            "[snapshot]\npeers = [\"h:1\"]\n".into(),
            &["expected a peer's address as http://HOST:PORT", "got h:1"],
        ),
    ]);
    let refused = kvtide(&["serve", "--listen", "127.0.0.1:0", "--tokens", &junk]);
    assert!(!refused.error.contains("canary"), "{}", refused.error);
}

#[test]
fn a_collector_has_an_address() {
    let row = |url: &str, words: &'static [&'static str]| (format!("[traces]\notlp = {url:?}\n"), words);
    refuse_all(&[
        row("h:4318", &["[traces] otlp: expected a collector's address as http://HOST:PORT", "got h:4318"]),
        row("", &["[traces] otlp: expected a collector's address"]),
        row("grpc://h:4317", &["got grpc://h:4317"]),
        row("http://", &["got http://"]),
        row("http://h:65536", &["got http://h:65536"]),
        row("http://h:0", &["got http://h:0"]),
        row("http://h:4318?x=y", &["got http://h:4318?x=y"]),
        row("http://a b:4318", &["got http://a b:4318"]),
        row("http://user:secret@:4318", &["got http://:4318"]),
    ]);
    let refused = kvtide(&["serve", "--listen", "127.0.0.1:0", "--otlp", "ftp://user:secret@h"]);
    assert!(!refused.error.contains("secret"), "{}", refused.error);
    refused.failed(1, &["got ftp://h"]);
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
    let config = File::read(Path::new(&file)).unwrap().into_config().unwrap();
    let limits = config.limits();
    assert_eq!(
        (limits.silent_after, limits.conflict_silence, limits.gone_after),
        (Duration::from_secs(7), Duration::from_secs(8), Some(Duration::from_secs(9)))
    );
    let snapshot = &config.snapshot;
    assert_eq!((snapshot.path.as_deref(), snapshot.every_s.get()), (Some(Path::new("f")), 10));
    assert_eq!(snapshot.peers, ["http://p"]);
    let stream = config.streams[0].stream().unwrap();
    assert_eq!(stream.gap_policy, GapPolicy::Keep);
    assert!(matches!(stream.format, Format::Engine(engine) if engine.replays));

    let nothing = File::read(Path::new(&folder.write("empty.toml", ""))).unwrap().into_config().unwrap();
    assert_eq!((nothing.limits(), nothing.limits.service()), (Limits::DEFAULT, ServiceLimits::DEFAULT));
    assert_eq!((nothing.snapshot.path, nothing.snapshot.every_s.get()), (None, 60));
}
