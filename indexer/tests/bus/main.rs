//! Dynamo's event plane: frames as its own crate encodes them, in and out of order, on a real bus and without one.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first step that cannot be")]

mod announced;
mod claims;
mod credentials;
mod frames;
mod handover;
mod letting_go;
mod nats;
mod proofs;
mod record;
mod reorder;
mod requests;
mod storms;
