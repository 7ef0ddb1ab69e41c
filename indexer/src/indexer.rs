//! The index of a whole fleet: streams bound to scopes, each scope mirrored by itself.

mod announced;
mod letting_go;
mod proofs;
mod queries;
mod received;
mod workers;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use hashbrown::HashMap;
use kvtide_events::{DecodeError, Hashing};
use kvtide_radix::{Event, Rank, RankState, Reader, Size, index};
use parking_lot::{Mutex, RwLock};
use tokio_util::sync::CancellationToken;

use crate::{
    Applied, Clock, FeedbackState, Limits, Scope,
    feedback::Feedback,
    mirror::{Mirror, Source},
    pending::Pending,
    stream::{Format, Stream},
    telemetry,
    unreached::Unreached,
};

pub use announced::AnnounceError;
use proofs::digest;
pub use received::{Committed, Message, Received};
pub use workers::RegisterError;

/// Knows, for every worker of a fleet, what it holds.
///
/// Shared freely between threads. Each scope has one writer at a time; scopes apply in parallel, and lookups go on
/// meanwhile.
pub struct Indexer {
    clock: Clock,
    limits: Limits,
    scopes: RwLock<BTreeMap<Scope, Arc<ScopeIndex>>>,
    streams: RwLock<BTreeMap<String, Arc<BoundStream>>>,
    next_source: AtomicU32,
}

/// One scope's index.
pub(crate) struct ScopeIndex {
    pub(crate) scope: Scope,
    pub(crate) hashing: Hashing,
    reader: Reader,
    pub(crate) mirror: Mutex<Mirror>,
    /// Events received and not yet visible.
    pending: Arc<Pending>,
    feedback: Feedback,
    unreached: Unreached,
}

/// A stream that belongs to an indexer. Hand its messages to [`Indexer::apply`].
pub struct BoundStream {
    stream: Stream,
    pub(crate) source: Source,
    pub(crate) scope: Arc<ScopeIndex>,
    /// Set while the scope's mirror is locked, so that nothing is applied behind it.
    let_go: CancellationToken,
}

impl BoundStream {
    /// What was bound.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }
}

/// Why a message was not applied.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ApplyError {
    /// It does not decode. Nothing of it was applied; the ranks that it may have been about have a hole.
    #[error("a message of stream {stream} does not decode: {error}")]
    Undecodable {
        /// The stream.
        stream: String,
        /// Why.
        error: DecodeError,
    },
    /// It is of another format than its stream.
    #[error("stream {stream} takes {expected}, got {got}")]
    OtherFormat {
        /// The stream.
        stream: String,
        /// What the stream takes.
        expected: &'static str,
        /// What the message is.
        got: &'static str,
    },
    /// Its stream is no longer bound.
    #[error("stream {stream} was let go")]
    LetGo {
        /// The stream.
        stream: String,
    },
}

/// Why a stream cannot be bound.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BindError {
    /// Another stream has the name.
    #[error("a stream named {name} is bound already, to something else")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// A block size that is none.
    #[error("stream {name}: expected a block size of 1 token or more, got 0")]
    NoBlockSize {
        /// The stream.
        name: String,
    },
    /// The streams of a scope do not agree on how blocks are keyed.
    #[error("stream {name}: expected eagle = {expected}, as its scope's other streams have it, got {got}")]
    OtherHashing {
        /// The stream.
        name: String,
        /// What the scope's streams say so far.
        expected: bool,
        /// What this one says.
        got: bool,
    },
    /// As many scopes as may be are known.
    #[error("no room for another scope: {limit} are known, which is the limit")]
    ScopesFull {
        /// The limit.
        limit: usize,
    },
}

/// A scope, and how large its index is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScopeState {
    /// The scope.
    pub scope: Scope,
    /// Whether its blocks are keyed by pairs of tokens.
    pub eagle: bool,
    /// The newest version.
    pub version: u64,
    /// How large it is.
    pub size: Size,
    /// Its ranks, in order.
    pub ranks: Vec<RankState>,
    pending: HashMap<Rank, u64>,
    feedback: HashMap<Rank, FeedbackState>,
    /// Ranks that hold much of which many queries in a row have reached nothing.
    pub unreached: usize,
}

impl ScopeState {
    /// Events of a rank that were received and are not yet visible.
    #[must_use]
    pub fn pending(&self, rank: Rank) -> u64 {
        self.pending.get(&rank).copied().unwrap_or(0)
    }

