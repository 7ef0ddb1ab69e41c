//! `kvtide query`: asked of a running demo, of nobody, and of what is no kvtide.

use std::{
    io::{Read, Write},
    net::TcpListener,
};

use kvtide_tests::{
    Folder,
    harness::{Kvtide, free_port},
};
use serde_json::Value;

use crate::finished::{Finished, kvtide};

fn demo() -> Kvtide {
    Kvtide::start(env!("CARGO_BIN_EXE_kvtide"), &["demo", "--workers", "3"])
}

fn query(url: &str, arguments: &[&str]) -> Finished {
    kvtide(&[&["query", "--url", url], arguments].concat())
}

/// What it prints as JSON.
fn answer(url: &str, arguments: &[&str]) -> Value {
    let finished = query(url, &[arguments, &["--json"]].concat());
    assert_eq!(
        (finished.code, finished.error.as_str(), finished.out.lines().count()),
        (0, "", 1),
        "{finished:?}"
    );
    serde_json::from_str(&finished.out).unwrap()
}

#[test]
fn a_prompt_is_answered_as_a_table_and_as_json() {
    let demo = demo();
    let answered = answer(demo.url(), &["--tokens", "0..2048"]);
    assert_eq!(answered["prompt"]["tokens"], 2048);
    assert_eq!(answered["scope"]["model"], "demo-model");
    let ranks = answered["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 3);
    let reaching = |rank: &&Value| rank["reach_tokens"]["external"].as_u64().unwrap() > 0;
    assert!(ranks.iter().any(|rank| reaching(&rank)), "{answered}");

    let table = query(demo.url(), &["--tokens", "0..2048"]);
    assert_eq!((table.code, table.error.as_str()), (0, ""));
    assert!(table.out.starts_with("demo-model, 64 tokens a block; version "), "{}", table.out);
    assert!(table.out.contains("prompt of 2048 tokens, 32 complete blocks"), "{}", table.out);
    for worker in ["1/0", "2/0", "3/0"] {
        let row = table.out.lines().find(|line| line.trim_start().starts_with(worker)).unwrap();
        assert_eq!(row.split_whitespace().nth(5), Some("complete"), "{row}");
    }
    assert!(table.out.trim_end().ends_with("never add them."), "{}", table.out);
}

#[test]
fn without_a_prompt_it_lists_what_is_known() {
    let demo = demo();
    let list = answer(demo.url(), &[]);
    let workers = list["workers"].as_array().unwrap();
    assert_eq!(workers.len(), 3);
    assert!(workers.iter().all(|worker| worker["held_blocks"]["gpu"].as_u64().unwrap() > 0), "{list}");
    // A slash at the end, or no scheme, is no other service.
    for url in [format!("{}/", demo.url()), demo.url().replace("http://", "")] {
        let table = query(&url, &[]);
        assert_eq!((table.code, table.error.as_str()), (0, ""));
        assert_eq!(
            table.out.lines().filter(|line| line.starts_with("demo-model ")).count(),
            3,
            "{}",
            table.out
        );
    }
}

#[test]
fn prompts_come_in_several_forms() {
    let demo = demo();
    let folder = Folder::new();
    let file = folder.write("tokens.json", serde_json::to_vec(&(0..128).collect::<Vec<u32>>()).unwrap());
    let rows: [(&[&str], u64); 7] = [
        (&["--tokens", "0..128"], 128),
        (&["--tokens", "0..64,64..128"], 128),
        (&["--tokens", " 7 , 9..10"], 2),
        (&["--tokens", "4294967295"], 1),
        (&["--tokens-file", &file], 128),
        (&["--block-hashes", "cb38e4d7fb2dca5c,0x1"], 128),
        (&["--tokens", "0..128", "--model", "demo-model", "--block-size", "64"], 128),
    ];
    for (arguments, tokens) in rows {
        assert_eq!(answer(demo.url(), arguments)["prompt"]["tokens"], tokens, "{arguments:?}");
    }
    let by_tokens = answer(demo.url(), &["--tokens", "0..128", "--rank", "1", "--rank", "3/0"]);
    let workers: Vec<&Value> =
        by_tokens["ranks"].as_array().unwrap().iter().map(|rank| &rank["worker_id"]).collect();
    assert_eq!(workers, [1, 3]);
    let salted = query(demo.url(), &["--tokens", "0..128", "--adapter", "sql", "--tenant", "acme"]);
    assert!(salted.out.contains("64 tokens a block, adapter sql, tenant acme;"), "{}", salted.out);
}

#[test]
fn what_the_service_refuses_is_shown() {
    let demo = demo();
    let refused = query(demo.url(), &["--tokens", "0..128", "--model", "none"]);
    refused.failed(
        1,
        &["the service refused: 404", "of 1 known scopes none", "urn:kvtide:problem:unknown-scope"],
    );
    let refused = query(demo.url(), &["--block-hashes", "xyz"]);
    refused.failed(1, &["the service refused: 422", "16 hexadecimal digits"]);
    let refused = query(demo.url(), &["--tokens", "0..4194305"]);
    refused.failed(1, &["the service refused: 413", "query_tokens"]);
}

#[test]
fn wrong_arguments_are_named() {
    let folder = Folder::new();
    let object = folder.write("object.json", r#"{"tokens": []}"#);
    let rows: [(&[&str], i32, &[&str]); 14] = [
        (&["--tokens", "a"], 1, &["expected a token id or a range as 100..1124, got \"a\""]),
        (&["--tokens", "1,,2"], 1, &["got \"\""]),
        (&["--tokens", "-1"], 2, &["-1"]),
        (&["--tokens", "4294967296"], 1, &["got \"4294967296\""]),
        (&["--tokens", "5..3"], 1, &["a range that goes up", "got \"5..3\""]),
        (&["--tokens", "3..3"], 1, &["a range that goes up"]),
        (&["--tokens", "..9"], 1, &["got \"..9\""]),
        (&["--tokens", "0..4294967295"], 1, &["at most 16777216 token ids"]),
        (&["--tokens", "1", "--block-hashes", "1"], 2, &["cannot be used with"]),
        (&["--tokens-file", "/nowhere/tokens.json"], 1, &["/nowhere/tokens.json: No such file"]),
        (&["--tokens-file", &object], 1, &["object.json: expected a JSON array of token ids"]),
        (&["--tokens", "1", "--rank", "x"], 2, &["expected WORKER or WORKER/DP_RANK"]),
        // Without a prompt they would mean nothing.
        (&["--model", "m"], 2, &["--tokens"]),
        (&["--rank", "1"], 2, &["--tokens"]),
    ];
    for (arguments, code, words) in rows {
        query("http://127.0.0.1:1", arguments).failed(code, words);
    }
}

#[test]
fn where_nobody_answers_that_is_said() {
    let url = format!("http://127.0.0.1:{}", free_port());
    for arguments in [&[][..], &["--tokens", "0..128"]] {
        query(&url, arguments).failed(1, &["no service answers at ", &url, "Connection refused"]);
    }
    query("http://", &[]).failed(1, &["no service answers at "]);
}

#[test]
fn what_is_no_kvtide_is_said_to_be_none() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>").unwrap();
    });
    query(&url, &[]).failed(1, &["what answers at ", &url, "is no kvtide"]);
    other.join().unwrap();
}
