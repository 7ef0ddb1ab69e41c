//! `GET /v1/snapshot`: everything, or what is known of one publisher or rank, for another kvtide to go on with.

use std::{
    io::{self, BufWriter, ErrorKind, Write},
    sync::Arc,
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    extract::{Query, State, rejection::QueryRejection},
    http::header,
    response::{IntoResponse, Response},
};
use futures_util::stream::poll_fn;
use kvtide_radix::Rank;
use serde::Deserialize;
use tokio::{
    runtime::Handle,
    sync::mpsc,
    time::{Instant, timeout_at},
};
use tracing::warn;

use super::{Service, problem::Problem};
use crate::Part;

/// Bytes that are sent at once, and how many of these wait for the other side.
const PIECE: usize = 64 << 10;
const PIECES: usize = 16;
/// The other side may take so long for everything, or for a part.
const PATIENCE: [Duration; 2] = [Duration::from_secs(300), Duration::from_secs(10)];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parameters {
    publisher_id: Option<u64>,
    worker_id: Option<u64>,
    dp_rank: Option<u32>,
}

impl Parameters {
    /// The part that is asked for, if it is not everything.
    fn part(&self) -> Result<Option<Part>, Problem> {
        match *self {
            Parameters { publisher_id: None, worker_id: None, dp_rank: None } => Ok(None),
            Parameters { publisher_id: Some(id), worker_id: None, dp_rank: None } => {
                Ok(Some(Part::Publisher(id)))
            }
            Parameters { publisher_id: None, worker_id: Some(worker_id), dp_rank } => {
                Ok(Some(Part::Rank(Rank { worker_id, dp_rank: dp_rank.unwrap_or(0) })))
            }
            Parameters { .. } => Err(malformed()),
        }
    }
}

fn malformed() -> Problem {
    Problem::malformed(
        "expected perhaps ?publisher_id=NUMBER or ?worker_id=NUMBER&dp_rank=NUMBER, got another query string",
    )
}

/// Sent while it is written: it never is in memory as a whole. If it breaks off, what has come is no snapshot.
pub(super) async fn get(
    State(service): State<Service>,
    parameters: Result<Query<Parameters>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(parameters) = parameters.map_err(|_| malformed())?;
    let part = parameters.part()?;
    let (turns, patience) = match part {
        None => (&service.snapshots, PATIENCE[0]),
        Some(_) => (&service.parts, PATIENCE[1]),
    };
    // Nobody closes it, so that there is always a turn.
    let turn = Arc::clone(turns).acquire_owned().await;
    let until = Instant::now() + patience;
    let (pieces, mut body) = mpsc::channel(PIECES);
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let to = BufWriter::with_capacity(
            PIECE,
            Sending { pieces: pieces.clone(), runtime: runtime.clone(), until },
        );
        let written = match part {
            None => service.indexer.write_snapshot(to),
            Some(part) => service.indexer.write_part(part, to),
        };
        if let Err(reason) = written {
            warn!(%reason, "a snapshot was not taken");
            // Without it the other side would take what there is for the whole.
            let torn = pieces.send_timeout(Err(ErrorKind::UnexpectedEof.into()), PATIENCE[1]);
            let _closed = runtime.block_on(torn);
        }
    });
    let body = Body::from_stream(poll_fn(move |context| body.poll_recv(context)));
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response())
}

/// Hands pieces to whoever asked, as fast as they are taken.
struct Sending {
    pieces: mpsc::Sender<io::Result<Bytes>>,
    runtime: Handle,
    until: Instant,
}

impl Write for Sending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = timeout_at(self.until, self.pieces.send(Ok(Bytes::copy_from_slice(bytes))));
        match self.runtime.block_on(sent) {
            Ok(Ok(())) => Ok(bytes.len()),
            Ok(Err(_)) => Err(ErrorKind::BrokenPipe.into()),
            Err(_) => Err(ErrorKind::TimedOut.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
