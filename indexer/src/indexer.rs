//! The index of a whole fleet: streams bound to scopes, each scope mirrored by itself.

mod received;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use kvtide_events::{DecodeError, Hashing};
use kvtide_radix::{Event, Rank, RankState, RanksFull, Reader, Size, index};
use parking_lot::{Mutex, RwLock};
use tracing::warn;

use crate::{
    Answer, Applied, Clock, FeedbackState, Limits, Observation, Query, QueryError, Scope, ScopeQuery,
    feedback::Feedback,
    mirror::{Mirror, ReplayRequest, ReplayedBatch, Source},
    pending::Pending,
    query::Moment,
    stream::{Format, Stream},
    telemetry,
    unreached::Unreached,
};

pub use received::{Message, Received};

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
struct ScopeIndex {
    scope: Scope,
    hashing: Hashing,
    reader: Reader,
    mirror: Mutex<Mirror>,
    /// Events received and not yet visible.
    pending: Arc<Pending>,
    feedback: Feedback,
    unreached: Unreached,
}

/// A stream that belongs to an indexer. Hand its messages to [`Indexer::apply`].
pub struct BoundStream {
    stream: Stream,
    source: Source,
    scope: Arc<ScopeIndex>,
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

/// Why a rank cannot be registered.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegisterError {
    /// Its scope cannot be.
    #[error(transparent)]
    Scope(#[from] BindError),
    /// There is no room for another rank.
    #[error(transparent)]
    RanksFull(#[from] RanksFull),
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
        let source = Source::new(self.next_source.fetch_add(1, Ordering::Relaxed), &stream);
        let bound = Arc::new(BoundStream { source, scope, stream });
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
        let created = Arc::new(ScopeIndex {
            scope: scope.clone(),
            hashing: Hashing { block_size: scope.block_size, eagle: *eagle },
            reader,
            mirror: Mutex::new(Mirror::new(writer, self.clock.clone())),
            pending: Arc::default(),
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
        self.receive(stream, message)?.commit()
    }

    /// Decodes a message. From here until it is committed its events count as pending.
    ///
    /// # Errors
    /// [`ApplyError::OtherFormat`]. A message that does not decode is an error only when it is committed.
    pub fn receive<'a>(
        &self,
        stream: &'a BoundStream,
        message: Message<'_>,
    ) -> Result<Received<'a>, ApplyError> {
        Received::decode(stream, message)
    }

    /// What to ask an engine for, of what it has published before: at every start and connection, where a batch is
    /// missing ([`Applied::waiting`]), and now and then, to prove that nothing is. The answer is all batches that it has
    /// from [`ReplayRequest::from`] on.
    #[must_use]
    pub fn replay_request(&self, stream: &BoundStream) -> ReplayRequest {
        stream.scope.mirror.lock().replay_request(stream.source)
    }

    /// Whether a rank of the stream waits for what it has missed, so that its engine has to be asked.
    #[must_use]
    pub fn is_recovering(&self, stream: &BoundStream) -> bool {
        stream.scope.mirror.lock().is_recovering(stream.source)
    }

    /// Applies what an engine has answered, numbers and batches in their order, as one version. What was applied before
    /// is passed over. It proves that everything is applied that had been published when the request was made.
    ///
    /// # Errors
    /// [`ApplyError::OtherFormat`] where the stream is not an engine's.
    pub fn apply_replay<B: AsRef<[u8]>>(
        &self,
        stream: &BoundStream,
        request: ReplayRequest,
        batches: impl IntoIterator<Item = (u64, B)>,
    ) -> Result<Applied, ApplyError> {
        let Format::Engine(engine) = &stream.stream.format else {
            return Err(ApplyError::OtherFormat {
                stream: stream.stream.name.clone(),
                expected: stream.stream.format.describe(),
                got: "an engine's replay",
            });
        };
        let decoder = engine.engine(stream.stream.scope.block_size);
        let replayed = |(sequence, payload): (u64, B)| ReplayedBatch {
            sequence,
            digest: digest(payload.as_ref()),
            batch: decoder.decode(payload.as_ref()).ok(),
        };
        let batches = batches.into_iter().map(replayed).collect();
        let applied = stream.scope.mirror.lock().apply_replay(stream.source, engine, request, batches);
        telemetry::count_message(stream, &applied);
        Ok(applied)
    }

    /// States that everything had been received that the stream's bus had delivered at `until_ms` of the indexer's steady
    /// clock, and is applied now. Where messages may have been lost at `doubted_ms`, it says nothing of a rank of which
    /// nothing has come in order since.
    pub fn verify(&self, stream: &BoundStream, until_ms: u64, doubted_ms: Option<u64>) {
        stream.scope.mirror.lock().verify(stream.source, until_ms, doubted_ms);
    }

    /// Gives up on what others have waited for long enough, frames or answers of engines: what is missing is lost, and
    /// what has waited is applied. [`Feeds`](crate::feed::Feeds) call this; without them, call it every 50 ms or so.
    pub fn tick(&self) {
        let scopes: Vec<_> = self.scopes.read().values().cloned().collect();
        for scope in scopes {
            let mut mirror = scope.mirror.lock();
            let applied = mirror.tick();
            let gone = self.limits.gone_after.map_or(0, |after| mirror.remove_silent(milliseconds(after)));
            drop(mirror);
            telemetry::count_gone(gone);
            for (source, applied) in applied {
                if let Some(stream) = self.streams.read().values().find(|stream| stream.source.id == source) {
                    telemetry::count_message(stream, &applied);
                }
            }
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
                let applied =
                    stream.scope.mirror.lock().apply_events(stream.source, rank, first_event_id, events);
                telemetry::count_message(stream, &applied);
                Ok(applied)
            }
            format @ (Format::Dynamo | Format::Engine(_)) => Err(ApplyError::OtherFormat {
                stream: stream.stream.name.clone(),
                expected: format.describe(),
                got: Format::Direct.describe(),
            }),
        }
    }

