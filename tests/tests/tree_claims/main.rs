//! What the tree promises, claim by claim: faults of published indexes that it must not have, and its own rules
//! where they are easy to get wrong.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first step that cannot be")]

mod growth;
mod holes;
mod layers;
mod names;
mod parking;
mod scene;
mod versions;
