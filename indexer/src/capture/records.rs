//! A file of records: each some frames of bytes, as they came. It is compressed part by part, and each part is whole by itself, so
//! that a file can be read however its writing ended.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
};

use super::{CaptureError, malformed};

pub(super) const MAGIC: &[u8] = b"KVCAP1\n";

/// The records of a file, one after another.
pub(super) struct Records {
    path: PathBuf,
    /// What they should be.
    expected: &'static str,
    decoder: zstd::Decoder<'static, BufReader<File>>,
    read: u64,
}

impl Records {
    pub(super) fn open(path: &Path, expected: &'static str) -> Result<Records, CaptureError> {
        let opened = File::open(path).and_then(zstd::Decoder::new);
        let decoder = opened.map_err(|source| CaptureError::Io { path: path.to_owned(), source })?;
        let mut records = Records { path: path.to_owned(), expected, decoder, read: 0 };
        let magic = records.take(MAGIC.len())?;
        if magic != MAGIC {
            let got = format!("{magic:02x?}");
            return Err(malformed(path, "a capture, starting with KVCAP1", got));
        }
        Ok(records)
    }

    /// The frames of the next record; none behind the last.
    pub(super) fn next(&mut self) -> Result<Option<Vec<Vec<u8>>>, CaptureError> {
        let frames = self.take(4)?;
        if frames.is_empty() {
            return Ok(None);
        }
        let mut record = Vec::new();
        for _ in 0..self.length(&frames)? {
            let length = self.take(4)?;
            let length = self.length(&length)?;
            let frame = self.take(length)?;
            if frame.len() < length {
                return Err(self.foreign(self.read));
            }
            record.push(frame);
        }
        self.read += 1;
        Ok(Some(record))
    }

    /// What is wrong if the record that was read last is something else.
    pub(super) fn wrong(&self) -> CaptureError {
        self.foreign(self.read - 1)
    }

    fn foreign(&self, behind: u64) -> CaptureError {
        malformed(&self.path, self.expected, format!("something else behind message {behind}"))
    }

    /// So many bytes, or as many as there are left.
    fn take(&mut self, bytes: usize) -> Result<Vec<u8>, CaptureError> {
        let mut taken = Vec::new();
        // By what is there: a length in a foreign file may be anything.
        let read = self.decoder.by_ref().take(bytes as u64).read_to_end(&mut taken);
        read.map_err(|source| CaptureError::Io { path: self.path.clone(), source })?;
        Ok(taken)
    }

    fn length(&self, bytes: &[u8]) -> Result<usize, CaptureError> {
        let length =
            bytes.try_into().ok().map(u32::from_be_bytes).and_then(|length| usize::try_from(length).ok());
        length.ok_or_else(|| self.foreign(self.read))
    }
}

/// Appends a record.
pub(super) fn push<F: AsRef<[u8]>>(frames: &[F], into: &mut Vec<u8>) -> io::Result<()> {
    let lengths = frames.iter().map(|frame| u32::try_from(frame.as_ref().len()));
    let lengths = lengths.collect::<Result<Vec<_>, _>>().map_err(io::Error::other)?;
    into.extend(u32::try_from(frames.len()).map_err(io::Error::other)?.to_be_bytes());
    for (frame, length) in frames.iter().zip(lengths) {
        into.extend(length.to_be_bytes());
        into.extend(frame.as_ref());
    }
    Ok(())
}
