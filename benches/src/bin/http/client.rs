//! A plain client that keeps its connection: what it does costs all sides the same.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);
const END_OF_HEAD: &[u8] = b"\r\n\r\n";

/// What stands in front of a body of that type.
pub(crate) fn request(path: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// A message as far as it is here: a head, and of its body so many bytes out of so many.
#[derive(Clone, Copy)]
pub(crate) struct Message {
    /// Where the body starts.
    pub(crate) body: usize,
    /// Where it ends.
    pub(crate) end: usize,
}

impl Message {
    /// Reads the head that `bytes` begin with. None as long as it is not whole. Without a length there is no body.
    pub(crate) fn read(bytes: &[u8]) -> Option<Message> {
        let head = bytes.windows(END_OF_HEAD.len()).position(|window| window == END_OF_HEAD)?;
        let length = str::from_utf8(&bytes[..head]).ok()?.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
        });
        let body = head + END_OF_HEAD.len();
        Some(Message { body, end: body + length.unwrap_or(0) })
    }
}

/// A connection.
pub(crate) struct Client {
    stream: TcpStream,
    answer: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Client { stream, answer: vec![0; 1 << 16] })
    }

    /// Sends a request and gives the body of its answer.
    pub(crate) fn ask(&mut self, request: &[u8]) -> io::Result<&[u8]> {
        self.stream.write_all(request)?;
        let mut filled = 0;
        let message = loop {
            if filled == self.answer.len() {
                self.answer.resize(2 * filled, 0);
            }
            let read = self.stream.read(&mut self.answer[filled..])?;
            if read == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server has hung up"));
            }
            filled += read;
            match Message::read(&self.answer[..filled]) {
                Some(message) if message.end <= filled => break message,
                Some(_) | None => {}
            }
        };
        let body = &self.answer[message.body..message.end];
        if self.answer.starts_with(b"HTTP/1.1 200 ") {
            return Ok(body);
        }
        let head = String::from_utf8_lossy(&self.answer[..message.body]);
        let status = head.lines().next().unwrap_or_default();
        Err(io::Error::other(format!("expected 200, got {status}: {}", String::from_utf8_lossy(body))))
    }
}
