//! The figures as tables in Markdown.

use std::fmt::Write;

use crate::lines::{Lines, Peer, Step};

/// All tables that the lines give.
pub(crate) fn tables(lines: &Lines) -> String {
    let mut text = String::new();
    if !lines.peers.is_empty() {
        text.push_str(
            "| workload | ranks | index | p50 / p99 / p99.9 ns | mean ns | applied Mblocks/s | bytes | allocs | over \
             / under |\n|---|---|---|---|---|---|---|---|---|\n",
        );
        let mut last = None;
        for line in &lines.peers {
            let group = (line.workload.as_str(), line.ranks);
            peer(&mut text, line, last.replace(group) != Some(group));
        }
    }
    if !lines.growth.is_empty() {
        text.push_str(if text.is_empty() { "" } else { "\n" });
        text.push_str(
            "| held blocks | prompts | runs | p50 / p99 / p99.9 ns | applied Mblocks/s | bytes | RSS MB |\n\
             |---|---|---|---|---|---|---|\n",
        );
        lines.growth.iter().for_each(|step| growth(&mut text, step));
    }
    text
}

fn peer(text: &mut String, line: &Peer, is_first: bool) {
    let (workload, ranks) =
        if is_first { (line.workload.as_str(), grouped(line.ranks as f64)) } else { ("", String::new()) };
    let Peer { index, lookup_ns: lookup, applied_mblocks_s, bytes_per_held_block, .. } = line;
    let times = [lookup.p50, lookup.p99, lookup.p999].map(grouped).join(" / ");
    let (mean, over, under) = (grouped(lookup.mean), grouped(line.over as f64), grouped(line.under as f64));
    let allocations = line.allocs_per_lookup;
    writeln!(
        text,
        "| {workload} | {ranks} | {index} | {times} | {mean} | {applied_mblocks_s:.1} | {bytes_per_held_block:.1} | \
         {allocations:.2} | {over} / {under} |"
    )
    .expect("a string takes everything");
}

fn growth(text: &mut String, step: &Step) {
    let Step { lookup_ns: lookup, applied_mblocks_s, bytes_per_held_block, .. } = step;
    let times = [lookup.p50, lookup.p99, lookup.p999].map(grouped).join(" / ");
    let (held, prompts) = (grouped(step.held_blocks as f64), grouped(step.prompts as f64));
    let (runs, rss) = (grouped(step.runs as f64), grouped(step.rss_bytes as f64 / 1e6));
    writeln!(
        text,
        "| {held} | {prompts} | {runs} | {times} | {applied_mblocks_s:.1} | {bytes_per_held_block:.1} | {rss} |"
    )
    .expect("a string takes everything");
}

/// A whole number with a comma at each thousand.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::tests::{PEER, STEP};

    #[test]
    fn a_workload_is_named_once_and_thousands_have_commas() {
        let other = PEER.replace("kvtide", "kv-index").replace("900", "1234567");
        let lines = Lines::read(&[PEER, &other, STEP].join("\n")).expect("three lines");
        let text = tables(&lines);
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows[2], "| churn | 64 | kvtide | 200 / 900 / 1,500 | 210 | 20.5 | 25.2 | 0.00 | 0 / 0 |");
        assert!(rows[3].starts_with("|  |  | kv-index | 200 / 1,234,567 / 1,500 |"), "{text}");
        assert_eq!(rows[7], "| 100,000 | 99 | 100 | 200 / 900 / 1,500 | 20.5 | 16.4 | 6 |");
    }
}
