//! Another kvtide, and what it gives of its knowledge.

use std::{
    fmt,
    io::{self, Read},
    time::Duration,
};

use kvtide_radix::Rank;

use crate::Part;

/// How long it may take to tell everything, or a part.
const PATIENCE: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(3)];

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
        Peer { url: url.trim_end_matches('/').to_owned(), agent: ureq::Agent::new_with_defaults() }
    }

    /// Everything that it knows.
    pub(super) fn everything(&self) -> io::Result<impl Read + use<>> {
        self.get("", PATIENCE[0])
    }

    /// A part of that.
    pub(crate) fn part(&self, part: Part) -> io::Result<impl Read + use<>> {
        match part {
            Part::Publisher(id) => self.get(&format!("?publisher_id={id}"), PATIENCE[1]),
            Part::Rank(Rank { worker_id, dp_rank }) => {
                self.get(&format!("?worker_id={worker_id}&dp_rank={dp_rank}"), PATIENCE[1])
            }
        }
    }

    fn get(&self, query: &str, patience: Duration) -> io::Result<impl Read + use<>> {
        let request = self.agent.get(format!("{}/v1/snapshot{query}", self.url));
        let response = request.config().timeout_global(Some(patience)).build().call();
        Ok(response.map_err(io::Error::other)?.into_body().into_reader())
    }
}
