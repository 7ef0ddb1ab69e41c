//! Engines that publish what they hold, as vLLM does: one ZMQ publisher a worker, which every side follows.

use std::{thread::sleep, time::Duration};

use rmp_serde::encode;
use tokio::runtime::Runtime;
use zeromq::{PubSocket, Socket, SocketSend, ZmqError, ZmqMessage};

use crate::content::{BLOCK_SIZE, Prompt, WORKERS};

/// Blocks of one event.
const EVENT_BLOCKS: usize = 64;
/// A publisher drops what its queue cannot take; an engine is slower than a loop.
const BETWEEN: Duration = Duration::from_millis(1);

/// What an engine cannot tell.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EngineError {
    #[error("a batch cannot be written: {0}")]
    Write(#[from] encode::Error),
    #[error("a batch cannot be published: {0}")]
    Send(#[from] ZmqError),
    #[error("no engine can be started: {0}")]
    Start(#[from] std::io::Error),
}

/// The engines of all workers.
pub(crate) struct Engines {
    runtime: Runtime,
    engines: Vec<Engine>,
}

struct Engine {
    worker_id: u64,
    endpoint: String,
    socket: PubSocket,
    sequence: u64,
}

impl Engines {
    /// Binds one a worker, from 1 on.
    pub(crate) fn start() -> Result<Engines, EngineError> {
        let runtime = Runtime::new()?;
        let bind = async |worker_id| {
            let mut socket = PubSocket::new();
            let endpoint = socket.bind("tcp://127.0.0.1:0").await?.to_string();
            Ok::<_, EngineError>(Engine { worker_id, endpoint, socket, sequence: 0 })
        };
        let engines = (1..=WORKERS).map(|worker_id| runtime.block_on(bind(worker_id)));
        let engines = engines.collect::<Result<_, _>>()?;
        Ok(Engines { runtime, engines })
    }

    /// Each worker and where it publishes.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = (u64, &str)> {
        self.engines.iter().map(|engine| (engine.worker_id, engine.endpoint.as_str()))
    }

    /// Each worker says that it holds the first block of a prompt, and holds nothing else: whoever follows knows that.
    pub(crate) fn announce(&mut self, prompt: &Prompt) -> Result<(), EngineError> {
        for engine in &mut self.engines {
            let batch = stored(prompt, 0, 1)?;
            self.runtime.block_on(engine.publish(batch))?;
        }
        Ok(())
    }

    /// Each worker says that it holds what it holds of a prompt.
    pub(crate) fn hold(&mut self, prompt: &Prompt) -> Result<(), EngineError> {
        for engine in &mut self.engines {
            let held = prompt.held_blocks(engine.worker_id);
            for from in (0..held).step_by(EVENT_BLOCKS) {
                let blocks = EVENT_BLOCKS.min(held - from);
                let batch = stored(prompt, from, blocks)?;
                self.runtime.block_on(engine.publish(batch))?;
                sleep(BETWEEN);
            }
        }
        Ok(())
    }

    /// Each worker says that it holds nothing any more.
    pub(crate) fn clear(&mut self) -> Result<(), EngineError> {
        for engine in &mut self.engines {
            let batch = rmp_serde::to_vec(&(1.0, [("AllBlocksCleared",)], 0))?;
            self.runtime.block_on(engine.publish(batch))?;
        }
        Ok(())
    }
}

impl Engine {
    async fn publish(&mut self, batch: Vec<u8>) -> Result<(), ZmqError> {
        let mut message = ZmqMessage::from("kv");
        message.push_back(self.sequence.to_be_bytes().to_vec().into());
        message.push_back(batch.into());
        self.sequence += 1;
        self.socket.send(message).await
    }
}

/// A batch of one event: so many blocks of a prompt, behind those before them. All engines name a block alike, as those of one
/// seed do.
fn stored(prompt: &Prompt, from: usize, blocks: usize) -> Result<Vec<u8>, encode::Error> {
    let tokens = &prompt.tokens[from * BLOCK_SIZE as usize..][..blocks * BLOCK_SIZE as usize];
    let names = &prompt.names[from..from + blocks];
    let parent = from.checked_sub(1).map(|parent| prompt.names[parent]);
    rmp_serde::to_vec(&(1.0, [("BlockStored", names, parent, tokens, BLOCK_SIZE, (), "GPU")], 0))
}