    /// How many ranks' predictions have gone wrong.
    pub(crate) fn drifting(&self) -> usize {
        self.feedback.values().filter(|state| state.drifting.is_some()).count()
    }

    /// What a rank's engine has said that it had cached, if it has.
    #[must_use]
    pub fn feedback(&self, rank: Rank) -> Option<FeedbackState> {
        self.feedback.get(&rank).copied()
    }
}

impl Indexer {
    /// An indexer that knows nothing yet.
    #[must_use]
    pub fn new(limits: Limits, clock: Clock) -> Indexer {
        Indexer {
            clock,
            limits,
            scopes: RwLock::default(),
            streams: RwLock::default(),
            next_source: AtomicU32::new(0),
        }
    }

    /// What this indexer takes in.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Its clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Binds a stream to its scope. Binding the same stream again gives the same one.
    ///
    /// # Errors
    /// [`BindError`] where it contradicts what is bound already, or a limit is reached.
    pub fn bind(&self, stream: Stream) -> Result<Arc<BoundStream>, BindError> {
        let mut streams = self.streams.write();
        if let Some(bound) = streams.get(&stream.name) {
            let same = bound.stream == stream;
            return if same {
                Ok(Arc::clone(bound))
            } else {
                Err(BindError::NameTaken { name: stream.name })
            };
        }
        let scope = self.scope(&stream)?;
        let source = Source::new(
            self.next_source.fetch_add(1, Ordering::Relaxed),
            &stream,
            milliseconds(self.limits.conflict_silence),
        );
        let bound = Arc::new(BoundStream { source, scope, stream, let_go: CancellationToken::new() });
        telemetry::introduce(&bound);
        streams.insert(bound.stream.name.clone(), Arc::clone(&bound));
        Ok(bound)
    }

    /// The bound stream of that name.
    #[must_use]
    pub fn stream(&self, name: &str) -> Option<Arc<BoundStream>> {
        self.streams.read().get(name).cloned()
    }

    /// How many streams are bound.
    #[must_use]
    pub fn stream_count(&self) -> usize {
        self.streams.read().len()
    }

    /// How a scope's prompts are cut and hashed. One that is not known would be created plain.
    ///
    /// # Errors
    /// [`BindError::NoBlockSize`].
    pub fn hashing(&self, scope: &Scope) -> Result<Hashing, BindError> {
        let Scope { block_size, .. } = *scope;
        if block_size == 0 {
            return Err(BindError::NoBlockSize { name: direct_name(scope) });
        }
        let known = self.scopes.read().get(scope).map(|known| known.hashing);
        Ok(known.unwrap_or(Hashing { block_size, eagle: false }))
    }

    /// The stream by which a program hands in events of a scope itself. Bound when it is first asked for, and with
    /// it the scope.
    ///
    /// # Errors
    /// As [`Indexer::bind`].
    pub fn direct(&self, scope: &Scope) -> Result<Arc<BoundStream>, BindError> {
        let eagle = self.hashing(scope)?.eagle;
        self.bind(Stream { eagle, ..Stream::new(direct_name(scope), scope.clone(), Format::Direct) })
    }

    fn scope(&self, stream: &Stream) -> Result<Arc<ScopeIndex>, BindError> {
        let Stream { name, scope, eagle, .. } = stream;
        if scope.block_size == 0 {
            return Err(BindError::NoBlockSize { name: name.clone() });
        }
        let mut scopes = self.scopes.write();
        if let Some(known) = scopes.get(scope) {
            let expected = known.hashing.eagle;
            return if expected == *eagle {
                Ok(Arc::clone(known))
            } else {
                Err(BindError::OtherHashing { name: name.clone(), expected, got: *eagle })
            };
        }
        if scopes.len() >= self.limits.scopes {
            return Err(BindError::ScopesFull { limit: self.limits.scopes });
        }
        let (writer, reader) = index(scope.block_size, self.limits.index);
        let pending: Arc<Pending> = Arc::default();
        let created = Arc::new(ScopeIndex {
            scope: scope.clone(),
            hashing: Hashing { block_size: scope.block_size, eagle: *eagle },
            reader,
            mirror: Mutex::new(Mirror::new(writer, self.clock.clone(), Arc::clone(&pending))),
            pending,
            feedback: Feedback::default(),
            unreached: Unreached::default(),
        });
        scopes.insert(scope.clone(), Arc::clone(&created));
        Ok(created)
    }

