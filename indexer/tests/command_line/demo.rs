//! `kvtide demo`: it starts, answers, says how to ask it, and ends well when it is told to.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use kvtide_tests::harness::{free_port, wait_for};

use crate::finished::kvtide;

/// A demo on a port of its own.
struct Demo {
    child: Child,
    address: String,
}

impl Demo {
    fn start() -> Demo {
        let address = format!("127.0.0.1:{}", free_port());
        let child = Command::new(env!("CARGO_BIN_EXE_kvtide"))
            .args(["demo", "--workers", "2", "--listen", &address])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let demo = Demo { child, address };
        wait_for("a demo that answers", || demo.ask("/healthz").filter(|answer| answer.ends_with("ok\n")));
        demo
    }

    /// The whole answer to a GET.
    fn ask(&self, route: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        let request = format!("GET {route} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// Sends a signal, and says how it ended and after how long.
    fn signal(&mut self, signal: &str) -> (ExitStatus, Duration) {
        let pid = self.child.id().to_string();
        let sent = Instant::now();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        let status = wait_for("an end after a signal", || self.child.try_wait().unwrap());
        (status, sent.elapsed())
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_says_how_to_ask_it_and_answers() {
    let mut demo = Demo::start();
    let mut lines = BufReader::new(demo.child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().starts_with("A simulated fleet of 2 workers"));
    // The commands can be typed as they stand there, although the port is another than the default.
    let commands: Vec<Vec<String>> = lines
        .take_while(|line| !line.ends_with("Ctrl-C stops."))
        .filter(|line| line.contains(" query "))
        .map(|line| line.split("    ").next().unwrap().split_whitespace().map(str::to_owned).collect())
        .collect();
    assert_eq!(commands.len(), 2);
    for command in commands {
        let output = Command::new(&command[0]).args(&command[1..]).output().unwrap();
        assert!(output.status.success(), "{command:?}: {output:?}");
        assert!(String::from_utf8(output.stdout).unwrap().contains("1/0"), "{command:?}");
    }
}

#[test]
fn it_ends_well_whatever_its_clients_are_doing() {
    let post = "POST /v1/overlap HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{";
    let clients = [
        ("nobody", None),
        ("one that has said nothing", Some("")),
        ("one in the middle of a request's head", Some("GET /v1/work")),
        ("one in the middle of a body", Some(post)),
        ("one that keeps its connection", Some("GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")),
    ];
    for signal in ["-TERM", "-INT"] {
        for (client, said) in clients {
            let mut demo = Demo::start();
            let connection = said.map(|said| {
                let mut stream = TcpStream::connect(&demo.address).unwrap();
                stream.write_all(said.as_bytes()).unwrap();
                if said.ends_with("\r\n\r\n") {
                    assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
                }
                std::thread::sleep(Duration::from_millis(50));
                stream
            });
            let (status, took) = demo.signal(signal);
            assert!(status.success(), "{signal} beside {client}: {status}");
            assert!(took < Duration::from_secs(5), "{signal} beside {client}: {took:?}");
            drop(connection);
        }
    }
}

#[test]
fn it_works_when_nobody_reads_what_it_says() {
    let mut demo = Demo::start();
    drop(demo.child.stdout.take());
    assert!(demo.ask("/v1/workers").unwrap().contains("demo-model"));
    assert!(demo.signal("-TERM").0.success());
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for command in ["demo", "serve"] {
        let finished = kvtide(&[command, "--listen", &address]);
        finished.failed(1, &["kvtide: cannot listen on ", &address, "in use"]);
    }
}

#[test]
fn wrong_numbers_are_refused() {
    for (flag, value) in
        [("--workers", "0"), ("--workers", "1025"), ("--rate", "0"), ("--seed", "x"), ("--listen", "x")]
    {
        kvtide(&["demo", flag, value]).failed(2, &[value, flag]);
    }
}
