//! Times requests one by one, and counts how many are answered where clients never pause.

use std::{
    io,
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::client::Client;

/// Connections that ask at once for the rate.
const CONNECTIONS: usize = 8;

/// One server, and all requests that it is asked with.
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) requests: Vec<Vec<u8>>,
    client: Client,
    /// Nanoseconds of each request.
    pub(crate) times: Vec<u64>,
    /// Requests a second, of each round.
    pub(crate) rates: Vec<f64>,
}

impl Target {
    pub(crate) fn new(address: SocketAddr, requests: Vec<Vec<u8>>) -> io::Result<Target> {
        let client = Client::connect(address)?;
        Ok(Target { address, requests, client, times: Vec::new(), rates: Vec::new() })
    }

    /// Asks once, and notes nothing: a server still has to tidy up when it has answered, and takes that time from the next.
    pub(crate) fn warm_up(&mut self, number: usize) -> io::Result<()> {
        self.client.ask(&self.requests[number % self.requests.len()]).map(|_| ())
    }

    /// Asks once, and notes how long it took.
    pub(crate) fn time(&mut self, number: usize) -> io::Result<()> {
        let request = &self.requests[number % self.requests.len()];
        let start = Instant::now();
        self.client.ask(request)?;
        self.times.push(start.elapsed().as_nanos() as u64);
        Ok(())
    }

    /// The body of an answer.
    pub(crate) fn answer(&mut self, number: usize) -> io::Result<&[u8]> {
        self.client.ask(&self.requests[number])
    }

    /// Asks for so long over several connections, and notes how many requests were answered in a second.
    pub(crate) fn rate(&mut self, length: Duration) -> io::Result<()> {
        let (over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
        let ask = |first: usize| -> io::Result<()> {
            let mut client = Client::connect(self.address)?;
            for number in first.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                client.ask(&self.requests[number % self.requests.len()])?;
                answered.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        let start = Instant::now();
        thread::scope(|threads| {
            let asking: Vec<_> = (0..CONNECTIONS).map(|first| threads.spawn(move || ask(first))).collect();
            thread::sleep(length);
            over.store(true, Ordering::Relaxed);
            asking.into_iter().try_for_each(|asking| {
                asking.join().unwrap_or_else(|_| Err(io::Error::other("a client has panicked")))
            })
        })?;
        self.rates.push(answered.into_inner() as f64 / start.elapsed().as_secs_f64());
        Ok(())
    }
}
