//! A line between kvtide and its bus that can be cut.

use std::{
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// Carries whatever comes on a port of this machine to a server, and back.
pub(super) struct Line {
    address: SocketAddr,
    /// When it is whole again, if it was cut.
    cut: watch::Sender<Option<Instant>>,
}

impl Line {
    /// One to a server. It lasts as long as the runtime that it is started on.
    pub(super) async fn to(server: SocketAddr) -> io::Result<Line> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (cut, is_cut) = watch::channel(None);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(carry(near, server, is_cut.clone()));
            }
        });
        Ok(Line { address, cut })
    }

    pub(super) fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Ends every connection, and lets none through for so long.
    pub(super) fn cut(&self, down: Duration) {
        self.cut.send_replace(Some(Instant::now() + down));
    }
}

async fn carry(mut near: TcpStream, server: SocketAddr, mut cut: watch::Receiver<Option<Instant>>) {
    if cut.borrow_and_update().is_some_and(|until| Instant::now() < until) {
        return;
    }
    let Ok(mut far) = TcpStream::connect(server).await else { return };
    tokio::select! {
        _ = copy_bidirectional(&mut near, &mut far) => {}
        _ = cut.changed() => {}
    }
}
