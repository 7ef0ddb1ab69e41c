//! Threads that answer run soon after they wake, whatever else the machine does.
//!
//! Linux lets a thread that runs finish its slice, 1 to 3 ms, before one that has just woken has its turn, unless that one
//! asks for shorter slices, and so to be interrupted sooner in turn. It needs no privilege for that, and gets no larger part of
//! the processor. Kernels before 6.12 take no notice. Figures: docs/decisions/0007-feeds.md.

/// Asks for short slices for this thread, which answers, and for those that it starts from then on. Best called once, where it
/// starts. Does nothing to a thread that its owner has scheduled in another way (batch, idle, real time), and nothing on
/// other systems than Linux. Where the system refuses, that is logged at debug level, and the thread stays as it is.
pub fn shorten() {
    #[cfg(target_os = "linux")]
    if let Err(error) = linux::shorten() {
        tracing::debug!("no short slices for threads that answer: {error}");
    }
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "no library has this call; it halves the p99 of lookups beside a full load")]
mod linux {
    use std::io;

    /// The shortest slice that there is: longer than an answer takes.
    const SLICE_NS: u64 = 100_000;
    /// As the system calls have them.
    const THIS_THREAD: libc::c_long = 0;
    const NO_FLAGS: libc::c_long = 0;

    pub(super) fn shorten() -> io::Result<()> {
        let mut attributes = attributes()?;
        if attributes.sched_policy == libc::SCHED_OTHER.cast_unsigned() {
            attributes.sched_runtime = SLICE_NS;
            set_attributes(&attributes)?;
        }
        Ok(())
    }

    /// How this thread is scheduled.
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
        // SAFETY: the kernel writes at most `size` bytes to where `attributes` is, which has them, is mutable and lives on; it is
        // of plain numbers, for which any bytes are valid.
        let result = unsafe {
            libc::syscall(libc::SYS_sched_getattr, THIS_THREAD, &raw mut attributes, size, NO_FLAGS)
        };
        if result == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
    }

    fn set_attributes(attributes: &libc::sched_attr) -> io::Result<()> {
        // SAFETY: the kernel reads as many bytes as `attributes.size` says, which is how many there are, and keeps no pointer to
        // them.
        let result =
            unsafe { libc::syscall(libc::SYS_sched_setattr, THIS_THREAD, &raw const *attributes, NO_FLAGS) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_thread_that_asks_has_short_slices_and_nothing_else_is_changed() {
            std::thread::spawn(|| {
                let before = attributes().unwrap();
                shorten().unwrap();
                let after = attributes().unwrap();
                // An older kernel has nothing to say of slices.
                let has_slices =
                    before.sched_policy == libc::SCHED_OTHER.cast_unsigned() && before.sched_runtime > 0;
                let expected = if has_slices { SLICE_NS } else { before.sched_runtime };
                assert_eq!(after.sched_runtime, expected);
                let rest = |of: libc::sched_attr| {
                    let of_fair = (of.sched_policy, of.sched_flags, of.sched_nice);
                    (of_fair, of.sched_priority, of.sched_deadline, of.sched_period)
                };
                assert_eq!(rest(after), rest(before));
            })
            .join()
            .unwrap();
        }
    }
}
