//! Tells a request router, for one prompt and every inference worker, how much of the prompt's KV cache the worker
//! already holds on GPU, in host memory and on disk, and how fresh that knowledge is.
//!
//! An [`Indexer`] follows any number of [`Stream`]s, each bound to the [`Scope`] of its blocks. Messages go in by
//! [`Indexer::apply`] (or by [`feed::Feeds`], which bring them from NATS and ZMQ), questions by [`Indexer::overlap`].
//!
//! ```
//! use kvtide::{Clock, Indexer, Limits, PromptContent, Query, Scope};
//! use kvtide_events::{Hashing, sequence_hashes};
//! use kvtide_radix::{Block, Blocks, Event, Layer, Rank, Seed, Stored};
//!
//! let indexer = Indexer::new(Limits::default(), Clock::default());
//! let stream = indexer.direct(&Scope::new("llama-3.1-70b", 64))?;
//!
//! // Worker 7 says that it holds the first 128 tokens of a prompt.
//! let tokens: Vec<u32> = (0..200).collect();
//! let hashes: Vec<_> = Hashing { block_size: 64, eagle: false }.block_hashes(&tokens[..128], &[], Seed::PLAIN).collect();
//! let names = sequence_hashes(hashes.iter().copied());
//! let blocks = names.zip(&hashes).map(|(name, &content)| Block { name, content }).collect();
//! let event = Event::Stored(Stored { layer: Layer::GPU, parent: None, blocks: Blocks::Hashed(blocks) });
//! indexer.apply_events(&stream, Rank { worker_id: 7, dp_rank: 0 }, Some(1), &[event])?;
//!
//! let answer = indexer.overlap(&Query { prompt: PromptContent::Tokens(tokens.into()), ..Query::default() })?;
//! assert_eq!(answer.ranks[0].reach_tokens.map(|reach| reach.gpu), Some(128));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Freshness
//!
//! Every rank's answer says how to read its numbers ([`KnowledgeState`]) and how old they are ([`Freshness`]).
//! A rank of which nothing is known has no reach at all, which is not a reach of 0.
//!
//! # Threads
//!
//! An [`Indexer`] is shared freely. Each scope has one writer at a time; scopes apply in parallel. Threads of a router that share
//! their cores with others do well to [ask for short slices](time_slice::shorten).

pub mod access;
mod answer;
pub mod capture;
mod clock;
pub mod config;
pub mod feed;
mod feedback;
mod freshness;
mod indexer;
mod instance;
mod limits;
mod mirror;
mod pending;
mod query;
mod readiness;
mod scope;
pub mod service;
pub mod serving;
pub mod snapshot;
mod stream;
pub mod telemetry;
pub mod time_slice;
pub mod traces;
mod unreached;
pub mod watched;

pub use answer::{Answer, AnswerScope, KnowledgeState, Prompt, RankAnswer, ReachTokens, Reason};
pub use clock::Clock;
pub use feedback::{Drift, FeedbackState, Observation};
pub use freshness::{Freshness, FreshnessLimits, Unusable};
pub use indexer::{
    AnnounceError, ApplyError, BindError, BoundStream, Committed, Indexer, Message, Received, RegisterError,
    ScopeState,
};
pub use instance::{Instance, InstanceError};
pub use limits::Limits;
pub use mirror::{Announced, Applied, IndexAnswer, IndexRequest, Part, ReplayRequest};
pub use query::{PromptContent, PromptMedia, Query, QueryError};
pub use readiness::{NotReady, Readiness};
pub use scope::{Scope, ScopeQuery};
pub use stream::{EngineStream, Format, GapPolicy, Stream};
