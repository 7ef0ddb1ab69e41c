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
use lines::Lines;

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

const BARS: [Bars; 4] = [
    Bars {
        file: "lookup-p50.svg",
        title: "A lookup: half take no longer",
        unit: "ns",
        figure: |line| line.lookup_ns.p50,
    },
    Bars {
        file: "lookup-p99.svg",
        title: "A lookup: one of 100 takes as long or longer",
        unit: "ns",
        figure: |line| line.lookup_ns.p99,
    },
    Bars {
        file: "applied.svg",
        title: "Blocks applied by one thread",
        unit: "millions a second",
        figure: |line| line.applied_mblocks_s,
    },
    Bars {
        file: "bytes.svg",
        title: "Memory for each held block",
        unit: "bytes",
        figure: |line| line.bytes_per_held_block,
    },
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
    for bars in BARS.iter().filter(|_| !lines.peers.is_empty()) {
        let path = out.join(bars.file);
        bars.draw(lines, &path)?;
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
