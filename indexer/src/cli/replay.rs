//! `kvtide replay`: recorded streams of real engines, every answer compared with the engine's own; or a recording.

mod recording;

use std::{
    io::{IsTerminal, Write, stderr, stdout},
    path::PathBuf,
    process::ExitCode,
};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use kvtide::capture::{Capture, Expectation, Recording, Verdict, replay};
use serde_json::json;

use kvtide::serving::Failure;

#[derive(Args)]
pub(super) struct Arguments {
    /// A folder of captures, with an expect.json that says what is allowed of each; or a recording of kvtide record.
    dir: PathBuf,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut out = stdout().lock();
    if Recording::is_in(&arguments.dir) {
        recording::run(&arguments.dir, arguments.json, &mut out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let captures = Expectation::read_all(&arguments.dir)?;
    let mut all_within = true;
    if !arguments.json {
        writeln!(out, "{:<28} {:>9} {:>9} {:>6} {:>6}", "name", "questions", "exact", "over", "under")?;
    }
    for (path, expected) in captures {
        let capture = Capture::load(&path)?;
        let bar = progress_bar(&capture);
        let verdict = replay(&capture, &expected, |asked| bar.set_position(asked as u64))?;
        bar.finish_and_clear();
        let within = verdict.is_within(&expected);
        all_within &= within;
        let Verdict { questions, over, under } = verdict;
        let (name, exact) = (&capture.name, verdict.exact());
        let (over, under) = (over.iter().sum::<usize>(), under.iter().sum::<usize>());
        if arguments.json {
            let row =
                json!({"name": name, "questions": questions, "exact": exact, "over": over, "under": under});
            writeln!(out, "{row}")?;
        } else {
            let note = if within { "" } else { "  more than expect.json allows" };
            writeln!(out, "{name:<28} {questions:>9} {exact:>9} {over:>6} {under:>6}{note}")?;
        }
    }
    Ok(if all_within { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn progress_bar(capture: &Capture) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(capture.answers() as u64).with_message(capture.name.clone());
    let style = ProgressStyle::with_template("{msg:28} {wide_bar} {pos}/{len} {eta}");
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
