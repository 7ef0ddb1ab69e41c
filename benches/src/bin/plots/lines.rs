//! The JSON lines of `peers` and `growth`.

use std::collections::HashSet;

use kvtide_benches::Latency;
use serde::Deserialize;

/// What a file has.
#[derive(Default)]
pub(crate) struct Lines {
    pub(crate) peers: Vec<Peer>,
    pub(crate) growth: Vec<Step>,
}

/// A line of `peers --json`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Peer {
    pub(crate) workload: String,
    pub(crate) ranks: usize,
    pub(crate) index: String,
    pub(crate) lookup_ns: Latency,
    pub(crate) applied_mblocks_s: f64,
    pub(crate) bytes_per_held_block: f64,
    pub(crate) allocs_per_lookup: f64,
    pub(crate) over: usize,
    pub(crate) under: usize,
}

/// A line of `growth --json`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    pub(crate) held_blocks: u64,
    pub(crate) prompts: u64,
    pub(crate) runs: usize,
    pub(crate) lookup_ns: Latency,
    pub(crate) applied_mblocks_s: f64,
    pub(crate) bytes_per_held_block: f64,
    pub(crate) rss_bytes: u64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Peer(Peer),
    Growth(Step),
}

/// A file that cannot be drawn.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("line {number} is {got:?}, expected one of `peers --json` or of `growth --json`")]
    Unknown { number: usize, got: String },
    #[error("line {number} is the second one of {index} on {workload} with {ranks} ranks, expected one")]
    Twice { number: usize, index: String, workload: String, ranks: usize },
    #[error("no line, expected some of `peers --json` or of `growth --json`")]
    Empty,
}

impl Lines {
    pub(crate) fn read(text: &str) -> Result<Lines, Fault> {
        let mut lines = Lines::default();
        let mut seen = HashSet::new();
        for (number, got) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
            match serde_json::from_str(got) {
                Ok(Line::Peer(line)) => {
                    let (index, workload, ranks) = (line.index.clone(), line.workload.clone(), line.ranks);
                    if !seen.insert((index.clone(), workload.clone(), ranks)) {
                        return Err(Fault::Twice { number, index, workload, ranks });
                    }
                    lines.peers.push(line);
                }
                Ok(Line::Growth(step)) => lines.growth.push(step),
                Err(_) => return Err(Fault::Unknown { number, got: got.to_owned() }),
            }
        }
        if seen.is_empty() && lines.growth.is_empty() { Err(Fault::Empty) } else { Ok(lines) }
    }

    /// The line of an index on a workload with so many ranks.
    pub(crate) fn find(&self, index: &str, (workload, ranks): (&str, usize)) -> Option<&Peer> {
        let is_it = |line: &&Peer| line.index == index && line.workload == workload && line.ranks == ranks;
        self.peers.iter().find(is_it)
    }

    /// The indexes, in the order in which they come.
    pub(crate) fn indexes(&self) -> Vec<&str> {
        let mut seen = HashSet::new();
        self.peers.iter().map(|line| line.index.as_str()).filter(|index| seen.insert(*index)).collect()
    }

    /// The workloads with their ranks, in the order in which they come.
    pub(crate) fn groups(&self) -> Vec<(&str, usize)> {
        let mut seen = HashSet::new();
        let groups = self.peers.iter().map(|line| (line.workload.as_str(), line.ranks));
        groups.filter(|group| seen.insert(*group)).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const PEER: &str = r#"{"workload":"churn","ranks":64,"index":"kvtide","lookup_ns":{"mean":210.5,"p50":200,"p99":900,"p999":1500},"applied_mblocks_s":20.5,"bytes_per_held_block":25.25,"allocs_per_lookup":0,"over":0,"under":0}"#;
    pub(crate) const STEP: &str = r#"{"held_blocks":100000,"prompts":99,"runs":100,"lookup_ns":{"mean":210.5,"p50":200,"p99":900,"p999":1500},"applied_mblocks_s":20.5,"bytes_per_held_block":16.4,"rss_bytes":6000000}"#;

    #[test]
    fn lines_are_told_apart_and_faults_are_told() {
        let other = PEER.replace("kvtide", "kv-index");
        let lines = Lines::read(&format!("{PEER}\n{STEP}\n\n{other}\n")).expect("three lines");
        assert_eq!((lines.peers.len(), lines.growth.len()), (2, 1));
        assert_eq!((lines.indexes(), lines.groups()), (vec!["kvtide", "kv-index"], vec![("churn", 64)]));
        let rows = [
            (String::new(), "no line"),
            (format!("{STEP}\n{{}}"), "line 2 is \"{}\""),
            (format!("{PEER}\n{PEER}"), "line 2 is the second one of kvtide on churn with 64 ranks"),
        ];
        for (text, expected) in rows {
            let fault = Lines::read(&text).err().expect(expected).to_string();
            assert!(fault.starts_with(expected), "{fault}");
        }
    }
}
