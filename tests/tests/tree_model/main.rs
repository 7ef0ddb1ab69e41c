//! The tree against the reference model: alone on arbitrary events, and beside readers at every version.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first step that cannot be")]

mod act;
mod equals;
mod versions;
