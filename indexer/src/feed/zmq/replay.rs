//! Asks an engine's replay socket for the batches that it has kept.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, ZmqError, ZmqMessage};

/// How long an engine may take to connect, and from one batch to the next.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of one answer. Engines keep 10,000 batches.
const ANSWER_BYTES: usize = 256 << 20;
/// The number behind the last batch.
const END: [u8; 8] = [0xff; 8];

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplayError {
    #[error("nothing came for {PATIENCE:?}")]
    Silent,
    #[error(transparent)]
    Socket(#[from] ZmqError),
    #[error("expected a number and a batch, got {frames} frames")]
    Malformed { frames: usize },
    #[error("more than {ANSWER_BYTES} bytes")]
    TooLong,
}

/// A replay socket, connected when it is first asked and after every failure.
pub(super) struct Replayer {
    endpoint: String,
    socket: Option<DealerSocket>,
}

impl Replayer {
    pub(super) fn new(endpoint: String) -> Replayer {
        Replayer { endpoint, socket: None }
    }

    /// All batches that the engine has from a number on, in order.
    pub(super) async fn ask(&mut self, from: u64) -> Result<Vec<(u64, Bytes)>, ReplayError> {
        // Of a socket on which an answer broke off, the rest may still come.
        let mut socket = match self.socket.take() {
            Some(socket) => socket,
            None => connect(&self.endpoint).await?,
        };
        let batches = exchange(&mut socket, from).await?;
        self.socket = Some(socket);
        Ok(batches)
    }
}

async fn connect(endpoint: &str) -> Result<DealerSocket, ReplayError> {
    let mut socket = DealerSocket::new();
    timeout(PATIENCE, socket.connect(endpoint)).await.map_err(|_| ReplayError::Silent)??;
    Ok(socket)
}

async fn exchange(socket: &mut DealerSocket, from: u64) -> Result<Vec<(u64, Bytes)>, ReplayError> {
    let mut request = ZmqMessage::from(Bytes::new());
    request.push_back(Bytes::copy_from_slice(&from.to_be_bytes()));
    socket.send(request).await?;
    let mut batches = Vec::new();
    let mut bytes = 0;
    loop {
        let reply = timeout(PATIENCE, socket.recv()).await.map_err(|_| ReplayError::Silent)??;
        let Some(batch) = parse(&reply)? else { return Ok(batches) };
        bytes += batch.1.len();
        if bytes > ANSWER_BYTES {
            return Err(ReplayError::TooLong);
        }
        batches.push(batch);
    }
}

/// The number and the batch of a reply; nothing at the end. Engines send them behind an empty frame, some with the topic
/// between: the number is the frame of 8 bytes in front of the last.
fn parse(reply: &ZmqMessage) -> Result<Option<(u64, Bytes)>, ReplayError> {
    let frames: Vec<&Bytes> = reply.iter().collect();
    let [.., number, payload] = frames.as_slice() else {
        return Err(ReplayError::Malformed { frames: frames.len() });
    };
    match <[u8; 8]>::try_from(number.as_ref()) {
        Ok(END) => Ok(None),
        Ok(number) => Ok(Some((u64::from_be_bytes(number), (*payload).clone()))),
        Err(_) if payload.as_ref() == END => Ok(None),
        Err(_) => Err(ReplayError::Malformed { frames: frames.len() }),
    }
}
