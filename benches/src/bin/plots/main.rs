//! Draws what `peers --json` and `growth --json` printed, and writes the same as tables.

mod bars;
mod growth;
mod lines;
mod table;

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
};

use bars::Bars;
use clap::Parser;
use lines::{Lines, Peer};

/// Why nothing was drawn.
type Failed = Box<dyn Error>;

/// Draws figures as SVG, and writes tables in Markdown.
#[derive(Parser)]
struct Settings {
    /// JSON lines of `peers`, of `growth`, or of both.
    file: PathBuf,
    /// Where the plots and table.md go.
    out: PathBuf,
}

/// A figure of a line, and how it is called: file, title, unit.
type Figure = (&'static str, &'static str, &'static str, fn(&Peer) -> f64);

const FIGURES: [Figure; 4] = [
    ("lookup-p50.svg", "A lookup: half take no longer", "ns", |line| line.lookup_ns.p50),
    ("lookup-p99.svg", "A lookup: 1 of 100 takes as long or longer", "ns", |line| line.lookup_ns.p99),
    ("applied.svg", "Blocks applied on one core", "million a second", |line| line.applied_mblocks_s),
    ("bytes.svg", "Memory for each held block", "bytes", |line| line.bytes_per_held_block),
];

fn main() -> Result<(), Failed> {
    let settings = Settings::parse();
    let lines = Lines::read(&fs::read_to_string(&settings.file)?)?;
    fs::create_dir_all(&settings.out)?;
    for path in write(&lines, &settings.out)? {
        println!("{}", path.display());
    }
    Ok(())
}

/// Returns what was written.
fn write(lines: &Lines, out: &Path) -> Result<Vec<PathBuf>, Failed> {
    let mut written = vec![out.join("table.md")];
    fs::write(&written[0], table::tables(lines))?;
    for (file, title, unit, figure) in FIGURES.iter().filter(|_| !lines.peers.is_empty()) {
        let value = |index: &str, (workload, ranks): (&str, usize)| {
            let is_it =
                |line: &&Peer| line.index == index && line.workload == workload && line.ranks == ranks;
            lines.peers.iter().find(is_it).map(figure)
        };
        let path = out.join(file);
        Bars { title, unit, value: &value }.draw(lines, &path)?;
        written.push(path);
    }
    if !lines.growth.is_empty() {
        let path = out.join("growth.svg");
        growth::draw(&lines.growth, &path)?;
        written.push(path);
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use kvtide_tests::Folder;

    use super::*;

    #[test]
    fn each_figure_becomes_a_plot_with_all_indexes_in_it() {
        let (peer, step) = (lines::tests::PEER, lines::tests::STEP);
        let text = [peer, &peer.replace("kvtide", "kv-index"), step, &step.replace("100000", "2000000")];
        let lines = Lines::read(&text.join("\n")).expect("four lines");
        let folder = Folder::new();
        let written = write(&lines, Path::new(&folder.path(""))).expect("a folder to write to");
        assert_eq!(written.len(), 6);
        for path in &written[1..5] {
            let plot = fs::read_to_string(path).expect("it was written");
            for text in ["kvtide", "kv-index", "churn", "64 ranks"] {
                assert!(plot.contains(text), "{}: no {text}", path.display());
            }
        }
    }
}
