//! A server that reads a request and answers always the same: what is left is the client's own cost, and the kernel's.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
};

use crate::client::Message;

/// As large as an answer about a few ranks.
const ANSWER_BYTES: usize = 2_000;

/// Serves as long as the program runs, with a thread for each connection.
pub(crate) fn serve() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // It ends when the client hangs up.
            thread::spawn(move || answer(stream));
        }
    });
    Ok(address)
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let answer =
        format!("HTTP/1.1 200 OK\r\ncontent-length: {ANSWER_BYTES}\r\n\r\n{}", "x".repeat(ANSWER_BYTES));
    let (mut request, mut filled) = (vec![0; 1 << 20], 0);
    loop {
        let read = stream.read(&mut request[filled..])?;
        if read == 0 {
            return Ok(());
        }
        filled += read;
        match Message::read(&request[..filled]) {
            Some(message) if message.end <= filled => {
                stream.write_all(answer.as_bytes())?;
                filled = 0;
            }
            Some(message) if message.end > request.len() => request.resize(message.end, 0),
            Some(_) | None => {}
        }
    }
}
