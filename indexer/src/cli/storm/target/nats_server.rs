//! A nats-server that is started for a storm, on a free port of this machine, and ends with it.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    thread::sleep,
    time::Duration,
};

use kvtide::serving::Failure;

use super::wait_until;

/// Where it may be: Debian puts it where only root looks.
const PROGRAMS: [&str; 2] = ["nats-server", "/usr/sbin/nats-server"];

pub(super) struct NatsServer {
    port: u16,
    child: Mutex<Child>,
}

impl NatsServer {
    /// Starts one, and waits until it listens.
    pub(super) fn start() -> Result<NatsServer, Failure> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let child = run(port)?;
        let server = NatsServer { port, child: Mutex::new(child) };
        wait_until("a nats-server that listens", Duration::from_millis(10), || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        })?;
        Ok(server)
    }

    pub(super) fn url(&self) -> String {
        format!("nats://{}", self.address())
    }

    pub(super) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Kills it, and starts it again on the same port after so long.
    pub(super) fn restart(&self, down: Duration) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        kill(&mut child);
        sleep(down);
        match run(self.port) {
            Ok(again) => *child = again,
            Err(error) => tracing::warn!(%error, "no bus any more"),
        }
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        kill(&mut self.child.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

fn run(port: u16) -> Result<Child, Failure> {
    for program in PROGRAMS {
        let started = Command::new(program)
            .args(["--addr", "127.0.0.1", "--port", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match started {
            Ok(child) => return Ok(child),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("{program}: {error}").into()),
        }
    }
    Err(format!("expected a nats-server, as one of {}", PROGRAMS.join(", ")).into())
}

fn kill(child: &mut Child) {
    // It may have ended by itself.
    let _ = child.kill();
    let _ = child.wait();
}
