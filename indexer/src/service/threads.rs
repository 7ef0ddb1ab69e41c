//! Threads that serve connections, each with a runtime of its own: a request is read, answered and written by one thread,
//! and wakes no other. Feeds are not in its way, nor is it in theirs.

use std::{future::pending, io, net::SocketAddr, thread};

use axum::{Router, serve::Listener};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::{self, Runtime},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::cores;

type Connection = (std::net::TcpStream, SocketAddr);

/// As many threads as there are cores. They end when they are told to, and all requests are answered.
pub(super) struct Threads {
    handing: Vec<mpsc::UnboundedSender<Connection>>,
    /// Closed when the last thread has ended.
    ended: mpsc::Receiver<()>,
}

impl Threads {
    pub(super) fn start(
        address: SocketAddr,
        router: &Router,
        stopping: &CancellationToken,
    ) -> io::Result<Threads> {
        let (running, ended) = mpsc::channel(1);
        let mut handing = Vec::new();
        for index in 0..cores() {
            let (hand, connections) = mpsc::unbounded_channel();
            let handed = Handed { address, connections };
            let served = axum::serve(handed, router.clone())
                .with_graceful_shutdown(stopping.clone().cancelled_owned())
                .into_future();
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            let running = running.clone();
            thread::Builder::new().name(format!("http-{index}")).spawn(move || {
                // It waits for connections for as long as it runs.
                let _served = runtime.block_on(served);
                Runtime::shutdown_background(runtime);
                drop(running);
            })?;
            handing.push(hand);
        }
        Ok(Threads { handing, ended })
    }

    /// Hands connections to the threads in turns, for ever.
    pub(super) async fn hand_out(&self, mut listener: TcpListener) {
        for hand in self.handing.iter().cycle() {
            let (stream, from) = Listener::accept(&mut listener).await;
            // An answer is written at once, and waits for nothing behind it.
            let ready = stream.set_nodelay(true).and_then(|()| stream.into_std());
            match ready {
                Ok(stream) => drop(hand.send((stream, from))),
                Err(error) => warn!("a connection is dropped: {error}"),
            }
        }
    }

    /// Returns when all threads have ended.
    pub(super) async fn ended(mut self) {
        while self.ended.recv().await.is_some() {}
    }
}

/// Connections that were accepted elsewhere.
struct Handed {
    address: SocketAddr,
    connections: mpsc::UnboundedReceiver<Connection>,
}

impl Listener for Handed {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        while let Some((stream, from)) = self.connections.recv().await {
            match TcpStream::from_std(stream) {
                Ok(stream) => return (stream, from),
                Err(error) => warn!("a connection is dropped: {error}"),
            }
        }
        // Nobody accepts any more.
        pending().await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}
