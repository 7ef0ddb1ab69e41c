//! Snapshots: the whole index in one file, from which another process goes on.
//!
//! A file begins with [`MAGIC`] and the version of its format; behind that everything is compressed and checksummed (zstd), and
//! encoded by serde as msgpack. What is read in counts as `recovering` until each rank's stream has shown that it goes on.

mod keeper;
mod peer;

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read, Write},
    path::Path,
    sync::Arc,
};

use kvtide_radix::{Rank, RankSettings, RestoreError};
use serde::{Deserialize, Serialize};

use crate::{
    BindError, Indexer, Part, Scope,
    indexer::{ScopeIndex, direct_name},
    mirror::{KnownStream, Mirror, SavedMirror},
    stream::Format,
};

pub use keeper::{Keeper, resume};
pub use peer::{Peer, PeerError};

/// How a snapshot begins.
pub const MAGIC: [u8; 8] = *b"KVTIDE\0S";
/// The format that is written and read.
pub const VERSION: u32 = 2;
/// Fast: hashes do not compress, and the rest is little.
const COMPRESSION: i32 = -3;

/// What a snapshot holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Scopes.
    pub scopes: usize,
    /// Ranks that were written, or that go on.
    pub ranks: usize,
    /// Ranks that were left out, since nobody here feeds them or could show that their stream goes on.
    pub left_out: usize,
}

/// A part of which something is missing.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Wanted {
    /// What to ask another kvtide for.
    pub part: Part,
    pub(crate) scope: Scope,
}

/// Why there is no snapshot, or it is of no use.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is something else.
    #[error("expected a snapshot, which begins with {MAGIC:02x?}, got {got:02x?}")]
    Foreign {
        /// How it begins.
        got: Vec<u8>,
    },
    /// It is of another kvtide, mostly a newer one.
    #[error("expected a snapshot of format {VERSION}, got one of format {got}")]
    OtherFormat {
        /// Its format.
        got: u32,
    },
    /// It is cut short, or was changed.
    #[error("the snapshot is damaged: {reason}")]
    Damaged {
        /// What does not fit.
        reason: String,
    },
    /// Its ranks or blocks cannot be here.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// Its scopes cannot be here.
    #[error(transparent)]
    Scope(#[from] BindError),
}

#[derive(Serialize, Deserialize)]
struct SavedScope {
    scope: Scope,
    eagle: bool,
    mirror: SavedMirror,
}

impl Indexer {
    /// Writes everything down, one scope after the other, each as it is at one version. Lookups go on meanwhile; a scope's
    /// events wait while what it holds is copied.
    ///
    /// # Errors
    /// [`SnapshotError::Io`].
    pub fn write_snapshot(&self, to: impl Write) -> Result<Summary, SnapshotError> {
        self.write(to, None)
    }

    /// Writes a part down, for another kvtide that has missed something of it.
    ///
    /// # Errors
    /// [`SnapshotError::Io`].
    pub fn write_part(&self, part: Part, to: impl Write) -> Result<Summary, SnapshotError> {
        self.write(to, Some(part))
    }

    fn write(&self, mut to: impl Write, part: Option<Part>) -> Result<Summary, SnapshotError> {
        to.write_all(&MAGIC)?;
        to.write_all(&VERSION.to_le_bytes())?;
        let mut encoder = zstd::Encoder::new(to, COMPRESSION)?;
        encoder.include_checksum(true)?;
        let scopes = self.scope_indexes();
        let mut summary = Summary { scopes: scopes.len(), ..Summary::default() };
        write_value(&mut encoder, &scopes.len())?;
        let names = self.stream_names();
        for index in scopes {
            let mirror = index.mirror.lock().save(part, |source| names.get(&source).cloned());
            summary.ranks += mirror.ranks();
            let saved = SavedScope { scope: index.scope.clone(), eagle: index.hashing.eagle, mirror };
            write_value(&mut encoder, &saved)?;
        }
        encoder.finish()?.flush()?;
        Ok(summary)
    }

    /// Goes on with what was written down. Everything is read and checked first. Ranks are left out whose stream is not
    /// bound here, and those of engines that cannot be asked whether they are still the same process.
    ///
    /// # Errors
    /// [`SnapshotError`]. Of a snapshot that does not read whole nothing is taken.
    pub fn read_snapshot(&self, from: impl Read) -> Result<Summary, SnapshotError> {
        let saved = read(from)?;
        let mut summary = Summary { scopes: saved.len(), ..Summary::default() };
        let mut done = Vec::new();
        for saved in &saved {
            match self.restore_scope(saved) {
                Ok(None) => summary.left_out += saved.mirror.ranks(),
                Ok(Some((index, restored))) => {
                    summary.ranks += restored;
                    summary.left_out += saved.mirror.ranks() - restored;
                    done.push(index);
                }
                Err(error) => {
                    done.iter().for_each(|index| index.mirror.lock().remove_all());
                    return Err(error);
                }
            }
        }
        Ok(summary)
    }

    /// Parts of which something is missing here that another kvtide may have seen: ask one for what it has
    /// [written down](Indexer::write_part), and hand the answer to [`Indexer::take_over`].
    #[must_use]
    pub fn wanted(&self) -> Vec<Wanted> {
        self.wanted_of(Mirror::wanted)
    }

