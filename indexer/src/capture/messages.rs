//! The messages of one worker: multipart messages as a subscriber received them, compressed.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};

use super::{
    CaptureError,
    records::{self, MAGIC, Records},
};

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
    let mut records = Records::open(path, "messages of topic, sequence and batch")?;
    let mut messages = Vec::new();
    while let Some(record) = records.next()? {
        messages.push(message(record).ok_or_else(|| records.wrong())?);
    }
    Ok(messages)
}

fn message(record: Vec<Vec<u8>>) -> Option<Message> {
    let [topic, sequence, payload] = <[Vec<u8>; 3]>::try_from(record).ok()?;
    Some(Message { topic, sequence: u64::from_be_bytes(sequence.try_into().ok()?), payload })
}

/// Writes a file of messages.
///
/// # Errors
/// Whatever the file system says.
pub fn write_messages<'a>(path: &Path, messages: impl IntoIterator<Item = &'a Message>) -> io::Result<()> {
    let mut file = zstd::Encoder::new(File::create(path)?, 0)?;
    file.write_all(MAGIC)?;
    let mut record = Vec::new();
    for message in messages {
        record.clear();
        records::push(&[&message.topic[..], &message.sequence.to_be_bytes(), &message.payload], &mut record)?;
        file.write_all(&record)?;
    }
    file.finish()?.sync_all()
}