    /// Decodes a message and applies it, as one version.
    ///
    /// # Errors
    /// [`ApplyError`] where it does not decode or is not of its stream's format.
    pub fn apply(&self, stream: &BoundStream, message: Message<'_>) -> Result<Applied, ApplyError> {
        let Committed { applied, refused } = self.receive(stream, [message])?.commit()?;
        refused.into_iter().next().map_or(Ok(applied), |(_, error)| Err(error))
    }

    /// Decodes messages that have come together. From here until they are committed their events count as pending.
    ///
    /// # Errors
    /// [`ApplyError::OtherFormat`]. A message that does not decode shows only when it is committed.
    pub fn receive<'a, 'm>(
        &self,
        stream: &'a BoundStream,
        messages: impl IntoIterator<Item = Message<'m>>,
    ) -> Result<Received<'a>, ApplyError> {
        Received::decode(stream, messages)
    }

    /// Gives up on what others have waited for long enough, frames or answers of engines: what is missing is lost, and
    /// what has waited is applied, which is what it returns. [`Feeds`](crate::feed::Feeds) call this; without them, call it
    /// every 50 ms or so.
    pub fn tick(&self) -> Applied {
        let mut all = Applied::default();
        let scopes = self.scope_indexes();
        for scope in scopes {
            let mut mirror = scope.mirror.lock();
            let applied = mirror.tick();
            let gone = self.limits.gone_after.map_or(0, |after| mirror.remove_silent(milliseconds(after)));
            drop(mirror);
            telemetry::count_gone(gone);
            for (source, applied) in applied {
                self.count(source, &applied);
                all.add(applied);
            }
        }
        all
    }

    /// Counts what was done to a source's ranks.
    pub(crate) fn count(&self, source: u32, applied: &Applied) {
        if let Some(stream) = self.streams.read().values().find(|stream| stream.source.id == source) {
            telemetry::count_applied(stream, applied);
        }
    }

    /// Applies events of one rank that a program hands in, as one version. See [`Indexer::direct`].
    ///
    /// `first_event_id` numbers the first of them, counted from 1 in the rank's life, and the others follow. Without
    /// it nothing shows whether anything is missing, and the rank's numbers are a lower bound.
    ///
    /// # Errors
    /// [`ApplyError::OtherFormat`] where the stream is not a direct one.
    pub fn apply_events(
        &self,
        stream: &BoundStream,
        rank: Rank,
        first_event_id: Option<u64>,
        events: &[Event],
    ) -> Result<Applied, ApplyError> {
        match &stream.stream.format {
            Format::Direct => {
                let applied = stream.mirror()?.apply_events(stream.source, rank, first_event_id, events);
                telemetry::count_applied(stream, &applied);
                Ok(applied)
            }
            format @ (Format::Dynamo | Format::Engine(_)) => Err(ApplyError::OtherFormat {
                stream: stream.stream.name.clone(),
                expected: format.describe(),
                got: Format::Direct.describe(),
            }),
        }
    }

    /// Every scope's index, in order.
    pub(crate) fn scope_indexes(&self) -> Vec<Arc<ScopeIndex>> {
        self.scopes.read().values().cloned().collect()
    }

    /// A scope's index, if it is known.
    pub(crate) fn scope_index(&self, scope: &Scope) -> Option<Arc<ScopeIndex>> {
        self.scopes.read().get(scope).cloned()
    }

    /// The names of streams, by their source.
    pub(crate) fn stream_names(&self) -> HashMap<u32, String> {
        self.streams.read().values().map(|stream| (stream.source.id, stream.stream.name.clone())).collect()
    }

    /// All scopes, in order, each as it is now.
    #[must_use]
    pub fn scopes(&self) -> Vec<ScopeState> {
        let scopes = self.scope_indexes();
        let state = |index: Arc<ScopeIndex>| {
            let view = index.reader.view();
            let ranks: Vec<_> = view.ranks().collect();
            ScopeState {
                scope: index.scope.clone(),
                eagle: index.hashing.eagle,
                version: view.version(),
                size: view.size(),
                feedback: index.feedback.states(&ranks),
                unreached: index.unreached.count(&ranks),
                ranks,
                pending: index.pending.counts(),
            }
        };
        scopes.into_iter().map(state).collect()
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The name of the stream by which events of a scope are handed in.
pub(crate) fn direct_name(scope: &Scope) -> String {
    format!("direct/{}", serde_json::json!(scope))
}
