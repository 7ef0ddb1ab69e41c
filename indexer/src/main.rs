//! The `kvtide` command.

mod cli;

use std::process::ExitCode;

/// With glibc's allocator threads that answer wait for those that follow events, several times a question. Figures:
/// docs/decisions/0007-feeds.md.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    cli::run()
}
