//! A real `kvtide serve`, told events and asked over HTTP. What it answers is held against the reference model.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first step that cannot be")]

mod access;
mod batch;
mod canary;
mod continuity;
mod contract;
mod dashboard;
mod dynamo;
mod filters;
mod forms;
#[path = "../bus/frames.rs"]
mod frames;
mod hostile;
mod media;
mod metrics;
mod overlap;
mod problems;
mod raw;
mod ready;
mod scopes;
mod served;
mod shape;
mod slow;
mod tls;
mod unreached;
mod vocabulary;
mod workers;
