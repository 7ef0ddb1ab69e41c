//! Threads that answer run soon after they wake, whatever else the machine does.
//!
//! Linux lets a thread that runs finish its slice, 3 ms or so, before one that has just woken has its turn, unless that one
//! asks for shorter slices, and so to be interrupted sooner in turn. It needs no privilege for that, and gets no larger part of
//! the processor. Kernels before 6.12 take no notice. Figures: docs/decisions/0007-feeds.md.
#![expect(
    unsafe_code,
    reason = "no library has this call; a lookup's p99 beside a full load is a third of what it was"
)]

use std::io;

/// The shortest slice that there is: longer than an answer takes.
#[cfg(target_os = "linux")]
const SLICE_NS: u64 = 100_000;

/// Asks for short slices for this thread, which answers. Best called once, where it starts. Does nothing to a thread that is
/// scheduled by its owner in another way (real time, idle), and nothing on other systems than Linux.
///
/// # Errors
/// What the system says, where it refuses. Nothing has changed then.
#[cfg(target_os = "linux")]
pub fn shorten() -> io::Result<()> {
    let mut attributes = attributes()?;
    if attributes.sched_policy == libc::SCHED_OTHER.cast_unsigned() {
        attributes.sched_runtime = SLICE_NS;
        set_attributes(&attributes)?;
    }
    Ok(())
}

/// Does nothing here.
///
/// # Errors
/// None.
#[cfg(not(target_os = "linux"))]
pub fn shorten() -> io::Result<()> {
    Ok(())
}

/// How this thread is scheduled.
#[cfg(target_os = "linux")]
fn attributes() -> io::Result<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as u32;
    let mut attributes = libc::sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel writes at most `size` bytes to where `attributes` is, which has them, is mutable and lives on; it is of
    // plain numbers, for which any bytes are valid. Thread 0 is the one that calls.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if result == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

#[cfg(target_os = "linux")]
fn set_attributes(attributes: &libc::sched_attr) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes as `attributes.size` says, which is how many there are, and keeps no pointer to them.
    // Thread 0 is the one that calls.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attributes, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// What a thread of its own has before and after it asked, and what else is set.
    #[test]
    fn a_thread_that_asks_has_shorter_slices_and_nothing_else_is_changed() {
        std::thread::spawn(|| {
            let before = attributes().unwrap();
            shorten().unwrap();
            let after = attributes().unwrap();
            assert_eq!(
                (after.sched_policy, after.sched_flags, after.sched_nice),
                (before.sched_policy, before.sched_flags, before.sched_nice)
            );
            // An older kernel says nothing of slices.
            assert!(after.sched_runtime == SLICE_NS || after.sched_runtime == before.sched_runtime);
        })
        .join()
        .unwrap();
    }
}
