//! `kvtide serve`: its flags and its environment, beside a configuration file.

use kvtide_tests::{Folder, harness::Kvtide};
use serde_json::{Value, json};

use crate::finished::kvtide;

/// No port that matters is taken where something is not refused.
const LISTEN: &str = "--listen=127.0.0.1:0";

#[test]
fn every_command_is_in_the_help_and_has_one() {
    let help = kvtide(&["--help"]);
    for command in ["serve", "demo", "query", "check-config", "token", "replay", "storm"] {
        assert!(help.out.contains(&format!("\n  {command} ")), "{}", help.out);
        let finished = kvtide(&[command, "--help"]);
        assert_eq!((finished.code, finished.error.as_str()), (0, ""), "{command}");
    }
    assert_eq!(kvtide(&["--version"]).out, format!("kvtide {}\n", env!("CARGO_PKG_VERSION")));
    kvtide(&[]).failed(2, &["Usage"]);
    kvtide(&["sreve"]).failed(2, &["sreve", "serve"]);
}

#[test]
fn other_addresses_than_loopback_have_to_be_allowed() {
    let folder = Folder::new();
    let allowed = folder.write("kvtide.toml", "[server]\ninsecure = true\n");
    for command in ["serve", "demo"] {
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
            let words = [address, "expected a loopback address", "--insecure"];
            kvtide(&[command, "--listen", address]).failed(1, &words);
        }
    }
    let program = env!("CARGO_BIN_EXE_kvtide");
    for arguments in [&["--insecure"][..], &["--config", &allowed]] {
        let arguments = [&["serve", "--listen", "0.0.0.0:0"], arguments].concat();
        let mut kvtide = Kvtide::start_command(program, &arguments);
        kvtide.signal("-TERM");
        kvtide.wait_for_log("stopped");
    }
}

#[test]
fn the_log_can_be_read_by_programs() {
    for arguments in [["--log-format", "json", "serve"], ["serve", "--log-format", "json"]] {
        let mut kvtide = Kvtide::start(env!("CARGO_BIN_EXE_kvtide"), &arguments);
        kvtide.signal("-TERM");
        let line: Value = serde_json::from_str(&kvtide.wait_for_log("stopped")).unwrap();
        assert_eq!((&line["level"], &line["message"]), (&json!("INFO"), &json!("stopped")), "{line}");
    }
    kvtide(&["serve", LISTEN, "--log-format", "xml"]).failed(2, &["xml", "text", "json"]);
}

#[test]
fn a_bus_without_anything_to_follow_is_refused() {
    let folder = Folder::new();
    let engine = "[[stream]]\nworker_id = 7\nmodel = \"m\"\nblock_size = 16\n";
    let only_engines = folder.write("engines.toml", engine);
    let only_bus = folder.write("bus.toml", "[nats]\nurl = \"nats://127.0.0.1:1\"\n");
    let nats = ["--nats", "nats://127.0.0.1:1"];
    let words = ["NATS is given", "expected --model and --block-size, or a [[stream]] with a subject"];
    kvtide(&["serve", LISTEN, nats[0], nats[1]]).failed(1, &words);
    kvtide(&["serve", LISTEN, nats[0], nats[1], "--config", &only_engines]).failed(1, &words);
    kvtide(&["serve", LISTEN, "--config", &only_bus]).failed(1, &words);
}

#[test]
fn flags_that_need_each_other_say_so() {
    let rows: [(&[&str], &[&str]); 6] = [
        (&["--nats", "nats://127.0.0.1:1", "--model", "m"], &["--block-size"]),
        (&["--nats", "nats://127.0.0.1:1", "--block-size", "16"], &["--model"]),
        (&["--subject", "s"], &["--model"]),
        (&["--listen", "8090"], &["--listen", "8090"]),
        (&["--instance", "a.b"], &["--instance", "\"a.b\"", "expected one part of a NATS subject"]),
        (&["--nats", "nats://127.0.0.1:1", "--model", "m", "--block-size", "x"], &["--block-size", "x"]),
    ];
    for (arguments, words) in rows {
        kvtide(&[&["serve"], arguments].concat()).failed(2, words);
    }
    kvtide(&["serve", LISTEN, "--model", "m", "--block-size", "16"])
        .failed(1, &["no [nats] url and no --nats"]);
    let zero = ["serve", LISTEN, "--nats", "nats://127.0.0.1:1", "--model", "m", "--block-size", "0"];
    kvtide(&zero).failed(1, &["expected a block size of 1 token or more, got 0"]);
}

#[test]
fn an_instance_needs_a_bus_and_is_enough_to_do_there() {
    kvtide(&["serve", LISTEN, "--instance", "router-1"])
        .failed(1, &["[nats] instance is given without [nats] url"]);
    let folder = Folder::new();
    let file = folder.write("kvtide.toml", "[nats]\nurl = \"nats://127.0.0.1:1\"\ninstance = \"file\"\n");
    let program = env!("CARGO_BIN_EXE_kvtide");
    let rows: [(&[&str], &str); 3] = [
        (&["--config", &file], "kvtide.file.overlap"),
        (&["--config", &file, "--instance", "flag"], "kvtide.flag.overlap"),
        // A flag's bus has the file's instance.
        (&["--config", &file, "--nats", "nats://127.0.0.1:2"], "kvtide.file.overlap"),
    ];
    for (arguments, subject) in rows {
        let mut kvtide = Kvtide::start(program, &[&["serve"], arguments].concat());
        kvtide.wait_for_log(subject);
    }
}

#[test]
fn flags_and_file_make_one_configuration() {
    let folder = Folder::new();
    let engine = "[server]\nlisten = \"127.0.0.1:1\"\n\
                  [[stream]]\nname = \"e\"\nworker_id = 7\nmodel = \"engine-model\"\nblock_size = 16\n";
    let file = folder.write("kvtide.toml", engine);
    let arguments = ["serve", "--config", &file, "--nats", "nats://127.0.0.1:1", "--model", "bus-model"];
    // The address of the file is not to be had; the one that is given goes before it.
    let kvtide =
        Kvtide::start(env!("CARGO_BIN_EXE_kvtide"), &[&arguments[..], &["--block-size", "64"]].concat());
    let scopes = kvtide.get("/v1/scopes").1;
    assert!(scopes.contains("engine-model") && scopes.contains("bus-model"), "{scopes}");
}
