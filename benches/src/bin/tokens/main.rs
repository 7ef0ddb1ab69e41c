//! What it takes from a prompt's tokens to its hashes and to its answer, beside `dynamo-kv-router` and the published
//! indexes that answer exactly.
//!
//! Every side's hashes and answers are compared first. A prompt's tokens have just been written when it is asked for,
//! as a tokenizer leaves them.

mod answers;
mod contestant;
mod fleet;
mod hashing;

use std::time::Duration;

use clap::Parser;
use serde::Serialize;

/// Measures hashing, and answers to tokens.
#[derive(Parser)]
struct Settings {
    /// Rounds that each side runs, in turns.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// A part of the trace, and few rounds.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
}

fn main() -> Result<(), std::io::Error> {
    let Settings { rounds, quick, json } = Settings::parse();
    let (rounds, requests) = if quick { (3, 3_000) } else { (rounds, usize::MAX) };
    let length = Duration::from_millis(if quick { 5 } else { 20 });
    hashing::long_prompts(rounds, length, json);
    hashing::conversations(rounds, length, json);
    answers::answers(rounds, requests, json)
}

/// Prints a row, as JSON or as text.
fn print(json: bool, row: &impl Serialize, text: impl Fn() -> String) {
    match serde_json::to_string(row) {
        Ok(line) if json => println!("{line}"),
        Ok(_) | Err(_) => println!("{}", text()),
    }
}
