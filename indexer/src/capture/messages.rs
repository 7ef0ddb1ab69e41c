//! The messages of one worker: multipart messages as a subscriber received them, compressed.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};

use super::{CaptureError, malformed, read_compressed};

const MAGIC: &[u8] = b"KVCAP1\n";

/// One message of an engine's publisher.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// The topic that it was published under.
    pub topic: Vec<u8>,
    /// Its number, from 0 at the start of the process.
    pub sequence: u64,
    /// The batch.
    pub payload: Vec<u8>,
}

/// Reads a file of messages.
///
/// # Errors
/// [`CaptureError`] for a file that cannot be read, or is cut or foreign.
pub fn read_messages(path: &Path) -> Result<Vec<Message>, CaptureError> {
    let bytes = read_compressed(path)?;
    let Some(mut rest) = bytes.strip_prefix(MAGIC) else {
        let got = format!("{:02x?}", &bytes[..bytes.len().min(MAGIC.len())]);
        return Err(malformed(path, "a capture, starting with KVCAP1", got));
    };
    let mut messages = Vec::new();
    while !rest.is_empty() {
        match read_message(&mut rest) {
            Some(message) => messages.push(message),
            None => {
                let got = format!("something else behind message {}", messages.len());
                return Err(malformed(path, "messages of topic, sequence and batch", got));
            }
        }
    }
    Ok(messages)
}

fn read_message(rest: &mut &[u8]) -> Option<Message> {
    if read_length(rest)? != 3 {
        return None;
    }
    let topic = read_frame(rest)?.to_vec();
    let sequence = u64::from_be_bytes(read_frame(rest)?.try_into().ok()?);
    Some(Message { topic, sequence, payload: read_frame(rest)?.to_vec() })
}

fn read_frame<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = read_length(rest)?;
    let (frame, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(frame)
}

fn read_length(rest: &mut &[u8]) -> Option<usize> {
    let (length, behind) = rest.split_first_chunk::<4>()?;
    *rest = behind;
    usize::try_from(u32::from_be_bytes(*length)).ok()
}

/// Writes a file of messages.
///
/// # Errors
/// Whatever the file system says.
pub fn write_messages<'a>(path: &Path, messages: impl IntoIterator<Item = &'a Message>) -> io::Result<()> {
    let mut file = zstd::Encoder::new(File::create(path)?, 0)?;
    file.write_all(MAGIC)?;
    for message in messages {
        file.write_all(&3_u32.to_be_bytes())?;
        for frame in [&message.topic[..], &message.sequence.to_be_bytes(), &message.payload] {
            let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
            file.write_all(&length.to_be_bytes())?;
            file.write_all(frame)?;
        }
    }
    file.finish()?.sync_all()
}
