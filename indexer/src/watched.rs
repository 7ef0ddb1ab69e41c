//! Files that are read again when they change, while what was read before goes on to be used.

use std::{
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::RwLock;
use tracing::{info, warn};

use crate::telemetry;

/// Between one look and the next.
const LOOK: Duration = Duration::from_secs(1);
/// Bytes of a file.
const LARGEST: u64 = 16 << 20;

/// Why files cannot be used, naming them.
pub type Reason = Box<dyn std::error::Error + Send + Sync>;

/// What files say.
pub struct Watched<T> {
    paths: Vec<PathBuf>,
    read: fn(&[PathBuf]) -> Result<T, Reason>,
    now: RwLock<Arc<T>>,
    /// The files as they were before they were read.
    stamps: Vec<Stamp>,
}

/// What shows that a file is another one.
type Stamp = Option<(u64, u64, i64, i64)>;

impl<T: Send + Sync + 'static> Watched<T> {
    /// Reads files for the first time.
    ///
    /// # Errors
    /// Whatever `read` says of them.
    pub fn new(
        paths: Vec<PathBuf>,
        read: fn(&[PathBuf]) -> Result<T, Reason>,
    ) -> Result<Arc<Watched<T>>, Reason> {
        let stamps = stamps(&paths);
        let now = RwLock::new(Arc::new(read(&paths)?));
        Ok(Arc::new(Watched { paths, read, now, stamps }))
    }

    /// What they say now.
    #[must_use]
    pub fn now(&self) -> Arc<T> {
        Arc::clone(&self.now.read())
    }

    /// Reads them again whenever they have changed. What cannot be used is reported, and changes nothing.
    pub async fn watch(self: Arc<Self>) {
        let mut seen = self.stamps.clone();
        let mut looks = tokio::time::interval(LOOK);
        loop {
            looks.tick().await;
            let stamps = stamps(&self.paths);
            if stamps == seen {
                continue;
            }
            seen = stamps;
            let paths =
                self.paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
            match (self.read)(&self.paths) {
                Ok(read) => {
                    *self.now.write() = Arc::new(read);
                    info!(paths, "read again");
                }
                Err(reason) => {
                    telemetry::count_refused_file();
                    warn!(paths, %reason, "changed, and cannot be used; what was there before stays");
                }
            }
        }
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |file: Metadata| (file.ino(), file.len(), file.mtime(), file.mtime_nsec());
    paths.iter().map(|path| fs::metadata(path).ok().map(stamp)).collect()
}

/// The text of a file of a size that can be meant.
///
/// # Errors
/// Naming the file.
pub fn read_text(path: &Path) -> Result<String, Reason> {
    let named = |error: io::Error| format!("{}: {error}", path.display());
    let size = fs::metadata(path).map_err(named)?.len();
    if size > LARGEST {
        return Err(format!("{}: {size} bytes, expected at most {LARGEST}", path.display()).into());
    }
    Ok(fs::read_to_string(path).map_err(named)?)
}
