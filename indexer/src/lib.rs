//! Tells a request router, for one prompt and every inference worker, how much of the prompt's KV cache the worker
//! already holds on GPU, in host memory and on disk, and how fresh that knowledge is.

mod answer;
pub mod capture;
mod clock;
pub mod config;
pub mod feed;
mod freshness;
mod indexer;
mod limits;
mod mirror;
mod query;
mod scope;
pub mod service;
mod stream;
pub mod telemetry;

pub use answer::{Answer, AnswerScope, KnowledgeState, Prompt, RankAnswer, ReachTokens};
pub use clock::Clock;
pub use freshness::Freshness;
pub use indexer::{ApplyError, BindError, BoundStream, Indexer, Message, Received, ScopeState};
pub use limits::Limits;
pub use mirror::Applied;
pub use query::{PromptContent, Query, QueryError};
pub use scope::{Scope, ScopeQuery};
pub use stream::{EngineStream, Format, Stream};
