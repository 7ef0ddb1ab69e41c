//! `GET /v1/snapshot`: everything, or what is known of one publisher, for another kvtide to go on with.

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
use serde::Deserialize;
use tokio::{runtime::Handle, sync::mpsc};
use tracing::warn;

use super::{Service, problem::Problem};

/// Bytes that are sent at once, and how many of these wait for the other side.
const PIECE: usize = 64 << 10;
const PIECES: usize = 16;
/// The other side may take nothing for so long.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parameters {
    publisher_id: Option<u64>,
}

/// Sent while it is written: it never is in memory as a whole. If it breaks off, what has come is no snapshot.
pub(super) async fn get(
    State(service): State<Service>,
    parameters: Result<Query<Parameters>, QueryRejection>,
) -> Result<Response, Problem> {
    let Ok(Query(Parameters { publisher_id })) = parameters else {
        return Err(Problem::malformed("expected perhaps ?publisher_id=NUMBER, got another query string"));
    };
    // Nobody closes it, so that there is always a turn.
    let turn = Arc::clone(&service.snapshots).acquire_owned().await;
    let (pieces, mut body) = mpsc::channel(PIECES);
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let to = BufWriter::with_capacity(PIECE, Sending { pieces: pieces.clone(), runtime: runtime.clone() });
        let written = match publisher_id {
            None => service.indexer.write_snapshot(to),
            Some(publisher_id) => service.indexer.write_publisher(publisher_id, to),
        };
        if let Err(reason) = written {
            warn!(%reason, "a snapshot was not taken");
            // Without it the other side would take what there is for the whole.
            let _closed = runtime.block_on(pieces.send(Err(io::Error::from(ErrorKind::UnexpectedEof))));
        }
    });
    let body = Body::from_stream(poll_fn(move |context| body.poll_recv(context)));
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response())
}

/// Hands pieces to whoever asked, as fast as they are taken.
struct Sending {
    pieces: mpsc::Sender<io::Result<Bytes>>,
    runtime: Handle,
}

impl Write for Sending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.pieces.send_timeout(Ok(Bytes::copy_from_slice(bytes)), PATIENCE);
        self.runtime.block_on(sent).map_err(|_| io::Error::from(ErrorKind::TimedOut))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
