//! Clients that take their time: each is given so much of it, and as many connections as may be.

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use kvtide_tests::harness::{Kvtide, wait_for};
use serde_json::json;

const KVTIDE: &str = env!("CARGO_BIN_EXE_kvtide");
const HEALTHZ: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";

fn connect(kvtide: &Kvtide) -> TcpStream {
    let stream = TcpStream::connect(kvtide.url().strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

/// What comes until the other side ends it, and how long that took.
fn read_to_end(stream: &mut TcpStream) -> (String, Duration) {
    let started = Instant::now();
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
    (String::from_utf8(answer).unwrap(), started.elapsed())
}

#[test]
fn a_head_that_does_not_come_ends_its_connection() {
    let kvtide = Kvtide::start(KVTIDE, &["serve", "--idle-s", "1"]);
    for head in [&b""[..], b"GET", b"GET /healthz HTTP/1.1\r\nhost: x\r\n"] {
        let mut stream = connect(&kvtide);
        stream.write_all(head).unwrap();
        let (_, took) = read_to_end(&mut stream);
        assert!((0.7..8.0).contains(&took.as_secs_f64()), "{head:?}: {took:?}");
    }
    // One that has been answered may be used again, until it is silent for too long.
    let mut stream = connect(&kvtide);
    stream.write_all(HEALTHZ).unwrap();
    std::thread::sleep(Duration::from_millis(400));
    stream.write_all(HEALTHZ).unwrap();
    let (answers, _) = read_to_end(&mut stream);
    assert_eq!(answers.matches("200 OK").count(), 2, "{answers}");
}

#[test]
fn a_body_that_trickles_is_refused() {
    let kvtide = Kvtide::start(KVTIDE, &["serve", "--request-s", "1"]);
    let mut stream = connect(&kvtide);
    stream.write_all(b"POST /v1/overlap HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n").unwrap();
    let mut trickling = stream.try_clone().unwrap();
    std::thread::spawn(move || {
        while trickling.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
}

#[test]
fn further_connections_wait_until_there_is_room() {
    let kvtide = Kvtide::start(KVTIDE, &["serve", "--connections", "2"]);
    let mut held = [connect(&kvtide), connect(&kvtide)];
    for stream in &mut held {
        stream.write_all(HEALTHZ).unwrap();
        let mut answer = [0; 15];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
    }
    let mut third = connect(&kvtide);
    third.write_all(HEALTHZ).unwrap();
    third.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let waits = third.read(&mut [0; 1]).unwrap_err();
    assert_eq!(waits.kind(), ErrorKind::WouldBlock);
    let [first, _second] = held;
    drop(first);
    third.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut answer = [0; 15];
    third.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
}

#[test]
fn a_client_that_does_not_read_its_answer_makes_room() {
    let kvtide = Kvtide::start(KVTIDE, &["serve", "--connections", "1", "--request-s", "1"]);
    let dp_ranks: Vec<u32> = (0..16_000).collect();
    let body = json!({"scope": {"model": "m", "block_size": 2}, "worker_id": 1, "dp_ranks": dp_ranks});
    assert_eq!(kvtide.post("/v1/workers", &body).0, 200);
    // Megabytes, of which nothing is read.
    let mut stream = connect(&kvtide);
    let request = b"GET /v1/workers HTTP/1.1\r\nhost: x\r\n\r\n".repeat(4);
    stream.write_all(&request).unwrap();
    let started = Instant::now();
    wait_for("room for others", || {
        let mut other = connect(&kvtide);
        other.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        other.write_all(HEALTHZ).unwrap();
        other.read_exact(&mut [0; 15]).ok()
    });
    assert!(
        started.elapsed() > Duration::from_millis(500),
        "it was made to wait at all: {:?}",
        started.elapsed()
    );
    drop(stream);
}

#[test]
fn bodies_share_so_much_room() {
    let kvtide = Kvtide::start(KVTIDE, &["serve", "--bodies-bytes", "65536", "--request-s", "1"]);
    let ask = |body: &[u8]| kvtide.post_raw("/v1/overlap", "application/json", body).0;
    assert_eq!(ask(b"{}"), 422, "there is room");
    let mut holding = connect(&kvtide);
    holding.write_all(b"POST /v1/overlap HTTP/1.1\r\nhost: x\r\ncontent-length: 65536\r\n\r\n{").unwrap();
    // Whoever comes meanwhile waits, until the room is given back since the first one took too long.
    wait_for("the room to be taken", || (kvtide.get("/healthz").0 == 200).then_some(()));
    let started = Instant::now();
    let status = ask(b"{}");
    assert!([422, 503].contains(&status), "{status}");
    assert!(started.elapsed() > Duration::from_millis(300), "it had to wait: {:?}", started.elapsed());
    wait_for("room again", || (ask(b"{}") == 422).then_some(()));
}
