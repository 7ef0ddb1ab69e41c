//! wip
pub mod capture;
