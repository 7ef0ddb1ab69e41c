//! Another kvtide, and what it gives of its knowledge.

use std::{
    fmt,
    io::{self, Read},
    time::Duration,
};

use kvtide_radix::Rank;

use crate::Part;

/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Another kvtide.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address, as `http://HOST:PORT`.
    url: String,
    agent: ureq::Agent,
}

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.url)
    }
}

impl Peer {
    /// The one at an address, as `http://HOST:PORT`.
    #[must_use]
    pub fn new(url: &str) -> Peer {
        let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).build();
        Peer { url: url.trim_end_matches('/').to_owned(), agent: config.into() }
    }

    /// Everything that it knows.
    pub(super) fn everything(&self) -> io::Result<impl Read + use<>> {
        self.get("")
    }

    /// A part of that.
    pub(crate) fn part(&self, part: Part) -> io::Result<impl Read + use<>> {
        match part {
            Part::Publisher(id) => self.get(&format!("?publisher_id={id}")),
            Part::Rank(Rank { worker_id, dp_rank }) => {
                self.get(&format!("?worker_id={worker_id}&dp_rank={dp_rank}"))
            }
        }
    }

    fn get(&self, query: &str) -> io::Result<impl Read + use<>> {
        let response = self.agent.get(format!("{}/v1/snapshot{query}", self.url)).call();
        Ok(response.map_err(io::Error::other)?.into_body().into_reader())
    }
}
