//! Writes a recording. Messages are gathered, and written a part at a time that can be read by itself; whatever ends it, even a full
//! disk or a kill, the files end behind a whole part.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use super::{
    CaptureError, Recording, RecordingEnd,
    records::{self, MAGIC},
};

/// Bytes of messages that are gathered of one stream before they are written.
const PART: usize = 1 << 20;

/// A recording that is being written.
pub struct Recorder {
    folder: PathBuf,
    recording: Recording,
    files: Vec<RecordedFile>,
}

/// What has been written of one stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Written {
    /// Messages.
    pub messages: u64,
    /// Their bytes, before they are compressed.
    pub bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
}

struct RecordedFile {
    path: PathBuf,
    file: File,
    gathered: Vec<u8>,
    /// What is in the file.
    written: Written,
    /// With what is gathered.
    taken: Written,
}

impl Recorder {
    /// Makes the folder, if need be, and its files.
    ///
    /// # Errors
    /// [`CaptureError`], also where one of these files is there already.
    pub fn create(folder: &Path, recording: Recording) -> Result<Recorder, CaptureError> {
        fs::create_dir_all(folder).map_err(|source| CaptureError::Io { path: folder.to_owned(), source })?;
        let paths: Vec<PathBuf> = recording.streams.iter().map(|stream| folder.join(&stream.file)).collect();
        // Nothing is begun beside what is there.
        if let Some(path) = paths.iter().find(|path| path.exists()) {
            let source = io::Error::new(io::ErrorKind::AlreadyExists, "File exists, and is not overwritten");
            return Err(CaptureError::Io { path: path.clone(), source });
        }
        recording.create(folder)?;
        let files = paths.into_iter().map(RecordedFile::create).collect::<Result<_, _>>()?;
        Ok(Recorder { folder: folder.to_owned(), recording, files })
    }

    /// What it is a recording of.
    #[must_use]
    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Takes a message of the stream that has this place among the recording's.
    ///
    /// # Errors
    /// [`CaptureError::Io`], after which nothing more can be taken.
    ///
    /// # Panics
    /// Where there is no such stream.
    pub fn take<F: AsRef<[u8]>>(&mut self, stream: usize, frames: &[F]) -> Result<(), CaptureError> {
        self.files[stream].take(frames)
    }

    /// Writes what is gathered.
    ///
    /// # Errors
    /// [`CaptureError::Io`], after which nothing more can be taken.
    pub fn flush(&mut self) -> Result<(), CaptureError> {
        self.files.iter_mut().try_for_each(RecordedFile::flush)
    }

    /// What the files have of each stream.
    pub fn written(&self) -> impl Iterator<Item = Written> {
        self.files.iter().map(|file| file.written)
    }

    /// Writes what is left, and how it ended.
    ///
    /// # Errors
    /// [`CaptureError::Io`].
    pub fn finish(&mut self, at_ms: u64, dropped: u64) -> Result<(), CaptureError> {
        self.flush()?;
        let synced = self.files.iter().try_for_each(|file| file.named(file.file.sync_all()));
        synced?;
        let messages = self.written().map(|written| written.messages).sum();
        self.recording.end = Some(RecordingEnd { at_ms, messages, dropped });
        self.recording.replace(&self.folder)
    }
}

impl RecordedFile {
    fn create(path: PathBuf) -> Result<RecordedFile, CaptureError> {
        let file = create_new(&path).map_err(|source| CaptureError::Io { path: path.clone(), source })?;
        let (written, taken) = (Written::default(), Written::default());
        // Even a stream from which nothing comes is a file that can be read.
        let mut file = RecordedFile { path, file, gathered: MAGIC.to_vec(), written, taken };
        file.flush()?;
        Ok(file)
    }

    fn take<F: AsRef<[u8]>>(&mut self, frames: &[F]) -> Result<(), CaptureError> {
        let pushed = records::push(frames, &mut self.gathered);
        self.named(pushed)?;
        self.taken.messages += 1;
        self.taken.bytes += frames.iter().map(|frame| frame.as_ref().len() as u64).sum::<u64>();
        if self.gathered.len() >= PART { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), CaptureError> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let part = self.named(zstd::bulk::compress(&self.gathered, 0))?;
        self.gathered.clear();
        if let Err(source) = self.file.write_all(&part) {
            // What fits of the part goes, so that the file ends behind a whole one.
            let cut = self.file.set_len(self.written.file_bytes);
            return self.named(Err(cut.err().unwrap_or(source)));
        }
        self.written = Written { file_bytes: self.written.file_bytes + part.len() as u64, ..self.taken };
        Ok(())
    }

    fn named<T>(&self, result: io::Result<T>) -> Result<T, CaptureError> {
        result.map_err(|source| CaptureError::Io { path: self.path.clone(), source })
    }
}

/// A file that was not there, for the eyes of its owner alone: engines' messages have the tokens of prompts.
pub(super) fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}
