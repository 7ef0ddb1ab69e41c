//! `kvtide replay` of recordings that are torn, foreign, or say what cannot be.

use kvtide_tests::Folder;
use serde_json::{Value, json};

use crate::finished::kvtide;

/// A recording from which nothing came, of an engine and of a bus.
fn recording(name: &str, stream: &Value) -> Folder {
    let folder = Folder::new();
    folder.write(name, zstd::encode_all(&b"KVCAP1\n"[..], 0).unwrap());
    folder.write("recording.json", said(name, stream).to_string());
    folder
}

fn said(file: &str, stream: &Value) -> Value {
    json!({
        "format": 1, "kvtide": "0.1.0", "started_at_ms": 1_793_000_000_000_u64,
        "streams": [{"file": file, "stream": stream}],
        "end": {"at_ms": 1_793_000_009_000_u64, "messages": 0, "dropped": 3}
    })
}

fn engine() -> Value {
    json!({"zmq": "tcp://a:1", "worker_id": 0, "model": "m", "block_size": 16})
}

fn bus() -> Value {
    json!({"subject": "a.>", "model": "m", "block_size": 16})
}

/// A record of such frames.
fn record(frames: &[&[u8]]) -> Vec<u8> {
    let mut bytes = u32::try_from(frames.len()).unwrap().to_be_bytes().to_vec();
    for frame in frames {
        bytes.extend(u32::try_from(frame.len()).unwrap().to_be_bytes());
        bytes.extend(*frame);
    }
    bytes
}

#[test]
fn what_a_recording_says_of_itself_must_be_of_its_form() {
    let folder = recording("w0.kvcap.zst", &engine());
    let played = kvtide(&["replay", &folder.path("")]);
    assert!(played.out.contains("3 messages came and were dropped while it was made"), "{played:?}");
    let with = |name: &str, value: Value| {
        let mut said = said("w0.kvcap.zst", &engine());
        said[name] = value;
        said.to_string()
    };
    let file = |name: &str| said(name, &engine()).to_string();
    let rows: [(String, &[&str]); 11] = [
        ("{".into(), &["recording.json", "EOF"]),
        ("[]".into(), &["recording.json", "what a recording says of itself"]),
        (with("format", json!(2)), &["a recording of format 1, got 2"]),
        (with("started_at_ms", json!(u64::MAX)), &["milliseconds since 1970", "18446744073709551615"]),
        (with("more", json!(2)), &["unknown field `more`"]),
        (file("../w0.kvcap.zst"), &["the name of a file beside it, got ../w0.kvcap.zst"]),
        (file("/etc/hostname"), &["the name of a file beside it"]),
        (file(".."), &["the name of a file beside it"]),
        (file("w1.kvcap.zst"), &["w1.kvcap.zst", "No such file"]),
        (
            said("w0.kvcap.zst", &json!({"model": "m", "block_size": 16})).to_string(),
            &["expected subject", "neither"],
        ),
        (
            said("w0.kvcap.zst", &json!({"subject": "a", "model": "m", "block_size": 0})).to_string(),
            &["a block size of 1 token or more"],
        ),
    ];
    for (text, words) in rows {
        folder.write("recording.json", &text);
        for arguments in [&["replay"][..], &["replay", "--json"]] {
            kvtide(&[arguments, &[&folder.path("")]].concat()).failed(1, words);
        }
    }
}

#[test]
fn torn_and_foreign_records_are_named() {
    let time = 1_793_000_000_500_u64.to_be_bytes();
    let year = (1_793_000_000_000_u64 + 367 * 24 * 60 * 60 * 1000).to_be_bytes();
    let whole = record(&[b"a.b", &time, b"\xc1"]);
    let rows: [(Vec<u8>, &str); 7] = [
        (record(&[b"a.b", &time]), "behind message 0"),
        (record(&[b"a.b", &time, b"\xc1", b""]), "behind message 0"),
        (record(&[b"a.b", &time[1..], b"\xc1"]), "behind message 0"),
        (record(&[b"a.b", &year, b"\xc1"]), "behind message 0"),
        (record(&[b"a.b", &u64::MAX.to_be_bytes(), b"\xc1"]), "behind message 0"),
        ([&whole[..], &whole[..whole.len() - 1]].concat(), "behind message 1"),
        ([&whole[..], &u32::MAX.to_be_bytes()[..]].concat(), "behind message 1"),
    ];
    let folder = recording("n0.kvcap.zst", &bus());
    for (bytes, words) in rows {
        folder.write("n0.kvcap.zst", zstd::encode_all(&[b"KVCAP1\n", &bytes[..]].concat()[..], 0).unwrap());
        kvtide(&["replay", &folder.path("")])
            .failed(1, &["n0.kvcap.zst", "expected messages of subject, time and frame", words]);
    }
    // Parts one behind the other are one file; one that is cut is not.
    let part = zstd::encode_all(&whole[..], 0).unwrap();
    let parts = [&zstd::encode_all(&b"KVCAP1\n"[..], 0).unwrap()[..], &part, &part].concat();
    folder.write("n0.kvcap.zst", &parts);
    let played = kvtide(&["replay", "--json", &folder.path("")]);
    let played: Value = serde_json::from_str(&played.out).unwrap();
    assert_eq!((&played["messages"], &played["undecodable"]), (&json!(2), &json!(2)), "{played}");
    folder.write("n0.kvcap.zst", &parts[..parts.len() - 1]);
    kvtide(&["replay", &folder.path("")]).failed(1, &["n0.kvcap.zst", "incomplete frame"]);
}

#[test]
fn a_clock_that_was_set_back_is_no_fault() {
    let folder = recording("n0.kvcap.zst", &bus());
    let record = record(&[b"a.b", &1_792_999_999_000_u64.to_be_bytes(), b"\xc1"]);
    folder.write("n0.kvcap.zst", zstd::encode_all(&[b"KVCAP1\n", &record[..]].concat()[..], 0).unwrap());
    assert_eq!(kvtide(&["replay", &folder.path("")]).code, 0);
}
