//! What a storm costs the machine: memory, and the processor's time by thread.

use std::fs;

/// Threads that follow streams, by their name.
pub(super) const FOLLOWING: &str = "storm-follow";

/// Seconds of the processor's time that this thread has taken so far. 0 where the system does not say.
pub(super) fn own_seconds() -> f64 {
    seconds(&fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default())
}

/// The same of all threads of a name that have not ended.
pub(super) fn seconds_of(name: &str) -> f64 {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return 0.0 };
    let of_thread = |path: std::path::PathBuf| {
        let is_it = fs::read_to_string(path.join("comm")).is_ok_and(|found| found.trim_end() == name);
        is_it.then(|| seconds(&fs::read_to_string(path.join("schedstat")).unwrap_or_default()))
    };
    threads.flatten().filter_map(|thread| of_thread(thread.path())).sum()
}

/// The first number of a thread's statistics is its time on a processor, in nanoseconds.
fn seconds(statistics: &str) -> f64 {
    let nanoseconds = statistics.split(' ').next().and_then(|time| time.parse::<f64>().ok());
    nanoseconds.unwrap_or(0.0) / 1e9
}

/// Megabytes that this process holds in memory; none where the system does not say.
pub(super) fn rss_mb() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes / 1024.0)
}
