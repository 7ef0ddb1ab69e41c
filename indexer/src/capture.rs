//! Recorded event streams of engines, with the engine's own answers to "how many tokens are cached".
//!
//! A capture is a folder (`tests/captures/README.md` has the format): one file of messages for each worker, the
//! prompts, and at chosen points of the streams the engine's answers. [`Capture::load`] reads one whole.
//!
//! A [`Recording`] has messages in the same form, of engines and of a bus, as they came from publishers in production, and nobody's
//! answers. A [`Recorder`] writes one, and [`play()`] plays it.

mod expect;
mod messages;
mod oracle;
mod play;
mod recorder;
mod recording;
mod records;
mod replay;

use std::path::{Path, PathBuf};

use serde::Deserialize;

pub use expect::{Allowed, Expectation, StreamSettings};
pub use messages::{Message, read_messages, write_messages};
pub use oracle::{Checkpoint, Question};
pub use play::{PlayError, Played, play};
pub use recorder::{Recorder, Written};
pub use recording::{RecordedStream, Recording, RecordingEnd};
pub use replay::{ReplayError, Verdict, replay};

/// One capture, read whole.
#[derive(Debug)]
pub struct Capture {
    /// The name of its folder.
    pub name: String,
    /// Tokens a block.
    pub block_size: u32,
    /// Whether the engine keys its blocks by pairs of tokens (EAGLE).
    pub eagle: bool,
    /// The numbers by which the engine announces its adapters, where it does.
    pub adapter_ids: std::collections::BTreeMap<String, u64>,
    /// The messages of each worker, in order.
    pub workers: Vec<Vec<Message>>,
    /// Points in the streams with the engine's answers, in order.
    pub checkpoints: Vec<Checkpoint>,
}

#[derive(Deserialize)]
struct Meta {
    block_size: u32,
    #[serde(default)]
    bigram: bool,
    #[serde(default)]
    lora_ids: std::collections::BTreeMap<String, u64>,
}

/// Why a capture cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// A file that is missing or unreadable.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file that does not have the form it should have.
    #[error("{path}: expected {expected}, got {got}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What should stand there.
        expected: &'static str,
        /// What stands there.
        got: String,
    },
}

impl Capture {
    /// Reads the capture in `folder`.
    ///
    /// # Errors
    /// [`CaptureError`] for a file that is missing, or not of the form described there.
    pub fn load(folder: &Path) -> Result<Capture, CaptureError> {
        let meta_path = folder.join("meta.json");
        let meta: Meta = parse_json(&meta_path, &read(&meta_path)?, "a capture's settings")?;
        let mut workers = Vec::new();
        loop {
            let path = folder.join(format!("w{}.kvcap.zst", workers.len()));
            if !path.exists() {
                break;
            }
            workers.push(read_messages(&path)?);
        }
        if workers.is_empty() {
            let expected = "at least one worker's messages, w0.kvcap.zst";
            return Err(malformed(folder, expected, "none".into()));
        }
        Ok(Capture {
            name: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            block_size: meta.block_size,
            eagle: meta.bigram,
            adapter_ids: meta.lora_ids,
            checkpoints: oracle::read(folder, workers.len())?,
            workers,
        })
    }

    /// How many answers the engine gave: one for each prompt, worker and tier.
    #[must_use]
    pub fn answers(&self) -> usize {
        let questions = self.checkpoints.iter().flat_map(|checkpoint| &checkpoint.questions);
        questions.map(|question| question.gpu.len() + question.host.as_ref().map_or(0, Vec::len)).sum()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CaptureError> {
    std::fs::read(path).map_err(|source| CaptureError::Io { path: path.to_owned(), source })
}

fn read_compressed(path: &Path) -> Result<Vec<u8>, CaptureError> {
    zstd::decode_all(read(path)?.as_slice())
        .map_err(|source| CaptureError::Io { path: path.to_owned(), source })
}

fn malformed(path: &Path, expected: &'static str, got: String) -> CaptureError {
    CaptureError::Malformed { path: path.to_owned(), expected, got }
}

fn parse_json<'a, T: Deserialize<'a>>(
    path: &Path,
    text: &'a [u8],
    expected: &'static str,
) -> Result<T, CaptureError> {
    serde_json::from_slice(text).map_err(|error| malformed(path, expected, error.to_string()))
}
