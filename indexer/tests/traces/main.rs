//! Spans of requests, from a real `kvtide serve` to a collector: what they say and never say, and whom a collector that is away
//! disturbs.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first step that cannot be")]

mod away;
mod canary;
mod collector;
mod on_bus;
mod over_http;
