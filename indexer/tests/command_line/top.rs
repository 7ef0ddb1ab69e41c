//! `kvtide top`: of a running demo, of thousands of ranks, and of a service that goes away; as a table and on a terminal.

use std::{num::NonZeroU16, process::Command};

use kvtide_tests::{
    Authority, Folder,
    harness::{Kvtide, free_port, wait_for},
};
use serde_json::{Value, json};

use crate::finished::{Finished, Running, kvtide};

fn demo() -> Kvtide {
    Kvtide::start(env!("CARGO_BIN_EXE_kvtide"), &["demo", "--workers", "3"])
}

fn top(url: &str, arguments: &[&str]) -> Finished {
    kvtide(&[&["top", "--url", url], arguments].concat())
}

/// The table's rows, as words.
fn rows(finished: &Finished) -> Vec<Vec<&str>> {
    assert_eq!((finished.code, finished.error.as_str()), (0, ""), "{finished:?}");
    assert!(!finished.out.contains('\x1b'), "{finished:?}");
    let lines = finished.out.lines().skip_while(|line| !line.trim_start().starts_with("worker/rank"));
    lines.skip(1).map(|line| line.split_whitespace().collect()).collect()
}

/// A service of no streams.
fn service(arguments: &[&str]) -> Kvtide {
    Kvtide::start(env!("CARGO_BIN_EXE_kvtide"), &[&["serve"], arguments].concat())
}

/// Hands in that workers hold as many blocks as their number says.
fn hand_in(service: &Kvtide, workers: u64) {
    for worker in 1..=workers {
        let blocks: Vec<_> =
            (1..=worker % 50 + 1).map(|block| json!({"sequence_hash": block, "block_hash": block})).collect();
        let events = json!([{"type": "stored", "parent": null, "blocks": blocks}]);
        let scope = json!({"model": "m", "block_size": 4});
        let body = json!({"scope": scope, "worker_id": worker, "first_event_id": 1, "events": events});
        let (status, answer) = service.post("/v1/events", &body);
        assert_eq!(status, 200, "{answer}");
    }
}

/// Registers ranks of which nothing is known yet.
fn register(service: &Kvtide, worker: u64, ranks: u32) {
    let dp_ranks: Vec<u32> = (0..ranks).collect();
    let body = json!({"worker_id": worker, "dp_ranks": dp_ranks, "scope": {"model": "m", "block_size": 4}});
    let (status, answer) = service.post("/v1/workers", &body);
    assert!((200..300).contains(&status), "{answer}");
}

/// `kvtide top` on a terminal of its own.
struct Live(Running);

const LINES: NonZeroU16 = NonZeroU16::new(30).unwrap();
const CHARACTERS: NonZeroU16 = NonZeroU16::new(190).unwrap();

impl Live {
    fn start(arguments: &str) -> Live {
        let kvtide = env!("CARGO_BIN_EXE_kvtide");
        let command = format!("stty cols {CHARACTERS} rows {LINES}; {kvtide} top --every-s 1 {arguments}");
        let mut script = Command::new("script");
        Live(Running::start(script.args(["-qefc", &command, "/dev/null"]), &[("TERM", "xterm-256color")]))
    }

    /// Waits until that is on the screen.
    fn wait_for(&self, part: &str) {
        wait_for(part, || {
            let mut terminal = vt100::Parser::new(LINES, CHARACTERS, 0);
            terminal.process(self.0.out().as_bytes());
            terminal.screen().contents().contains(part).then_some(())
        });
    }

    /// Ends it, which must leave the terminal as it was.
    fn end(mut self, key: &str) {
        self.0.press(key);
        let finished = self.0.finish();
        assert_eq!(finished.code, 0, "{finished:?}");
        let mut terminal = vt100::Parser::new(LINES, CHARACTERS, 0);
        terminal.process(finished.out.as_bytes());
        let screen = terminal.screen();
        assert!(!screen.alternate_screen() && !screen.hide_cursor(), "{finished:?}");
        assert_eq!(screen.contents(), "");
    }
}

#[test]
fn one_table_says_who_it_is_and_what_is_known_of_every_rank() {
    let demo = demo();
    // Standard output is no terminal here, so that --once changes nothing.
    for arguments in [&["--once"][..], &[]] {
        let finished = top(demo.url(), arguments);
        let head = finished.out.lines().next().unwrap();
        assert_eq!(head, format!("kvtide {} at {}, ready", env!("CARGO_PKG_VERSION"), demo.url()));
        assert!(finished.out.contains("3 ranks in 1 scopes: 3 complete\n"), "{finished:?}");
        assert!(
            finished.out.contains(" events, ") && finished.out.contains(" queries, p99 "),
            "{finished:?}"
        );
        let rows = rows(&finished);
        assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), ["1/0", "2/0", "3/0"]);
        assert!(rows.iter().all(|row| row[1] == "demo-model" && row[2] == "complete"), "{rows:?}");
    }
}

#[test]
fn ranks_are_sorted_and_chosen() {
    let service = service(&[]);
    hand_in(&service, 120);
    register(&service, 7777, 1);
    let gpu = |arguments: &[&str]| -> Vec<u64> {
        let finished = top(service.url(), arguments);
        rows(&finished).iter().map(|row| row[3].parse().unwrap()).collect()
    };
    let all = gpu(&["--sort", "gpu"]);
    assert_eq!((all.len(), all[0]), (121, 50));
    assert!(all.is_sorted_by(|a, b| a >= b), "{all:?}");
    let reversed = gpu(&["--sort", "gpu", "--reverse"]);
    assert_eq!(reversed, all.into_iter().rev().collect::<Vec<_>>());
    let finished = top(service.url(), &["--worker", "5", "--worker", "17"]);
    assert_eq!(rows(&finished).iter().map(|row| row[0]).collect::<Vec<_>>(), ["5/0", "17/0"]);
    let finished = top(service.url(), &["--state", "unknown"]);
    assert_eq!(rows(&finished).iter().map(|row| row[0]).collect::<Vec<_>>(), ["7777/0"]);
    // What is not known stands last.
    let finished = top(service.url(), &["--sort", "age"]);
    assert_eq!(rows(&finished).last().unwrap()[0], "7777/0");
    for column in
        ["worker", "scope", "knowledge", "host", "disk", "external", "verified", "lag", "pending", "missing"]
    {
        assert_eq!(gpu(&["--sort", column]).len(), 121);
    }
}

