//! Another kvtide, and what it gives of its knowledge.

use std::{
    fmt,
    io::{self, Read},
    time::Duration,
};

use kvtide_radix::Rank;

use crate::{
    Part,
    feed::without_credentials,
    serving::{NoAuthorities, trust},
};

/// How long it may take to tell everything, or a part.
const PATIENCE: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(3)];

/// Why another kvtide cannot be asked at all.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PeerError {
    /// Its address is none.
    #[error("expected a peer's address as http://HOST:PORT or https://HOST:PORT, got {got}")]
    Url {
        /// What was given.
        got: String,
    },
    /// Nobody could be trusted.
    #[error(transparent)]
    Authorities(#[from] NoAuthorities),
}

/// Another kvtide.
#[derive(Clone)]
pub struct Peer {
    /// Its address, as `http://HOST:PORT`.
    url: String,
    authorization: Option<String>,
    agent: ureq::Agent,
}

impl fmt::Debug for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&without_credentials(&self.url))
    }
}

impl Peer {
    /// The one at an address, as `http://HOST:PORT`, which is shown the token if there is one. Over HTTPS it is trusted by the
    /// authorities whose certificates these are, as PEM, or by Mozilla's.
    ///
    /// # Errors
    /// [`PeerError`].
    pub fn new(url: &str, token: Option<&str>, authorities: Option<&str>) -> Result<Peer, PeerError> {
        let url = url.trim_end_matches('/').to_owned();
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(PeerError::Url { got: without_credentials(&url) });
        }
        let authorization = token.map(|token| format!("Bearer {}", token.trim()));
        let config = ureq::Agent::config_builder().tls_config(trust(authorities)?);
        Ok(Peer { url, authorization, agent: config.build().into() })
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
        let mut request = self.agent.get(format!("{}/v1/snapshot{query}", self.url));
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let response = request.config().timeout_global(Some(patience)).build().call();
        Ok(response.map_err(io::Error::other)?.into_body().into_reader())
    }
}