    /// Parts of all scopes, within one in their order.
    pub(crate) fn wanted_of(&self, parts: impl Fn(&Mirror) -> Vec<Part>) -> Vec<Wanted> {
        let of_scope = |index: Arc<ScopeIndex>| {
            let mut wanted = parts(&index.mirror.lock());
            wanted.sort_unstable();
            wanted.into_iter().map(move |part| Wanted { part, scope: index.scope.clone() })
        };
        self.scope_indexes().into_iter().flat_map(of_scope).collect()
    }

    /// Goes on with what another kvtide has told. Whether it has: nothing is taken where it has not seen what
    /// is missing here, so that it may be asked again.
    ///
    /// # Errors
    /// [`SnapshotError`]. Nothing is taken then.
    pub fn take_over(&self, wanted: &Wanted, from: impl Read) -> Result<bool, SnapshotError> {
        let saved = read(from)?;
        let Some(index) = self.scope_index(&wanted.scope) else { return Ok(false) };
        let of_scope =
            |saved: &&SavedScope| saved.scope == wanted.scope && saved.eagle == index.hashing.eagle;
        let Some(saved) = saved.iter().find(of_scope) else { return Ok(false) };
        let taken = index.mirror.lock().take_over(wanted.part, &saved.mirror);
        let Some((source, applied)) = taken else { return Ok(false) };
        self.count(source, &applied);
        Ok(true)
    }

    /// Returns the scope's index, and how many ranks go on; none of a scope that nobody here has.
    fn restore_scope(&self, saved: &SavedScope) -> Result<Option<(Arc<ScopeIndex>, usize)>, SnapshotError> {
        let scope = &saved.scope;
        // Streams that are configured are bound by now. That by which events are handed in is bound when it is needed.
        if saved.mirror.has_stream(&direct_name(scope)) && (self.scope_index(scope).is_some() || !saved.eagle)
        {
            self.direct(scope)?;
        }
        let index = self.scope_index(scope).filter(|index| index.hashing.eagle == saved.eagle);
        let Some(index) = index else { return Ok(None) };
        let known = |name: &str, rank: Rank| {
            let stream = self.stream(name).filter(|stream| stream.scope.scope == *scope)?;
            let settings = match &stream.stream().format {
                Format::Engine(engine) => {
                    let dp_rank = engine.dp_rank.is_none_or(|dp_rank| dp_rank == rank.dp_rank);
                    // Of an engine that cannot be asked, nothing could show that it is still the same process.
                    let goes_on = engine.worker_id == rank.worker_id && dp_rank && engine.replays;
                    goes_on.then(|| engine.rank_settings())?
                }
                Format::Dynamo | Format::Direct => RankSettings::default(),
            };
            Some(KnownStream { source: stream.source, settings })
        };
        let restored = index.mirror.lock().restore(&saved.mirror, known)?;
        Ok(Some((index, restored)))
    }
}

fn write_value(to: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    rmp_serde::encode::write(to, value).map_err(io::Error::other)
}

/// Reads what was written, if it is whole and can be what was written.
fn read(mut from: impl Read) -> Result<Vec<SavedScope>, SnapshotError> {
    let mut head = Vec::new();
    from.by_ref().take((MAGIC.len() + size_of::<u32>()) as u64).read_to_end(&mut head)?;
    let version =
        head.strip_prefix(&MAGIC).and_then(|version| Some(u32::from_le_bytes(version.try_into().ok()?)));
    match version {
        None => return Err(SnapshotError::Foreign { got: head }),
        Some(VERSION) => {}
        Some(got) => return Err(SnapshotError::OtherFormat { got }),
    }
    let saved = read_scopes(from).map_err(|reason| SnapshotError::Damaged { reason })?;
    for saved in &saved {
        saved.mirror.check().map_err(|error| SnapshotError::Damaged { reason: error.to_string() })?;
    }
    Ok(saved)
}

/// Reads to the end, where the checksum stands, before anything is believed.
fn read_scopes(from: impl Read) -> Result<Vec<SavedScope>, String> {
    let mut decoder = zstd::Decoder::new(from).map_err(|error| error.to_string())?;
    let count: usize = rmp_serde::from_read(&mut decoder).map_err(|error| error.to_string())?;
    let mut scopes = Vec::new();
    for _ in 0..count {
        scopes.push(rmp_serde::from_read(&mut decoder).map_err(|error| error.to_string())?);
    }
    match io::copy(&mut decoder, &mut io::sink()) {
        Ok(0) => Ok(scopes),
        Ok(more) => Err(format!("{more} bytes behind its end")),
        Err(error) => Err(error.to_string()),
    }
}

/// Replaces the snapshot at `path` by a new one. At no time is there none, or a half of one.
///
/// # Errors
/// [`SnapshotError::Io`]. The old one stays then.
pub fn save(indexer: &Indexer, path: &Path) -> Result<Summary, SnapshotError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    let summary = indexer.write_snapshot(BufWriter::with_capacity(1 << 20, file.as_file_mut()))?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|failed| failed.error)?;
    // The name is in the folder, which has to be written too.
    File::open(folder)?.sync_all()?;
    Ok(summary)
}

/// Goes on with the snapshot at `path`.
///
/// # Errors
/// [`SnapshotError`].
pub fn load(indexer: &Indexer, path: &Path) -> Result<Summary, SnapshotError> {
    indexer.read_snapshot(BufReader::with_capacity(1 << 20, File::open(path)?))
}
