//! Both sides: kvtide and Dynamo's standalone indexer, each a process of its own on a free port.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;

use crate::{
    client::Client,
    content::{BLOCK_SIZE, WORKERS},
    engines::Engines,
};

/// How long a process may take to listen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Who is asked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Side {
    /// This repository's service.
    Kvtide,
    /// The standalone indexer of ai-dynamo-runtime.
    Dynamo,
}

/// A server that runs until it is dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    /// What it is configured with, as long as it runs.
    _configuration: Option<tempfile::NamedTempFile>,
}

impl Server {
    pub(crate) fn kvtide(program: &Path, engines: &Engines) -> io::Result<Server> {
        let mut configuration = tempfile::NamedTempFile::new()?;
        for (worker_id, endpoint) in engines.endpoints() {
            writeln!(
                configuration,
                "[[stream]]\nzmq = \"{endpoint}\"\nworker_id = {worker_id}\nmodel = \"m\"\nblock_size = {BLOCK_SIZE}"
            )?;
        }
        let mut child = Command::new(program)
            .args(["serve", "--listen", "127.0.0.1:0", "--config"])
            .arg(configuration.path())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", program.display())))?;
        let Some(stderr) = child.stderr.take() else { return Err(io::ErrorKind::BrokenPipe.into()) };
        let mut log = BufReader::new(stderr).lines().map_while(Result::ok);
        let address = log.find_map(|line| line.split_once("http://")?.1.trim().parse().ok());
        // It must not wait for somebody who reads its log.
        thread::spawn(move || log.for_each(drop));
        let address = address.ok_or_else(|| io::Error::other("kvtide ended before it listened"))?;
        Ok(Server { child, address, _configuration: Some(configuration) })
    }

    pub(crate) fn dynamo(python: &Path, engines: &Engines) -> io::Result<Server> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let workers = engines.endpoints().map(|(worker_id, endpoint)| format!("{worker_id}={endpoint}"));
        let child = Command::new(python)
            .args(["-m", "dynamo.indexer", "--model-name", "m"])
            .args(["--block-size", &BLOCK_SIZE.to_string()])
            .args(["--port", &address.port().to_string()])
            .args(["--workers", &workers.collect::<Vec<_>>().join(",")])
            .env("DYN_LOG", "off")
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", python.display())))?;
        let mut server = Server { child, address, _configuration: None };
        let started = Instant::now();
        while Client::connect(address).is_err() {
            if let Some(status) = server.child.try_wait()? {
                let expected = "expected a Python with ai-dynamo-runtime (--dynamo)";
                return Err(io::Error::other(format!("dynamo.indexer ended with {status}; {expected}")));
            }
            if started.elapsed() > PATIENCE {
                return Err(io::Error::other(format!("dynamo.indexer: not within {PATIENCE:?}")));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Side {
    /// Tokens that each worker (from 1) holds on its GPU, by what this side has answered.
    pub(crate) fn reaches(self, answer: &[u8]) -> serde_json::Result<BTreeMap<u64, u64>> {
        let answer: Value = serde_json::from_slice(answer)?;
        let reach = |worker_id: u64| match self {
            Side::Kvtide => {
                let ranks = answer["ranks"].as_array().into_iter().flatten();
                let mut of_worker = ranks.filter(|rank| rank["worker_id"] == worker_id);
                of_worker.find_map(|rank| rank["reach_tokens"]["gpu"].as_u64())
            }
            Side::Dynamo => answer["scores"][worker_id.to_string()]["0"].as_u64(),
        };
        Ok((1..=WORKERS).map(|worker_id| (worker_id, reach(worker_id).unwrap_or(0))).collect())
    }
}

/// The program that was built beside this one.
pub(crate) fn built_kvtide() -> PathBuf {
    let here = std::env::current_exe().unwrap_or_default();
    here.with_file_name("kvtide")
}
