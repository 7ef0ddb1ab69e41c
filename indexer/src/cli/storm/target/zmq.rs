//! Messages go through sockets as vLLM has them: a publisher for each rank, and beside it one that is asked for what was missed.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use kvtide::{BoundStream, Indexer, feed::Feeds, serving::Failure};
use parking_lot::Mutex;
use tokio::{
    runtime::{Builder, Runtime},
    task::AbortHandle,
};
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::{BusPart, Fate, Race, Target, wait_until};
use crate::cli::storm::{plan::Frame, sight::Fleet};

/// Batches that a publisher keeps, as vLLM does by default.
const KEPT_BATCHES: usize = 10_000;
/// Bytes of these that all publishers keep together: ten thousand large batches of each of a hundred would be gigabytes.
const KEPT_BYTES: usize = 256 << 20;
/// Each rank takes two ports.
const MOST_RANKS: usize = 1024;
/// The number behind the last batch.
const END: [u8; 8] = [0xff; 8];

type Kept = Arc<Mutex<VecDeque<(u64, Bytes)>>>;

/// The sockets of all engines.
pub(super) struct OverZmq {
    runtime: Runtime,
    indexer: Arc<Indexer>,
    engines: Vec<Engine>,
}

struct Engine {
    publisher: PubSocket,
    kept: Kept,
    kept_bytes: usize,
    /// Bytes that may be kept.
    room: usize,
    life: u64,
    answering: AbortHandle,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.answering.abort();
    }
}

impl OverZmq {
    pub(super) fn start(
        following: &Runtime,
        feeds: &Feeds,
        indexer: &Arc<Indexer>,
        streams: Vec<Arc<BoundStream>>,
    ) -> Result<OverZmq, Failure> {
        if streams.len() > MOST_RANKS {
            return Err(format!("expected at most {MOST_RANKS} ranks over ZMQ, got {}", streams.len()).into());
        }
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("storm-bus").enable_all().build()?;
        let room = KEPT_BYTES / streams.len();
        let mut engines = Vec::new();
        for stream in streams {
            let (publisher, endpoint) = runtime.block_on(bind::<PubSocket>())?;
            let (replay, replay_endpoint) = runtime.block_on(bind::<RouterSocket>())?;
            let kept = Kept::default();
            let answering = runtime.spawn(answer(replay, Arc::clone(&kept))).abort_handle();
            engines.push(Engine { publisher, kept, kept_bytes: 0, room, life: 1, answering });
            let _here = following.enter();
            feeds.follow_zmq(&endpoint, Some(&replay_endpoint), stream)?;
        }
        let readiness = feeds.readiness();
        wait_until("answers of all engines", Duration::from_millis(20), || readiness.check(indexer).is_ok())?;
        Ok(OverZmq { runtime, indexer: Arc::clone(indexer), engines })
    }
}

/// A socket on a free port, and its address.
async fn bind<S: Socket>() -> Result<(S, String), Failure> {
    let mut socket = S::new();
    let endpoint = socket.bind("tcp://127.0.0.1:0").await?.to_string();
    Ok((socket, endpoint))
}

impl Target for OverZmq {
    fn send(&mut self, frame: Frame) -> Result<Fate, Failure> {
        let payload = Bytes::from(frame.message.sent_at(self.indexer.clock().wall_ms()));
        let engine = &mut self.engines[frame.rank];
        engine.keep(frame.life, frame.sequence, &payload);
        let mut message = ZmqMessage::from("kv-events");
        message.push_back(Bytes::copy_from_slice(&frame.sequence.to_be_bytes()));
        message.push_back(payload);
        self.runtime.block_on(engine.publisher.send(message))?;
        Ok(Fate::OnTheWay)
    }

    fn race(&mut self, _frames: Vec<Frame>, _fleet: Fleet) -> Result<Option<Race>, Failure> {
        Ok(None)
    }

    fn interrupt(&mut self, _part: BusPart, _down: Duration) -> Result<(), Failure> {
        Err("there is no bus over ZMQ; expected --target nats".into())
    }
}

impl Engine {
    /// Keeps a batch for those that ask. A process that starts again has nothing of the one before it.
    fn keep(&mut self, life: u64, sequence: u64, payload: &Bytes) {
        let mut kept = self.kept.lock();
        if life != self.life {
            kept.clear();
            (self.life, self.kept_bytes) = (life, 0);
        }
        kept.push_back((sequence, payload.clone()));
        self.kept_bytes += payload.len();
        while kept.len() > KEPT_BATCHES || self.kept_bytes > self.room {
            let Some((_, oldest)) = kept.pop_front() else { break };
            self.kept_bytes -= oldest.len();
        }
    }
}

/// Answers whoever asks from a number on, as vLLM 0.28 does: each batch behind an empty frame, and an end.
async fn answer(mut socket: RouterSocket, kept: Kept) {
    while let Ok(request) = socket.recv().await {
        let frames: Vec<&Bytes> = request.iter().collect();
        let (Some(&peer), Some(from)) =
            (frames.first(), frames.last().and_then(|from| <[u8; 8]>::try_from(from.as_ref()).ok()))
        else {
            continue;
        };
        let from = u64::from_be_bytes(from);
        let batches: Vec<_> = kept.lock().iter().filter(|(sequence, _)| *sequence >= from).cloned().collect();
        let end = (Bytes::copy_from_slice(&END), Bytes::new());
        let numbered = batches
            .into_iter()
            .map(|(sequence, payload)| (Bytes::copy_from_slice(&sequence.to_be_bytes()), payload));
        for (sequence, payload) in numbered.chain([end]) {
            let mut reply = ZmqMessage::from(peer.clone());
            for frame in [Bytes::new(), Bytes::from_static(b"kv-events"), sequence, payload] {
                reply.push_back(frame);
            }
            // Whoever has gone asks again.
            if socket.send(reply).await.is_err() {
                break;
            }
        }
    }
}