#[test]
fn wrong_arguments_and_services_are_named() {
    let folder = Folder::new();
    let url = format!("http://127.0.0.1:{}", free_port());
    top(&url, &[]).failed(1, &["no service answers at ", &url, "Connection refused"]);
    let empty = folder.write("empty.pem", "");
    let rows: [(&[&str], i32, &[&str]); 6] = [
        (&["--state", "good"], 2, &["expected one of unknown, complete, partial, recovering, gap"]),
        (&["--sort", "colour"], 2, &["--sort", "worker, scope, knowledge"]),
        (&["--worker", "7/0"], 2, &["--worker"]),
        (&["--every-s", "0"], 2, &["--every-s", "0 is not in 1..=3600"]),
        (&["--token", "/none"], 1, &["/none: No such file"]),
        (&["--tls-ca", &empty], 1, &["expected certificates of the authorities"]),
    ];
    for (arguments, code, words) in rows {
        top(&url, arguments).failed(code, words);
    }
}

#[test]
fn a_token_opens_what_its_roles_may_see() {
    let folder = Folder::new();
    let made = kvtide(&["token", "new", "--roles", "admin", "--json"]);
    let made: Value = serde_json::from_str(&made.out).unwrap();
    let token = folder.write("token", format!("{}\n", made["token"].as_str().unwrap()));
    let tokens = folder.write("tokens", format!("{}\n", made["line"].as_str().unwrap()));
    let service = service(&["--tokens", &tokens]);
    top(service.url(), &[]).failed(1, &["the service refused: 401"]);
    let finished = top(service.url(), &["--token", &token]);
    assert!(finished.out.contains("ranks") && finished.out.contains(" queries, p99 "), "{finished:?}");
    // In place of its file it is not shown again.
    let itself = made["token"].as_str().unwrap();
    let refused = top(service.url(), &["--token", itself]);
    refused.failed(1, &["expected a file with the access token, got a token"]);
    assert!(!refused.error.contains(itself), "{refused:?}");
    // The same for a query.
    kvtide(&["query", "--url", service.url()]).failed(1, &["the service refused: 401"]);
    assert_eq!(kvtide(&["query", "--url", service.url(), "--token", &token]).code, 0);
}

#[test]
fn over_https_a_service_is_trusted_by_its_authority() {
    let (folder, authority) = (Folder::new(), Authority::new());
    let [certificate, key] = authority.certify(&folder, "server");
    let service = service(&["--tls-cert", &certificate, "--tls-key", &key]);
    let trusted = folder.write("authority.pem", authority.pem());
    let stranger = folder.write("stranger.pem", Authority::new().pem());
    for command in ["top", "query"] {
        let ask = |arguments: &[&str]| kvtide(&[&[command, "--url", service.url()], arguments].concat());
        assert_eq!(ask(&["--tls-ca", &trusted]).code, 0);
        ask(&["--tls-ca", &stranger]).failed(1, &["no service answers at https://"]);
        ask(&[]).failed(1, &["no service answers at https://"]);
    }
}

#[test]
fn on_a_terminal_it_goes_on_while_the_service_is_away_and_gives_the_terminal_back() {
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let start = || Kvtide::start_command(env!("CARGO_BIN_EXE_kvtide"), &["serve", "--listen", &listen]);
    let service = start();
    let live = Live::start(&format!("--url http://{listen}"));
    live.wait_for("events/s");
    let _ = service.terminate();
    live.wait_for("asking again; what is shown is ");
    live.wait_for(&format!("kvtide {} at http://{listen}, ready", env!("CARGO_PKG_VERSION")));
    let service = start();
    register(&service, 7, 1);
    live.wait_for("1 ranks in 1 scopes: 1 unknown");
    live.wait_for("1-1 of 1 by worker/rank");
    // One that does not answer, though it is there.
    service.signal("-STOP");
    live.wait_for("no answer for ");
    service.signal("-CONT");
    live.end("q");
    // One that was never there.
    let live = Live::start(&format!("--url http://127.0.0.1:{}", free_port()));
    live.wait_for("; asking again");
    live.end("\x03");
}

#[test]
fn thousands_of_ranks_are_scrolled_through() {
    let service = service(&[]);
    for worker in 1..=50 {
        register(&service, worker, 100);
    }
    let mut live = Live::start(&format!("--url {}", service.url()));
    live.wait_for("1-25 of 5000 by worker/rank");
    live.0.press("\x1b[F");
    live.wait_for("4976-5000 of 5000");
    live.wait_for("50/99");
    live.0.press("\x1b[5~");
    live.wait_for("4951-4975 of 5000");
    live.0.press("\x1b[H");
    live.wait_for("1-25 of 5000");
    live.0.press("w7\r");
    live.wait_for("1-25 of 100 by worker/rank, worker 7 ");
    live.0.press("sr");
    live.wait_for("by scope reversed, worker 7 ");
    live.0.press("ff");
    live.wait_for("0-0 of 0 by scope reversed, complete, worker 7 ");
    live.end("\x1b");
    assert_eq!(rows(&top(service.url(), &[])).len(), 5000);
}
