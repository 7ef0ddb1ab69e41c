//! Bodies that are sent while they are written: they never are in memory as a whole.

use std::{
    fmt::Display,
    io::{self, BufWriter, ErrorKind, Write},
    time::Duration,
};

use axum::body::{Body, Bytes};
use futures_util::stream::poll_fn;
use tokio::{
    runtime::Handle,
    sync::mpsc,
    time::{Instant, timeout_at},
};
use tracing::warn;

/// Bytes that are sent at once, and how many of these wait for the other side.
const PIECE: usize = 64 << 10;
const PIECES: usize = 16;
/// How long the other side may take to hear that there is no more.
const LAST_WORD: Duration = Duration::from_secs(10);

/// What `write` writes. The other side may take so long for all of it; then it breaks off, which HTTP shows. `turn` is held
/// until then.
pub(super) fn send<T, E: Display>(
    turn: impl Send + 'static,
    patience: Duration,
    write: impl FnOnce(BufWriter<Sending>) -> Result<T, E> + Send + 'static,
) -> Body {
    let until = Instant::now() + patience;
    let (pieces, mut body) = mpsc::channel(PIECES);
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let sending = Sending { pieces: pieces.clone(), runtime: runtime.clone(), until };
        if let Err(reason) = write(BufWriter::with_capacity(PIECE, sending)) {
            warn!(%reason, "a body was not taken");
            // Without it the other side would take what there is for the whole.
            let torn = pieces.send_timeout(Err(ErrorKind::UnexpectedEof.into()), LAST_WORD);
            let _closed = runtime.block_on(torn);
        }
    });
    Body::from_stream(poll_fn(move |context| body.poll_recv(context)))
}

/// Hands pieces to whoever asked, as fast as they are taken.
pub(super) struct Sending {
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
