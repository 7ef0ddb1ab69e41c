//! A recording: a folder with what came from publishers, as it came, and `recording.json`, which says from where.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{CaptureError, malformed, parse_json, read, recorder::create_new};
use crate::config::StreamConfig;

/// The file that makes a folder a recording.
const NAME: &str = "recording.json";
/// The only form that there is so far.
const FORMAT: u32 = 1;
/// Milliseconds since the Unix epoch that can be meant: up to the year 287396.
const LATEST_MS: u64 = 1 << 53;

/// What a recording says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// 1.
    format: u32,
    /// The version of the kvtide that made it.
    pub kvtide: String,
    /// When it was begun, in milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// What was recorded.
    pub streams: Vec<RecordedStream>,
    /// How it ended; none where it did not end by itself.
    pub end: Option<RecordingEnd>,
}

/// One file of a recording.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedStream {
    /// Its name in the folder.
    pub file: String,
    /// Where its messages came from, and how they are to be read.
    pub stream: StreamConfig,
}

/// How a recording ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordingEnd {
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Messages that were written.
    pub messages: u64,
    /// Messages that came and could not be written in time.
    pub dropped: u64,
}

impl Recording {
    /// A new one of these streams. Messages of a bus go into files `n0.kvcap.zst`, `n1.kvcap.zst` and so on, those of engines
    /// into `w0.kvcap.zst` and so on.
    #[must_use]
    pub fn new(started_at_ms: u64, streams: Vec<StreamConfig>) -> Recording {
        let (mut subjects, mut engines) = (0.., 0..);
        let streams = streams.into_iter().map(|stream| {
            let (kind, numbers) =
                if stream.subject.is_some() { ("n", &mut subjects) } else { ("w", &mut engines) };
            let file = format!("{kind}{}.kvcap.zst", numbers.next().unwrap_or_default());
            // Whoever plays it has nobody to ask for what was missed.
            RecordedStream { file, stream: StreamConfig { zmq_replay: None, ..stream } }
        });
        let (kvtide, streams) = (env!("CARGO_PKG_VERSION").to_owned(), streams.collect());
        Recording { format: FORMAT, kvtide, started_at_ms, streams, end: None }
    }

    /// Whether a folder is one.
    #[must_use]
    pub fn is_in(folder: &Path) -> bool {
        path(folder).exists()
    }

    /// What the recording in a folder says of itself.
    ///
    /// # Errors
    /// [`CaptureError`] where that is missing, or not of this form.
    pub fn load(folder: &Path) -> Result<Recording, CaptureError> {
        let path = path(folder);
        let recording: Recording = parse_json(&path, &read(&path)?, "what a recording says of itself")?;
        let Recording { format, started_at_ms, streams, .. } = &recording;
        if *format != FORMAT {
            return Err(malformed(&path, "a recording of format 1", format.to_string()));
        }
        if *started_at_ms > LATEST_MS {
            return Err(malformed(&path, "milliseconds since 1970", started_at_ms.to_string()));
        }
        // It may come from anywhere, and speaks of nothing but its own folder.
        let is_name = |file: &str| Path::new(file).file_name().is_some_and(|name| name == file);
        match streams.iter().find(|stream| !is_name(&stream.file)) {
            Some(stream) => Err(malformed(&path, "the name of a file beside it", stream.file.clone())),
            None => Ok(recording),
        }
    }

    /// Writes what it says of itself to a new file.
    pub(super) fn create(&self, folder: &Path) -> Result<(), CaptureError> {
        let path = path(folder);
        let text = self.text();
        create_new(&path)
            .and_then(|mut file| file.write_all(&text))
            .map_err(|source| CaptureError::Io { path, source })
    }

    /// Writes in its place, in one step, what is known at the end.
    pub(super) fn replace(&self, folder: &Path) -> Result<(), CaptureError> {
        let path = path(folder);
        let written = tempfile::NamedTempFile::new_in(folder).and_then(|file| {
            fs::write(file.path(), self.text())?;
            file.persist(&path).map(|_| ()).map_err(|error| error.error)
        });
        written.map_err(|source| CaptureError::Io { path, source })
    }

    fn text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).unwrap_or_default();
        text.push(b'\n');
        text
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join(NAME)
}
