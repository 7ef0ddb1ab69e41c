//! `kvtide replay`: rows of recorded streams, and whether they are as exact as they must be.

use std::{collections::BTreeMap, path::PathBuf};

use kvtide_tests::Folder;
use serde_json::{Value, json};

use crate::finished::kvtide;

fn captures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/captures")
}

fn expectations() -> BTreeMap<String, Value> {
    serde_json::from_slice(&std::fs::read(captures().join("expect.json")).unwrap()).unwrap()
}

/// A folder with one capture that has wrong answers, and what is allowed of it.
fn with_expectation(expected: &Value) -> Folder {
    let folder = Folder::new();
    folder.copy(&captures().join("vllm033_report_full"));
    folder.write("expect.json", json!({"vllm033_report_full": expected}).to_string());
    folder
}

#[test]
fn every_capture_is_as_exact_as_expected() {
    let captures = captures().display().to_string();
    let table = kvtide(&["replay", &captures]);
    assert_eq!((table.code, table.error.as_str()), (0, ""));
    let lines = kvtide(&["replay", &captures, "--json"]);
    assert_eq!((lines.code, lines.error.as_str()), (0, ""));

    let rows: Vec<Value> = lines.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expected = expectations();
    assert_eq!(
        rows.iter().map(|row| row["name"].as_str().unwrap()).collect::<Vec<_>>(),
        expected.keys().collect::<Vec<_>>()
    );
    let mut printed = table.out.lines();
    let head: Vec<&str> = printed.next().unwrap().split_whitespace().collect();
    assert_eq!(head, ["name", "questions", "exact", "over", "under"]);
    for (row, line) in rows.iter().zip(printed) {
        let members: Vec<&String> = row.as_object().unwrap().keys().collect();
        assert_eq!(members, ["exact", "name", "over", "questions", "under"], "{row}");
        let number = |name: &str| row[name].as_u64().unwrap();
        assert_eq!(number("exact") + number("over") + number("under"), number("questions"), "{row}");
        assert_eq!(number("over"), 0, "{row}");
        if expected[row["name"].as_str().unwrap()]["exact"] == true {
            assert_eq!(number("under"), 0, "{row}");
        }
        let columns: Vec<String> = ["name", "questions", "exact", "over", "under"]
            .map(|name| row[name].to_string().replace('"', ""))
            .into();
        assert_eq!(line.split_whitespace().collect::<Vec<_>>(), columns);
    }
    assert_eq!(table.out.lines().count(), rows.len() + 1);
}

#[test]
fn more_wrong_answers_than_are_allowed_fail() {
    let set = json!({"copies": "set"});
    let rows = [
        (json!({"over": 0, "under": 10, "stream": set}), 0),
        (json!({"over": 0, "under": {"gpu": 10, "host": 0}, "stream": set}), 0),
        (json!({"over": 0, "under": 9, "stream": set}), 1),
        (json!({"under": {"gpu": 9, "host": 10}, "stream": set}), 1),
        (json!({"exact": true, "stream": set}), 1),
        // Counted copies are what this stream does not have.
        (json!({"over": 0, "under": 1_000_000}), 1),
    ];
    for (expected, code) in rows {
        let folder = with_expectation(&expected);
        let table = kvtide(&["replay", &folder.path("")]);
        assert_eq!(table.code, code, "{expected}: {table:?}");
        assert_eq!(table.out.contains("more than expect.json allows"), code == 1, "{expected}: {table:?}");
        let lines = kvtide(&["replay", "--json", &folder.path("")]);
        assert_eq!((lines.code, lines.out.lines().count()), (code, 1), "{expected}: {lines:?}");
    }
}

#[test]
fn a_folder_that_is_none_is_said_to_be_none() {
    let folder = Folder::new();
    kvtide(&["replay", &folder.path("nothing")]).failed(1, &["nothing/expect.json", "No such file"]);
    kvtide(&["replay", &folder.path("")]).failed(1, &["expect.json", "No such file"]);
    kvtide(&["replay"]).failed(2, &["<DIR>"]);
    folder.write("expect.json", "{}");
    kvtide(&["replay", "--json", &folder.path("")])
        .failed(1, &["expected expectations by capture, got none"]);
    folder.write("expect.json", r#"{"gone": {"exact": true}}"#);
    kvtide(&["replay", "--json", &folder.path("")]).failed(1, &["gone/meta.json", "No such file"]);
    folder.write("expect.json", r#"{"gone": {"exakt": true}}"#);
    kvtide(&["replay", "--json", &folder.path("")]).failed(1, &["expect.json", "unknown field `exakt`"]);
}

#[test]
fn torn_and_foreign_files_are_named() {
    const STREAM: &str = "vllm033_report_full/w0.kvcap.zst";
    let whole = std::fs::read(captures().join(STREAM)).unwrap();
    let inside = zstd::decode_all(whole.as_slice()).unwrap();
    let compressed = |bytes: &[u8]| zstd::encode_all(bytes, 0).unwrap();
    let mut trailing = inside.clone();
    trailing.extend(b"\0\0\0\x03");
    let rows: [(Vec<u8>, &[&str]); 7] = [
        (whole[..whole.len() / 2].to_vec(), &["w0.kvcap.zst", "incomplete frame"]),
        (
            compressed(&inside[..inside.len() - 5]),
            &["w0.kvcap.zst", "expected messages of topic", "behind message 1525"],
        ),
        (compressed(&trailing), &["w0.kvcap.zst", "something else behind message 1526"]),
        (b"KVCAP1\n".to_vec(), &["w0.kvcap.zst", "Unknown frame descriptor"]),
        (compressed(b"PK\x03\x04 not ours"), &["w0.kvcap.zst", "starting with KVCAP1, got"]),
        (compressed(b""), &["w0.kvcap.zst", "starting with KVCAP1, got"]),
        (Vec::new(), &["w0.kvcap.zst", "incomplete frame"]),
    ];
    let folder = with_expectation(&json!({"over": 0, "under": 10, "stream": {"copies": "set"}}));
    for (content, words) in rows {
        folder.write(STREAM, content);
        kvtide(&["replay", "--json", &folder.path("")]).failed(1, words);
    }
    folder.write(STREAM, &whole);
    folder.write(
        "vllm033_report_full/oracle.jsonl.zst",
        compressed(b"{\"after_seq\": [-1, -1], \"queries\": []}"),
    );
    kvtide(&["replay", "--json", &folder.path("")])
        .failed(1, &["oracle.jsonl.zst", "the number of workers, got line 1"]);
    std::fs::remove_file(folder.path(STREAM)).unwrap();
    kvtide(&["replay", "--json", &folder.path("")])
        .failed(1, &["at least one worker's messages, w0.kvcap.zst"]);
}