    /// Makes ranks of a scope known from which nothing has come yet, and which nobody knows otherwise: an idle worker that
    /// was there before says nothing. They are `unknown` until something comes. Returns how many were new. A scope that is
    /// not known is created.
    ///
    /// # Errors
    /// [`RegisterError`], for the first rank that does not fit. Those before it are known then.
    pub fn register(&self, scope: &Scope, ranks: &[Rank]) -> Result<usize, RegisterError> {
        let stream = self.direct(scope)?;
        let mut mirror = stream.scope.mirror.lock();
        let mut new = 0;
        for &rank in ranks {
            new += usize::from(mirror.register(rank)?);
        }
        Ok(new)
    }

    /// Lets a worker go: all its ranks in all scopes, or that data-parallel rank, with everything that they hold. Returns
    /// how many ranks these were. What it publishes later makes it known again, in another generation.
    pub fn remove(&self, worker_id: u64, dp_rank: Option<u32>) -> usize {
        let scopes: Vec<_> = self.scopes.read().values().cloned().collect();
        let remove = |scope: &Arc<ScopeIndex>| {
            scope.feedback.forget(worker_id, dp_rank);
            scope.mirror.lock().remove(worker_id, dp_rank)
        };
        scopes.iter().map(remove).sum()
    }

    /// Notes how many tokens of a request a rank was predicted to have, and how many its engine says that it had. A
    /// difference of a block is not counted: engines compute a prompt's last token anew.
    ///
    /// # Errors
    /// [`QueryError`] where no scope fits, or several do.
    pub fn observe(
        &self,
        scope: &ScopeQuery,
        rank: Rank,
        predicted_tokens: u32,
        cached_tokens: u32,
    ) -> Result<FeedbackState, QueryError> {
        let scope = self.find(scope)?;
        let tolerance_tokens = scope.scope.block_size;
        let observation = Observation { predicted_tokens, cached_tokens, tolerance_tokens };
        let [before, after] = scope.feedback.note(rank, observation);
        telemetry::count_observation(&before, &after);
        if let (None, Some(drift)) = (before.drifting, after.drifting) {
            let Rank { worker_id, dp_rank } = rank;
            warn!(worker_id, dp_rank, ?drift, "predictions of a rank's cached tokens have gone wrong");
        }
        Ok(after)
    }

    /// How much of a prompt every rank holds.
    ///
    /// # Errors
    /// [`QueryError`] where no scope fits, several do, or the prompt is too long.
    pub fn overlap(&self, query: &Query) -> Result<Answer, QueryError> {
        let started = Instant::now();
        let answer = self.answer(query, started);
        telemetry::count_query(started.elapsed(), answer.is_ok());
        answer
    }

    fn answer(&self, query: &Query, started: Instant) -> Result<Answer, QueryError> {
        let scope = self.find(&query.scope)?;
        let (got, limit) = (query.tokens(scope.scope.block_size), self.limits.query_tokens);
        if got > limit {
            return Err(QueryError::TooManyTokens { got, limit });
        }
        let pending = scope.pending.counts();
        let mut answer = query.answer(&Moment {
            scope: &scope.scope,
            hashing: scope.hashing,
            view: scope.reader.view(),
            steady_ms: self.clock.steady_ms(),
            unreached: scope.unreached.watch(),
            pending: &|rank| pending.get(&rank).copied().unwrap_or(0),
        });
        answer.collected_at_ms = self.clock.wall_ms();
        answer.took_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        Ok(answer)
    }

    fn find(&self, query: &ScopeQuery) -> Result<Arc<ScopeIndex>, QueryError> {
        let scopes = self.scopes.read();
        let fitting: Vec<&Arc<ScopeIndex>> =
            scopes.values().filter(|index| query.fits(&index.scope)).collect();
        match fitting.as_slice() {
            [] => Err(QueryError::UnknownScope { known: scopes.len() }),
            [one] => Ok(Arc::clone(one)),
            several => {
                let differences =
                    Scope::differences(&several.iter().map(|index| &index.scope).collect::<Vec<_>>());
                Err(QueryError::SeveralScopes { fitting: several.len(), differences })
            }
        }
    }

    /// All scopes, in order, each as it is now.
    #[must_use]
    pub fn scopes(&self) -> Vec<ScopeState> {
        let scopes: Vec<_> = self.scopes.read().values().cloned().collect();
        let state = |index: Arc<ScopeIndex>| {
            let view = index.reader.view();
            ScopeState {
                scope: index.scope.clone(),
                eagle: index.hashing.eagle,
                version: view.version(),
                size: view.size(),
                ranks: view.ranks().collect(),
                pending: index.pending.counts(),
                feedback: index.feedback.states(),
                unreached: index.unreached.count(),
            }
        };
        scopes.into_iter().map(state).collect()
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Tells a batch from another one of the same number.
fn digest(payload: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(payload)
}

/// The name of the stream by which events of a scope are handed in.
fn direct_name(scope: &Scope) -> String {
    format!("direct/{}", serde_json::json!(scope))
}
