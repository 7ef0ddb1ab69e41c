//! A relay between a client and a server on this machine, whose connections can be cut.

use std::{
    io,
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

/// Passes on whatever comes, both ways.
pub struct Relay {
    port: u16,
    ends: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    /// One to a port of this machine.
    ///
    /// # Panics
    /// Where no port is free.
    #[must_use]
    pub fn start(to: u16) -> Relay {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("a bound port").port();
        let ends = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&ends);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // Without a server the client sees its connection end, as it would there.
                if let Ok(server) = TcpStream::connect(("127.0.0.1", to))
                    && let Ok(pair) = connect(&client, &server)
                {
                    all.lock().unwrap_or_else(PoisonError::into_inner).extend(pair);
                }
            }
        });
        Relay { port, ends }
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends all connections.
    pub fn cut(&self) {
        for end in self.ends.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // It may have ended by itself.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

/// Passes on between two ends until one of them closes. Returns both, to be cut.
fn connect(client: &TcpStream, server: &TcpStream) -> io::Result<[TcpStream; 2]> {
    for (from, to) in [(client, server), (server, client)] {
        let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        });
    }
    Ok([client.try_clone()?, server.try_clone()?])
}
