//! Real processes for tests: a nats-server and a kvtide, each on a free port and stopped with its handle.

mod relay;
mod running;

use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use crate::Folder;
use serde_json::Value;
use ureq::http::Request;

pub use relay::Relay;
pub use running::{Finished, Running};

/// How long a process may take to be there, and a state to be reached.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A TCP port that was free a moment ago.
#[must_use]
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Asks again and again until `what` gives something.
///
/// # Panics
/// Where it gives nothing for [`PATIENCE`].
pub fn wait_for<T>(what: &str, poll: impl FnMut() -> Option<T>) -> T {
    wait_within(PATIENCE, what, poll)
}

/// The same for as long as `patience`.
fn wait_within<T>(patience: Duration, what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(started.elapsed() < patience, "{what}: not within {patience:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A nats-server of its own.
pub struct NatsServer {
    port: u16,
    child: Child,
}

impl NatsServer {
    /// Starts one on a free port.
    #[must_use]
    pub fn start() -> NatsServer {
        Self::start_on(free_port())
    }

    /// Starts one on a free port that is configured by a file of that text.
    #[must_use]
    pub fn configured(text: &str) -> NatsServer {
        let folder = Folder::new();
        Self::run(free_port(), &["--config", &folder.write("nats.conf", text)])
    }

    /// Starts one on a given port, as after a restart.
    #[must_use]
    pub fn start_on(port: u16) -> NatsServer {
        Self::run(port, &[])
    }

    fn run(port: u16, arguments: &[&str]) -> NatsServer {
        // Debian puts it where only root looks.
        let installed = PathBuf::from("/usr/sbin/nats-server");
        let program = if installed.exists() { installed } else { "nats-server".into() };
        let child = Command::new(program)
            .args(["--addr", "127.0.0.1", "--port", &port.to_string()])
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nats-server, from Debian's package of that name; `make test` installs it");
        wait_for("a nats-server that listens", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
        NatsServer { port, child }
    }

    /// Where it listens.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a service answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The type of the body, empty where none is named.
    pub content_type: String,
    /// The body; bytes that are no text are replaced.
    pub body: String,
}

/// A running `kvtide serve` or `kvtide demo`.
pub struct Kvtide {
    child: Child,
    url: String,
    /// Shown with every request, as `Authorization`.
    authorization: String,
    log: mpsc::Receiver<String>,
    /// Lines that nobody has waited for yet.
    unclaimed: Vec<String>,
}

impl Kvtide {
    /// Starts the program at `binary` with `arguments`, listening on a free port, and waits until it listens.
    #[must_use]
    pub fn start(binary: &str, arguments: &[&str]) -> Kvtide {
        Self::start_logging(binary, arguments, "info")
    }

    /// The same, with a log of that level.
    #[must_use]
    pub fn start_logging(binary: &str, arguments: &[&str], level: &str) -> Kvtide {
        Self::run(Command::new(binary).args(arguments).args(["--listen", "127.0.0.1:0"]), level)
    }

    /// The same by a command that ends up being kvtide, listening on a free port.
    #[must_use]
    pub fn start_command(program: &str, arguments: &[&str]) -> Kvtide {
        Self::run(Command::new(program).args(arguments), "info")
    }

    fn run(command: &mut Command, level: &str) -> Kvtide {
        let mut child =
            command.env("KVTIDE_LOG", level).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (send, log) = mpsc::channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| send.send(line)));
        let mut kvtide =
            Kvtide { child, url: String::new(), authorization: String::new(), log, unclaimed: Vec::new() };
        let line = kvtide.wait_for_log("listening on ");
        let (_, url) = line.split_once("listening on ").unwrap();
        // The line may be a part of something else.
        kvtide.url = url.split(['"', ' ']).next().unwrap().to_owned();
        kvtide
    }

    /// Where it listens.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Shows that with every request from here on.
    pub fn authorize(&mut self, authorization: &str) {
        authorization.clone_into(&mut self.authorization);
    }

    /// Waits for a line of its log that contains `part`, and takes it out.
    ///
    /// # Panics
    /// Where none comes for [`PATIENCE`].
    pub fn wait_for_log(&mut self, part: &str) -> String {
        let started = Instant::now();
        loop {
            if let Some(found) = self.unclaimed.iter().position(|line| line.contains(part)) {
                return self.unclaimed.remove(found);
            }
            let left = PATIENCE.saturating_sub(started.elapsed());
            match self.log.recv_timeout(left) {
                Ok(line) => self.unclaimed.push(line),
                Err(_) => panic!("no line with {part:?} in the log: {:#?}", self.unclaimed),
            }
        }
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends its process a signal, as `-STOP`.
    ///
    /// # Panics
    /// Where it cannot be sent.
    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Status and body of a GET.
    #[must_use]
    pub fn get(&self, path: &str) -> (u16, String) {
        let reply = self.send("GET", path, "", b"");
        (reply.status, reply.body)
    }

    /// Status and JSON of a POST.
    #[must_use]
    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, body) = self.post_raw(path, "application/json", body.to_string().as_bytes());
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    /// Status and body of a POST of any bytes.
    #[must_use]
    pub fn post_raw(&self, path: &str, content_type: &str, body: &[u8]) -> (u16, String) {
        let reply = self.send("POST", path, content_type, body);
        (reply.status, reply.body)
    }

    /// Any request. Without a `content_type` the header is left out.
    #[must_use]
    pub fn send(&self, method: &str, path: &str, content_type: &str, body: &[u8]) -> Reply {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        if !content_type.is_empty() {
            request = request.header("content-type", content_type);
        }
        if !self.authorization.is_empty() {
            request = request.header("authorization", &self.authorization);
        }
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .timeout_global(Some(PATIENCE));
        let agent: ureq::Agent = config.build().into();
        let mut response = agent.run(request.body(body).unwrap()).unwrap();
        let content_type =
            response.headers().get("content-type").map(|value| value.to_str().unwrap().to_owned());
        Reply {
            status: response.status().as_u16(),
            content_type: content_type.unwrap_or_default(),
            body: String::from_utf8_lossy(&response.body_mut().read_to_vec().unwrap()).into_owned(),
        }
    }

    /// Asks it to stop, as a supervisor does, waits until it has ended well, and returns its log without
    /// the lines that were waited for.
    #[must_use]
    pub fn terminate(mut self) -> Vec<String> {
        self.signal("-TERM");
        let status = wait_for("an end after SIGTERM", || self.child.try_wait().unwrap());
        assert!(status.success(), "{status}");
        std::mem::take(&mut self.unclaimed).into_iter().chain(self.log.iter()).collect()
    }
}

impl Drop for Kvtide {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
