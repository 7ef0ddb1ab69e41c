//! Why a frame or batch was refused. Errors name positions, kinds and numbers, never content.

/// A frame or batch that does not decode. It is rejected whole.
// A pointer: every function of the decoder returns it, and most values are read in one or two registers.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("byte {}: {}", .0.offset, .0.problem)]
pub struct DecodeError(Box<Fault>);

#[derive(Clone, PartialEq, Eq, Debug)]
struct Fault {
    offset: usize,
    problem: Problem,
}

/// What is wrong, with what was got and what was expected.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Problem {
    /// The input ends early, or a declared length is more than what is left.
    #[error("the input ends early: {needed} needed, {left} bytes left")]
    Truncated {
        /// Bytes or elements that were to come.
        needed: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// A value of another kind.
    #[error("expected {expected}, got {got}")]
    Unexpected {
        /// What should stand there.
        expected: &'static str,
        /// The kind of value that stands there.
        got: &'static str,
    },
    /// The one byte that MessagePack never uses.
    #[error("expected a value, got the reserved byte 0xc1")]
    Reserved,
    /// A hash as bytes that are too few.
    #[error("expected a hash of at least 8 bytes, got {bytes}")]
    ShortHash {
        /// Its bytes.
        bytes: usize,
    },
    /// A field that the format always has.
    #[error("`{field}` is missing")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A number outside what the field can be.
    #[error("`{field}` is {got}, at most {limit} is possible")]
    TooLarge {
        /// The field.
        field: &'static str,
        /// What it says.
        got: u64,
        /// The largest possible value.
        limit: u64,
    },
    /// A worker whose blocks are of another size than its scope's.
    #[error("blocks of {got} tokens in a scope of {expected}-token blocks")]
    BlockSize {
        /// The scope's block size in tokens.
        expected: u32,
        /// The event's block size in tokens.
        got: u64,
    },
    /// Tokens that do not fill the blocks they are for.
    #[error("{blocks} blocks of {block_size} tokens need {expected} tokens, got {got}")]
    TokenCount {
        /// Blocks named.
        blocks: usize,
        /// Tokens a block.
        block_size: u32,
        /// Tokens needed.
        expected: usize,
        /// Tokens given.
        got: usize,
    },
}

impl DecodeError {
    pub(crate) fn new(offset: usize, problem: Problem) -> Self {
        DecodeError(Box::new(Fault { offset, problem }))
    }

    /// Where in the input it was noticed, in bytes from its start.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.0.offset
    }

    /// What is wrong.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.0.problem
    }
}
