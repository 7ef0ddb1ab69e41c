//! KV cache events as they are on the wire, decoded into the one small vocabulary of [`kvtide_radix`].
//!
//! - [`Frame`]: Dynamo's event plane.
//! - [`Engine`] and [`Batch`]: what vLLM and SGLang publish themselves.
//! - [`Hashing`]: from a prompt's tokens to the block hashes that events carry; [`PromptHasher`] for a conversation
//!   that grows.
//! - [`Cursor`]: whether a stream's numbers continue.
//!
//! Everything here is synchronous and knows neither sockets nor clocks.
//!
//! # Bad input
//!
//! Arbitrary bytes never panic. Decoding holds at most 64 bytes of memory for each byte of input and 1,024 beside
//! them, whatever lengths the input declares. A frame that does not decode is refused whole, with a [`DecodeError`]
//! that names position, kind and numbers but never content. An event of an unknown type or tier is passed over and
//! counted as [`Ignored`]; the rest of its batch is applied.
#![forbid(unsafe_code)]

mod continuity;
mod dynamo;
mod engine;
mod error;
mod medium;
mod msgpack;
mod prompt;

pub use continuity::{Cursor, Step};
pub use dynamo::{CutFrame, Frame, RouterEvent};
pub use engine::{Batch, Engine};
pub use error::{DecodeError, Problem};
pub use prompt::{
    BlockHashes, BlockMedia, HashGroup, HashGroups, Hashing, Media, PromptHasher, sequence_hashes,
};

/// Why an event was passed over although its frame decoded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Ignored {
    /// A type of event that is not known here.
    UnknownEvent,
    /// A tier or medium that is not known here.
    UnknownTier,
    /// A group of layers beyond those that are told apart.
    UnknownGroup,
    /// Blocks that stand behind others of which none is named.
    Unplaced,
    /// Blocks that a cache owner or another host holds, not the rank itself.
    OtherResidency,
    /// A residency domain that is not known here.
    UnknownResidency,
}
